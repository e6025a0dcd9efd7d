"""What a node makes of a store that a crash left behind what the node had decided."""

from __future__ import annotations

from bascule.host.real import RealRandom
from bascule.raft.config import RaftConfig
from bascule.raft.messages import Entry, Kind, Snapshot
from bascule.raft.node import Node
from bascule.raft.quorum import founded
from bascule.raft.store.contract import Restored


def test_a_log_whose_cut_was_not_flushed_is_cut_again() -> None:
    """Otherwise the ring is full before its next snapshot is due, and a group of such members
    takes no proposal any more."""
    config = RaftConfig(
        commit_count_to_take_snapshot=3, pending_entries_max=1, snapshot_keep_ratio=0.5
    )
    members = founded(1, 2, 3)
    restored = Restored(
        founding=members,
        term=1,
        snapshot=Snapshot(12, 1, members, (b"state",)),
        entries=tuple(Entry(index, 1, Kind.NORMAL, b"x") for index in range(10, 15)),
    )
    assert len(restored.entries) == config.log_capacity
    node = Node(1, config, restored, RealRandom(1))
    assert (node.log.first, node.log.last) == (12, 14)
    ready = node.ready()
    assert ready is not None
    assert ready.write is not None
    assert ready.write.truncate_until == 11
