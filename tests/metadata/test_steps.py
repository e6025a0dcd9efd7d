"""Decisions on very many partitions have steps of a bounded size, which others may come between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from bascule.errors import CannotReplicate, NodeRefused
from bascule.metadata.apply import apply
from bascule.metadata.commands import (
    ChangePartitions,
    Command,
    FenceNode,
    PartitionChange,
    RegisterNode,
)
from bascule.metadata.image import Image
from bascule.metadata.replicas import steps
from bascule.metadata.replicas.placement import place_partitions
from bascule.metadata.replicas.steps import Steps, settle_in_steps, steps_of
from bascule.metadata.requests import (
    Alter,
    ControllerRequest,
    LoseNode,
    RegisterProcess,
    ReplaceLeader,
    StepDown,
    decide,
    settle,
)
from bascule.model import NO_LEADER, StreamConfig, StreamDefinition, SyncPolicy
from support.deciding_controller import registration

STREAMS = 60
PARTITIONS = 3
CHANGES_MAX = 20
INDEX = 100


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "CHANGES_MAX", CHANGES_MAX)
    monkeypatch.setattr(steps, "VISITED_MAX", 7)


@pytest.fixture
def image() -> Image:
    """Three nodes, and many partitions with a replica on each."""
    nodes = {n: replace(registration(n), epoch=n, alive=True) for n in (1, 2, 3)}
    found = Image.of(streams={}, nodes=nodes)
    config = StreamConfig("x", partitions=PARTITIONS, replicas=3)
    streams, partitions = {}, {}
    for number in range(STREAMS):
        stream_id = bytes([number % 5]) + b"%015d" % number
        streams[f"s{number}"] = StreamDefinition(f"s{number}", stream_id, 0, config)
        partitions[stream_id] = place_partitions(found, PARTITIONS, replicas=3)
    return Image.of(streams=streams, partitions=partitions, nodes=nodes)


class Taken:
    """What the steps of a decision have proposed, and the image after it."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.commands: list[tuple[Command, ...]] = []

    def commit(self, commands: Sequence[Command]) -> Image:
        for command in commands:
            self.image = apply(self.image, command, index=INDEX + len(self.commands))
        if commands:
            self.commands.append(tuple(commands))
        return self.image

    def take(self, taking: Steps, between: Callable[[], None] = lambda: None) -> Taken:
        try:
            commands = next(taking)
            while True:
                self.commit(commands)
                between()
                commands = taking.send(self.image)
        except StopIteration as last:
            self.commit(last.value)
        return self

    @property
    def sizes(self) -> list[int]:
        """The partitions that each step changes."""
        return [
            sum(len(each.changes) for each in commands if isinstance(each, ChangePartitions))
            for commands in self.commands
        ]


def holders(image: Image, node: int) -> int:
    """The partitions that a node leads or is in sync in."""
    return sum(node in (s.leader, *s.isr) for _, _, s in image.partition_states())


def test_the_loss_of_a_node_has_steps_of_a_bounded_size(image: Image) -> None:
    request = LoseNode(1, 1)
    taken = Taken(image).take(steps_of(image, request))
    assert taken.commands[0] == (FenceNode(1, 1),), "nobody elects it from then on"
    assert max(taken.sizes) <= CHANGES_MAX + PARTITIONS
    assert sum(taken.sizes) == STREAMS * PARTITIONS
    assert holders(taken.image, 1) == 0
    assert {n: load.led for n, load in taken.image.index.loads.items() if load.led} == {
        2: STREAMS * PARTITIONS / 2, 3: STREAMS * PARTITIONS / 2
    }  # fmt: skip
    assert settle(taken.image) == ()
    again = Taken(taken.image).take(steps_of(taken.image, request))
    assert again.commands == []


def test_a_small_image_takes_one_step(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "CHANGES_MAX", STREAMS * PARTITIONS)
    for request in (LoseNode(1, 1), RegisterProcess(registration(2, incarnation=9))):
        (commands,) = Taken(image).take(steps_of(image, request)).commands
        assert commands == decide(image, request)
    (alter,) = Taken(image).take(steps_of(image, Alter("s1", {"replicas": 2}))).commands
    assert alter == decide(image, Alter("s1", {"replicas": 2}))


@pytest.mark.parametrize("taken_steps", range(3, 42, 3))
def test_a_new_controller_finishes_what_its_predecessor_began(
    image: Image, taken_steps: int
) -> None:
    taken = Taken(image)
    taking = steps_of(image, LoseNode(1, 1))
    commands = next(taking)
    try:
        for _ in range(taken_steps):
            commands = taking.send(taken.commit(commands))
    except StopIteration:
        pass
    settled = Taken(taken.image).take(settle_in_steps(taken.image))
    assert max(settled.sizes, default=0) <= CHANGES_MAX + PARTITIONS
    assert holders(settled.image, 1) == 0
    assert settle(settled.image) == ()


@pytest.mark.parametrize("at", [0, 1, 12, 20])
def test_a_process_leads_in_no_epoch_of_the_one_before_it(image: Image, at: int) -> None:
    """It registers while the loss of its predecessor is decided on."""
    taken = Taken(image)
    number = iter(range(100))
    epochs = {(id, index): s.leader_epoch for id, index, s in image.partition_states()}

    def between() -> None:
        if next(number) == at:
            back = RegisterProcess(registration(1, incarnation=2))
            taken.take(steps_of(taken.image, back))
            assert holders(taken.image, 1) == 0, "nothing is left of its predecessor"
            assert taken.image.nodes[1].alive

    taken.take(steps_of(image, LoseNode(1, 1)), between)
    assert holders(taken.image, 1) == 0
    assert next(number) > at
    for stream_id, index, state in taken.image.partition_states():
        before = image.partitions[stream_id][index]
        assert state.leader_epoch == epochs[stream_id, index] + (before.leader == 1)
        assert state.version == before.version + 1, "each partition changes once"


def test_a_process_that_nobody_missed_replaces_its_predecessor(image: Image) -> None:
    back = RegisterProcess(registration(1, incarnation=2))
    taken = Taken(image).take(steps_of(image, back))
    assert max(taken.sizes) <= CHANGES_MAX + PARTITIONS
    assert taken.commands[0] == (FenceNode(1, 1),)
    assert any(isinstance(each, RegisterNode) for some in taken.commands for each in some)
    assert taken.image.nodes[1].incarnation == 2
    assert holders(taken.image, 1) == 0


@pytest.mark.parametrize("at", range(0, 30, 3))
@pytest.mark.parametrize("later", [2, 3])
def test_a_registration_that_another_one_has_overtaken_changes_nothing(
    image: Image, at: int, later: int
) -> None:
    """Its answer was lost and it came again, or its process has ended and the next one registers:
    what it had left to do was done to the process that had registered meanwhile."""
    for name, definition in [*image.streams.items()]:
        unsynced = replace(definition.config, sync=SyncPolicy.INTERVAL)
        streams = image.streams.insert(name, replace(definition, config=unsynced))
        image = replace(image, streams=streams)
    taken, number = Taken(image), iter(range(1_000))
    is_overtaken = False

    def between() -> None:
        nonlocal is_overtaken
        if next(number) == at and not taken.image.is_alive(1):
            is_overtaken = True
            node = registration(1, incarnation=later)
            taken.take(steps_of(taken.image, RegisterProcess(node, has_lost_writes=True)))
            # It catches up, and leads again.
            changes = [
                PartitionChange(id, n, replace(s, isr=(1, 2, 3), leader=1, leader_epoch=9,
                                               version=s.version + 1))
                for id, n, s in taken.image.partition_states()
            ]  # fmt: skip
            taken.commit([ChangePartitions(tuple(changes))])
            taken.commands.clear()

    request = RegisterProcess(registration(1, incarnation=2), has_lost_writes=True)
    try:
        taken.take(steps_of(image, request), between)
    except CannotReplicate as error:
        assert "registered" in str(error)
    assert taken.image.is_alive(1)
    if is_overtaken:
        assert taken.commands == []
        assert taken.image.nodes[1].incarnation == later


def test_partitions_without_a_leader_get_one_when_a_node_registers(image: Image) -> None:
    taken = Taken(image)
    for node in (1, 2, 3):
        taken.take(steps_of(taken.image, LoseNode(node, node)))
    assert {state.leader for _, _, state in taken.image.partition_states()} == {NO_LEADER}
    taken.commands.clear()
    taken.take(steps_of(taken.image, RegisterProcess(registration(3, incarnation=2))))
    assert {state.leader for _, _, state in taken.image.partition_states()} == {3}
    assert max(taken.sizes) <= CHANGES_MAX + PARTITIONS


@pytest.mark.parametrize("request_", [ReplaceLeader(1, 1, {2: 2, 3: 3}), StepDown(1, 1)])
def test_a_silent_or_a_stopping_leader_is_replaced_in_steps(
    image: Image, request_: ControllerRequest
) -> None:
    taken = Taken(image).take(steps_of(image, request_))
    assert max(taken.sizes) <= CHANGES_MAX + PARTITIONS
    whole = decide(image, request_)
    assert {(c.stream_id, c.partition) for some in taken.commands for each in some
            if isinstance(each, ChangePartitions) for c in each.changes} == {
        (c.stream_id, c.partition) for each in whole
        if isinstance(each, ChangePartitions) for c in each.changes
    }  # fmt: skip
    assert all(state.leader != 1 for _, _, state in taken.image.partition_states())


def test_a_process_that_is_replaced_while_it_stops_keeps_what_the_next_one_leads(
    image: Image,
) -> None:
    taken = Taken(image)
    begun = 0

    def between() -> None:
        nonlocal begun
        if not begun and len(taken.commands) == 2:
            begun = sum(taken.sizes)
            taken.take(steps_of(taken.image, RegisterProcess(registration(1, incarnation=2))))
            taken.commands.clear()

    taken.take(steps_of(image, StepDown(1, 1)), between)
    assert 0 < begun < STREAMS, "node 1 led as many partitions"
    assert taken.commands == [], "the request names the process before"


def test_another_directory_is_refused_before_the_first_step(image: Image) -> None:
    known = replace(image.nodes[1], directory="mine")
    image = replace(image, nodes=image.nodes.insert(1, known))
    other: ControllerRequest = RegisterProcess(registration(1, incarnation=2, directory="other"))
    with pytest.raises(NodeRefused):
        Taken(image).take(steps_of(image, other))
