"""A node and its image agree again by themselves, whichever file operation of a decision fails."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import pytest

from bascule.controller.controller import Controller
from bascule.controller.directories import StreamDirectories
from bascule.controller.image_store import ImageStore
from bascule.controller.reconciler import Reconciler
from bascule.errors import UnknownStream
from bascule.host.real import RealRandom
from bascule.metadata.image import Image
from bascule.model import StreamConfig
from bascule.publish.headers import HashKey
from bascule.replica.internal_publisher import InternalPublisher, InternalRecord
from bascule.replica.log_identity import read_identity
from bascule.replica.log_syncer import LogSyncer
from bascule.replica.log_writer import LogWriter
from bascule.replica.opening import PartitionOpener
from bascule.replica.partitions import Partitions
from bascule.sim.disk import SHORT, SimClock, SimFiles

DATA: Final = "/data"
CONFIG: Final = StreamConfig(subject="s.>")
Step: TypeAlias = Callable[["NodeUnderTest"], Awaitable[object]]


class NodeUnderTest:
    """Controller, logs and their threads on a simulated disk; NATS is not connected yet."""

    def __init__(self, files: SimFiles) -> None:
        self.files = files
        self.boots = files.boots
        self.clock = SimClock(1_000)
        self.partitions = Partitions()
        self.syncer = LogSyncer(clock=self.clock)
        self.writer = LogWriter(self.syncer)
        directories = StreamDirectories(files, DATA)
        self.store = ImageStore(files, DATA)
        self.reconciler = Reconciler(
            self.partitions,
            opener=PartitionOpener(files, self.clock, HashKey(bytes(16)), self.partitions),
            directories=directories,
            writer=self.writer,
            syncer=self.syncer,
        )
        self.controller = Controller(
            self.partitions,
            self.reconciler,
            store=self.store,
            directories=directories,
            clock=self.clock,
            random=RealRandom(7),
        )

    async def __aenter__(self) -> NodeUnderTest:
        self.partitions.bind(asyncio.get_running_loop())
        self.syncer.start(lambda _: None)
        self.writer.start(lambda _: None)
        await self.controller.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.writer.stop)
        await asyncio.to_thread(self.syncer.stop)
        if self.files.boots == self.boots:
            self.reconciler.close()

    async def publish(self, stream: str, values: list[bytes]) -> None:
        publisher = InternalPublisher(self.partitions, self.writer.append)
        await publisher.publish(stream, 0, [InternalRecord("s.x", None, value) for value in values])

    async def settle(self) -> None:
        """What `Controller.run` does after its pause."""
        async with self.controller._deciding:
            await self.controller._reconcile()

    def end(self, stream: str) -> int | None:
        """The end of the stream's first partition; None where there is no such stream."""
        try:
            return self.controller.stream_info(stream).partitions[0].end_offset
        except UnknownStream:
            return None

    def check_agreement(self) -> Image:
        """Memory, image file and directories say the same."""
        image = self.store.load()
        assert self.controller.pending_steps() == ()
        streams = self.partitions.streams()
        assert {name: ps[0].definition for name, ps in streams.items()} == dict(image.streams)
        assert set(self.files.list_dir(f"{DATA}/streams")) == set(image.streams)
        for name, definition in image.streams.items():
            partitions = streams[name]
            assert len(partitions) == definition.partition_count
            for partition in partitions:
                assert partition.failure is None
                assert partition.definition == definition
                found = read_identity(self.files, f"{DATA}/streams/{name}/{partition.index}")
                assert found == (definition.id, partition.index)
        assert self.files.list_dir(f"{DATA}/removed") == []
        return image


async def create(node: NodeUnderTest) -> None:
    await node.controller.create_stream("s", CONFIG)


async def alter(node: NodeUnderTest) -> None:
    await node.controller.alter_stream("s", {"partitions": 3, "retention_messages_max": 60_000})


async def pause(node: NodeUnderTest) -> None:
    await node.controller.set_paused("s", True)


async def delete(node: NodeUnderTest) -> None:
    await node.controller.delete_stream("s")


async def nothing(node: NodeUnderTest) -> None:
    pass


async def create_and_publish(node: NodeUnderTest) -> None:
    await create(node)
    await node.publish("s", [b"1", b"2"])


async def create_again(node: NodeUnderTest) -> None:
    await create_and_publish(node)
    await delete(node)


CASES: Final[dict[str, tuple[Step, Step]]] = {
    "create": (nothing, create),
    "alter": (create_and_publish, alter),
    "pause": (create_and_publish, pause),
    "delete": (create_and_publish, delete),
    "create again": (create_again, create),
}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, SHORT])
@pytest.mark.parametrize("case", CASES)
def test_each_file_operation_of_a_decision_fails(case: str, error: int) -> None:
    """Fail operation 1, 2, ... of the decision until a run has no failure."""
    prepare, decide = CASES[case]

    async def run(operation: int) -> bool:
        files = SimFiles(RealRandom(operation))
        async with NodeUnderTest(files) as node:
            await node.controller.create_stream("other", StreamConfig(subject="o"))
            await node.publish("other", [b"kept"])
            await prepare(node)
            held = node.end("s")
            files.fail(operation, error)
            refused = False
            try:
                await decide(node)
            except OSError:
                refused = True
            hit = not files.fault_pending()
            files.forget_faults()
            await node.settle()
            node.check_agreement()
            if refused:
                # What was refused can be asked for again, and only once has an effect.
                assert node.end("s") == held
                await decide(node)
                node.check_agreement()
            assert node.end("other") == 1
            after = node.end("s")
        async with NodeUnderTest(files) as again:
            again.check_agreement()
            assert (again.end("s"), again.end("other")) == (after, 1)
        return hit

    operation = 1
    while asyncio.run(run(operation)):
        operation += 1
    assert operation > 5, "the decision has file operations"


@pytest.mark.parametrize("case", CASES)
def test_power_is_lost_at_each_file_operation_of_a_decision(case: str) -> None:
    """After a crash the decision holds as a whole or not at all, and other streams are whole."""
    prepare, decide = CASES[case]

    async def run(operation: int) -> bool:
        files = SimFiles(RealRandom(operation))
        node = NodeUnderTest(files)
        async with node:
            await node.controller.create_stream("other", StreamConfig(subject="o"))
            await node.publish("other", [b"kept"])
            await prepare(node)
            held = node.end("s")
            files.fail(operation, errno.EIO)
            try:
                await decide(node)
            except OSError:
                pass
            hit = not files.fault_pending()
            files.forget_faults()
            decided = node.store.load()
            files.crash()
        async with NodeUnderTest(files) as again:
            image = again.check_agreement()
            assert again.end("other") == 1
            if case in ("alter", "pause"):
                assert again.end("s") == held
            if not hit:
                assert image.streams == decided.streams, "what was answered is on the disk"
        return hit

    operation = 1
    while asyncio.run(run(operation)):
        operation += 1
    assert operation > 5, "the decision has file operations"


def run_on(files: SimFiles, scene: Callable[[NodeUnderTest], Awaitable[None]]) -> None:
    async def go() -> None:
        async with NodeUnderTest(files) as node:
            await scene(node)

    asyncio.run(go())


def test_unknown_directories_are_put_aside_and_free_the_name() -> None:
    files = SimFiles(RealRandom(1))
    files.make_dirs(f"{DATA}/streams/s/0")
    files.open(f"{DATA}/streams/s/0/note", create=True).append(b"mine")

    async def scene(node: NodeUnderTest) -> None:
        assert files.list_dir(f"{DATA}/aside") == ["s.1"]
        files.make_dirs(f"{DATA}/streams/s/0")
        await create_and_publish(node)
        assert sorted(files.list_dir(f"{DATA}/aside")) == ["s.1", "s.2"]
        assert files.read_bytes(f"{DATA}/aside/s.1/0/note") == b"mine"
        node.check_agreement()

    run_on(files, scene)


def test_a_log_of_another_stream_is_not_served() -> None:
    files = SimFiles(RealRandom(1))

    async def write(node: NodeUnderTest) -> None:
        for name in ("a", "b"):
            await node.controller.create_stream(name, StreamConfig(subject=name))
        await node.publish("a", [b"of a"])

    run_on(files, write)
    for source, target in (("a", "x"), ("b", "a"), ("x", "b")):
        files.rename(f"{DATA}/streams/{source}", f"{DATA}/streams/{target}")

    async def read(node: NodeUnderTest) -> None:
        for name in ("a", "b"):
            failure = node.controller.stream_info(name).partitions[0].failure
            assert failure is not None
            assert "directories were exchanged" in failure

    run_on(files, read)


def test_a_release_without_identities_is_adopted_once() -> None:
    files = SimFiles(RealRandom(1))
    run_on(files, create_and_publish)
    files.remove(f"{DATA}/layout.json")
    files.remove(f"{DATA}/streams/s/0/identity")

    async def adopt(node: NodeUnderTest) -> None:
        assert node.end("s") == 2
        node.check_agreement()

    run_on(files, adopt)
    files.remove(f"{DATA}/streams/s/0/identity")

    async def refuse(node: NodeUnderTest) -> None:
        failure = node.controller.stream_info("s").partitions[0].failure
        assert failure is not None
        assert "identity" in failure

    run_on(files, refuse)
