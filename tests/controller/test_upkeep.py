"""What cannot be done yet holds up nothing else that the controller does by and by."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.controller.cluster.nats_lack import LackingNodes
from bascule.controller.cluster.upkeep import (
    FOUNDED_AT,
    VOTERS_MAX,
    VOTERS_MIN,
    ClusterUpkeep,
    next_change,
)
from bascule.errors import BasculeError, CannotReplicate, Indeterminate
from bascule.host.real import RealRandom
from bascule.metadata.image import Image
from bascule.metadata.requests import (
    ControllerRequest,
    Drain,
    Leave,
    Reassign,
    RegisterProcess,
    Stay,
    decide,
)
from bascule.model import StreamConfig
from bascule.raft.membership import MemberChange, Members
from bascule.sim.disk import SimClock, SimFiles
from support.controlled_node import ControlledNode
from support.deciding_controller import DecidingController, registration

LOOKS = 6
SICK = 2


class Group:
    """A metadata group whose members change only as far as `SICK` has not to take part."""

    is_controller = True
    are_members_committed = True
    term = 1

    def __init__(self, deciding: DecidingController, members: Members) -> None:
        self._deciding = deciding
        self.members = members
        self.controller = 1

    @property
    def image(self) -> Image:
        return self._deciding.image

    async def submit(self, request: ControllerRequest) -> int:
        return self._deciding.commit(decide(self.image, request))

    decide_here = submit

    async def wait_applied(self, index: int) -> None:
        pass

    async def change_members(self, change: MemberChange, node: int) -> Members:
        if node == SICK:
            raise CannotReplicate(f"learner {node} is 1000 entries behind")
        self.members = self.members.changed(change, node, self._deciding.index)
        return self.members

    async def transfer(self, node: int) -> None:
        if node == SICK:
            raise Indeterminate(f"node {node} does not lead yet")
        self.controller = node


def look(group: Group, times: int = LOOKS, *, balances_replicas: bool = False) -> None:
    async def run() -> None:
        lacking = LackingNodes(cast(Any, group), dict, SimClock())
        upkeep = ClusterUpkeep(
            1, cast(Any, group), lacking, balance_ms=1, balances_replicas=balances_replicas
        )
        for number in range(times):
            await upkeep._look(now=float(number))

    asyncio.run(run())


def place(deciding: DecidingController, node: int) -> None:
    """Create a stream whose only replica is on this node."""
    deciding.create("a", replicas=1)
    deciding.submit(Reassign("a", None, (node,)))
    deciding.set_isr("a", *{deciding.state("a").leader, node})
    deciding.finish_moves()
    assert deciding.state("a").replicas == (node,)


@pytest.mark.parametrize(("stuck", "free"), [(4, 5), (5, 4)])
def test_a_node_leaves_while_another_one_has_to_stay(stuck: int, free: int) -> None:
    deciding = DecidingController()
    deciding.register(1, 2, 3, 4, 5)
    place(deciding, stuck)
    for node in (stuck, free):
        deciding.submit(Leave(node, force=False))
    group = Group(deciding, Members((1, 2, 3, 4, 5)))
    look(group)
    assert deciding.state("a").target, "its copy is not in sync yet"
    assert deciding.image.removed == {free}
    assert free not in group.members
    assert stuck in deciding.image.nodes


def test_a_learner_that_is_behind_holds_up_no_moves() -> None:
    deciding = DecidingController()
    deciding.register(1, 2, 3)
    place(deciding, 3)
    deciding.submit(Drain(3, empties=True))
    look(Group(deciding, Members((1, 3), (SICK,))))
    assert deciding.state("a").target in {(1,), (SICK,)}


def test_another_learner_votes_where_the_first_one_is_behind() -> None:
    deciding = DecidingController()
    deciding.register(1, 2, 3, 4)
    group = Group(deciding, Members((1, 4), (SICK, 3)))
    look(group)
    assert group.members.voters == (1, 3, 4)


def test_another_voter_is_the_controller_where_the_first_cannot_be() -> None:
    deciding = DecidingController()
    deciding.register(1, 2, 3)
    deciding.submit(Drain(1, empties=False))
    group = Group(deciding, Members((1, SICK, 3)))
    look(group, times=1)
    assert group.controller == 3


def test_a_voter_too_many_is_a_learner_again() -> None:
    """Node 4 votes in the place of node 3, whose removal is taken back."""
    deciding = DecidingController()
    deciding.register(1, 2, 3, 4)
    place(deciding, 3)
    deciding.submit(Leave(3, force=False))
    deciding.lose(2)  # the copy waits, so the node stays
    group = Group(deciding, Members((1, SICK, 3), (4,)))
    look(group, times=1)
    assert group.members.voters == (1, 2, 3, 4)
    deciding.register(2)
    deciding.submit(Stay(3))
    look(group)
    assert (group.members.voters, group.members.learners) == ((1, 2, 3), (4,))


@pytest.mark.parametrize(
    ("members", "lost", "change"),
    [
        (Members((1, 2, 3, 4)), 3, (MemberChange.DEMOTE, 3)),
        (Members((2, 3, 4), (1,)), 3, None),
        (Members((1, 2, 3), (4,)), 3, None),
    ],
    ids=["a lost one first", "three stay", "three stay, also with a lost one"],
)
def test_there_are_never_fewer_voters_than_are_wanted(
    members: Members, lost: int, change: tuple[MemberChange, int] | None
) -> None:
    deciding = DecidingController()
    deciding.register(1, 2, 3, 4)
    deciding.lose(lost)
    assert next_change(deciding.image, members, leader=2) == change


def test_the_controller_votes_and_so_does_the_other_one_of_two() -> None:
    deciding = DecidingController()
    deciding.register(1, 2, 3, 4)
    four = Members((1, 2, 3, 4))
    assert next_change(deciding.image, four, leader=4) == (MemberChange.DEMOTE, 3)
    two = DecidingController()
    two.register(1, 2)
    assert next_change(two.image, Members((1, 2)), leader=1) is None


def changes_of(image: Image, members: Members) -> list[tuple[MemberChange, int]]:
    """All changes that are made one after the other, with node 1 as the controller."""
    changes = []
    while change := next_change(image, members, leader=1):
        changes.append(change)
        members = members.changed(*change, members.index + 2)
    return changes


@pytest.mark.parametrize("started", [3, 4])
def test_founders_that_start_late_vote_when_they_come(started: int) -> None:
    """They are voters since the beginning, and are not demoted to be promoted soon after."""
    deciding = DecidingController()
    deciding.register(*range(1, started + 1))
    assert changes_of(deciding.image, Members((1, 2, 3, 4, 5), (), 1)) == []


def test_a_founder_that_never_came_votes_no_longer_where_another_node_joins() -> None:
    """Of the voters 1 to 4 without node 3, no other one could be lost."""
    deciding = DecidingController()
    deciding.register(1, 2, 4)
    expected = [
        (MemberChange.ADD_LEARNER, 4), (MemberChange.ADD_VOTER, 4), (MemberChange.DEMOTE, 3),
    ]  # fmt: skip
    assert changes_of(deciding.image, Members((1, 2, 3), (), 1)) == expected


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Image, Members, int]:
    """The image, the members of the group, and the controller. Some voters may be no nodes: they
    are founders that have not registered yet."""
    numbers = st.integers(1, 8)
    deciding = DecidingController()
    deciding.register(*sorted(draw(st.sets(numbers, min_size=1))))
    nodes = [*deciding.image.nodes]
    leader = draw(st.sampled_from(nodes))
    for node in draw(st.sets(st.sampled_from(nodes))) - {leader}:
        deciding.lose(node)
    for request in [Leave(n, force=False) for n in draw(st.sets(st.sampled_from(nodes)))] + [
        Drain(n, empties=False) for n in draw(st.sets(st.sampled_from(nodes)))
    ]:
        with suppress(BasculeError):
            deciding.submit(request)
    voters = draw(st.sets(numbers)) | {leader}
    learners = draw(st.sets(numbers)) - voters
    index = draw(st.integers(0, 2))
    members = Members(tuple(sorted(voters)), tuple(sorted(learners)), index)
    return deciding.image, members, leader


@given(clusters())
def test_members_change_to_a_bounded_end_and_a_majority_stays_alive(
    cluster: tuple[Image, Members, int],
) -> None:
    image, members, leader = cluster
    changes = []
    while change := next_change(image, members, leader=leader):
        kind, node = change
        after = members.changed(kind, node, members.index + 2)
        assert (after.voters, after.learners) != (members.voters, members.learners)
        if kind is MemberChange.DEMOTE:
            assert node != leader
            assert len(after.voters) >= VOTERS_MIN
            if members.is_majority(image.is_alive):
                assert after.is_majority(image.is_alive)
        changes.append(change)
        members = after
    assert len({*changes}) == len(changes)
    added = {node for kind, node in changes if kind is MemberChange.ADD_VOTER}
    demoted = {node for kind, node in changes if kind is MemberChange.DEMOTE}
    assert not added & demoted, "one way only"
    if members.index <= FOUNDED_AT and not {*members.voters} <= {*image.nodes}:
        return  # founders are waited for
    staying = [n for n in members.voters if n in image.nodes and not image.nodes[n].is_leaving]
    count = min(VOTERS_MAX, sum(not node.is_leaving for node in image.nodes.values()))
    assert len(staying) <= max(count - 1 + count % 2, VOTERS_MIN - 1)


def test_a_voter_stays_until_the_others_are_a_majority_without_it() -> None:
    """Three voters decide with two. Without one of these the other two could not."""
    deciding = DecidingController()
    deciding.register(1, 3, 4)
    deciding.submit(Leave(4, force=False))
    deciding.lose(3)
    group = Group(deciding, Members((1, 3, 4)))
    look(group)
    assert (deciding.image.removed, group.members.voters) == (frozenset(), (1, 3, 4))
    deciding.submit(RegisterProcess(registration(3, incarnation=2)))
    look(group)
    assert (deciding.image.removed, group.members.voters) == ({4}, (1, 3))


def test_a_voter_that_is_lost_leaves_also_if_it_was_to_leave_as_planned() -> None:
    deciding = DecidingController()
    deciding.register(1, 3, 4)
    deciding.submit(Leave(4, force=False))
    deciding.lose(4)
    group = Group(deciding, Members((1, 3, 4)))
    look(group)
    assert (deciding.image.removed, group.members.voters) == ({4}, (1, 3))


# -- the balance of replicas -----------------------------------------------------------------


@pytest.mark.parametrize("balances_replicas", [False, True])
def test_replicas_move_to_a_new_node_without_a_request_only_where_that_is_set(
    balances_replicas: bool,
) -> None:
    deciding = DecidingController()
    deciding.register(1, 3)
    deciding.create("a", replicas=2, partitions=6)
    deciding.register(4)
    look(Group(deciding, Members((1, 3, 4))), balances_replicas=balances_replicas)
    moving = [*deciding.image.moving_states()]
    assert bool(moving) == balances_replicas
    assert not deciding.image.is_balancing, "nobody has asked for it"


@pytest.mark.parametrize("setting", [False, True])
def test_the_setting_of_the_node_reaches_its_upkeep(setting: bool) -> None:
    async def run() -> None:
        async with ControlledNode(SimFiles(RealRandom(1)), balance_replicas=setting) as node:
            await node.controller.create_stream("a", StreamConfig("a.>", partitions=4))
            await node.metadata.submit(RegisterProcess(registration(2)))
            await node.controller._upkeep._balance_replicas()
            moving = [*node.metadata.image.moving_states()]
            assert bool(moving) == setting

    asyncio.run(run())
