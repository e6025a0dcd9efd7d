"""What a node makes of a store that a crash left behind what the node had decided."""

from __future__ import annotations

from bascule.host.real import RealRandom
from bascule.raft.config import RaftConfig
from bascule.raft.membership import MemberChange, Members, encode_members
from bascule.raft.messages import Entry, EntryKind, Heartbeat, RaftSnapshot, VoteReply, VoteRequest
from bascule.raft.node import RaftNode
from bascule.raft.store import PersistentState


def test_a_log_whose_cut_was_not_flushed_is_cut_again() -> None:
    """Otherwise the ring is full before its next snapshot is due, and a group of such members
    takes no proposal any more."""
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


def test_a_leader_that_removed_itself_stands_while_the_removal_is_not_committed() -> None:
    """Its log has one entry more than the other's, who therefore gets no vote from it."""
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


def test_where_leases_are_on_no_request_to_stand_breaks_a_promise() -> None:
    """The leader answers reads on the word that none of those it heard from takes part in an
    election for so long; a voter that stands, or forgets whom it heard, breaks it."""
    config = RaftConfig(lease_reads=True)
    node = RaftNode(
        2, config, PersistentState(initial_members=Members.of(1, 2, 3), term=4), RealRandom(1)
    )
    node.campaign()  # it may have promised before it started
    assert node.ready() is None
    node.tick(config.election_ticks - 1)
    node.step(Heartbeat(1, 2, 4, 0, 1))
    node.tick(config.election_ticks - 1)
    node.ready()
    node.campaign()
    assert node.ready() is None
    node.step(VoteReply(3, 2, 5, False, False))  # a later term, and with it no leader
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
