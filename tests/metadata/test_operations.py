"""What operators do to a running cluster: leaders, cancelled moves, drained nodes, balance."""

from __future__ import annotations

from collections import Counter

import pytest

from bascule.errors import (
    CannotCancel,
    CannotDrain,
    CannotLead,
    ConfigError,
    NotEnoughNodes,
    UnknownNode,
    UnknownPartition,
)
from bascule.metadata.command_codec import decode_snapshot, encode_snapshot
from bascule.metadata.replicas.balance import balancing_moves, due_balancing
from bascule.metadata.replicas.drained import left_on, why_move_waits
from bascule.metadata.replicas.reassignment import due_moves
from bascule.metadata.replicas.steps import CHANGES_MAX, steps_of
from bascule.metadata.requests import (
    Alter,
    BalanceLeaders,
    BalanceReplicas,
    CancelMoves,
    Drain,
    ElectLeaders,
    GiveLeaders,
    Leave,
    LimitCatchUp,
    Reassign,
    RegisterProcess,
    Resume,
    SetBalance,
    StepDown,
    decide,
)
from bascule.model import NO_LEADER
from support.deciding_controller import DecidingController, registration


@pytest.fixture
def controller() -> DecidingController:
    made = DecidingController()
    made.register(1, 2, 3)
    return made


# -- leaders -----------------------------------------------------------------------------------


def test_a_replica_that_is_named_leads_and_is_preferred(controller: DecidingController) -> None:
    controller.create("a", replicas=3)
    before = controller.state("a")
    other = before.replicas[2]
    controller.submit(ElectLeaders("a", None, other))
    after = controller.state("a")
    assert (after.leader, after.replicas[0]) == (other, other)
    assert (after.isr, sorted(after.replicas)) == (before.isr, sorted(before.replicas))
    assert after.leader_epoch == before.leader_epoch + 1
    assert decide(controller.image, BalanceLeaders(10)) == (), "it stays"


def test_preferred_leaders_are_elected_where_they_can_lead(controller: DecidingController) -> None:
    controller.create("a", replicas=3, partitions=3)
    first = [controller.state("a", n).replicas[0] for n in range(3)]
    epoch = controller.image.nodes[1].epoch
    controller.submit(StepDown(1, epoch))
    with pytest.raises(CannotLead, match=r"node 1 cannot be made the leader of a .: it is about"):
        controller.submit(ElectLeaders("a", None, None))
    controller.submit(RegisterProcess(registration(1, incarnation=2)))
    with pytest.raises(CannotLead, match="not in sync"):
        controller.submit(ElectLeaders("a", None, None))
    for partition in range(3):
        controller.set_isr("a", 1, 2, 3, partition=partition)
    controller.submit(ElectLeaders("a", None, None))
    assert [controller.state("a", n).leader for n in range(3)] == first
    assert decide(controller.image, ElectLeaders("a", 0, None)) == (), "they lead already"


def test_who_cannot_lead_is_refused_with_the_reason(controller: DecidingController) -> None:
    controller.register(4)
    controller.create("a", replicas=3)
    state = controller.state("a")
    outside = next(node for node in (1, 2, 3, 4) if node not in state.replicas)
    followers = [node for node in state.replicas if node != state.leader]
    with pytest.raises(CannotLead, match="not one of the replicas"):
        controller.submit(ElectLeaders("a", 0, outside))
    assert decide(controller.image, ElectLeaders("a", None, state.leader)) == (), "it does already"
    with pytest.raises(UnknownPartition):
        controller.submit(ElectLeaders("a", 7, None))
    controller.submit(Drain(followers[0], empties=False))
    with pytest.raises(CannotLead, match=r"it is drained; `bascule node resume"):
        controller.submit(ElectLeaders("a", 0, followers[0]))
    controller.set_isr("a", state.leader, followers[0])
    with pytest.raises(CannotLead, match="it is not in sync; in sync are"):
        controller.submit(ElectLeaders("a", 0, followers[1]))
    controller.lose(followers[1])
    with pytest.raises(CannotLead, match="it is not alive"):
        controller.submit(ElectLeaders("a", 0, followers[1]))


@pytest.mark.parametrize("node", [NO_LEADER, 0, 9])
def test_what_is_no_replica_is_refused_also_where_nobody_leads(
    controller: DecidingController, node: int
) -> None:
    controller.create("a", replicas=2, partitions=2)
    for replica in (1, 2, 3):
        controller.lose(replica)
    states = [controller.state("a", index) for index in range(2)]
    assert {state.leader for state in states} == {NO_LEADER}
    for partition in (0, None):
        with pytest.raises(CannotLead, match="not one of the replicas"):
            controller.submit(ElectLeaders("a", partition, node))
    assert [controller.state("a", index) for index in range(2)] == states


# -- cancelled moves ---------------------------------------------------------------------------


@pytest.fixture
def moving(controller: DecidingController) -> DecidingController:
    """Of three replicas of `a` two are to go, the leader among them."""
    controller.register(4, 5)
    controller.create("a", replicas=3)
    old = controller.state("a").replicas
    new = [node for node in (1, 2, 3, 4, 5) if node not in old]
    controller.submit(Reassign("a", None, (*new, old[2])))
    return controller


def test_a_cancelled_move_leaves_the_old_replicas(moving: DecidingController) -> None:
    before = moving.state("a")
    assert before.origin == before.replicas[:3]
    moving.submit(CancelMoves("a", None))
    after = moving.state("a")
    assert (after.replicas, after.target, after.origin) == (before.origin, (), ())
    assert (after.isr, after.leader) == (before.isr, before.leader)
    assert after.leader_epoch > before.leader_epoch, "positions are forgotten"
    with pytest.raises(CannotCancel, match="nothing moves"):
        moving.submit(CancelMoves("a", None))


def test_new_replicas_in_sync_go_too_while_enough_of_the_old_are(
    moving: DecidingController,
) -> None:
    before = moving.state("a")
    added = [node for node in before.replicas if node not in before.origin]
    moving.set_isr("a", *before.origin[:2], added[0])
    moving.submit(ElectLeaders("a", 0, added[0]))
    assert moving.state("a").leader == added[0]
    moving.submit(CancelMoves("a", 0))
    assert moving.state("a").leader in before.origin, "it hands over first"
    moving.finish_moves()
    after = moving.state("a")
    assert (after.replicas, after.target) == (before.origin, ())
    assert after.isr == tuple(sorted(before.origin[:2]))
    assert after.leader in after.isr


def test_new_replicas_stay_while_too_few_of_the_old_are_in_sync(
    moving: DecidingController,
) -> None:
    """The only old replica in sync is not enough for `min_isr`: the new one is needed."""
    before = moving.state("a")
    added = [node for node in before.replicas if node not in before.origin]
    moving.set_isr("a", before.leader, added[0])
    moving.submit(CancelMoves("a", None))
    held = moving.state("a")
    assert (held.target, held.isr) == (before.origin, tuple(sorted((before.leader, added[0]))))
    assert added[1] not in held.replicas, "the one that is not in sync goes at once"
    moving.set_isr("a", *held.isr, before.origin[1])
    after = moving.state("a")
    assert (after.replicas, after.target) == (before.origin, ())
    assert after.isr == tuple(sorted(before.origin[:2]))


def test_the_last_complete_copy_is_not_dropped(moving: DecidingController) -> None:
    before = moving.state("a")
    added = next(node for node in before.replicas if node not in before.origin)
    moving.set_isr("a", before.leader, added)
    moving.lose(before.leader)
    assert moving.state("a").isr == (added,)
    moving.submit(CancelMoves("a", None))
    after = moving.state("a")
    assert (after.isr, after.leader, after.target) == ((added,), added, before.origin)


def test_the_replicas_before_are_those_before_the_first_move(moving: DecidingController) -> None:
    before = moving.state("a")
    second = (before.target[1], before.target[0], before.origin[0])
    moving.submit(Reassign("a", None, second))
    assert moving.state("a").origin == before.origin
    moving.submit(CancelMoves("a", None))
    assert moving.state("a").replicas == before.origin


def test_what_would_begin_again_is_not_cancelled(moving: DecidingController) -> None:
    with pytest.raises(UnknownPartition):
        moving.submit(CancelMoves("a", 4))
    moving.create("b", replicas=1)
    moving.submit(Alter("b", {"replicas": 3}))
    with pytest.raises(CannotCancel, match=r"`bascule stream alter b --replicas 1` takes that"):
        moving.submit(CancelMoves("b", None))
    leaving = moving.state("a").origin[0]
    moving.submit(Leave(leaving, force=False))
    with pytest.raises(CannotCancel, match=rf"bascule node remove {leaving} --cancel"):
        moving.submit(CancelMoves("a", None))


# -- drained nodes -----------------------------------------------------------------------------


def test_a_drained_node_leads_nothing_and_gets_nothing(controller: DecidingController) -> None:
    controller.create("a", replicas=3, partitions=6)
    (_, change) = decide(controller.image, Drain(1, empties=False))
    assert {each.reason for each in change.changes} == {"its node is drained or is to be removed"}  # type: ignore[union-attr]
    controller.submit(Drain(1, empties=False))
    states = [controller.state("a", n) for n in range(6)]
    assert all(state.leader != 1 for state in states)
    assert all(state.isr == (1, 2, 3) for state in states), "it follows"
    assert sorted(Counter(state.leader for state in states).values()) == [3, 3]
    assert decide(controller.image, Drain(1, empties=False)) == (), "it is drained already"
    assert decide(controller.image, BalanceLeaders(10)) == (), "leadership does not return"
    with pytest.raises(NotEnoughNodes, match="resume those that are drained"):
        controller.create("b", replicas=3)
    controller.create("b", replicas=2)
    assert sorted(controller.state("b").replicas) == [2, 3]


def test_a_drained_node_stays_so_when_it_starts_again(controller: DecidingController) -> None:
    controller.create("a", replicas=3, partitions=3)
    controller.submit(Drain(1, empties=False))
    controller.submit(RegisterProcess(registration(1, incarnation=2)))
    assert controller.image.nodes[1].is_drained
    assert decide(controller.image, RegisterProcess(registration(1, incarnation=2))) == ()
    assert decode_snapshot(list(encode_snapshot(controller.image, ())))[0] == controller.image
    for partition in range(3):
        controller.set_isr("a", 1, 2, 3, partition=partition)
    assert decide(controller.image, BalanceLeaders(10)) == ()
    controller.submit(Resume(1))
    assert decide(controller.image, Resume(1)) == ()
    controller.submit(BalanceLeaders(10))
    assert 1 in [controller.state("a", n).leader for n in range(3)]


def test_who_has_the_only_complete_copy_leads_on(controller: DecidingController) -> None:
    controller.create("alone", replicas=1)
    controller.create("a", replicas=3)
    node = controller.state("alone").leader
    controller.set_isr("a", controller.state("a").leader)
    leader = controller.state("a").leader
    for number in {node, leader}:
        controller.submit(Drain(number, empties=False))
    assert controller.state("alone").leader == node
    assert controller.state("a").leader == leader
    assert decide(controller.image, GiveLeaders(10)) == ()
    controller.set_isr("a", 1, 2, 3)
    controller.submit(GiveLeaders(10))
    assert controller.state("a").leader not in {node, leader}, "another one is in sync now"
    for number in (1, 2, 3):
        if number != leader:
            controller.lose(number)
    assert controller.state("a").leader == leader, "nobody else is alive"


def test_a_node_that_stops_hands_over_to_a_drained_one_before_nobody_leads(
    controller: DecidingController,
) -> None:
    controller.create("a", replicas=2)
    leader = controller.state("a").leader
    other = next(node for node in controller.state("a").replicas if node != leader)
    controller.submit(Drain(other, empties=False))
    controller.submit(StepDown(leader, controller.image.nodes[leader].epoch))
    assert controller.state("a").leader == other


def test_one_node_takes_leaders_at_least(controller: DecidingController) -> None:
    for number in (1, 2):
        controller.submit(Drain(number, empties=False))
    with pytest.raises(CannotDrain, match="no other node is alive"):
        controller.submit(Drain(3, empties=False))
    for request in (Drain(9, empties=False), Resume(9)):
        with pytest.raises(UnknownNode):
            controller.submit(request)


def test_a_node_that_is_emptied_gives_its_replicas_away(controller: DecidingController) -> None:
    controller.register(4)
    controller.create("a", replicas=3)
    controller.create("wide", replicas=4)
    number = controller.state("a").replicas[0]
    controller.submit(Drain(number, empties=True))
    controller.submit(Drain(number, empties=False))
    assert controller.image.nodes[number].is_emptied, "a repetition takes nothing back"
    controller.begin_due_moves(10)
    target = controller.state("a").target
    assert sorted(target) == sorted({1, 2, 3, 4} - {number})
    assert controller.state("wide").target == (), "there are too few nodes"
    with pytest.raises(CannotCancel, match=f"bascule node resume {number}"):
        controller.submit(CancelMoves("a", None))
    controller.submit(Resume(number))
    controller.submit(CancelMoves("a", None))
    assert number in controller.state("a").replicas
    assert due_moves(controller.image, count_max=10) == ()


@pytest.mark.parametrize("at", ["copy", "leader"])
def test_a_move_whose_copy_has_failed_is_not_waited_for(
    at: str, controller: DecidingController
) -> None:
    controller.register(4)
    controller.create("a", replicas=2)
    number, other = controller.state("a").replicas
    controller.submit(Drain(number, empties=True))
    controller.begin_due_moves(10)
    state = controller.state("a")
    (copy,) = set(state.target) - {other}
    assert state.leader == other
    stream_id = controller.image.streams["a"].id
    (left,) = left_on(controller.image, number)
    assert (left.why, left.is_pending) == (f"node {copy} copies it", True)
    failed = {"copy": copy, "leader": other}[at]
    (left,) = left_on(controller.image, number, {(stream_id, 0, failed): "no disk; mount it"})
    assert not left.is_pending
    assert left.why == (
        f"its move waits: the replica on node {failed} has failed: no disk; mount it"
    )
    (left,) = left_on(controller.image, number, {(stream_id, 1, failed): "of another partition"})
    assert left.is_pending


def test_a_leader_whose_followers_have_failed_leads_on(controller: DecidingController) -> None:
    controller.create("a", replicas=3)
    leader, first, second = controller.state("a").replicas
    controller.set_isr("a", leader)
    controller.submit(Drain(leader, empties=False))
    stream_id = controller.image.streams["a"].id
    failed = {(stream_id, 0, first): "no disk; mount it"}
    (left,) = left_on(controller.image, leader, failed)
    assert (left.why, left.is_pending) == (
        f"no other replica is in sync yet; node {second} catches up", True,
    )  # fmt: skip
    failed[stream_id, 0, second] = "no room; make some"
    (left,) = left_on(controller.image, leader, failed)
    assert (left.why, left.is_pending) == (
        f"no other replica is in sync, and the replica on node {min(first, second)} has failed: "
        f"{failed[stream_id, 0, min(first, second)]}", False,
    )  # fmt: skip


@pytest.mark.parametrize("empties_other", [True, False])
def test_what_is_about_to_move_is_waited_for(
    empties_other: bool, controller: DecidingController
) -> None:
    """`drain --replicas --wait` ended at once: until its move began a partition was said to stay
    where another replica was drained, too."""
    controller.register(4)
    controller.create("a", replicas=2 if empties_other else 3)
    number, other, *_ = controller.state("a").replicas
    controller.submit(Drain(other, empties=empties_other))
    controller.submit(Drain(number, empties=True))
    (left,) = left_on(controller.image, number)
    assert due_moves(controller.image, count_max=1)
    assert left.is_pending, left.why
    controller.begin_due_moves(1)
    (left,) = left_on(controller.image, number)
    assert left.is_pending, left.why


def test_a_move_without_a_leader_is_not_waited_for(controller: DecidingController) -> None:
    controller.create("a", replicas=2, min_isr=1)
    number, last = controller.state("a").replicas
    controller.submit(Drain(number, empties=True))
    controller.begin_due_moves(1)
    controller.set_isr("a", last)
    (left,) = left_on(controller.image, number)
    assert left.is_pending, left.why
    controller.lose(last)
    (left,) = left_on(controller.image, number)
    assert (left.is_pending, controller.state("a").leader) == (False, NO_LEADER)


def test_a_node_that_is_to_be_removed_gives_its_leaders_first(
    controller: DecidingController,
) -> None:
    controller.register(4)
    controller.create("a", replicas=3, partitions=4)
    controller.submit(Leave(1, force=False))
    controller.submit(GiveLeaders(10))
    assert all(controller.state("a", n).leader != 1 for n in range(4))


def test_a_drain_of_very_many_partitions_has_steps(controller: DecidingController) -> None:
    controller.create("a", replicas=3, partitions=CHANGES_MAX // 2)
    controller.create("b", replicas=3, partitions=CHANGES_MAX // 2 + 1)
    taking = steps_of(controller.image, Drain(1, empties=False))
    next(taking)
    with pytest.raises(StopIteration):
        while True:
            commands = taking.send(controller.image)
            controller.commit(commands)
    assert controller.image.nodes[1].is_drained
    assert controller.image.index.leaders_on(1) == 0


# -- balance -----------------------------------------------------------------------------------


def balance(controller: DecidingController, *, by_itself: bool = False) -> None:
    """Do all moves; each partition that moves is in sync at once."""
    while moves := due_balancing(controller.image, count_max=3):
        controller.submit(BalanceReplicas(moves, by_itself))
        assert sum(1 for _ in controller.image.moving_states()) <= 3
        for name, definition in controller.image.streams.items():
            for index, state in enumerate(controller.image.partitions[definition.id]):
                if state.target:
                    controller.set_isr(name, *state.replicas, partition=index)
        controller.finish_moves()
    controller.submit(BalanceReplicas((), by_itself))


def test_a_node_that_has_joined_gets_its_share(controller: DecidingController) -> None:
    controller.create("a", replicas=3, partitions=12)
    controller.create("b", replicas=1, partitions=4)
    controller.register(4)
    moves = due_balancing(controller.image, count_max=3)
    assert decide(controller.image, BalanceReplicas(moves, by_itself=False)) == (), "nobody asked"
    planned = list(balancing_moves(controller.image))
    assert len({(move.stream_id, move.partition, move.source) for move in planned}) == len(planned)
    controller.submit(SetBalance(True))
    balance(controller)
    index = controller.image.index
    held = [index.replicas_on(node) for node in (1, 2, 3, 4)]
    assert max(held) - min(held) <= 1
    preferred = Counter(state.replicas[0] for _, _, state in controller.image.partition_states())
    assert max(preferred.values()) - min(preferred.values()) <= 1
    assert not controller.image.is_balancing, "it is done"
    assert list(balancing_moves(controller.image)) == []


def test_balance_by_itself_needs_nobody_to_ask(controller: DecidingController) -> None:
    controller.create("a", replicas=3, partitions=8)
    controller.register(4)
    balance(controller, by_itself=True)
    assert controller.image.index.replicas_on(4) == 6


def test_balance_keeps_racks_apart() -> None:
    controller = DecidingController()
    for node, rack in ((1, "x"), (2, "y")):
        controller.submit(RegisterProcess(registration(node, rack=rack)))
    controller.create("a", replicas=2, partitions=9)
    controller.submit(RegisterProcess(registration(3, rack="x")))
    balance(controller, by_itself=True)
    for state in controller.image.partitions[controller.image.streams["a"].id]:
        assert 2 in state.replicas, "the only node of its rack"
    assert controller.image.index.replicas_on(3) in (4, 5)


def test_balance_leaves_alone_what_is_not_in_sync_or_drained(
    controller: DecidingController,
) -> None:
    controller.create("a", replicas=3, partitions=4)
    controller.set_isr("a", controller.state("a").leader)
    controller.submit(Drain(3, empties=False))
    controller.register(4)
    stream_id = controller.image.streams["a"].id
    planned = list(balancing_moves(controller.image))
    assert planned
    assert (stream_id, 0) not in {(move.stream_id, move.partition) for move in planned}
    assert 3 not in {node for move in planned for node in (move.source, move.destination)}


def test_the_limit_of_catching_up_is_part_of_the_image(controller: DecidingController) -> None:
    controller.submit(LimitCatchUp(1_000))
    assert controller.image.catch_up_rate == 1_000
    assert decide(controller.image, LimitCatchUp(1_000)) == ()
    controller.submit(SetBalance(True))
    assert decide(controller.image, SetBalance(True)) == ()
    image, _ = decode_snapshot(list(encode_snapshot(controller.image, ())))
    assert (image.catch_up_rate, image.is_balancing) == (1_000, True)


def test_a_move_to_a_node_that_is_lost_stands_and_says_so(controller: DecidingController) -> None:
    controller.create("a", replicas=2)
    first, second = controller.state("a").replicas
    (added,) = {1, 2, 3} - {first, second}
    target = (first, added)
    controller.submit(Reassign("a", None, target))
    controller.lose(added)
    stands = "still stands: `bascule stream reassign a --cancel` takes it back"
    with pytest.raises(ConfigError, match=stands):
        controller.submit(Reassign("a", None, target))
    waits = f"its move waits for node {added}, which is not alive: start it, or give it up for good"
    assert waits in why_move_waits(controller.image, controller.state("a"), {})
    controller.submit(CancelMoves("a", None))
    assert why_move_waits(controller.image, controller.state("a"), {}) == ""
    with pytest.raises(ConfigError) as refused:
        controller.submit(Reassign("a", None, target))
    assert "stands" not in str(refused.value)
