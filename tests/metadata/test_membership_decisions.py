"""Nodes that join and leave, replicas that move, and leadership that returns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bascule.cluster_version import REPLICAS_SINCE
from bascule.errors import (
    CannotRemoveNode,
    ConfigError,
    NodeRefused,
    NotEnoughNodes,
    UnknownNode,
    UnknownPartition,
)
from bascule.metadata.commands import SetClusterVersion
from bascule.metadata.replicas.reassignment import due_moves, reassign
from bascule.metadata.requests import (
    Admit,
    Alter,
    BalanceLeaders,
    ChangeIsrs,
    Create,
    Drain,
    FinishLeaving,
    FinishMoves,
    IsrChange,
    Leave,
    MoveReplicas,
    Reassign,
    RegisterProcess,
    Resume,
    Stay,
    StepDown,
    decide,
)
from bascule.model import NO_LEADER, NodeRegistration, StreamConfig
from support.deciding_controller import DecidingController, registration


@pytest.fixture
def controller() -> DecidingController:
    made = DecidingController()
    made.register(1, 2, 3)
    return made


def joining(node: int, directory: str) -> NodeRegistration:
    return registration(node, directory=directory)


def join(controller: DecidingController, node: int, directory: str = "new") -> None:
    controller.submit(Admit(joining(node, directory)))
    controller.submit(RegisterProcess(joining(node, directory)))


def enter_isr(controller: DecidingController, name: str, *nodes: int, partition: int = 0) -> None:
    """The leader proposes an ISR with these nodes, too."""
    state = controller.state(name, partition)
    members = tuple(
        (node, controller.image.nodes[node].epoch) for node in sorted({*state.isr, *nodes})
    )
    stream_id = controller.image.streams[name].id
    controller.submit(
        ChangeIsrs(
            state.leader,
            (IsrChange(stream_id, partition, state.leader_epoch, state.version, members),),
        )
    )


# -- nodes that join -------------------------------------------------------------------------


def test_a_node_is_admitted_before_it_registers(controller: DecidingController) -> None:
    controller.submit(Admit(joining(4, "d4")))
    admitted = controller.image.nodes[4]
    assert (admitted.alive, admitted.peer) == (False, "host4:9093")
    assert decide(controller.image, Admit(joining(4, "d4"))) == (), "the same request again"
    controller.submit(RegisterProcess(joining(4, "d4")))
    assert controller.image.nodes[4].alive


def test_a_number_belongs_to_one_data_directory(controller: DecidingController) -> None:
    join(controller, 4, "d4")
    with pytest.raises(NodeRefused, match="another data directory"):
        controller.submit(Admit(joining(4, "other")))
    with pytest.raises(NodeRefused, match="another data directory"):
        controller.submit(RegisterProcess(joining(4, "other")))
    with pytest.raises(NodeRefused, match="belongs to a node"):
        controller.submit(Admit(joining(1, "other")))


def test_a_removed_node_is_refused_until_its_number_is_admitted_again(
    controller: DecidingController,
) -> None:
    join(controller, 4, "d4")
    controller.lose(4)
    controller.submit(Leave(4, force=True))
    assert 4 not in controller.image.nodes
    assert controller.image.removed == {4}
    with pytest.raises(NodeRefused, match="was removed from the cluster"):
        controller.submit(RegisterProcess(joining(4, "d4")))
    join(controller, 4, "empty")
    assert controller.image.removed == frozenset()
    with pytest.raises(NodeRefused, match="another data directory"):
        controller.submit(RegisterProcess(joining(4, "d4")))


# -- replicas that move ----------------------------------------------------------------------


def test_new_replicas_are_in_sync_before_old_ones_leave(controller: DecidingController) -> None:
    controller.create("a", replicas=3)
    join(controller, 4)
    before = controller.state("a")
    target = tuple(node for node in (2, 3, 4, 1) if node != before.leader)
    controller.submit(Reassign("a", 0, target))
    moving = controller.state("a")
    assert moving.replicas == (*before.replicas, 4)
    assert (moving.isr, moving.target, moving.leader) == (before.isr, target, before.leader)
    enter_isr(controller, "a", 4)
    given = controller.state("a")
    assert given.leader == target[0], "the leader that is to go hands over"
    assert (given.replicas, given.isr) == (moving.replicas, (1, 2, 3, 4)), "and follows"
    late = FinishMoves(((controller.image.streams["a"].id, 0, moving.version),))
    assert decide(controller.image, late) == (), "it was found in an older state"
    controller.finish_moves()
    after = controller.state("a")
    assert (after.replicas, after.isr, after.target) == (target, tuple(sorted(target)), ())
    assert after.leader == target[0]
    assert after.leader_epoch == before.leader_epoch + 2


def test_a_lost_leader_that_is_to_go_does_not_hold_the_move_up(
    controller: DecidingController,
) -> None:
    controller.create("a", replicas=2)
    join(controller, 4)
    leader, other = controller.state("a").replicas
    controller.submit(Reassign("a", 0, (other, 4)))
    enter_isr(controller, "a", 4)
    controller.lose(leader)
    controller.finish_moves()
    after = controller.state("a")
    assert (after.replicas, after.isr, after.target) == ((other, 4), (other, 4), ())


def test_living_copies_stay_while_those_in_sync_are_lost(controller: DecidingController) -> None:
    """Fewer replicas, or another move, kept the replica in sync and removed those that lived."""
    controller.create("a", replicas=3, min_isr=1)
    last = controller.state("a").leader
    controller.set_isr("a", last)
    controller.lose(last)
    assert (controller.state("a").leader, controller.state("a").isr) == (NO_LEADER, (last,))
    controller.submit(Alter("a", {"replicas": 1}))
    controller.finish_moves()
    assert sorted(controller.state("a").replicas) == [1, 2, 3]
    assert controller.state("a").target == (last,)
    controller.submit(RegisterProcess(registration(last, incarnation=2)))
    controller.finish_moves()
    assert (controller.state("a").leader, controller.state("a").replicas) == (last, (last,))


def test_a_move_to_replicas_in_sync_ends_at_once(controller: DecidingController) -> None:
    controller.create("a", replicas=3)
    state = controller.state("a")
    order = tuple(reversed(state.replicas))
    controller.submit(Reassign("a", None, order))
    assert controller.state("a").replicas == order
    assert controller.state("a").leader == state.leader


def test_another_move_gives_up_what_the_first_one_added(controller: DecidingController) -> None:
    controller.create("a", replicas=1)
    first = controller.state("a").leader
    second, third = (node for node in (1, 2, 3) if node != first)
    controller.submit(Reassign("a", None, (second,)))
    assert controller.state("a").replicas == (first, second)
    controller.submit(Reassign("a", None, (third,)))
    assert controller.state("a").replicas == (first, third)
    controller.submit(Reassign("a", None, (first,)))
    assert (controller.state("a").replicas, controller.state("a").target) == ((first,), ())


def test_another_move_keeps_what_the_first_one_added_and_is_eligible(
    controller: DecidingController,
) -> None:
    """Beside the leader nobody else has every committed record."""
    controller.register(4, 5)
    controller.create("a", replicas=3)
    leader, *others = controller.state("a").replicas
    first, second = (node for node in range(1, 6) if node not in (leader, *others))
    controller.submit(Reassign("a", None, (leader, first, second)))
    enter_isr(controller, "a", first)
    controller.set_isr("a", leader, first)
    controller.set_isr("a", leader)
    state = controller.state("a")
    assert (state.isr, state.eligible) == ((leader,), (first,))
    controller.submit(Reassign("a", None, (leader, *others)))
    state = controller.state("a")
    assert state.replicas == (leader, *others, first)
    assert (state.isr, state.eligible) == ((leader,), (first,))


def test_a_move_is_planned_for_one_version_of_a_state(controller: DecidingController) -> None:
    """Another change may have come first: the replicas that it counts on may not be in sync."""
    controller.create("a", replicas=2)
    join(controller, 4)
    leaving = controller.state("a").replicas[-1]
    controller.submit(Leave(leaving, force=False))
    moves = due_moves(controller.image, count_max=10)
    assert [move.partition for move in moves] == [0]
    controller.set_isr("a", controller.state("a").leader)
    assert decide(controller.image, MoveReplicas(moves)) == ()
    again = due_moves(controller.image, count_max=10)
    assert again != moves
    assert decide(controller.image, MoveReplicas(again)) != ()


def test_replicas_in_sync_change_places_while_nobody_leads(controller: DecidingController) -> None:
    """None of them leaves, so there is nothing to wait for."""
    controller.create("a", replicas=3)
    definition, state = controller.image.streams["a"], controller.state("a")
    order = tuple(reversed(state.replicas))
    leaderless = replace(state, leader=NO_LEADER)
    after = reassign(controller.image, definition, leaderless, order)
    assert (after.replicas, after.target, after.leader) == (order, (), NO_LEADER)
    fewer = reassign(controller.image, definition, leaderless, order[:2])
    assert (fewer.replicas, fewer.target) == (state.replicas, order[:2]), "those may be lost"


def test_a_replica_that_is_added_again_has_been_one_since_then(
    controller: DecidingController,
) -> None:
    controller.commit([SetClusterVersion(REPLICAS_SINCE)])
    controller.create("a", replicas=1)
    first = controller.state("a").leader
    second, third = (node for node in (1, 2, 3) if node != first)
    assert controller.state("a").replica_since(first) == 0
    versions = []
    for _ in range(2):
        controller.submit(Reassign("a", None, (second,)))
        added = controller.state("a")
        assert added.since == ((second, added.version),)
        versions.append(added.version)
        controller.submit(Reassign("a", None, (third,)))
        other = controller.state("a")
        assert other.since == ((third, other.version),), "the other one has left"
    assert versions == sorted(set(versions))
    enter_isr(controller, "a", third)
    controller.finish_moves()
    assert controller.state("a").replicas == (third,)
    assert controller.state("a").since == other.since
    controller.submit(Reassign("a", None, (first,)))
    assert controller.state("a").replica_since(first) == controller.state("a").version
    assert controller.state("a").replica_since(third) == other.version
    enter_isr(controller, "a", first)
    controller.finish_moves()
    after = controller.state("a")
    assert after.replicas == (first,)
    assert [node for node, _ in after.since] == [first], "the other one has left"


def test_which_replicas_were_added_waits_for_its_version(controller: DecidingController) -> None:
    assert controller.image.cluster_version < REPLICAS_SINCE
    controller.create("a", replicas=1)
    first = controller.state("a").leader
    controller.submit(Reassign("a", None, (first % 3 + 1,)))
    assert controller.state("a").replicas == (first, first % 3 + 1)
    assert controller.state("a").since == ()


def test_more_replicas_need_no_more_in_sync_until_they_are(controller: DecidingController) -> None:
    controller.create("a", replicas=1)
    leader = controller.state("a").leader
    controller.submit(Alter("a", {"replicas": 3}))
    moving = controller.state("a")
    assert controller.image.streams["a"].min_isr == 2
    assert (moving.isr, moving.min_isr) == ((leader,), 1)
    assert sorted(moving.target) == [1, 2, 3]
    others = [node for node in (1, 2, 3) if node != leader]
    enter_isr(controller, "a", others[0])
    assert controller.state("a").min_isr == 1
    enter_isr(controller, "a", others[1])
    after = controller.state("a")
    assert (after.isr, after.target, after.min_isr) == ((1, 2, 3), (), 0)
    assert after.leader == leader


def test_more_replicas_asked_for_again_raise_nothing(controller: DecidingController) -> None:
    controller.register(4, 5)
    controller.create("a", replicas=1)
    controller.submit(Alter("a", {"replicas": 3}))
    controller.submit(Alter("a", {"replicas": 5}))
    state = controller.state("a")
    assert (len(state.isr), controller.image.streams["a"].needed_in_sync(state)) == (1, 1)


def test_fewer_may_be_needed_also_while_replicas_move(controller: DecidingController) -> None:
    """The node that is copied to may never be in sync; an operator can go on without it."""
    controller.register(4, 5)
    controller.create("a", replicas=3)
    leader, *others = controller.state("a").replicas
    controller.submit(Alter("a", {"replicas": 5}))
    for node in others:
        controller.lose(node)
    definition, state = controller.image.streams["a"], controller.state("a")
    assert (state.isr, definition.needed_in_sync(state)) == ((leader,), 2)
    assert state.eligible
    controller.submit(Alter("a", {"min_isr": 1}))
    definition, state = controller.image.streams["a"], controller.state("a")
    assert (definition.needed_in_sync(state), state.eligible) == (1, ())


def test_fewer_replicas_keep_the_leader_and_those_in_sync(controller: DecidingController) -> None:
    controller.create("a", replicas=3)
    state = controller.state("a")
    lost = next(node for node in state.replicas if node != state.leader)
    controller.lose(lost)
    controller.submit(Alter("a", {"replicas": 2}))
    after = controller.state("a")
    assert lost not in after.replicas
    assert (len(after.replicas), after.leader, after.target) == (2, state.leader, ())


def test_replicas_that_cannot_be_are_refused(controller: DecidingController) -> None:
    controller.create("a", replicas=2)
    with pytest.raises(NotEnoughNodes):
        controller.submit(Alter("a", {"replicas": 4}))
    for nodes, text in (
        ((1, 1), "twice"),
        ((1,), "1 nodes, and stream 'a' has 2 replicas"),
        ((1, 9), "node 9, which cannot get replicas"),
    ):
        with pytest.raises(ConfigError, match=text):
            controller.submit(Reassign("a", None, nodes))
    with pytest.raises(UnknownPartition):
        controller.submit(Reassign("a", 1, (1, 2)))


def test_a_node_alone_has_one_copy() -> None:
    controller = DecidingController()
    controller.register(1)
    controller.create("a", replicas=1)
    with pytest.raises(NotEnoughNodes, match="2"):
        controller.submit(Alter("a", {"replicas": 2}))


# -- nodes that leave ------------------------------------------------------------------------


def test_a_node_that_leaves_gives_its_replicas_away_first(controller: DecidingController) -> None:
    controller.create("a", replicas=3, partitions=2)
    join(controller, 4)
    controller.submit(Leave(1, force=False))
    assert decide(controller.image, Leave(1, force=False)) == (), "it leaves already"
    assert decide(controller.image, FinishLeaving(1)) == (), "it holds replicas"
    controller.begin_due_moves(1)
    targets = [controller.state("a", n).target for n in (0, 1)]
    assert sorted(map(len, targets)) == [0, 3], "one at a time"
    controller.begin_due_moves(10)
    for partition in (0, 1):
        assert sorted(controller.state("a", partition).target) == [2, 3, 4]
        enter_isr(controller, "a", 4, partition=partition)
        controller.finish_moves()
        assert 1 not in controller.state("a", partition).replicas
    controller.submit(RegisterProcess(registration(1, incarnation=5)))
    assert controller.image.nodes[1].is_leaving, "a restart does not change that"
    controller.submit(FinishLeaving(1))
    assert 1 in controller.image.removed


def test_a_removal_is_taken_back_while_replicas_move(controller: DecidingController) -> None:
    controller.create("a", replicas=3, partitions=3)
    join(controller, 4)
    controller.submit(Leave(1, force=False))
    controller.begin_due_moves(1)
    moving = next(n for n in range(3) if controller.state("a", n).target)
    before = controller.state("a", moving)
    controller.submit(Stay(1))
    assert not controller.image.nodes[1].is_leaving
    assert 1 in controller.image.usable()
    assert controller.state("a", moving) == before, "what has begun goes on"
    assert due_moves(controller.image, count_max=10) == (), "nothing more begins"
    assert decide(controller.image, FinishLeaving(1)) == ()
    enter_isr(controller, "a", 4, partition=moving)
    controller.finish_moves()
    assert sorted(controller.state("a", moving).replicas) == [2, 3, 4]
    assert decide(controller.image, FinishLeaving(1)) == (), "it is not removed at the end of it"
    for partition in {0, 1, 2} - {moving}:
        assert controller.state("a", partition).isr == (1, 2, 3)
    assert decide(controller.image, Stay(1)) == (), "it stays already"
    controller.submit(Leave(1, force=False))
    assert controller.image.nodes[1].is_leaving, "it may be removed again"


def test_a_removal_that_is_done_is_not_taken_back(controller: DecidingController) -> None:
    controller.submit(Leave(3, force=False))
    controller.submit(FinishLeaving(3))
    for number in (3, 9):
        with pytest.raises(UnknownNode):
            controller.submit(Stay(number))


def test_the_cluster_s_own_streams_get_their_replicas_back(controller: DecidingController) -> None:
    """With fewer nodes they have fewer replicas; the node that stays holds one again."""
    config = StreamConfig("_offsets", replicas=3)
    controller.submit(Create("_offsets", config, b"o" * 16, 0, internal=True))
    controller.submit(Leave(1, force=False))
    controller.begin_due_moves(10)
    controller.finish_moves()
    assert sorted(controller.state("_offsets").replicas) == [2, 3], "both are in sync already"
    controller.submit(Stay(1))
    controller.begin_due_moves(10)
    assert sorted(controller.state("_offsets").target) == [1, 2, 3]


@pytest.mark.parametrize("is_down", [False, True])
def test_the_cluster_s_own_streams_keep_as_many_replicas_as_have_to_be_in_sync(
    controller: DecidingController, is_down: bool
) -> None:
    config = StreamConfig("_offsets", replicas=3)
    controller.submit(Create("_offsets", config, b"o" * 16, 0, internal=True))
    before = [1, 2, 3]
    if is_down:
        controller.lose(1)
    else:
        controller.submit(Drain(1, empties=True))
        controller.begin_due_moves(10)
        controller.finish_moves()
        before = [2, 3]
    assert sorted(controller.state("_offsets").replicas) == before
    controller.submit(Drain(2, empties=True))
    controller.begin_due_moves(10)
    controller.finish_moves()
    state = controller.state("_offsets")
    assert sorted(state.replicas) == before, "one would commit nothing"
    assert sorted(state.target) == ([1, 3] if is_down else []), "it waits for node 1"
    if not is_down:
        controller.submit(Resume(1))
        controller.begin_due_moves(10)
        assert sorted(controller.state("_offsets").target) == [1, 3]


def test_the_cluster_s_own_streams_end_on_the_last_node(controller: DecidingController) -> None:
    config = StreamConfig("_offsets", replicas=3)
    controller.submit(Create("_offsets", config, b"o" * 16, 0, internal=True))
    for number, rest in ((1, [2, 3]), (2, [3])):
        controller.submit(Leave(number, force=False))
        controller.begin_due_moves(10)
        controller.finish_moves()
        assert sorted(controller.state("_offsets").replicas) == rest
        controller.submit(FinishLeaving(number))


def test_a_removal_that_leaves_too_few_nodes_is_refused(controller: DecidingController) -> None:
    controller.create("a", replicas=3)
    with pytest.raises(
        CannotRemoveNode, match=r"stream 'a' has 3 replicas, and only nodes \[2, 3\]"
    ):
        controller.submit(Leave(1, force=False))
    with pytest.raises(UnknownNode):
        controller.submit(Leave(9, force=False))
    with pytest.raises(CannotRemoveNode, match="it is alive"):
        controller.submit(Leave(1, force=True))
    controller.lose(1)
    controller.lose(2)
    with pytest.raises(CannotRemoveNode, match="no other node"):
        controller.submit(Leave(3, force=False))


def test_a_dead_node_is_removed_by_force_and_its_replicas_are_made_up_for(
    controller: DecidingController,
) -> None:
    controller.create("a", replicas=3)
    controller.lose(1)
    controller.submit(Leave(1, force=True))
    assert sorted(controller.state("a").replicas) == [2, 3]
    controller.begin_due_moves(10)
    assert controller.state("a").target == (), "there is no other node"
    join(controller, 4)
    controller.begin_due_moves(10)
    assert sorted(controller.state("a").target) == [2, 3, 4]
    enter_isr(controller, "a", 4)
    assert controller.state("a").isr == (2, 3, 4)


def test_a_move_to_a_node_that_is_given_up_does_not_end_with_fewer_replicas(
    controller: DecidingController,
) -> None:
    """What was left of the target was in sync, so the other complete copies were removed."""
    join(controller, 4)
    controller.create("a", replicas=2)
    before = controller.state("a")
    third, fourth = sorted({1, 2, 3, 4}.difference(before.replicas))
    controller.submit(Reassign("a", None, (third, fourth)))
    enter_isr(controller, "a", third)
    controller.lose(fourth)
    controller.submit(Leave(fourth, force=True))
    for _ in range(2):  # a leader that is to go hands over first
        controller.finish_moves()
    after = controller.state("a")
    assert (after.replicas, after.isr) == (before.replicas, before.isr)
    assert (after.target, after.origin) == ((), ())
    assert after.leader_epoch > before.leader_epoch


def test_a_move_to_more_replicas_goes_on_without_a_node_that_is_given_up(
    controller: DecidingController,
) -> None:
    controller.create("a", replicas=1)
    controller.submit(Alter("a", {"replicas": 3}))
    leader = controller.state("a").leader
    other, lost = sorted({1, 2, 3} - {leader})
    enter_isr(controller, "a", other)
    controller.lose(lost)
    controller.submit(Leave(lost, force=True))
    assert sorted(controller.state("a").replicas) == sorted((leader, other))
    assert controller.state("a").isr == tuple(sorted((leader, other)))


@pytest.mark.parametrize("has_spare", [False, True])
def test_a_node_that_leaves_stays_where_another_one_is_given_up(
    controller: DecidingController, has_spare: bool
) -> None:
    """It is alive, and has a complete copy that nobody takes over: two of three would be left."""
    controller.create("a", replicas=3)
    join(controller, 4)
    if has_spare:
        join(controller, 5)
    controller.submit(Leave(3, force=False))
    controller.begin_due_moves(10)
    added = ({*controller.state("a").target} - {1, 2}).pop()
    controller.lose(2)
    controller.submit(Leave(2, force=True))
    enter_isr(controller, "a", added)
    controller.finish_moves()
    assert sorted(controller.state("a").replicas) == [1, 3, added]
    controller.begin_due_moves(10)
    assert decide(controller.image, FinishLeaving(3)) == (), "it holds a replica"
    if not has_spare:
        assert controller.state("a").target == (), "there is no other node"
        join(controller, 5)
        controller.begin_due_moves(10)
    assert sorted(controller.state("a").target) == [1, 4, 5]
    enter_isr(controller, "a", 4, 5)
    controller.finish_moves()
    assert sorted(controller.state("a").replicas) == [1, 4, 5]
    controller.submit(FinishLeaving(3))
    assert 3 in controller.image.removed


def test_the_last_copy_is_not_given_up(controller: DecidingController) -> None:
    controller.create("a", replicas=1)
    node = controller.state("a").leader
    controller.lose(node)
    with pytest.raises(CannotRemoveNode, match="the only up-to-date copy of a 0"):
        controller.submit(Leave(node, force=True))


# -- leadership that returns -----------------------------------------------------------------


def test_preferred_leaders_lead_again_a_few_at_a_time(controller: DecidingController) -> None:
    controller.create("a", replicas=3, partitions=6)
    states = [controller.state("a", n) for n in range(6)]
    controller.lose(1)
    controller.submit(RegisterProcess(registration(1, incarnation=2)))
    assert decide(controller.image, BalanceLeaders(10)) == (), "it is not in sync yet"
    led_before = [n for n, state in enumerate(states) if state.leader == 1]
    for partition in led_before:
        enter_isr(controller, "a", 1, partition=partition)
    (change,) = decide(controller.image, BalanceLeaders(1))
    assert [each.reason for each in change.changes] == ["the preferred leader is in sync"]  # type: ignore[union-attr]
    controller.submit(BalanceLeaders(1))
    assert [controller.state("a", n).leader for n in led_before].count(1) == 1
    controller.submit(BalanceLeaders(10))
    assert [controller.state("a", n).leader for n in range(6)] == [s.leader for s in states]
    assert decide(controller.image, BalanceLeaders(10)) == ()


def test_a_node_that_stops_hands_over_what_others_can_lead(controller: DecidingController) -> None:
    controller.create("a", replicas=3, partitions=3)
    controller.create("alone", replicas=1)
    epoch = controller.image.nodes[1].epoch
    assert decide(controller.image, StepDown(1, epoch + 1)) == (), "of another process"
    before = [controller.state("a", n) for n in range(3)]
    controller.submit(StepDown(1, epoch))
    after = [controller.state("a", n) for n in range(3)]
    assert all(state.leader != 1 for state in after)
    for old, new in zip(before, after, strict=True):
        assert new.isr == old.isr, "it follows until it is gone"
        assert new.leader_epoch == old.leader_epoch + (old.leader == 1)
    alone = controller.state("alone")
    assert (alone.leader,) == alone.replicas
