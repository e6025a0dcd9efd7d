"""A fetch of a snapshot ends although newer snapshots are taken meanwhile."""

from __future__ import annotations

from bascule.raft.config import RaftConfig
from bascule.raft.messages import AppendReply, ChunkReply, ChunkRequest, SnapshotOffer
from raft.cluster import DrivenNode, acknowledge, leader_of

CONFIG = RaftConfig(
    election_ticks=10, heartbeat_ticks=2, commit_count_to_take_snapshot=4, snapshot_keep_ratio=0.0
)


def propose(found: DrivenNode, count: int) -> None:
    for _ in range(count):
        found.node.propose(b"x")
        found.drive()
        acknowledge(found, 2)


def offers(found: DrivenNode) -> list[int]:
    """The indices of the snapshots that were offered to node 3."""
    return [m.index for m in found.sent if isinstance(m, SnapshotOffer) and m.target == 3]


def chunk_at(found: DrivenNode, index: int) -> bytes | None:
    (reply,) = (
        message
        for message in found.step(ChunkRequest(3, 1, 1, index, 0))
        if isinstance(message, ChunkReply)
    )
    return reply.data


def lagging() -> DrivenNode:
    """A leader with a snapshot at 8 that is offered to node 3."""
    found = leader_of(1, 2, 3, config=CONFIG)
    acknowledge(found, 2)
    propose(found, 8)
    found.step(AppendReply(3, 1, 1, False, 0))
    found.tick(4)
    assert found.node.log.snapshot_index == 8
    assert offers(found)[-1] == 8
    return found


def test_a_snapshot_that_is_fetched_is_kept_and_offered() -> None:
    found = lagging()
    for _ in range(5):
        assert chunk_at(found, 8) == b"state"
        propose(found, 4)
        found.sent.clear()
        found.tick(2)
        assert set(offers(found)) == {8}
    assert found.node.log.snapshot_index == 28
    assert chunk_at(found, 28) == b"state"


def test_it_is_dropped_when_nobody_requests_it() -> None:
    found = lagging()
    assert chunk_at(found, 8) == b"state"
    propose(found, 4)
    for _ in range(2 * CONFIG.election_ticks + 2):
        found.tick()
        acknowledge(found, 2)
    found.sent.clear()
    found.tick(2)
    assert set(offers(found)) == {12}
    assert chunk_at(found, 8) is None


def test_a_snapshot_that_nobody_fetches_is_not_kept() -> None:
    found = lagging()
    propose(found, 4)
    assert chunk_at(found, 8) is None
    found.sent.clear()
    found.tick(2)
    assert set(offers(found)) == {12}
