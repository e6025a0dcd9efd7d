"""A node that is about to stop is in sync until it is gone, and is not given what others lead."""

from __future__ import annotations

import pytest

from bascule.metadata.command_codec import decode_snapshot, encode_snapshot
from bascule.metadata.requests import (
    BalanceLeaders,
    LoseNode,
    RegisterProcess,
    ReplaceLeader,
    StepDown,
    decide,
)
from bascule.model import NO_LEADER
from support.deciding_controller import DecidingController, isr_change, registration


@pytest.fixture
def controller() -> DecidingController:
    made = DecidingController()
    made.register(1, 2, 3)
    return made


def stop(controller: DecidingController, node: int) -> None:
    controller.submit(StepDown(node, controller.image.nodes[node].epoch))


def test_the_next_controller_knows_who_stops(controller: DecidingController) -> None:
    """Also after a snapshot; until the next process of the node registers."""
    stop(controller, 2)
    image, _ = decode_snapshot(list(encode_snapshot(controller.image, ())))
    assert [each for each in (1, 2, 3) if image.is_stopping(each)] == [2]
    assert decide(image, StepDown(2, image.nodes[2].epoch)) == (), "it is known"
    assert controller.image.is_alive(2)
    controller.submit(RegisterProcess(registration(2)))
    assert controller.image.is_stopping(2), "the same process has other addresses"
    controller.lose(2)
    controller.submit(RegisterProcess(registration(2)))
    assert controller.image.is_stopping(2), "the same process was taken for lost"
    controller.submit(RegisterProcess(registration(2, incarnation=2)))
    assert not controller.image.is_stopping(2)


def test_the_loss_of_another_node_elects_who_stays(controller: DecidingController) -> None:
    for name in ("a", "b", "c"):
        controller.create(name, replicas=3)
    stop(controller, 2)
    assert controller.state("b").leader != 2
    for name in ("a", "b", "c"):
        assert 2 in controller.state(name).isr
    controller.lose(1)
    assert {controller.state(name).leader for name in ("a", "b", "c")} == {3}


def test_a_silent_leader_is_replaced_by_who_stays(controller: DecidingController) -> None:
    controller.create("a", replicas=3)
    leader, first, second = controller.state("a").replicas
    stop(controller, first)
    nodes = controller.image.nodes
    epochs = {node: nodes[node].epoch for node in (first, second)}
    controller.submit(ReplaceLeader(leader, nodes[leader].epoch, epochs))
    assert controller.state("a").leader == second


def test_who_stops_leads_where_nobody_else_can(controller: DecidingController) -> None:
    controller.create("a", replicas=2)
    leader, other = controller.state("a").replicas
    stop(controller, other)
    controller.lose(leader)
    assert controller.state("a").leader == other


def test_an_eligible_node_that_stops_is_the_last_choice(controller: DecidingController) -> None:
    controller.create("a", replicas=3, min_isr=3)
    leader, first, second = controller.state("a").replicas
    for node in (first, second):
        controller.submit(isr_change(controller, "a", grow=False, node=node))
    assert controller.state("a").eligible == tuple(sorted((first, second)))
    stop(controller, first)
    controller.lose(leader)
    assert controller.state("a").leader == second


def test_nodes_that_stop_together_give_nothing_to_each_other(
    controller: DecidingController,
) -> None:
    controller.create("a", replicas=3)
    first, second, third = controller.state("a").replicas
    stop(controller, first)
    after = controller.state("a")
    assert after.leader in (second, third)
    stop(controller, after.leader)
    (last,) = {second, third} - {after.leader}
    assert controller.state("a").leader == last
    epoch = controller.state("a").leader_epoch
    stop(controller, last)
    assert (controller.state("a").leader, controller.state("a").leader_epoch) == (last, epoch)


def test_leadership_does_not_return_to_who_stops(controller: DecidingController) -> None:
    controller.create("a", replicas=3)
    preferred = controller.state("a").replicas[0]
    stop(controller, preferred)
    assert controller.state("a").leader != preferred
    assert decide(controller.image, BalanceLeaders(10)) == ()


def test_an_unclean_election_prefers_who_stays_among_equal_logs(
    controller: DecidingController,
) -> None:
    controller.create("a", replicas=3, min_isr=1, unclean=True)
    last, first, second = controller.state("a").replicas
    for node in (first, second, last):
        controller.lose(node)
    for node in (first, second):
        controller.submit(RegisterProcess(registration(node, incarnation=2)))
    stop(controller, first)
    assert controller.state("a").leader == NO_LEADER
    controller.elect_uncleanly()
    assert controller.state("a").leader == second


def test_a_process_that_stops_and_is_lost_is_lost(controller: DecidingController) -> None:
    stop(controller, 2)
    controller.submit(LoseNode(2, controller.image.nodes[2].epoch))
    assert not controller.image.is_alive(2)
    assert not controller.image.is_stopping(2)
