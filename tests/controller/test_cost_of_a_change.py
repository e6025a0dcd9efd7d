"""A change costs what it touches, however many streams there are. Counted, not timed."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from bascule.config import ClusterConfig
from bascule.controller import plan as plan_module
from bascule.controller import reconciler as reconciler_module
from bascule.controller.cluster import decision_log
from bascule.controller.cluster.controller import ClusterController
from bascule.controller.cluster.metadata_group import STEPS_IN_FLIGHT, MetadataGroup
from bascule.controller.directories import StreamDirectories
from bascule.controller.held_partitions import HeldPartitions
from bascule.controller.plan import NodeState, StreamState, plan
from bascule.controller.reconciler import Reconciler
from bascule.errors import Broken, Indeterminate
from bascule.host.real import RealRandom
from bascule.metadata.apply import apply, touched
from bascule.metadata.commands import CreateStream, DeleteStream
from bascule.metadata.image import Image
from bascule.metadata.replicas import steps as steps_module
from bascule.metadata.replicas.placement import place_partitions
from bascule.metadata.requests import Create, LoseNode, RegisterProcess, StepDown
from bascule.metadata.troubles import find_troubles
from bascule.model import (
    DuplicateStream,
    NodeRegistration,
    PartitionState,
    StreamConfig,
    StreamDefinition,
    SyncPolicy,
)
from bascule.publish.headers import HashKey
from bascule.replica.disk_reserve import DiskReserve
from bascule.replica.log_writer import LogWriter
from bascule.replica.opening import PartitionOpener
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.syncing.log_syncer import LogSyncer
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.checkpoint import decode_checkpoint
from support.metadata_groups import NODE, Deciding, NoPeers, decide, until

DATA = "/data"
MANY = 10_000


class Unvisited(dict[Any, Any]):
    """A mapping that is only asked for keys, never visited."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("every entry is visited")

    keys = values = items = __iter__  # type: ignore[assignment]


def definition(number: int) -> StreamDefinition:
    return StreamDefinition(f"s{number}", b"%016d" % number, 0, StreamConfig(f"s.{number}"))


def image_of_many() -> Image:
    """An image with many streams, all in sync."""
    states = (PartitionState((1, 2), (1, 2), 1, 0, 0),)
    streams = [definition(number) for number in range(MANY)]
    return Image.of(
        streams={each.name: each for each in streams},
        partitions={each.id: states for each in streams},
        nodes={1: NODE, 2: NodeRegistration(2, "h:4", "h:5", "http://h:6", incarnation=1)},
    )


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the streams that plans look at."""
    names: list[str] = []
    plain = plan_module._plan_stream

    def count(state: NodeState, image: Image, found: StreamDefinition) -> Any:
        names.append(found.name)
        return plain(state, image, found)

    monkeypatch.setattr(plan_module, "_plan_stream", count)
    return names


def test_a_plan_visits_the_changed_streams_only(planned: list[str]) -> None:
    image = image_of_many()
    state = NodeState(1, can_subscribe=True)
    for each in image.streams.values():
        states = dict(enumerate(image.partitions[each.id]))
        state.streams[each.id] = StreamState(
            each, opened={0: 0}, states=states, subscribed=frozenset({0}), routed_count=1
        )
    assert plan(state, image) == ()
    assert len(planned) == MANY, "a full plan visits all"
    planned.clear()
    new, gone = definition(MANY), definition(7)
    create = CreateStream(new, place_partitions(image, 1, replicas=2))
    commands = (create, DeleteStream(gone.name, gone.id))
    ids = {each for command in commands for each in touched(command)}
    assert ids == {new.id, gone.id}
    for command in commands:
        image = apply(image, command)
    state.streams = Unvisited(state.streams)
    steps = plan(state, image, ids)
    assert planned == [new.name]
    assert {type(step).__name__ for step in steps} == {
        "CloseStream", "RemoveData", "OpenPartitions", "ApplyStates"
    }  # fmt: skip


def test_a_decision_counts_no_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    image = image_of_many()

    def visited(_: Image) -> Iterator[Any]:
        raise AssertionError("every partition is visited")

    monkeypatch.setattr(Image, "partition_states", visited)
    (placed,) = place_partitions(image, 1, replicas=2)
    assert placed.leader == 2, "node 1 leads all others"
    assert find_troubles(image).under_replicated == ()
    assert image.index.loads[1].led == MANY


class Announced:
    """Counts the definitions that are announced."""

    def __init__(self) -> None:
        self.all = 0
        self.changed: list[str] = []

    def on_streams(self, definitions: Mapping[str, StreamDefinition]) -> None:
        self.all += 1

    def on_changed(self, definitions: Mapping[str, StreamDefinition | None]) -> None:
        self.changed += definitions

    def duplicates(self, name: str) -> tuple[DuplicateStream, ...]:
        return ()


class FailingHeldPartitions(HeldPartitions):
    """A list that cannot be written for a while."""

    fails = False

    def hold(self, stream_id: bytes, partitions: Iterable[int]) -> None:
        if self.fails:
            raise OSError(errno.ENOSPC, "no space left")
        super().hold(stream_id, partitions)


class FollowingNode:
    """A cluster of one node on a simulated disk, without NATS."""

    def __init__(self, deciding: Deciding) -> None:
        self.files, self.clock = SimFiles(RealRandom(1)), SimClock(1_000)
        self.partitions = Partitions()
        self.syncer = LogSyncer(clock=self.clock)
        self.reserve = DiskReserve(self.files, DATA, RealRandom(3), size_bytes=0)
        self.writer = LogWriter(self.syncer, self.reserve)
        self.held = FailingHeldPartitions(self.files, DATA)
        self.nodes: list[list[int]] = []
        directories = StreamDirectories(self.files, DATA)
        self.reconciler = Reconciler(
            self.partitions,
            opener=PartitionOpener(self.files, self.clock, HashKey(bytes(16)), self.partitions),
            directories=directories,
            held=self.held,
            writer=self.writer,
            syncer=self.syncer,
            node_id=1,
            set_role=self._set_role,
        )
        self.controller = ClusterController(
            1,
            "t",
            self.partitions,
            self.reconciler,
            deciding.group,
            NoPeers(),
            directories=directories,
            reserve=self.reserve,
            clock=self.clock,
            random=RealRandom(),
            process_loss=lambda *_: "",
            on_nodes=lambda image: self.nodes.append(sorted(image.nodes)),
            settings=ClusterConfig(leader_balance_ms=0),
        )
        self.announced = Announced()

    def _set_role(self, partition: Partition, state: PartitionState) -> Any:
        return self.writer.set_role(partition, state, 1, lag_ns_max=10**10)

    async def start(self) -> None:
        self.partitions.bind(asyncio.get_running_loop())
        self.syncer.start(lambda _: None)
        self.writer.start(lambda _: None)
        await self.controller.open(NODE)
        self.controller.attach_announcer(self.announced)

    async def stop(self) -> None:
        await self.controller.close()
        await asyncio.to_thread(self.writer.stop)
        await asyncio.to_thread(self.syncer.stop)
        self.reconciler.close()


def test_a_node_follows_a_change_at_the_cost_of_the_change(planned: list[str]) -> None:
    async def scene(deciding: Deciding) -> None:
        node = FollowingNode(deciding)
        await node.start()
        try:
            controller, announced = node.controller, node.announced
            for number in range(30):
                await controller.create_stream(f"s{number}", StreamConfig(f"s.{number}"))
            assert controller.pending_steps() == ()
            for change in (
                controller.create_stream("new", StreamConfig("new")),
                controller.set_paused("new", True),
                controller.alter_stream("new", {"partitions": 2}),
                controller.delete_stream("new"),
            ):
                planned.clear(), announced.changed.clear(), node.nodes.clear()
                await change
                assert set(planned) <= {"new"}
                assert len(planned) <= 2, "what is to be done, and what is left to do"
                assert announced.changed == ["new"]
                assert node.nodes == []
            assert announced.all == 1
            planned.clear()
            await deciding.group.submit(RegisterProcess(replace(NODE, client="h:9")))
            await controller.wait_followed()
            assert planned == []
            assert node.nodes == [[1]]
        finally:
            await node.stop()

    decide(scene)


def test_a_failed_step_is_in_the_plan_of_the_next_change(planned: list[str]) -> None:
    async def scene(deciding: Deciding) -> None:
        node = FollowingNode(deciding)
        await node.start()
        try:
            controller = node.controller
            for number in range(10):
                await controller.create_stream(f"s{number}", StreamConfig(f"s.{number}"))
            node.held.fails = True
            await controller.create_stream("first", StreamConfig("first"))
            failure = controller.views.stream_info("first").partitions[0].failure
            assert "no space left" in str(failure)
            assert not node.reconciler.is_settled
            assert [step.partition("(")[0] for step in controller.pending_steps()] == [
                "OpenPartitions", "ApplyStates"
            ]  # fmt: skip
            node.held.fails = False
            planned.clear()
            await controller.create_stream("second", StreamConfig("second"))
            await until(lambda: node.reconciler.is_settled)
            assert set(planned) == {"first", "second"}
            assert controller.pending_steps() == ()
            assert node.reconciler.failures == {}
        finally:
            await node.stop()

    decide(scene)


def test_the_whole_node_is_looked_at_after_an_exception(
    planned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(deciding: Deciding) -> None:
        node = FollowingNode(deciding)
        await node.start()
        try:
            controller = node.controller
            for number in range(10):
                await controller.create_stream(f"s{number}", StreamConfig(f"s.{number}"))
            with monkeypatch.context() as patched:
                patched.setattr(node.reconciler.roles, "apply", _bug)
                creating = asyncio.create_task(controller.create_stream("new", StreamConfig("new")))
                await until(lambda: controller.follower._touched is None)
            planned.clear()
            await controller.create_stream("other", StreamConfig("other"))
            with pytest.raises(Broken, match="a bug"):
                await creating
            assert {*planned} >= {f"s{number}" for number in range(10)}
            assert controller.pending_steps() == ()
        finally:
            await node.stop()

    decide(scene)


def test_other_work_comes_between_the_parts_of_a_plan(
    planned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler_module, "PLANNED_AT_A_TIME", 10)
    monkeypatch.setattr(reconciler_module, "CHANGED_AT_A_TIME", 10)

    async def scene(deciding: Deciding) -> None:
        node = FollowingNode(deciding)
        await node.start()
        counts: list[int] = []

        def count() -> None:
            """In each turn of the loop."""
            nonlocal counting
            counts.append(len(planned))
            counting = asyncio.get_running_loop().call_soon(count)

        counting = asyncio.get_running_loop().call_soon(count)
        try:
            for number in range(60):
                await node.controller.create_stream(f"s{number}", StreamConfig(f"s.{number}"))
            planned.clear()
            node.reconciler.plan_all()
            await node.controller.follower.reconcile()
            counting.cancel()
            assert len(planned) == 60
            assert max(after - before for before, after in pairwise(counts)) <= 10
        finally:
            await node.stop()

    decide(scene)


async def three_nodes(group: MetadataGroup, *, streams: int) -> None:
    """Two more nodes, and streams of five partitions with a replica on each node."""
    for number in (2, 3):
        await group.submit(RegisterProcess(replace(NODE, node_id=number)))
    config = StreamConfig("s", partitions=5, replicas=3)
    for number in range(streams):
        await group.submit(Create(f"s{number}", config, b"%016d" % number, 0))


def test_other_work_comes_between_the_steps_of_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted on the node that decides and applies: partitions that change in one turn."""
    monkeypatch.setattr(steps_module, "CHANGES_MAX", 5)
    changed: list[int] = []

    async def scene(deciding: Deciding) -> None:
        group = deciding.group
        await three_nodes(group, streams=60)
        seen = group.image

        def on_image(image: Image, touched: Collection[bytes] | None) -> None:
            nonlocal seen
            count = 0
            for stream_id in touched or ():
                before = seen.partitions.get(stream_id)
                if before is not None:
                    pairs = zip(before, image.partitions[stream_id], strict=True)
                    count += sum(was is not now for was, now in pairs)
            changed.append(count)
            seen = image

        group.on_image = on_image
        losing = asyncio.create_task(group.submit(LoseNode(2, seen.nodes[2].epoch)))
        await until(lambda: len(changed) > 3)
        await group.submit(Create("between", StreamConfig("b", replicas=2), b"b" * 16, 0))
        assert not losing.done(), "a request waits for a step, and not for all"
        await losing
        assert sum(changed) == 300
        assert max(changed) <= 5 * (STEPS_IN_FLIGHT + 1)
        assert all(2 not in state.isr for _, _, state in group.image.partition_states())
        states = group.image.partitions[b"b" * 16]
        assert all(2 not in state.replicas for state in states)

    decide(scene)


@pytest.mark.parametrize("fails", [False, True])
def test_the_steps_of_a_decision_go_on_without_who_asked(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The session that reports the loss of a node ends with the first step; a step may fail."""
    monkeypatch.setattr(steps_module, "CHANGES_MAX", 10)

    async def scene(deciding: Deciding) -> None:
        group = deciding.group
        await three_nodes(group, streams=40)
        change = steps_module.changes_after_loss
        calls = 0

        def failing(*args: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            if fails and calls == 5:
                raise Indeterminate("a step is not known to be committed")
            return change(*args, **more)

        monkeypatch.setattr(steps_module, "changes_after_loss", failing)
        losing = asyncio.create_task(group.submit(LoseNode(2, group.image.nodes[2].epoch)))
        await until(lambda: not group.image.nodes[2].alive)
        losing.cancel()
        await until(lambda: all(2 not in s.isr for _, _, s in group.image.partition_states()))
        assert calls >= 20

    decide(scene)


def test_each_step_logs_the_leaders_that_it_changes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that stops says in the log of the controller who leads for it, in every step."""
    monkeypatch.setattr(steps_module, "CHANGES_MAX", 10)
    caplog.set_level("INFO", "bascule.controller")

    async def scene(deciding: Deciding) -> None:
        group = deciding.group
        await three_nodes(group, streams=20)
        led = {
            (group.image.index.names[stream_id], index)
            for stream_id, index, state in group.image.partition_states()
            if state.leader == 2
        }
        before = group.applied
        await group.submit(StepDown(2, group.image.nodes[2].epoch))
        assert group.applied > before + 1, "there were steps"
        changed = [each for each in caplog.records if each.message == "leader changed"]
        assert {(each.stream, each.partition) for each in changed} == led  # type: ignore[attr-defined]
        assert len(changed) == len(led)
        assert {each.before for each in changed} == {2}  # type: ignore[attr-defined]

    decide(scene)


def test_the_loss_of_a_node_logs_why_others_lead(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first partitions of a step, and how many there are: it may be every one."""
    monkeypatch.setattr(steps_module, "CHANGES_MAX", 50)
    monkeypatch.setattr(decision_log, "LOGGED_MAX", 5)
    caplog.set_level("INFO", "bascule.controller")

    async def scene(deciding: Deciding) -> None:
        group = deciding.group
        await three_nodes(group, streams=20)
        alone = StreamConfig("alone", partitions=3, replicas=1)
        await group.submit(Create("alone", alone, b"%016d" % 100, 0))
        before = group.image
        await group.submit(LoseNode(2, group.image.nodes[2].epoch))
        said = [vars(each) for each in caplog.records if vars(each).get("reason")]
        assert {each["reason"] for each in said} == {"node 2 is lost"}
        more = [each for each in said if each["msg"].startswith("more leaders")]
        single = [each for each in said if each not in more]
        assert sum(each["count"] for each in more) + len(single) - 5 * len(more) == 101
        for each in single:
            stream_id = before.streams[each["stream"]].id
            old = before.partitions[stream_id][each["partition"]]
            new = group.image.partitions[stream_id][each["partition"]]
            assert each["isr"] == list(new.isr)
            if old.leader != 2:
                assert (each["msg"], each["before"]) == ("isr changed", list(old.isr))
            elif each["stream"] == "alone":
                assert (each["msg"], each["before"]) == ("no leader can be elected", 2)
            else:
                assert (each["msg"], each["leader"]) == ("leader elected", new.leader)
        assert {each["msg"] for each in single} >= {"leader elected", "isr changed"}

    decide(scene)


@pytest.mark.parametrize("seconds", [0.0, 10.0])
def test_checkpoints_end_in_time_when_a_node_stops(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seconds: float
) -> None:
    monkeypatch.setattr(reconciler_module, "CLOSING_SECONDS_MAX", seconds)
    nodes: list[FollowingNode] = []

    async def scene(deciding: Deciding) -> None:
        node = FollowingNode(deciding)
        nodes.append(node)
        await node.start()
        for name, sync in (("a", "always"), ("b", "always"), ("c", "never")):
            await node.controller.create_stream(name, StreamConfig(name, sync=SyncPolicy(sync)))
        await node.stop()

    decide(scene)
    clean = []
    files = nodes[0].files
    for name in "abc":
        path = f"{DATA}/streams/{name}/0/checkpoint"
        found = files.exists(path) and decode_checkpoint(files.read_bytes(path), path=path).clean
        clean.append(found)
    late = [each for each in caplog.records if "without a checkpoint" in each.message]
    assert clean == ([True] * 3 if seconds else [False, False, True])
    assert len(late) == (0 if seconds else 1)


async def _bug(*_: object) -> None:
    raise ZeroDivisionError("a bug")
