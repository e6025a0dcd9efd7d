"""A node starts from a store that lacks its last unflushed changes."""

from __future__ import annotations

from bascule.host.real import RealRandom
from bascule.raft.config import RaftConfig
from bascule.raft.membership import MemberChange, Members, encode_members
from bascule.raft.messages import Entry, EntryKind, Heartbeat, RaftSnapshot, VoteReply, VoteRequest
from bascule.raft.node import RaftNode
from bascule.raft.store import PersistentState


def test_an_unflushed_compaction_is_repeated_after_a_restart() -> None:
    """Otherwise the ring would be full before the next snapshot, and the group could accept no
    proposal."""
    config = RaftConfig(
        commit_count_to_take_snapshot=3, pending_entries_max=1, snapshot_keep_ratio=0.5
    )
    members = Members.of(1, 2, 3)
    restored = PersistentState(
        initial_members=members,
        term=1,
        snapshot=RaftSnapshot(12, 1, members, (b"state",)),
        entries=tuple(Entry(index, 1, EntryKind.NORMAL, b"x") for index in range(10, 15)),
    )
    assert len(restored.entries) == config.log_capacity
    node = RaftNode(1, config, restored, RealRandom(1))
    assert (node.log.first, node.log.last) == (12, 14)
    ready = node.ready()
    assert ready is not None
    assert ready.write is not None
    assert ready.write.truncate_until == 11


def test_a_removed_leader_may_campaign_until_the_removal_is_committed() -> None:
    """Its log has one entry more than that of the other node, so it does not vote for that node."""
    initial_members = Members.of(1, 4)
    removal = encode_members(initial_members.changed(MemberChange.REMOVE, 1, 1))
    restored = PersistentState(
        initial_members=initial_members, term=1, entries=(Entry(1, 1, EntryKind.MEMBERS, removal),)
    )
    node = RaftNode(1, RaftConfig(), restored, RealRandom(1))
    assert node.members.voters == (4,)
    node.tick(2 * node.config.election_ticks)
    ready = node.ready()
    assert ready is not None
    (asked,) = ready.send
    assert isinstance(asked, VoteRequest)
    assert (asked.target, asked.pre, asked.last_index) == (4, True, 1)


def test_timeout_now_does_not_break_a_lease() -> None:
    """A lease depends on voters that take part in no election within the timeout after the leader's
    last message. A voter must not start one, nor forget the leader at a new term."""
    config = RaftConfig(lease_reads=True)
    node = RaftNode(
        2, config, PersistentState(initial_members=Members.of(1, 2, 3), term=4), RealRandom(1)
    )
    node.campaign()  # before its start it may have extended a lease
    assert node.ready() is None
    node.tick(config.election_ticks - 1)
    node.step(Heartbeat(1, 2, 4, 0, 1))
    node.tick(config.election_ticks - 1)
    node.ready()
    node.campaign()
    assert node.ready() is None
    node.step(VoteReply(3, 2, 5, False, False))  # a later term: the leader is not known any more
    node.step(VoteRequest(3, 2, 5, False, 9, 9))
    ready = node.ready()
    assert ready is not None
    replies = [*ready.send, *(ready.write.then_send if ready.write else ())]
    assert replies == [VoteReply(2, 3, 5, False, False)]
    node.tick(1)
    node.step(VoteRequest(3, 2, 5, False, 9, 9))
    ready = node.ready()
    assert ready is not None
    assert ready.write is not None
    assert ready.write.then_send == (VoteReply(2, 3, 5, False, True),)
