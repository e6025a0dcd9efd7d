"""Removals of nodes, by force and not, of which several are under way: what holds in any history of
them, and that each one ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.errors import BasculeError
from bascule.metadata.command_codec import decode_snapshot, encode_snapshot
from bascule.metadata.image import Image
from bascule.metadata.replicas.balance import due_balancing
from bascule.metadata.replicas.drained import left_on
from bascule.metadata.replicas.reassignment import wanted_count
from bascule.metadata.requests import (
    Admit,
    Alter,
    BalanceReplicas,
    CancelMoves,
    ChangeIsrs,
    Create,
    Delete,
    Drain,
    FinishLeaving,
    GiveLeaders,
    IsrChange,
    Leave,
    Reassign,
    RegisterProcess,
    Resume,
    Stay,
    decide,
)
from bascule.metadata.troubles import TroubleCounts, count_troubles, find_troubles
from bascule.model import NO_LEADER, PartitionState, StreamConfig, is_internal_stream
from support.deciding_controller import DecidingController, isr_change, registration

NODES = (1, 2, 3, 4, 5)
SPARES = (11, 12, 13)
STREAMS = ("_offsets", "s1", "s2", "s3")
KINDS = (
    "leave", "leave", "begin", "begin", "finish", "lose", "force", "give up", "give up",
    "catch up", "catch up", "shrink", "reassign", "replicas", "needs", "drain", "resume", "cancel",
    "start", "stay", "join", "delete", "create",
)  # fmt: skip
ROUNDS_MAX = 40
"""Of upkeep until nothing changes any more; each ends moves and begins others."""

Steps = list[tuple[str, int, int]]


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, Steps]:
    """How many nodes there are at first, and what happens: kind, node and another number. In the
    midst of it a node is given up while replicas move off another one."""
    nodes = st.sampled_from(NODES)
    step = st.tuples(st.sampled_from(KINDS), nodes, st.integers(1, 3))
    first, last = draw(st.lists(step, max_size=6)), draw(st.lists(step, max_size=10))
    leaving = [("leave", draw(nodes), 1), ("begin", 1, 1)]
    given_up = [("give up", draw(nodes), 1), ("catch up", 1, 1), ("finish", 1, 1)]
    return draw(st.integers(3, len(NODES))), [*first, *leaving, *given_up, *last]


class Watched(DecidingController):
    """Looks at each change of the image."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.register(*NODES[:nodes])
        for number, name in enumerate(STREAMS):
            self.create_named(name, replicas=number or 3)

    def create_named(self, name: str, *, replicas: int) -> None:
        config = StreamConfig(name, replicas=replicas, partitions=1 if name == "_offsets" else 2)
        stream_id = f"{name} {self.index}".encode().ljust(16)
        self.submit(Create(name, config, stream_id, 0, internal=name == "_offsets"))

    def commit(self, commands: Any) -> int:
        before = self.image
        index = super().commit(commands)
        check_copies(before, self.image)
        return index

    def catch_up(self) -> None:
        """All replicas of living nodes are in sync where somebody leads."""
        for stream_id, index, _ in list(self.image.partition_states()):
            state = self.image.partitions[stream_id][index]
            alive = [node for node in sorted(state.replicas) if self.image.is_alive(node)]
            if state.leader != NO_LEADER and alive != [*state.isr]:
                members = tuple((node, self.image.nodes[node].epoch) for node in alive)
                change = IsrChange(stream_id, index, state.leader_epoch, state.version, members)
                self.submit(ChangeIsrs(state.leader, (change,)))

    def look_after(self) -> None:
        """One round of what the controller does by and by."""
        self.catch_up()
        self.finish_moves()
        self.begin_due_moves(100)
        for node in [*self.image.nodes]:
            self.submit(FinishLeaving(node))
        self.submit(GiveLeaders(100))
        self.submit(BalanceReplicas(due_balancing(self.image, count_max=4), True))

    def settle(self) -> None:
        for _ in range(ROUNDS_MAX):
            before = self.image
            self.look_after()
            if self.image == before:
                return
        raise AssertionError(f"moves without end: {[*self.image.partition_states()]}")


def check_copies(before: Image, image: Image) -> None:
    """No living node gives up a complete copy while the partition has fewer than it is to have.

    Streams of the cluster itself are to have as many as there are nodes for when a move begins.
    """
    for stream_id, index, state in image.partition_states():
        earlier = before.partitions.get(stream_id, ())
        definition = image.stream_of(stream_id)
        assert definition is not None
        if index >= len(earlier) or is_internal_stream(definition.name):
            continue
        old = earlier[index]
        gone = {*old.isr}.difference(state.replicas)
        if any(map(image.is_alive, gone)):
            wanted = min(definition.config.replicas, len(old.replicas))
            assert len(state.replicas) >= wanted, (old, state)


def counted(image: Image) -> TroubleCounts:
    """As `count_troubles`, with a look at each partition."""
    leaderless = under_min_isr = under_replicated = short = 0
    takers = {*image.usable()}
    for definition in image.streams.values():
        wanted = wanted_count(image, definition)
        for state in image.partitions[definition.id]:
            is_whole = len(state.isr) == len(state.replicas)
            is_short = len(state.target or state.replicas) < wanted
            leaderless += state.leader == NO_LEADER
            under_min_isr += len(state.isr) < definition.needed_in_sync(state)
            under_replicated += is_short or not is_whole
            able = takers | {*staying(image, state)}
            short += is_short and is_whole and len(able) < wanted
    return TroubleCounts(leaderless, under_min_isr, under_replicated, 0, short)


def staying(image: Image, state: PartitionState) -> Iterable[int]:
    base = state.target or state.replicas
    return (node for node in base if not image.nodes[node].gives_replicas)


def play(controller: Watched, steps: Steps) -> None:
    for number, (kind, node, count) in enumerate(steps, start=10):
        try:
            play_one(controller, kind, node, count, number)
        except (BasculeError, KeyError):
            pass  # refused, or the stream is deleted
        assert count_troubles(controller.image) == counted(controller.image)


def play_one(controller: Watched, kind: str, node: int, count: int, number: int) -> None:
    name = STREAMS[(node + count) % len(STREAMS)]
    match kind:
        case "begin":
            controller.begin_due_moves(10)
        case "finish":
            controller.finish_moves()
            for each in [*controller.image.nodes]:
                controller.submit(FinishLeaving(each))
        case "lose":
            controller.lose(node)
        case "give up":
            controller.lose(node)
            controller.submit(Leave(node, force=True))
        case "leave" | "force":
            controller.submit(Leave(node, force=kind == "force"))
        case "catch up":
            controller.catch_up()
        case "shrink":
            controller.submit(isr_change(controller, name, grow=False, node=node))
        case "reassign":
            target = tuple(NODES[(node + step) % len(NODES)] for step in range(count))
            controller.submit(Reassign(name, None, target))
        case "replicas" | "needs":
            setting = "replicas" if kind == "replicas" else "min_isr"
            controller.submit(Alter(name, {setting: count}))
        case "drain":
            controller.submit(Drain(node, empties=count > 1))
        case "resume":
            controller.submit(Resume(node))
        case "cancel":
            controller.submit(CancelMoves(name, None))
        case "stay":
            controller.submit(Stay(node))
        case "start":
            controller.submit(RegisterProcess(registration(node, number)))
        case "join":
            process = registration(node, number, directory=f"d{number}")
            controller.submit(Admit(process))
            controller.submit(RegisterProcess(process))
        case "delete":
            controller.submit(Delete(name))
        case "create":
            controller.create_named(name, replicas=count)


@settings(max_examples=300)
@given(histories())
def test_no_removal_takes_a_complete_copy_that_is_missed(history: tuple[int, Steps]) -> None:
    nodes, steps = history
    controller = Watched(nodes)
    play(controller, steps)
    restored, _ = decode_snapshot([*encode_snapshot(controller.image, ())])
    assert count_troubles(restored) == counted(controller.image)


@settings(max_examples=150)
@given(histories())
def test_every_removal_ends_or_says_what_it_waits_for(history: tuple[int, Steps]) -> None:
    nodes, steps = history
    controller = Watched(nodes)
    play(controller, steps)
    controller.settle()
    image = controller.image
    for number in image.nodes:
        assert not any(left.is_pending for left in left_on(image, number)), "it changes no more"
    for ref in find_troubles(image).under_replicated:
        assert "about to" not in ref.short, "nothing is about to happen any more"
    for number, node in [*image.nodes.items()]:
        controller.submit(RegisterProcess(registration(number, 100, directory=node.directory)))
        controller.submit(Resume(number))
    controller.register(*SPARES)
    controller.settle()
    image = controller.image
    assert not any(node.is_leaving for node in image.nodes.values()), "all removals have ended"
    assert count_troubles(image) == TroubleCounts()
    for stream_id, _, state in image.partition_states():
        definition = image.stream_of(stream_id)
        assert definition is not None
        assert not state.target
        assert len(state.replicas) == wanted_count(image, definition)
    assert decide(image, BalanceReplicas((), True)) == ()
