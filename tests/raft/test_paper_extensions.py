"""Rules of Raft for transfers, members, snapshots, clients and performance; see `test_paper.py`."""

from __future__ import annotations

import zlib

import pytest

from bascule.errors import CannotReplicate, ConfigError, NotLeader
from bascule.raft.config import RaftConfig
from bascule.raft.effects import ReadPolicy, RequestOutcome, Role, WriteDone
from bascule.raft.membership import MemberChange, Members, encode_members
from bascule.raft.messages import (
    AppendReply,
    AppendRequest,
    ChunkReply,
    ChunkRequest,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    SnapshotOffer,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from raft.cluster import (
    CHECKSUM,
    CONFIG,
    DrivenNode,
    acknowledge,
    driven,
    entries,
    follower,
    leader_of,
    restored,
)

# ------------------------------------------------------------ 3.10 leadership transfer


def test_3_10_the_target_gets_timeout_now_when_it_has_the_whole_log() -> None:
    found = leader_of(1, 2, 3)
    found.node.transfer(2)
    assert not any(isinstance(message, TimeoutNow) for message in found.drive())
    with pytest.raises(CannotReplicate):
        found.node.propose(b"x")
    assert TimeoutNow(1, 2, 1) in acknowledge(found, 2)


def test_3_10_the_target_starts_an_election_at_once() -> None:
    found = follower(terms=(1,), term=1)
    found.step(Heartbeat(2, 1, 1, 1, 1))
    sent = found.step(TimeoutNow(2, 1, 1))
    assert sent == [
        VoteRequest(1, to, 2, False, 1, 1, forced=True, settings=CHECKSUM) for to in (2, 3)
    ]


def test_3_10_timeout_now_of_another_node_is_ignored() -> None:
    found = follower(terms=(1,), term=1)
    found.step(Heartbeat(2, 1, 1, 1, 1))
    assert found.step(TimeoutNow(3, 1, 1)) == []
    assert found.node.role is Role.FOLLOWER


def test_3_10_a_transfer_ends_after_an_election_timeout() -> None:
    found = leader_of(1, 2, 3)
    ticket = found.node.transfer(2)
    found.tick(9)
    assert found.answers == []
    found.tick()
    assert [(a.ticket, a.outcome) for a in found.answers] == [(ticket, RequestOutcome.TIMED_OUT)]
    found.node.propose(b"x")


# ------------------------------------------------------------ 4 members


def members_entry(index: int, term: int, members: Members) -> Entry:
    return Entry(index, term, EntryKind.MEMBERS, encode_members(members))


def test_4_1_the_last_members_in_the_log_are_in_force() -> None:
    found = follower(term=1)
    changed = Members((1, 2, 3, 4), (), 1)
    found.step(AppendRequest(2, 1, 1, 0, 0, 0, (members_entry(1, 1, changed),)))
    assert found.node.commit == 0
    assert found.node.members == changed


def test_4_1_truncation_reverts_a_change_of_members() -> None:
    found = follower(term=1)
    entry = members_entry(1, 1, Members((1, 2, 3, 4), (), 1))
    found.step(AppendRequest(2, 1, 1, 0, 0, 0, (entry,)))
    found.step(AppendRequest(3, 1, 2, 0, 0, 0, entries(1, 2)))
    assert found.node.members == Members.of(1, 2, 3)


def test_4_1_one_change_at_a_time() -> None:
    found = leader_of(1, 2, 3)
    acknowledge(found, 2, 3)
    found.node.change_members(MemberChange.ADD_VOTER, 4)
    with pytest.raises(CannotReplicate):
        found.node.change_members(MemberChange.ADD_VOTER, 5)
    found.drive()
    acknowledge(found, 2, 3)  # with node 1, three of four
    found.node.change_members(MemberChange.ADD_VOTER, 5)


def test_4_1_no_change_before_a_commit_in_the_term() -> None:
    """The bug in single-server changes that was found in 2015."""
    found = leader_of(1, 2, 3, terms=(1,))
    with pytest.raises(CannotReplicate):
        found.node.change_members(MemberChange.REMOVE, 3)
    acknowledge(found, 2)
    found.node.change_members(MemberChange.REMOVE, 3)


def test_4_1_messages_of_unknown_members_are_handled() -> None:
    """A leader or candidate that is not a member here may be added by an entry that has not arrived
    yet."""
    found = follower(1, 2, 3)
    (vote,) = found.step(VoteRequest(7, 1, 1, False, 0, 0))
    assert vote == VoteReply(1, 7, 1, False, True)
    found.step(AppendRequest(7, 1, 1, 0, 0, 0, entries(1, 1)))
    assert (found.node.leader, found.node.log.last) == (7, 1)


def test_4_2_1_a_new_member_catches_up_before_it_votes() -> None:
    config = RaftConfig(append_entries_max=5, pending_entries_max=50)
    found = leader_of(1, 2, 3, config=config)
    acknowledge(found, 2, 3)
    found.node.change_members(MemberChange.ADD_LEARNER, 4)
    for _ in range(10):
        found.node.propose(b"x")
    found.drive()
    acknowledge(found, 2, 3)
    with pytest.raises(CannotReplicate):
        found.node.change_members(MemberChange.ADD_VOTER, 4)
    acknowledge(found, 4)
    found.node.change_members(MemberChange.ADD_VOTER, 4)


def test_4_2_1_a_learner_never_starts_an_election() -> None:
    found = driven(4, restored(1, 2, 3), CONFIG)
    found.step(AppendRequest(1, 4, 1, 0, 0, 0, (members_entry(1, 1, Members((1, 2, 3), (4,), 1)),)))
    found.node.campaign()
    found.tick(50)
    assert not any(isinstance(message, VoteRequest) for message in found.sent)


def test_4_2_2_a_removed_leader_leads_until_its_removal_is_committed() -> None:
    found = leader_of(1, 2, 3)
    acknowledge(found, 2, 3)
    found.node.change_members(MemberChange.REMOVE, 1)
    found.drive()
    acknowledge(found, 2)  # with node 1 it would be a majority, but node 1 does not count
    assert (found.node.role, found.node.commit) == (Role.LEADER, 1)
    acknowledge(found, 3)
    assert (found.node.role, found.node.commit) == (Role.FOLLOWER, 2)


def test_4_1_a_demoted_voter_counts_no_longer_and_gets_the_log() -> None:
    found = leader_of(1, 2, 3, 4)
    acknowledge(found, 2, 3)
    found.node.change_members(MemberChange.DEMOTE, 4)
    assert (found.node.members.voters, found.node.members.learners) == ((1, 2, 3), (4,))
    found.drive()
    acknowledge(found, 2)  # with node 1, two of three
    assert found.node.commit == 2
    with pytest.raises(ConfigError, match="changes nothing"):
        found.node.change_members(MemberChange.DEMOTE, 4)
    with pytest.raises(ConfigError, match="leads and cannot be demoted"):
        found.node.change_members(MemberChange.DEMOTE, 1)
    found.node.propose(b"x")
    found.drive()
    acknowledge(found, 4)
    found.node.change_members(MemberChange.ADD_VOTER, 4)


@pytest.mark.parametrize("pre", [True, False], ids=["pre-vote", "vote"])
def test_4_2_3_a_follower_that_hears_a_leader_refuses_vote_requests(pre: bool) -> None:
    found = follower(terms=(1,), term=1)
    found.step(Heartbeat(2, 1, 1, 0, 1))
    found.tick(9)
    assert found.step(VoteRequest(3, 1, 7, pre, 9, 9)) == [VoteReply(1, 3, 1, pre, False)]
    assert found.node.term == 1


def test_4_2_3_a_leader_with_a_quorum_refuses_vote_requests() -> None:
    found = leader_of(1, 2, 3)
    found.step(VoteRequest(3, 1, 7, False, 9, 9))
    assert (found.node.role, found.node.term) == (Role.LEADER, 1)


def test_4_2_3_a_transfer_may_depose_a_leader() -> None:
    found = follower(terms=(1,), term=1)
    found.step(Heartbeat(2, 1, 1, 0, 1))
    (vote,) = found.step(VoteRequest(3, 1, 2, False, 9, 9, forced=True))
    assert vote == VoteReply(1, 3, 2, False, True)


# ------------------------------------------------------------ 5 snapshots

SMALL = RaftConfig(commit_count_to_take_snapshot=4, pending_entries_max=20)


def offer(index: int, term: int, *chunks: bytes, leader_term: int = 9) -> SnapshotOffer:
    sums = tuple(map(zlib.crc32, chunks))
    return SnapshotOffer(2, 1, leader_term, index, term, Members.of(1, 2, 3), sums, (2,))


def serve(found: DrivenNode, of: SnapshotOffer, *chunks: bytes) -> None:
    """Handle the offer, and reply to each request for a chunk."""
    requests = found.step(of)
    while requests:
        request = requests.pop(0)
        if isinstance(request, ChunkRequest):
            data = chunks[request.number]
            reply = ChunkReply(2, 1, 9, request.index, request.number, data)
            requests += found.step(reply)


def test_5_1_a_snapshot_has_its_last_index_term_and_members() -> None:
    found = leader_of(1, config=SMALL)
    for _ in range(4):
        found.node.propose(b"x")
    found.drive()
    snapshot = found.node.log.snapshot
    assert snapshot is not None
    assert (snapshot.index, snapshot.term, snapshot.members) == (4, 1, Members((1,), (), 1))


def test_5_1_a_snapshot_replaces_a_conflicting_log() -> None:
    found = follower(terms=(1, 1, 2, 2, 2, 2), config=SMALL)
    serve(found, offer(4, 3, b"a", b"b"), b"a", b"b")
    node = found.node
    assert (node.log.first, node.log.last, node.commit, node.applied) == (5, 4, 4, 4)
    assert node.log.term_at(4) == 3


def test_5_1_entries_after_a_matching_snapshot_stay() -> None:
    found = follower(terms=(1, 1, 2, 3, 3, 3), config=SMALL)
    found.step(offer(4, 3, b"a"))
    node = found.node
    assert (node.log.last, node.commit) == (6, 4)
    assert not any(isinstance(message, ChunkRequest) for message in found.sent)


def test_5_1_an_old_snapshot_changes_nothing() -> None:
    found = follower(terms=(1, 1, 1, 1, 1), term=1, config=SMALL)
    found.step(Heartbeat(2, 1, 9, 5, 1))
    found.step(offer(4, 1, b"a"))
    assert (found.node.commit, found.node.log.last, found.node.applied) == (5, 5, 5)
    assert not any(isinstance(message, ChunkRequest) for message in found.sent)


def test_5_1_a_chunk_with_another_checksum_is_refused() -> None:
    found = follower(config=SMALL)
    found.step(offer(4, 3, b"a", b"b"))
    found.step(ChunkReply(2, 1, 9, 4, 0, b"x"))
    found.step(ChunkReply(2, 1, 9, 4, 1, b"b"))
    assert found.node.log.snapshot is None
    assert not any(chunk.data == b"x" for write in found.writes for chunk in write.chunks)


# ------------------------------------------------------------ 6 clients


def test_6_2_a_leader_without_a_quorum_steps_down() -> None:
    found = leader_of(1, 2, 3)
    acknowledge(found, 2)
    found.tick(20)
    assert (found.node.role, found.node.leader, found.node.term) == (Role.FOLLOWER, 0, 1)
    with pytest.raises(NotLeader):
        found.node.propose(b"x")


def test_6_2_a_leader_with_a_quorum_stays() -> None:
    found = leader_of(1, 2, 3)
    for _ in range(20):
        beats = [m for m in found.tick(5) if isinstance(m, Heartbeat) and m.target == 2]
        found.step(*(HeartbeatReply(2, 1, 1, beat.round) for beat in beats))
    assert found.node.role is Role.LEADER


def test_6_4_a_term_begins_with_a_no_op() -> None:
    found = leader_of(1, 2, 3, terms=(1, 1))
    entry = found.node.log.entry(3)
    assert (entry.kind, entry.term) == (EntryKind.NO_OP, found.node.term)


def test_6_4_no_read_before_a_commit_in_the_term() -> None:
    found = leader_of(1, 2, 3)
    found.node.read()
    assert not any(isinstance(message, Heartbeat) for message in found.drive())
    assert any(isinstance(message, Heartbeat) for message in acknowledge(found, 2))


def reading(*voters: int) -> tuple[DrivenNode, int]:
    """A leader that has sent the heartbeat round of a read."""
    found = leader_of(*voters)
    acknowledge(found, *voters[1:])
    found.node.read()
    rounds = [m.round for m in found.drive() if isinstance(m, Heartbeat)]
    return found, max(rounds)


def test_6_4_a_read_waits_for_a_majority() -> None:
    found, number = reading(1, 2, 3, 4, 5)
    found.step(HeartbeatReply(2, 1, 1, number))
    assert found.answers == []
    found.step(HeartbeatReply(2, 1, 1, number))  # a repeated reply counts once
    assert found.answers == []
    found.step(HeartbeatReply(3, 1, 1, number))
    assert [answer.outcome for answer in found.answers] == [RequestOutcome.READABLE]


def test_6_4_replies_to_an_earlier_round_do_not_count() -> None:
    found, number = reading(1, 2, 3)
    found.step(HeartbeatReply(2, 1, 1, number - 1))
    assert found.answers == []


def test_6_4_a_read_appends_no_entry() -> None:
    found, number = reading(1, 2, 3)
    last, writes = found.node.log.last, len(found.writes)
    found.step(HeartbeatReply(2, 1, 1, number))
    assert (found.node.log.last, len(found.writes)) == (last, writes)


def test_6_4_followers_do_not_serve_linearizable_reads() -> None:
    found = follower(term=1)
    found.step(Heartbeat(2, 1, 1, 0, 1))
    with pytest.raises(NotLeader) as caught:
        found.node.read()
    assert caught.value.leader == 2


def test_6_4_1_a_lease_ends_by_the_clock_of_the_leader() -> None:
    config = RaftConfig(election_ticks=10, lease_reads=True, lease_margin_ticks=3)
    found = leader_of(1, 2, 3, config=config)
    acknowledge(found, 2, 3)
    beats = [m for m in found.tick(2) if isinstance(m, Heartbeat)]
    found.step(*(HeartbeatReply(m.target, 1, 1, m.round) for m in beats))
    found.tick(6)
    found.node.read(ReadPolicy.LEASE)
    found.drive()
    assert [answer.outcome for answer in found.answers] == [RequestOutcome.READABLE]
    found.tick(1)  # the round was sent 7 = 10 - 3 ticks ago
    found.node.read(ReadPolicy.LEASE)
    found.drive()
    assert len(found.answers) == 1


# ------------------------------------------------------------ 9.6 pre-vote


def test_9_6_a_pre_vote_request_changes_no_term_and_writes_nothing() -> None:
    found = follower(terms=(1,), term=3)
    for _ in range(5):
        found.tick(10)
    requests = [message for message in found.sent if isinstance(message, VoteRequest)]
    assert requests
    assert all(request.pre and request.term == 4 for request in requests)
    assert (found.node.term, found.writes) == (3, [])


def test_9_6_a_pre_vote_reply_changes_no_term_and_no_vote() -> None:
    found = follower(term=3)
    assert found.step(VoteRequest(2, 1, 9, True, 0, 0)) == [VoteReply(1, 2, 9, True, True)]
    assert (found.node.term, found.node.voted_for, found.writes) == (3, 0, [])


# ------------------------------------------------------------ 10.2 performance


def test_10_2_1_the_leader_sends_while_it_writes() -> None:
    node = leader_of(1, 2, 3).node
    node.step(AppendReply(2, 1, 1, True, 1))
    node.ready()
    node.propose(b"x")
    ready = node.ready()
    assert ready is not None
    assert ready.write is not None
    assert ready.write.then_send == ()
    assert any(isinstance(message, AppendRequest) and message.entries for message in ready.send)


def test_10_2_1_the_leader_counts_itself_after_its_write() -> None:
    node = leader_of(1, 2, 3).node
    node.step(AppendReply(2, 1, 1, True, 1))
    node.ready()
    node.propose(b"x")
    ready = node.ready()
    node.step(AppendReply(2, 1, 1, True, 2))
    assert node.commit == 1
    assert ready is not None
    assert ready.write is not None
    node.advance(WriteDone(ready.write.number))
    assert node.commit == 2


def test_10_2_1_a_majority_without_the_leader_commits() -> None:
    node = leader_of(1, 2, 3).node
    node.step(AppendReply(2, 1, 1, True, 1))
    node.ready()
    node.propose(b"x")
    node.ready()
    node.step(AppendReply(2, 1, 1, True, 2))
    node.step(AppendReply(3, 1, 1, True, 2))
    assert node.commit == 2


def test_10_2_2_appends_are_pipelined() -> None:
    found = leader_of(1, 2)
    acknowledge(found, 2)
    found.sent.clear()
    for _ in range(3):
        found.node.propose(b"x")
        found.drive()
    appends = [m for m in found.sent if isinstance(m, AppendRequest)]
    assert [append.previous_index for append in appends] == [1, 2, 3]
