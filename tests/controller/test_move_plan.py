"""Moves are planned on a thread and begun a few at a time."""

from __future__ import annotations

import asyncio

from bascule.controller.cluster.operations.move_plan import MovePlan
from bascule.metadata.image import Image
from bascule.metadata.replicas.reassignment import PartitionMove, due_moves
from bascule.metadata.requests import Drain, MoveReplicas, RegisterProcess, Resume
from support.deciding_controller import DecidingController, registration


class Plans:
    """Counts the plans of a cluster in which one of four nodes is emptied."""

    def __init__(self) -> None:
        self.controller = DecidingController()
        self.controller.register(1, 2, 3, 4)
        self.controller.create("a", replicas=3, partitions=8)
        self.emptied = self.controller.state("a").leader
        self.controller.submit(Drain(self.emptied, empties=True))
        self.made = 0
        self.plan = MovePlan(self._due, lambda: self.controller.image)

    def _due(self, image: Image, *, count_max: int) -> tuple[PartitionMove, ...]:
        self.made += 1
        return due_moves(image, count_max=count_max)

    def take(self, moving_max: int) -> tuple[PartitionMove, ...] | None:
        return asyncio.run(self.plan.take(moving_max=moving_max))

    def moving(self) -> int:
        return sum(1 for _ in self.controller.image.moving_states())

    def end_moves(self) -> None:
        """All replicas that were added are in sync."""
        for index, state in enumerate(self.controller.image.partitions[self.stream_id]):
            if state.target:
                self.controller.set_isr("a", *state.replicas, partition=index)
        self.controller.finish_moves()

    @property
    def stream_id(self) -> bytes:
        return self.controller.image.streams["a"].id


def test_one_plan_serves_until_all_has_moved() -> None:
    plans = Plans()
    held = plans.controller.image.index.replicas_on(plans.emptied)
    moved = 0
    while moves := plans.take(moving_max=2):
        assert len(moves) <= 2
        moved += len(moves)
        plans.controller.submit(MoveReplicas(moves))
        assert plans.moving() <= 2
        assert plans.take(moving_max=2) == (), "as many move as may"
        plans.end_moves()
    assert moved == held
    assert plans.made == 2, "the last one has found nothing"
    assert plans.take(moving_max=2) is None


def test_partitions_that_have_changed_are_planned_again() -> None:
    plans = Plans()
    (first,) = plans.take(moving_max=1) or ()
    plans.controller.submit(MoveReplicas((first,)))
    plans.end_moves()
    behind = next(
        index
        for index, state in enumerate(plans.controller.image.partitions[plans.stream_id])
        if plans.emptied in state.replicas
    )
    leader = plans.controller.state("a", behind).leader
    plans.controller.set_isr("a", leader, partition=behind)
    taken = {move.partition for move in plans.take(moving_max=10) or ()}
    assert behind not in taken
    assert plans.made == 1


def test_a_plan_is_made_anew_when_the_nodes_change() -> None:
    plans = Plans()
    assert plans.take(moving_max=1)
    plans.controller.submit(Resume(plans.emptied))
    assert plans.take(moving_max=1) is None
    assert plans.made == 2


def test_a_decision_leaves_out_what_has_changed_since_the_plan() -> None:
    plans = Plans()
    moves = plans.take(moving_max=10) or ()
    gone = next(node for node in moves[0].replicas if node != plans.emptied)
    partition = plans.controller.image.partitions[plans.stream_id]
    added = {
        move.partition: {*move.replicas} - {*partition[move.partition].replicas} for move in moves
    }
    plans.controller.lose(gone)
    plans.controller.submit(MoveReplicas(moves))
    for index, state in enumerate(plans.controller.image.partitions[plans.stream_id]):
        if gone in added.get(index, ()):
            assert not state.target
    plans.controller.submit(RegisterProcess(registration(gone, incarnation=2)))
