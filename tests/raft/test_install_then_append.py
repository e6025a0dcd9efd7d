"""A snapshot is installed, and an append behind it arrives before the next `ready`."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from bascule.raft.config import RaftConfig
from bascule.raft.effects import WriteDone
from bascule.raft.membership import Members
from bascule.raft.messages import (
    AppendRequest,
    ChunkReply,
    Entry,
    EntryKind,
    RaftSnapshot,
    SnapshotOffer,
)
from bascule.raft.node import RaftNode
from bascule.raft.store import RaftStore, persist_write
from bascule.raft.testing.memory_store import MemoryStore
from bascule.raft_driver.sqlite_store import SqliteDatabase
from raft.cluster import done
from raft.environment import FixedRandom

MEMBERS = Members.of(1, 2, 3)
CHUNK = b"state at 10"


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("last", [5, 9, 12])
def test_the_store_gets_both_in_one_write(kind: str, last: int, tmp_path: Path) -> None:
    """`last`: the store's last entry, before the snapshot's index or behind it."""
    path = str(tmp_path / "raft.sqlite")
    database = SqliteDatabase.open(path, node_id=2)
    store: RaftStore = MemoryStore() if kind == "memory" else database.store(1)
    store.load()
    store.bootstrap(MEMBERS)
    config = RaftConfig(commit_count_to_take_snapshot=10, pending_entries_max=5)
    node = RaftNode(2, config, store.load(), FixedRandom())

    def carry_out() -> None:
        while (ready := node.ready()) is not None:
            if (write := ready.write) is not None:
                persist_write(store, write)
                store.flush()
                node.advance(WriteDone(write.number))
            if ready.apply is not None:
                node.advance(done(ready.apply))

    entries = tuple(Entry(index, 1, EntryKind.NORMAL, b"") for index in range(1, last + 1))
    node.step(AppendRequest(1, 2, 1, 0, 0, 0, entries))
    carry_out()
    node.step(SnapshotOffer(3, 2, 2, 10, 2, MEMBERS, (zlib.crc32(CHUNK),), (3,)))
    carry_out()
    node.step(ChunkReply(3, 2, 2, 10, 0, CHUNK))
    ready = node.ready()
    assert ready is not None
    assert ready.write is not None
    persist_write(store, ready.write)
    store.flush()
    # One turn of the loop: the write is done, an append arrives, and only then `ready`.
    node.advance(WriteDone(ready.write.number))
    node.step(AppendRequest(3, 2, 2, 10, 2, 10, (Entry(11, 2, EntryKind.NO_OP, b""),)))
    carry_out()
    found = store.load()
    assert found.snapshot == RaftSnapshot(10, 2, MEMBERS, (CHUNK,))
    assert [entry.index for entry in found.entries] == [11]
    database.close()
