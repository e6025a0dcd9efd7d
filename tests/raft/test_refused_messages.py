"""Messages that break the protocol of one group, and nodes with other settings."""

from __future__ import annotations

import pytest
from msgspec import structs

from bascule.errors import RemoteProtocolError
from bascule.host.real import RealRandom
from bascule.raft.config import RaftConfig
from bascule.raft.membership import Members
from bascule.raft.messages import Heartbeat, RaftMessage, VoteReply
from bascule.raft.node import RaftNode
from bascule.raft.store import PersistentState
from raft.multi_raft_world import replaced
from raft.test_multi import bundles_of, hibernating


def test_a_protocol_error_of_one_group_does_not_affect_the_others() -> None:
    world = hibernating(2)
    leader = world.leader(1)
    other = 1 + leader % 3
    multi_raft = world.multi_raft(other)
    term = multi_raft.node(1).term
    beat = bundles_of(world, 0, leader, other)[-1]
    messages = (
        (1, Heartbeat(leader, other, term, 0, 9, settings=1)),
        (2, Heartbeat(leader, other, multi_raft.node(2).term + 5, 0, 9)),
    )
    before = multi_raft.node(2).term
    ((group, error),) = multi_raft.receive(replaced(beat, messages=messages))
    assert group == 1
    assert "election_ticks, heartbeat_ticks, lease_reads" in str(error)
    assert multi_raft.node(1).term == term, "nothing changed"
    assert multi_raft.node(2).leader == leader
    assert multi_raft.node(2).term == before + 5


def asks_for_a_vote(ours: RaftConfig, theirs: RaftConfig) -> tuple[RaftNode, RaftMessage]:
    """A voter, and what a candidate with other settings sends it."""
    members = PersistentState(initial_members=Members.of(1, 2))
    voter, candidate = (
        RaftNode(number, config, members, RealRandom(number))
        for number, config in ((1, ours), (2, theirs))
    )
    while (ready := candidate.ready()) is None or not ready.send:
        candidate.tick()
    (request,) = ready.send
    return voter, request


@pytest.mark.parametrize("changed", ["election_ticks", "commit_count_to_take_snapshot"])
def test_a_node_with_other_settings_gets_no_vote_where_leases_are_on(changed: str) -> None:
    ours = RaftConfig(lease_reads=True)
    voter, request = asks_for_a_vote(ours, structs.replace(ours, **{changed: 77}))
    with pytest.raises(RemoteProtocolError, match=f"{changed}.*restart all nodes with the same"):
        voter.step(request)
    assert voter.ready() is None


def test_a_node_with_leases_does_not_confirm_a_leader_to_one_without() -> None:
    """It would count on timeouts that the other one does not have."""
    voter = RaftNode(
        1, RaftConfig(), PersistentState(initial_members=Members.of(1, 2)), RealRandom(1)
    )
    leader = RaftConfig(lease_reads=True)
    with pytest.raises(RemoteProtocolError, match="lease_reads"):
        voter.step(Heartbeat(2, 1, 1, 0, 1, leader.sent_checksum))


@pytest.mark.parametrize("changed", ["election_ticks", "commit_count_to_take_snapshot"])
def test_without_leases_settings_may_differ(changed: str) -> None:
    """As in a cluster that is upgraded node by node."""
    ours = RaftConfig()
    voter, request = asks_for_a_vote(ours, structs.replace(ours, **{changed: 77}))
    voter.step(request)
    ready = voter.ready()
    assert ready is not None
    (reply,) = ready.send
    assert isinstance(reply, VoteReply)
    assert reply.granted
