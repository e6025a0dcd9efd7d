"""A node that lacks NATS leads only where no other replica in sync can."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bascule.cluster_version import NEWEST
from bascule.errors import CannotLead
from bascule.metadata.command_codec import decode_snapshot, encode_snapshot
from bascule.metadata.nodes import NatsNote
from bascule.metadata.replicas.drained import left_on, why_move_waits
from bascule.metadata.requests import (
    BalanceLeaders,
    Drain,
    ElectLeaders,
    GiveLeaders,
    LeaveLacking,
    NoteNats,
    RaiseVersion,
    Reassign,
    RegisterProcess,
    StepDown,
    decide,
)
from bascule.model import NodeRegistration
from support.deciding_controller import DecidingController, registration

MAX = 100


@pytest.fixture
def controller() -> DecidingController:
    made = DecidingController()
    for node in (1, 2, 3):
        made.submit(RegisterProcess(newest(node)))
    made.submit(RaiseVersion((1, 2, 3)))
    assert made.image.cluster_version == NEWEST
    return made


def newest(node: int, incarnation: int = 1) -> NodeRegistration:
    return replace(registration(node, incarnation), cluster_version_max=NEWEST)


def note(controller: DecidingController, *nodes: int, since_ms: int = 1_000) -> None:
    """These nodes lack NATS since then; 0: they have it again."""
    image = controller.image
    notes = tuple(NatsNote(node, image.nodes[node].epoch, since_ms) for node in nodes)
    controller.submit(NoteNats(notes))


def leave(controller: DecidingController, *able: int) -> None:
    """Have `able` nodes lead for all that lack NATS."""
    lacking = tuple(node for node in (1, 2, 3) if controller.image.lacks_nats(node))
    controller.submit(LeaveLacking(lacking, able, MAX))


def test_it_is_noted_of_a_process(controller: DecidingController) -> None:
    """Also in a snapshot; until the next process of the node registers."""
    note(controller, 2)
    image, _ = decode_snapshot(list(encode_snapshot(controller.image, ())))
    assert [each for each in (1, 2, 3) if image.lacks_nats(each)] == [2]
    epoch = image.nodes[2].epoch
    assert decide(image, NoteNats((NatsNote(2, epoch, 5_000),))) == (), "it is known"
    assert decide(image, NoteNats((NatsNote(3, image.nodes[3].epoch, 0),))) == (), "so is that"
    assert decide(image, NoteNats((NatsNote(2, epoch - 1, 0),))) == (), "of an earlier process"
    controller.submit(RegisterProcess(newest(2)))
    assert controller.image.lacks_nats(2), "the same process"
    assert decide(controller.image, RegisterProcess(newest(2))) == ()
    controller.submit(StepDown(2, epoch))
    assert controller.image.lacks_nats(2), "it stops"
    controller.lose(2)
    assert not controller.image.lacks_nats(2), "it is not alive"
    controller.submit(RegisterProcess(newest(2, incarnation=2)))
    assert not controller.image.lacks_nats(2)


def test_nothing_is_noted_before_all_nodes_know_it() -> None:
    made = DecidingController()
    made.register(1, 2)
    assert decide(made.image, NoteNats((NatsNote(1, made.image.nodes[1].epoch, 1),))) == ()


def test_elections_choose_others(controller: DecidingController) -> None:
    controller.create("a", replicas=3)
    leader, first, second = controller.state("a").replicas
    note(controller, first)
    controller.lose(leader)
    assert controller.state("a").leader == second
    controller.lose(second)
    assert controller.state("a").leader == first, "nobody else can"


def test_a_drained_node_leads_before_one_without_nats(controller: DecidingController) -> None:
    controller.create("a", replicas=3)
    leader, first, second = controller.state("a").replicas
    note(controller, first)
    controller.submit(Drain(second, empties=False))
    controller.lose(leader)
    assert controller.state("a").leader == second


def test_one_without_nats_leads_before_one_that_stops(controller: DecidingController) -> None:
    controller.create("a", replicas=3)
    leader, first, second = controller.state("a").replicas
    note(controller, first)
    controller.submit(StepDown(second, controller.image.nodes[second].epoch))
    controller.lose(leader)
    assert controller.state("a").leader == first


def test_a_node_that_stops_gives_to_who_has_nats(controller: DecidingController) -> None:
    controller.create("a", replicas=3)
    leader, first, second = controller.state("a").replicas
    note(controller, first)
    controller.submit(StepDown(leader, controller.image.nodes[leader].epoch))
    assert controller.state("a").leader == second


def test_others_lead_for_it(controller: DecidingController) -> None:
    for name in ("a", "b", "c"):
        controller.create(name, replicas=3)
    note(controller, 1)
    before = {name: controller.state(name) for name in ("a", "b", "c")}
    leave(controller, 2, 3)
    leaders = [controller.state(name).leader for name in ("a", "b", "c")]
    assert 1 not in leaders
    for name, state in before.items():
        after = controller.state(name)
        assert after.isr == state.isr, "it follows, in sync"
        assert after.leader_epoch == state.leader_epoch + (state.leader == 1)
    assert decide(controller.image, BalanceLeaders(MAX)) == (), "it gets nothing back"
    note(controller, 1, since_ms=0)
    controller.submit(BalanceLeaders(MAX))
    assert [controller.state(n).leader for n in before] == [s.leader for s in before.values()]


def test_only_nodes_that_are_able_lead_for_it(controller: DecidingController) -> None:
    controller.create("a", replicas=3)
    leader, first, second = controller.state("a").replicas
    note(controller, leader)
    leave(controller)
    assert controller.state("a").leader == leader
    controller.submit(StepDown(first, controller.image.nodes[first].epoch))
    leave(controller, first)
    assert controller.state("a").leader == leader, "it is about to stop"
    controller.set_isr("a", leader, first)
    leave(controller, second)
    assert controller.state("a").leader == leader, "it is not in sync"
    controller.set_isr("a", leader, first, second)
    leave(controller, first, second)
    assert controller.state("a").leader == second


def test_a_drained_node_leads_for_it_where_no_other_can(controller: DecidingController) -> None:
    controller.create("a", replicas=2)
    leader, other = controller.state("a").replicas
    controller.submit(Drain(other, empties=False))
    note(controller, leader)
    leave(controller, other)
    assert controller.state("a").leader == other
    assert decide(controller.image, Drain(other, empties=False)) == (), "it does not give back"


def test_a_drain_waits_for_nats_of_the_others(controller: DecidingController) -> None:
    controller.create("a", replicas=2)
    leader, other = controller.state("a").replicas
    note(controller, other)
    controller.submit(Drain(leader, empties=False))
    assert controller.state("a").leader == leader
    (left,) = left_on(controller.image, leader)
    assert left.why == f"node {other} has no NATS connection, and no other is in sync"
    assert left.is_pending
    note(controller, other, since_ms=0)
    controller.submit(GiveLeaders(MAX))
    assert controller.state("a").leader == other


def test_nothing_moves_where_all_lack_nats(controller: DecidingController) -> None:
    controller.create("a", replicas=3)
    before = controller.state("a")
    note(controller, 1, 2, 3)
    leave(controller, 1, 2, 3)
    assert controller.state("a") == before
    other = before.replicas[1]
    controller.submit(ElectLeaders("a", None, other))
    assert controller.state("a").leader == other, "an operator chooses among equal ones"


def test_an_operator_is_told_why_it_does_not_lead(controller: DecidingController) -> None:
    controller.create("a", replicas=3)
    other = controller.state("a").replicas[1]
    note(controller, other)
    with pytest.raises(CannotLead, match="it has no NATS connection"):
        controller.submit(ElectLeaders("a", None, other))


def test_new_partitions_are_led_by_others(controller: DecidingController) -> None:
    note(controller, 1)
    for number in range(4):
        controller.create(f"one{number}", replicas=1)
        controller.create(f"three{number}", replicas=3)
        assert 1 not in controller.state(f"one{number}").replicas
        assert controller.state(f"three{number}").leader != 1


def test_a_move_waits_for_nats_of_who_is_to_lead(controller: DecidingController) -> None:
    controller.create("a", replicas=1)
    leader = controller.state("a").leader
    other = leader % 3 + 1
    note(controller, other)
    controller.submit(Reassign("a", None, (other,)))
    controller.set_isr("a", leader, other)
    controller.finish_moves()
    state = controller.state("a")
    assert (state.leader, state.target) == (leader, (other,))
    why = why_move_waits(controller.image, state, {})
    assert why == f"its move waits for a NATS connection of node {other}, which is to lead"
    note(controller, other, since_ms=0)
    controller.finish_moves()
    controller.finish_moves()
    assert controller.state("a").replicas == (other,)
    assert controller.state("a").leader == other
