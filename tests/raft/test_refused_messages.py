"""Messages that break the protocol of one group, and nodes with other settings."""

from __future__ import annotations

import pytest
from msgspec import structs

from bascule.errors import RemoteProtocolError
from bascule.host.real import RealRandom
from bascule.raft.config import RaftConfig
from bascule.raft.membership import Members
from bascule.raft.messages import Heartbeat
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


@pytest.mark.parametrize("changed", ["election_ticks", "commit_count_to_take_snapshot"])
def test_a_node_with_other_settings_gets_no_vote(changed: str) -> None:
    members = PersistentState(initial_members=Members.of(1, 2))
    ours = RaftConfig()
    theirs = structs.replace(ours, **{changed: 77})
    voter, candidate = (
        RaftNode(number, config, members, RealRandom(number))
        for number, config in ((1, ours), (2, theirs))
    )
    candidate.campaign()
    ready = candidate.ready()
    assert ready is not None
    (request,) = ready.send
    with pytest.raises(RemoteProtocolError, match=changed):
        voter.step(request)
    assert voter.ready() is None
