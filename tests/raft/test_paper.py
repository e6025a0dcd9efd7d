"""One test for each rule of Raft; the number in a name is the section of Ongaro's thesis."""

from __future__ import annotations

import pytest

from bascule.host.real import RealRandom
from bascule.raft.config import RaftConfig
from bascule.raft.effects import Ready, Role, WriteDone
from bascule.raft.messages import (
    AnyMessage,
    AppendReply,
    AppendRequest,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    VoteReply,
    VoteRequest,
)
from bascule.raft.node import RaftNode
from raft.cluster import (
    CHECKSUM,
    CONFIG,
    Cluster,
    acknowledge,
    candidacy,
    driven,
    entries,
    follower,
    leader_of,
    log_terms,
    restored,
)
from raft.environment import FixedRandom

# ------------------------------------------------------------ 3.3 terms


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER])
@pytest.mark.parametrize(
    "message",
    [
        AppendRequest(2, 1, 9, 0, 0, 0, ()),
        Heartbeat(2, 1, 9, 0, 1),
        AppendReply(2, 1, 9, False, 0),
        HeartbeatReply(2, 1, 9, 1),
        VoteReply(2, 1, 9, False, False),
        VoteReply(2, 1, 9, True, False),
    ],
    ids=lambda message: type(message).__name__,
)
def test_3_3_a_later_term_makes_a_follower(role: Role, message: AnyMessage) -> None:
    found = follower()
    if role is Role.PRE_CANDIDATE:
        found.node.campaign()
    elif role is Role.CANDIDATE:
        candidacy(found)
    elif role is Role.LEADER:
        found = leader_of(1, 2, 3)
    assert found.node.role is role
    found.step(message)
    assert (found.node.role, found.node.term, found.node.voted_for) == (Role.FOLLOWER, 9, 0)


def test_3_3_a_stale_leader_is_refused_with_the_current_term() -> None:
    found = follower(term=5)
    sent = found.step(AppendRequest(2, 1, 4, 0, 0, 0, entries(1, 4)))
    assert found.node.log.last == 0
    assert [(type(reply), reply.term) for reply in sent] == [(AppendReply, 5)]
    assert found.node.leader == 0


def test_3_3_a_stale_candidate_is_refused_with_the_current_term() -> None:
    found = follower(term=5)
    assert found.step(VoteRequest(2, 1, 4, False, 9, 4)) == [VoteReply(1, 2, 5, False, False)]


# ------------------------------------------------------------ 3.4 leader election


def test_3_4_a_node_starts_as_follower() -> None:
    assert follower().node.role is Role.FOLLOWER
    assert follower(terms=(1, 2)).node.role is Role.FOLLOWER


@pytest.mark.parametrize("more", [0, 3, 9])
def test_3_4_an_election_starts_after_the_election_timeout(more: int) -> None:
    random = FixedRandom()
    random.extra = more
    found = driven(1, restored(1, 2, 3), CONFIG, random)
    found.tick(9 + more)
    assert found.node.role is Role.FOLLOWER
    found.tick()
    assert found.node.role is Role.PRE_CANDIDATE


def test_who_hears_no_leader_is_less_patient() -> None:
    config = RaftConfig(election_ticks=10, leaderless_election_ticks=4)
    random = FixedRandom()
    random.extra = 5
    found = driven(1, restored(1, 2, 3), config, random)
    found.tick(5)
    assert found.node.role is Role.FOLLOWER
    found.tick()
    assert found.node.role is Role.PRE_CANDIDATE, "four ticks and 4/10 of what was drawn"
    found = driven(1, restored(1, 2, 3), config, random)
    found.step(Heartbeat(2, 1, 1, 0, 1))
    found.tick(14)
    assert found.node.role is Role.FOLLOWER
    found.tick()
    assert found.node.role is Role.PRE_CANDIDATE
    found.tick(6)
    assert found.node.role is Role.PRE_CANDIDATE
    assert len(found.sent) > 2, "it has asked again"


@pytest.mark.parametrize(
    "message",
    [Heartbeat(2, 1, 1, 0, 1), AppendRequest(2, 1, 1, 0, 0, 0, ())],
    ids=["heartbeat", "append"],
)
def test_3_4_messages_of_the_leader_restart_the_election_timeout(message: AnyMessage) -> None:
    found = follower()
    for _ in range(5):
        found.tick(9)
        found.step(message)
    assert found.node.role is Role.FOLLOWER


def test_3_4_granting_a_vote_restarts_the_election_timeout() -> None:
    found = follower()
    found.tick(9)
    found.step(VoteRequest(2, 1, 1, False, 0, 0))
    found.tick(9)
    assert found.node.role is Role.FOLLOWER


def test_3_4_a_candidate_begins_a_term_votes_for_itself_and_requests_votes() -> None:
    found = follower(1, 2, 3, terms=(1, 4), term=5)
    asked = candidacy(found)
    assert (found.node.role, found.node.term, found.node.voted_for) == (Role.CANDIDATE, 6, 1)
    assert asked == [
        VoteRequest(1, 2, 6, False, last_index=2, last_term=4, settings=CHECKSUM),
        VoteRequest(1, 3, 6, False, last_index=2, last_term=4, settings=CHECKSUM),
    ]


@pytest.mark.parametrize(
    ("size", "yes", "no", "role"),
    [
        (1, 0, 0, Role.LEADER),
        (2, 0, 0, Role.CANDIDATE),
        (2, 1, 0, Role.LEADER),
        (3, 0, 1, Role.CANDIDATE),
        (3, 1, 0, Role.LEADER),
        (3, 0, 2, Role.FOLLOWER),
        (4, 1, 0, Role.CANDIDATE),
        (4, 2, 0, Role.LEADER),
        (5, 1, 2, Role.CANDIDATE),
        (5, 2, 2, Role.LEADER),
        (5, 1, 3, Role.FOLLOWER),
    ],
)
def test_3_4_a_majority_elects(size: int, yes: int, no: int, role: Role) -> None:
    found = follower(*range(1, size + 1))
    candidacy(found)
    voters = iter(range(2, size + 1))
    found.step(*(VoteReply(next(voters), 1, 1, False, True) for _ in range(yes)))
    found.step(*(VoteReply(next(voters), 1, 1, False, False) for _ in range(no)))
    assert found.node.role is role


def test_3_4_a_repeated_vote_counts_once() -> None:
    found = follower(1, 2, 3, 4, 5)
    candidacy(found)
    found.step(*[VoteReply(2, 1, 1, False, True)] * 4)
    assert found.node.role is Role.CANDIDATE


def test_3_4_the_own_vote_counts_when_it_is_on_disk() -> None:
    node = follower(1, 2).node
    node.campaign()
    node.ready()
    node.step(VoteReply(2, 1, 1, True, True))
    ready = node.ready()
    assert ready is not None
    assert ready.write is not None
    node.step(VoteReply(2, 1, 1, False, True))
    assert node.role is Role.CANDIDATE
    node.advance(WriteDone(ready.write.number))
    assert node.role is Role.LEADER


def test_3_4_one_vote_per_term_to_the_first_candidate() -> None:
    found = follower()
    assert found.step(VoteRequest(2, 1, 1, False, 0, 0)) == [VoteReply(1, 2, 1, False, True)]
    assert found.step(VoteRequest(3, 1, 1, False, 0, 0)) == [VoteReply(1, 3, 1, False, False)]
    assert found.step(VoteRequest(2, 1, 1, False, 0, 0)) == [VoteReply(1, 2, 1, False, True)]


def test_3_4_a_new_leader_sends_its_no_op_and_heartbeats() -> None:
    found = leader_of(1, 2, 3)
    beats = [(m.target, type(m)) for m in found.tick(2) if isinstance(m, Heartbeat)]
    assert beats == [(2, Heartbeat), (3, Heartbeat)]
    assert [m for m in found.tick(1) if isinstance(m, Heartbeat)] == []
    assert len([m for m in found.tick(1) if isinstance(m, Heartbeat)]) == 2


def test_3_4_a_candidate_follows_the_leader_of_its_term() -> None:
    found = follower()
    candidacy(found)
    found.step(AppendRequest(3, 1, 1, 0, 0, 0, ()))
    assert (found.node.role, found.node.leader, found.node.term) == (Role.FOLLOWER, 3, 1)
    assert found.node.voted_for == 1


def test_3_4_a_split_vote_ends_in_a_new_term() -> None:
    found = follower()
    candidacy(found)
    found.tick(10)
    assert found.node.role is Role.PRE_CANDIDATE
    found.step(VoteReply(2, 1, 2, True, True))
    assert (found.node.role, found.node.term) == (Role.CANDIDATE, 2)
    found.step(VoteReply(2, 1, 1, False, True))  # of the last term
    assert found.node.role is Role.CANDIDATE


def test_3_4_election_timeouts_are_random() -> None:
    timeouts = set()
    for seed in range(50):
        node = RaftNode(1, CONFIG, restored(1, 2, 3), RealRandom(seed))
        ticks = 0
        while node.role is Role.FOLLOWER:
            node.tick()
            ticks += 1
        timeouts.add(ticks)
    assert timeouts == set(range(10, 20))


# ------------------------------------------------------------ 3.5 log replication


def test_3_5_a_leader_appends_and_sends_to_all() -> None:
    found = leader_of(1, 2, 3)
    acknowledge(found, 2, 3)
    found.sent.clear()
    found.node.propose(b"x")
    entry = Entry(2, 1, EntryKind.NORMAL, b"x")
    sent = [message for message in found.drive() if isinstance(message, AppendRequest)]
    assert sent == [AppendRequest(1, to, 1, 1, 1, 1, (entry,)) for to in (2, 3)]


@pytest.mark.parametrize(
    ("size", "acks", "committed"),
    [(1, 0, True), (2, 0, False), (2, 1, True), (3, 1, True), (4, 1, False), (4, 2, True),
     (5, 1, False), (5, 2, True)],
)  # fmt: skip
def test_3_5_an_entry_on_a_majority_is_committed(size: int, acks: int, committed: bool) -> None:
    found = leader_of(*range(1, size + 1))
    acknowledge(found, *range(2, 2 + acks))
    assert (found.node.commit == 1) is committed


def test_3_5_entries_before_a_committed_entry_are_committed() -> None:
    found = leader_of(1, 2, 3, terms=(1, 2, 3))
    assert found.node.commit == 0
    acknowledge(found, 2)
    assert found.node.commit == 4
    assert [entry.index for entry in found.applied] == [1, 2, 3, 4]


def test_3_5_followers_apply_committed_entries_in_order() -> None:
    found = follower()
    found.step(AppendRequest(2, 1, 1, 0, 0, 0, entries(1, 1, 1, 1)))
    assert found.applied == []
    found.step(Heartbeat(2, 1, 1, 2, 1))
    found.step(Heartbeat(2, 1, 1, 3, 2))
    assert [entry.index for entry in found.applied] == [1, 2, 3]


def test_3_5_a_follower_commits_only_up_to_its_match() -> None:
    """Entries after the last new one may be those of another leader."""
    found = follower(terms=(1, 1, 1))
    found.step(AppendRequest(2, 1, 2, 1, 1, 3, ()))
    assert found.node.commit == 1


@pytest.mark.parametrize(
    ("previous", "of", "matches"),
    [(0, 0, True), (1, 1, True), (2, 2, True), (2, 1, False), (3, 2, False), (3, 3, False)],
)
def test_3_5_entries_are_accepted_only_after_the_same_previous_entry(
    previous: int, of: int, matches: bool
) -> None:
    found = follower(terms=(1, 2))
    (reply,) = found.step(AppendRequest(2, 1, 3, previous, of, 0, entries(previous + 1, 3)))
    assert isinstance(reply, AppendReply)
    assert reply.matched is matches
    assert found.node.log.last == (previous + 1 if matches else 2)


@pytest.mark.parametrize(
    "terms",
    [
        (1, 1, 1, 4, 4, 5, 5, 6, 6),
        (1, 1, 1, 4),
        (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
        (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
        (1, 1, 1, 4, 4, 4, 4),
        (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
        (),
    ],
    ids=["a", "b", "c", "d", "e", "f", "empty"],
)
def test_3_5_a_leader_makes_all_logs_equal_to_its_own(terms: tuple[int, ...]) -> None:
    """Figure 3.6 (figure 7 of the paper)."""
    mine = (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)
    found = driven(1, restored(1, 2, 3, terms=mine, term=7), CONFIG)
    candidacy(found)
    other = driven(2, restored(1, 2, 3, terms=terms), CONFIG)
    network = found.step(VoteReply(3, 1, 8, False, True))
    while network:
        message = network.pop(0)
        if message.target in (1, 2):
            network += (found if message.target == 1 else other).step(message)
    assert log_terms(other.node) == log_terms(found.node) == [*mine, 8]
    assert other.node.commit == found.node.commit == 11


def test_3_5_conflicting_entries_are_removed_with_all_later_ones() -> None:
    found = follower(terms=(1, 1, 2, 2, 2))
    found.step(AppendRequest(2, 1, 3, 2, 1, 0, entries(3, 3)))
    assert log_terms(found.node) == [1, 1, 3]
    assert found.writes[-1].truncate_from == 3


def test_3_5_matching_entries_stay() -> None:
    """A delayed append has no information about the entries after its own."""
    found = follower(terms=(1, 1, 1))
    found.step(AppendRequest(2, 1, 1, 0, 0, 0, entries(1, 1)))
    assert log_terms(found.node) == [1, 1, 1]
    assert not any(write.entries or write.truncate_from for write in found.writes)


def test_3_5_at_most_one_refusal_per_term() -> None:
    """The optimization of section 3.5: a refusal names a term, and all its entries are skipped."""
    found = driven(1, restored(1, 2, 3, terms=(1,) * 50 + (5,) * 50), CONFIG)
    candidacy(found)
    other = driven(2, restored(1, 2, 3, terms=(1,) * 50 + (2,) * 20 + (3,) * 30), CONFIG)
    network = found.step(VoteReply(3, 1, 6, False, True))
    refusals = 0
    while network:
        message = network.pop(0)
        refusals += isinstance(message, AppendReply) and not message.matched
        if message.target in (1, 2):
            network += (found if message.target == 1 else other).step(message)
    assert log_terms(other.node) == log_terms(found.node)
    assert refusals == 1


# ------------------------------------------------------------ 3.6 safety


@pytest.mark.parametrize(
    ("index", "term", "granted"),
    [(3, 2, True), (4, 2, True), (2, 2, False), (1, 3, True), (9, 1, False), (0, 0, False)],
)
@pytest.mark.parametrize("pre", [True, False], ids=["pre-vote", "vote"])
def test_3_6_1_votes_only_for_logs_that_are_as_complete(
    index: int, term: int, granted: bool, pre: bool
) -> None:
    found = follower(terms=(1, 1, 2))
    (reply,) = found.step(VoteRequest(2, 1, 5, pre, index, term))
    assert isinstance(reply, VoteReply)
    assert (reply.granted, reply.pre) == (granted, pre)


def test_3_6_2_entries_of_old_terms_are_not_committed_by_counting() -> None:
    found = leader_of(1, 2, 3, 4, 5, terms=(1, 2), config=CONFIG)
    acknowledge(found, 2, 3, 4, 5, index=2)
    assert found.node.commit == 0
    acknowledge(found, 2, 3)
    assert found.node.commit == 3


# ------------------------------------------------------------ 3.7, 3.8 retries and restarts


def test_3_7_repeated_messages_change_nothing() -> None:
    found = follower()
    append = AppendRequest(2, 1, 1, 0, 0, 1, entries(1, 1, 1))
    first = found.step(append)
    assert found.step(append) == first
    assert log_terms(found.node) == [1, 1]
    assert [entry.index for entry in found.applied] == [1]


def ready_after(node: RaftNode, message: AnyMessage) -> Ready:
    node.step(message)
    ready = node.ready()
    assert ready is not None
    return ready


@pytest.mark.parametrize(
    ("message", "vote", "count"),
    [
        (VoteRequest(2, 1, 1, False, 0, 0), (1, 2), 0),
        (AppendRequest(2, 1, 1, 0, 0, 0, entries(1, 1)), (1, 0), 1),
    ],
    ids=["vote", "append"],
)
def test_3_8_replies_wait_for_the_disk(
    message: AnyMessage, vote: tuple[int, int], count: int
) -> None:
    ready = ready_after(follower().node, message)
    assert ready.send == ()
    assert ready.write is not None
    assert ready.must_sync
    assert (ready.write.vote, len(ready.write.entries)) == (vote, count)
    assert [reply.target for reply in ready.write.then_send] == [2]


def test_3_8_term_vote_and_log_survive_a_restart() -> None:
    found = driven(1, restored(1, 2, 3, terms=(1, 1), term=4, voted_for=2), CONFIG)
    assert (found.node.term, found.node.voted_for, log_terms(found.node)) == (4, 2, [1, 1])
    assert found.step(VoteRequest(3, 1, 4, False, 9, 3)) == [VoteReply(1, 3, 4, False, False)]


def test_3_8_the_commit_index_is_learnt_again_after_a_restart() -> None:
    found = follower(terms=(1, 1, 1))
    assert (found.node.commit, found.node.applied) == (0, 0)
    found.step(Heartbeat(2, 1, 1, 3, 1))
    assert [entry.index for entry in found.applied] == [1, 2, 3]


def test_a_group_elects_commits_and_survives_its_leader() -> None:
    """Five nodes elect a leader, commit, lose the leader and continue."""
    cluster = Cluster(CONFIG, 1, 2, 3, 4, 5)
    cluster.elect(1).propose(b"a")
    cluster.settle()
    for other in (2, 3, 4, 5):
        cluster.cut(1, other)
    for voter in (2, 3, 4, 5):
        cluster.driven[voter].tick(10)
    cluster.elect(2).propose(b"b")
    cluster.settle()
    payloads = [e.payload for e in cluster.driven[5].applied if e.kind == EntryKind.NORMAL]
    assert payloads == [b"a", b"b"]
