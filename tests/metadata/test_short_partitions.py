"""Partitions with fewer replicas than their streams ask for: who counts them, and what is said."""

from __future__ import annotations

import pytest

from bascule.metadata.requests import Alter, Create, Drain, Leave
from bascule.metadata.troubles import count_troubles, find_troubles
from bascule.model import StreamConfig
from support.deciding_controller import DecidingController

JOIN = "add a node with `bascule node join`"


@pytest.fixture
def controller() -> DecidingController:
    """Three nodes, and a stream on all of them, of which node 3 is removed by force."""
    made = DecidingController()
    made.register(1, 2, 3)
    made.create("a", replicas=3, partitions=2)
    made.lose(3)
    made.submit(Leave(3, force=True))
    return made


def shorts(controller: DecidingController) -> list[str]:
    return [each.short for each in find_troubles(controller.image).under_replicated]


def counts(controller: DecidingController) -> tuple[int, int]:
    found = count_troubles(controller.image)
    return found.under_replicated, found.short


def test_a_removal_by_force_without_a_spare_leaves_partitions_short(
    controller: DecidingController,
) -> None:
    assert len(controller.state("a").replicas) == 2
    assert counts(controller) == (2, 2)
    assert shorts(controller) == [f"it has 2 of 3 replicas, for want of a node: {JOIN}"] * 2


def test_partitions_count_until_a_node_that_has_joined_is_in_sync(
    controller: DecidingController,
) -> None:
    """At no moment between its start and its copies is the cluster said to be whole."""
    controller.register(4)
    assert counts(controller) == (2, 0), "it is known that they are to be copied"
    assert shorts(controller) == ["it has 2 of 3 replicas; another node is about to copy it"] * 2
    controller.begin_due_moves(10)
    assert counts(controller) == (2, 0), "they are copied"
    for partition in range(2):
        state = controller.state("a", partition)
        controller.set_isr("a", *state.replicas, partition=partition)
    assert counts(controller) == (0, 0)


def test_what_is_short_and_behind_is_not_only_short(controller: DecidingController) -> None:
    controller.lose(2)
    assert counts(controller)[1] == 0
    assert counts(controller)[0] >= 2


def test_a_stream_that_asks_for_less_is_not_short(controller: DecidingController) -> None:
    controller.submit(Alter("a", {"replicas": 2}))
    assert counts(controller) == (0, 0)


def test_nodes_that_could_hold_replicas_are_named(controller: DecidingController) -> None:
    controller.register(4, 5)
    controller.submit(Drain(5, empties=False))
    controller.lose(4)
    says = "for want of a node: start node 4, or `bascule node resume 5`"
    assert all(f"{says}, or {JOIN}" in each for each in shorts(controller))


def test_the_cluster_s_own_streams_have_as_many_replicas_as_there_are_nodes_for() -> None:
    made = DecidingController()
    made.register(1, 2, 3)
    config = StreamConfig("_offsets", replicas=3)
    made.submit(Create("_offsets", config, b"o" * 16, 0, internal=True))
    made.lose(3)
    made.submit(Leave(3, force=True))
    assert counts(made) == (0, 0)
    made.register(4)
    assert counts(made) == (1, 0), "before it has moved to the new node"
