"""What a node does with a replica that the image gives to other nodes."""

from __future__ import annotations

import asyncio
import errno
from concurrent.futures import Future
from dataclasses import replace

import pytest

from bascule.controller.directories import StreamDirectories
from bascule.controller.held_partitions import HeldPartitions
from bascule.controller.plan import (
    ApplyStates,
    DropReplicas,
    NodeState,
    OpenPartitions,
    RegisterElsewhere,
    StreamState,
    plan,
)
from bascule.controller.replica_removal import ReplicaRemoval
from bascule.errors import Broken
from bascule.host.real import RealRandom
from bascule.metadata.apply import apply
from bascule.metadata.commands import (
    ChangePartitions,
    CreateStream,
    DeleteStream,
    ForgetDeletions,
    PartitionChange,
)
from bascule.metadata.image import Image
from bascule.model import PartitionState, StreamConfig, StreamDefinition
from bascule.replica.log_identity import LogIdentity, read_identity, write_identity
from bascule.replica.partition import Partition
from bascule.sim.disk import SHORT, SimFiles
from support import controlled_node
from support.controlled_node import ControlledNode

DATA = "data"
ONE, TWO = b"1" * 16, b"2" * 16
HERE, THERE = (1, 2), (2, 3)


def state(replicas: tuple[int, ...], version: int = 0) -> PartitionState:
    return PartitionState(replicas, tuple(sorted(replicas)), replicas[-1], version, version)


def test_a_replica_is_dropped_when_its_partition_has_moved_and_opened_when_it_is_back() -> None:
    definition = StreamDefinition("s", ONE, 0, StreamConfig("s", replicas=2))
    before, after = state(HERE), state(THERE, 1)
    image = apply(Image(), CreateStream(definition, (before,)))
    node = NodeState(node_id=1)
    node.streams[ONE] = StreamState(definition, opened={0: 0}, states={0: before})
    assert plan(node, image) == ()
    image = apply(image, ChangePartitions((PartitionChange(ONE, 0, after),)))
    assert plan(node, image) == (
        ApplyStates(definition, {0: after}),
        DropReplicas(definition, (0,)),
    )
    node.streams[ONE] = StreamState(definition, elsewhere=frozenset({0}), states={0: after})
    assert plan(node, image) == ()
    again = ChangePartitions((PartitionChange(ONE, 0, state(HERE, 2)),))
    assert OpenPartitions(definition, (0,)) in plan(node, apply(image, again))


BACK = PartitionState((2, 3, 1), (2, 3), 3, 2, 4, since=((1, 3), (3, 1)))
"""Node 1 was no replica from version 1 to 2."""


def test_a_replica_that_moved_away_and_came_back_unheard_gets_another_log() -> None:
    """The others may have removed tombstones that the log lacks."""
    definition = StreamDefinition("s", ONE, 0, StreamConfig("s", replicas=2))
    before = state(HERE)
    image = apply(Image(), CreateStream(definition, (BACK,)))
    node = NodeState(node_id=1)
    node.streams[ONE] = StreamState(definition, opened={0: 0}, states={0: before})
    away = replace(BACK, replicas=(2, 3))
    assert plan(node, image) == (
        ApplyStates(definition, {0: away}),
        DropReplicas(definition, (0,)),
    )
    node.streams[ONE] = StreamState(definition, elsewhere=frozenset({0}), states={0: away})
    assert plan(node, image) == (
        OpenPartitions(definition, (0,), {0: 3}),
        ApplyStates(definition, {0: BACK}),
    )
    node.streams[ONE] = StreamState(definition, opened={0: 3}, states={0: BACK})
    assert plan(node, image) == ()


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("operation", range(12))
def test_the_log_of_a_replica_that_came_back_unheard_is_not_opened_again(
    is_closed: bool, operation: int
) -> None:
    """Whatever fails on the way, the records of before are not in the log. `is_closed`: the node
    has not opened it since it started."""
    definition = StreamDefinition("s", ONE, 0, StreamConfig("s", replicas=2, min_isr=1))
    led = PartitionState((1, 2), (1,), 1, 0, 0)

    async def run() -> None:
        files = SimFiles(RealRandom(operation))
        async with ControlledNode(files) as node:
            image = apply(node.controller.image, CreateStream(definition, (led,)))
            await node.reconciler.reconcile(image)
            (partition,) = node.partitions.stream("s") or ()
            assert partition.log is not None
            await node.publish("s", [b"old"])
            assert partition.log.end.offset == 1
            if is_closed:
                await node.reconciler.let_go(definition, [0])
            await come_back(node, files)
            await node.reconciler.reconcile(node.controller.image)

    async def come_back(node: ControlledNode, files: SimFiles) -> None:
        image = apply(node.controller.image, CreateStream(definition, (BACK,)))
        if operation:
            files.fail(operation, errno.EIO)
            await node.reconciler.reconcile(image)
            files.forget_faults()
        for _ in range(2):
            assert await node.reconciler.reconcile(image) == {}
        assert node.reconciler.pending(image) == ()
        (partition,) = node.partitions.stream("s") or ()
        assert partition.log is not None, partition.failure
        assert partition.log.end.offset == 0
        found = read_identity(files, f"{controlled_node.DATA}/streams/s/0")
        assert found == LogIdentity(ONE, 0, 3)

    asyncio.run(run())


def test_a_node_that_was_away_while_its_replica_moved_registers_it_elsewhere() -> None:
    definition = StreamDefinition("s", ONE, 0, StreamConfig("s", replicas=2))
    image = apply(Image(), CreateStream(definition, (state(THERE),)))
    assert RegisterElsewhere(definition, (0,)) in plan(NodeState(node_id=1), image)


def make_partition(files: SimFiles, stream_id: bytes, name: str, index: int) -> str:
    place = f"{DATA}/streams/{name}/{index}"
    files.make_dirs(place)
    write_identity(files, place, LogIdentity(stream_id, index))
    files.sync_dir(place)
    return place


def test_only_the_data_of_that_stream_is_removed() -> None:
    files = SimFiles(RealRandom(1))
    directories = StreamDirectories(files, DATA)
    directories.prepare(Image())
    mine, sibling = (make_partition(files, ONE, "s", n) for n in (0, 1))
    directories.remove_partition(TWO, "s", 0)
    assert files.exists(mine), "it belongs to another stream of that name"
    directories.remove_partition(ONE, "s", 0)
    assert (files.exists(mine), files.exists(sibling)) == (False, True)
    directories.remove_partition(ONE, "s", 0)
    assert files.list_dir(f"{DATA}/removed") == []


def test_whatever_fails_the_replica_is_removed_in_the_end() -> None:
    """A failure is tried again; a start removes what is left, too."""
    definition = StreamDefinition("s", ONE, 0, StreamConfig("s", replicas=2))

    async def run(operation: int, *, crashes: bool) -> bool:
        files = SimFiles(RealRandom(operation))
        directories, held = StreamDirectories(files, DATA), HeldPartitions(files, DATA)
        directories.prepare(Image())
        place = make_partition(files, ONE, "s", 0)
        held.hold(ONE, [0])
        removal = ReplicaRemoval(directories, held)
        files.fail(operation, errno.EIO)
        failures: dict[bytes, Exception] = {}
        removed = await removal.remove_replicas(definition, [0], failures)
        assert removed == (set() if failures else {0})
        hit = not files.fault_pending()
        files.forget_faults()
        if crashes:
            files.crash()
            held = HeldPartitions(files, DATA)
            held.load()
            removal = ReplicaRemoval(directories, held)
            directories.prepare(Image.of(streams={"s": definition}))
        there = directories.present(["s"]).get("s", set())
        left = there | removal.left_of(definition, [0])
        assert not failures or crashes or left == {0}, "so that the node tries again"
        assert await removal.remove_replicas(definition, left, {}) == left
        assert not files.exists(place)
        assert files.list_dir(f"{DATA}/removed") == []
        assert not held.holds(ONE, 0)
        return hit

    for crashes in (False, True):
        operation = 1
        while asyncio.run(run(operation, crashes=crashes)):
            operation += 1
        assert operation > 3


def test_a_partition_that_was_dropped_may_be_held_again() -> None:
    files = SimFiles(RealRandom(1))
    files.make_dirs(DATA)
    held = HeldPartitions(files, DATA)
    held.hold(ONE, [0, 1])
    held.drop(ONE, 0)
    held.drop(ONE, 7)
    files.crash()
    again = HeldPartitions(files, DATA)
    again.load()
    assert [again.holds(ONE, n) for n in (0, 1)] == [False, True]
    again.hold(ONE, [0])
    assert again.holds(ONE, 0)


@pytest.mark.parametrize("operation", [0, 1, 2, 3])
def test_a_stream_that_moved_and_was_deleted_meanwhile_is_removed(operation: int) -> None:
    """The deletion is recorded for the nodes that had its last replicas, and these are done."""
    definition = StreamDefinition("s", ONE, 0, StreamConfig("s", replicas=2))

    async def run() -> None:
        files = SimFiles(RealRandom(operation))
        async with ControlledNode(files) as node:
            image = apply(node.controller.image, CreateStream(definition, (state(HERE),)))
            await node.reconciler.reconcile(image)
            place = f"{controlled_node.DATA}/streams/s/0"
            assert files.exists(place)
            image = apply(image, ChangePartitions((PartitionChange(ONE, 0, state(THERE, 1)),)))
            image = apply(image, DeleteStream("s", ONE))
            for other in THERE:
                image = apply(image, ForgetDeletions((ONE,), other))
            assert ONE not in image.deletions
            if operation:
                files.fail(operation, errno.EIO)
                await node.reconciler.reconcile(image, [ONE])
                files.forget_faults()
            assert not await node.reconciler.reconcile(image, [ONE])
            assert not files.exists(place)
            assert plan(node.reconciler.state, image) == ()
            assert not node.reconciler.state.closed

    asyncio.run(run())


@pytest.mark.parametrize("failures", [0, 1, 2, 3])
@pytest.mark.parametrize("is_added", [False, True])
def test_a_replica_is_removed_however_often_that_fails(is_added: bool, failures: int) -> None:
    """Whether the node has had it from the beginning, or has known it elsewhere before."""
    definition = StreamDefinition("s", ONE, 0, StreamConfig("s", replicas=2))
    states = [state(THERE), replace(state(HERE, 1), since=((1, 1),)), state(THERE, 2)]
    if not is_added:
        states = [state(HERE), state(THERE, 1)]

    async def run() -> None:
        files = SimFiles(RealRandom(1))
        async with ControlledNode(files) as node:
            place = f"{controlled_node.DATA}/streams/s/0"
            image = apply(node.controller.image, CreateStream(definition, (states[0],)))
            for each in states[1:]:
                assert await node.reconciler.reconcile(image) == {}
                image = apply(image, ChangePartitions((PartitionChange(ONE, 0, each),)))
            assert files.exists(place)
            rename = files.rename

            def fail(source: str, target: str) -> None:
                raise OSError(errno.ENOSPC, "no space left on device", source)

            files.rename = fail  # type: ignore[method-assign]
            for _ in range(failures):
                assert await node.reconciler.reconcile(image, [ONE])
            files.rename = rename  # type: ignore[method-assign]
            assert await node.reconciler.reconcile(image, () if failures else [ONE]) == {}
            assert node.reconciler.pending(image) == ()
            assert not files.exists(place)
            (partition,) = node.partitions.stream("s") or ()
            assert (partition.log, partition.state) == (None, states[-1])
            await node.reconciler.reconcile(node.controller.image)

    asyncio.run(run())


def test_a_replica_is_not_removed_before_it_has_heard_that_it_is_none() -> None:
    """Until then it may lead, and append what others publish."""
    definition = StreamDefinition("s", ONE, 0, StreamConfig("s", replicas=2))

    async def run() -> None:
        files = SimFiles(RealRandom(1))
        async with ControlledNode(files) as node:
            image = apply(node.controller.image, CreateStream(definition, (state(HERE),)))
            await node.reconciler.reconcile(image)
            (partition,) = node.partitions.stream("s") or ()
            image = apply(image, ChangePartitions((PartitionChange(ONE, 0, state(THERE, 1)),)))
            set_role = node.reconciler.roles._set_role

            def refuse(_: Partition, __: PartitionState) -> Future[None]:
                refused: Future[None] = Future()
                refused.set_exception(Broken("not now"))
                return refused

            node.reconciler.roles._set_role = refuse
            assert await node.reconciler.reconcile(image)
            assert files.exists(f"{controlled_node.DATA}/streams/s/0")
            assert node.partitions.stream("s") == (partition,)
            assert not partition.deleted
            node.reconciler.roles._set_role = set_role
            assert await node.reconciler.reconcile(image, ()) == {}
            assert not files.exists(f"{controlled_node.DATA}/streams/s/0")
            await node.reconciler.reconcile(node.controller.image)

    asyncio.run(run())


@pytest.mark.parametrize("error", [errno.ENOSPC, SHORT])
def test_what_an_opening_that_failed_has_left_is_removed_once_the_partition_has_moved(
    error: int,
) -> None:
    definition = StreamDefinition("s", ONE, 0, StreamConfig("s", replicas=2))
    moved = ChangePartitions((PartitionChange(ONE, 0, state(THERE, 1)),))

    async def run(operation: int) -> bool:
        files = SimFiles(RealRandom(operation))
        async with ControlledNode(files) as node:
            image = apply(node.controller.image, CreateStream(definition, (state(HERE),)))
            files.fail(operation, error)
            await node.reconciler.reconcile(image)
            hit = not files.fault_pending()
            files.forget_faults()
            image = apply(image, moved)
            assert await node.reconciler.reconcile(image) == {}
            assert node.reconciler.pending(image) == ()
            assert not files.exists(f"{controlled_node.DATA}/streams/s/0")
            (partition,) = node.partitions.stream("s") or ()
            assert (partition.log, partition.failure) == (None, None)
            await node.reconciler.reconcile(node.controller.image)
        return hit

    operation = 1
    while asyncio.run(run(operation)):
        operation += 1
    assert operation > 5


def test_what_a_node_has_left_that_ended_while_it_opened_a_log_is_removed() -> None:
    definition = StreamDefinition("s", ONE, 0, StreamConfig("s", partitions=3, replicas=2))
    states = (state(THERE), state(THERE), state(THERE))

    async def run() -> None:
        files = SimFiles(RealRandom(1))
        async with ControlledNode(files) as node:
            streams = f"{controlled_node.DATA}/streams/s"
            files.make_dirs(f"{streams}/0")
            files.make_dirs(f"{streams}/1")
            files.open(f"{streams}/1/identity.new", create=True)
            files.make_dirs(f"{streams}/2")
            files.open(f"{streams}/2/00000000000000000000.log", create=True)
            image = apply(node.controller.image, CreateStream(definition, states))
            assert await node.reconciler.reconcile(image) == {}
            assert files.list_dir(streams) == []
            aside = f"{controlled_node.DATA}/aside"
            assert files.list_dir(aside) == ["s-2.1"], "a log that does not say whose it is"
            await node.reconciler.reconcile(node.controller.image)

    asyncio.run(run())
