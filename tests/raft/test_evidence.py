"""What a node may conclude from a reply, and what not: matches, rounds, leases, outcomes, rest."""

from __future__ import annotations

import pytest

from bascule.raft.config import RaftConfig
from bascule.raft.effects import ReadPolicy, RequestOutcome
from bascule.raft.membership import MemberChange
from bascule.raft.messages import (
    AppendReply,
    AppendRequest,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
)
from bascule.raft.node import RaftNode
from raft.cluster import DrivenNode, acknowledge, entries, follower, leader_of

CONFIG = RaftConfig(election_ticks=10, heartbeat_ticks=2, lease_reads=True, lease_margin_ticks=2)


def leader(*voters: int, terms: tuple[int, ...] = ()) -> DrivenNode:
    """Node 1, which leads and has committed its first entry."""
    found = leader_of(*voters, terms=terms, config=CONFIG)
    acknowledge(found, *(voter for voter in voters if voter != 1))
    assert found.node.commit == found.node.log.last
    found.sent.clear()
    return found


def outcome_of(found: DrivenNode, ticket: int) -> RequestOutcome | None:
    return next((answer.outcome for answer in found.answers if answer.ticket == ticket), None)


def round_of(found: DrivenNode) -> int:
    """The last round of heartbeats that was sent."""
    return max(message.round for message in found.sent if isinstance(message, Heartbeat))


# -- rounds ----------------------------------------------------------------------------------


def test_a_reply_of_an_earlier_term_confirms_no_read() -> None:
    """Rounds are numbered from 1 in each term, so the number alone says nothing."""
    found = leader(1, 2, 3, terms=(1, 1, 2))
    assert found.node.term == 3
    ticket = found.node.read()
    found.drive()
    for term in (1, 2):
        found.step(HeartbeatReply(2, 1, term, 1_000), HeartbeatReply(3, 1, term, 1_000))
    assert outcome_of(found, ticket) is None
    found.step(HeartbeatReply(2, 1, 3, round_of(found)))
    assert outcome_of(found, ticket) is RequestOutcome.READABLE


@pytest.mark.parametrize("learners", [(4,), (4, 5), (4, 5, 6, 7)])
@pytest.mark.parametrize("is_open", [False, True])
def test_learners_confirm_no_read_and_no_lease(learners: tuple[int, ...], is_open: bool) -> None:
    found = leader(1, 2, 3)
    for learner in learners:
        found.node.change_members(MemberChange.ADD_LEARNER, learner)
        found.drive()
        if learner != learners[-1] or not is_open:
            acknowledge(found, 2, 3, *found.node.members.learners)
    assert (found.node.members.index > found.node.commit) is is_open
    found.tick(CONFIG.election_ticks - 1)
    found.sent.clear()
    linearizable, lease = found.node.read(), found.node.read(ReadPolicy.LEASE)
    found.drive()
    found.step(*(HeartbeatReply(n, 1, found.node.term, round_of(found)) for n in learners))
    assert outcome_of(found, linearizable) is None
    assert outcome_of(found, lease) is None
    found.step(HeartbeatReply(2, 1, found.node.term, round_of(found)))
    assert outcome_of(found, linearizable) is RequestOutcome.READABLE


# -- leases ----------------------------------------------------------------------------------


def has_lease(found: DrivenNode) -> bool:
    """Whether a read by lease is answered at once."""
    ticket = found.node.read(ReadPolicy.LEASE, deadline_ticks=1)
    found.drive()
    return outcome_of(found, ticket) is RequestOutcome.READABLE


@pytest.mark.parametrize("travels", [0, 3, 7])
def test_a_lease_counts_from_the_round_and_not_from_its_reply(travels: int) -> None:
    found = leader(1, 2, 3)
    found.tick(2)
    sent = round_of(found)
    found.tick(travels)
    found.step(HeartbeatReply(2, 1, found.node.term, sent))
    length = CONFIG.election_ticks - CONFIG.lease_margin_ticks
    found.tick(length - travels - 1)
    assert has_lease(found)
    found.tick()
    assert not has_lease(found)


def test_a_late_reply_gives_no_lease() -> None:
    found = leader(1, 2, 3)
    found.tick(2)
    sent = round_of(found)
    found.step(HeartbeatReply(3, 1, found.node.term, sent - 1))  # it is not deposed
    found.tick(8)
    found.step(HeartbeatReply(2, 1, found.node.term, sent))
    assert not has_lease(found)


@pytest.mark.parametrize("wakes_by", ["request", "reply", "call"])
def test_waking_renews_no_lease(wakes_by: str) -> None:
    found = leader(1, 2, 3)
    found.tick(2)
    found.step(*(HeartbeatReply(n, 1, found.node.term, round_of(found)) for n in (2, 3)))
    assert has_lease(found)
    assert found.node.may_hibernate()
    found.node.hibernate_as_leader()
    found.node.tick(50)
    if wakes_by == "request":
        found.node.propose(b"x")
    elif wakes_by == "reply":
        found.node.step(AppendReply(2, 1, found.node.term, True, 1))
    else:
        found.node.wake()
    found.drive()
    assert not found.node.hibernating
    assert not has_lease(found)


# -- matches ---------------------------------------------------------------------------------


def match_of(found: DrivenNode, request: AppendRequest) -> int:
    (reply,) = (m for m in found.step(request) if isinstance(m, AppendReply))
    assert reply.matched
    return reply.index


def test_a_follower_reports_what_it_compared_and_no_more() -> None:
    """Its entries 3 to 5 are of a leader that never committed them."""
    found = follower(terms=(1, 1, 2, 2, 2), term=3)
    assert match_of(found, AppendRequest(2, 1, 4, 2, 1, 0, ())) == 2
    assert match_of(found, AppendRequest(2, 1, 4, 1, 1, 2, entries(2, 1))) == 2
    assert found.node.log.last == 5, "a delayed append does not say what follows it"
    # Below the commit index all logs are equal, so that counts as compared.
    assert match_of(found, AppendRequest(2, 1, 4, 0, 0, 2, entries(1, 1))) == 2
    assert match_of(found, AppendRequest(2, 1, 4, 2, 1, 2, entries(3, 4))) == 3
    assert found.node.log.last == 3


# -- outcomes --------------------------------------------------------------------------------


def truncated_proposal() -> tuple[DrivenNode, int]:
    """A proposal of node 1 at index 3 in term 2, which another leader truncated there."""
    found = leader_of(1, 2, 3, terms=(1,), config=CONFIG)
    assert (found.node.term, found.node.log.last) == (2, 2)
    ticket = found.node.propose(b"x")
    found.drive()
    found.step(AppendRequest(2, 1, 3, 2, 2, 0, (Entry(3, 3, EntryKind.NO_OP, b""),)))
    assert found.node.log.term_at(3) == 3
    assert outcome_of(found, ticket) is None
    return found, ticket


def test_a_commit_of_its_own_term_decides_no_truncated_proposal() -> None:
    """Entry 2 of term 2 is committed. Entry 3 of term 2 may be, too: a node that has it may be
    elected."""
    found, ticket = truncated_proposal()
    found.step(Heartbeat(2, 1, 3, 2, 1))
    assert found.node.commit == 2
    assert outcome_of(found, ticket) is None


def test_a_commit_of_a_later_term_decides_it() -> None:
    found, ticket = truncated_proposal()
    found.step(Heartbeat(2, 1, 3, 3, 1))
    assert outcome_of(found, ticket) is RequestOutcome.NOT_LEADER


# -- hibernation -----------------------------------------------------------------------------


def hibernates(node: RaftNode, index: int) -> bool:
    return node.hibernate_as_follower(2, node.term, index)


def test_a_follower_hibernates_only_at_its_commit_index() -> None:
    found = follower(terms=(1, 1, 1), term=1, config=CONFIG)
    found.step(Heartbeat(2, 1, 1, 2, 1))
    assert (found.node.log.last, found.node.commit) == (3, 2)
    for index in (1, 2, 3, 4):
        assert not hibernates(found.node, index)
    found.step(Heartbeat(2, 1, 1, 3, 2))
    assert not hibernates(found.node, 2)
    assert hibernates(found.node, 3)
