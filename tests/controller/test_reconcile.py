"""A node and its image agree again by themselves, whichever file operation of a decision fails."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import pytest

from bascule.errors import DiskFull, InvalidName
from bascule.host.real import RealRandom
from bascule.model import StreamConfig
from bascule.sim.disk import SHORT, SimFiles
from support.controlled_node import DATA, ControlledNode

CONFIG: Final = StreamConfig(subject="s.>")
Step: TypeAlias = Callable[["ControlledNode"], Awaitable[object]]


async def create(node: ControlledNode) -> None:
    await node.controller.create_stream("s", CONFIG)


async def alter(node: ControlledNode) -> None:
    await node.controller.alter_stream("s", {"partitions": 3, "retention_messages_max": 60_000})


async def delete(node: ControlledNode) -> None:
    await node.controller.delete_stream("s")


async def nothing(node: ControlledNode) -> None:
    pass


async def create_and_publish(node: ControlledNode) -> None:
    await create(node)
    await node.publish("s", [b"1", b"2"])


async def create_again(node: ControlledNode) -> None:
    await create_and_publish(node)
    await delete(node)


CASES: Final[dict[str, tuple[Step, Step]]] = {
    "create": (nothing, create),
    "alter": (create_and_publish, alter),
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
        async with ControlledNode(files) as node:
            await node.controller.create_stream("other", StreamConfig(subject="o"))
            await node.publish("other", [b"kept"])
            await prepare(node)
            held = node.end("s")
            files.fail(operation, error)
            refused = False
            try:
                await decide(node)
            except (OSError, DiskFull):
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
        async with ControlledNode(files) as again:
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
        node = ControlledNode(files)
        async with node:
            await node.controller.create_stream("other", StreamConfig(subject="o"))
            await node.publish("other", [b"kept"])
            await prepare(node)
            held = node.end("s")
            files.fail(operation, errno.EIO)
            try:
                await decide(node)
            except (OSError, DiskFull):
                pass
            hit = not files.fault_pending()
            files.forget_faults()
            decided = node.controller.image
            files.crash()
        async with ControlledNode(files) as again:
            image = again.check_agreement()
            assert again.end("other") == 1
            if case == "alter":
                assert again.end("s") == held
            if not hit:
                assert image.streams == decided.streams, "what was answered is on the disk"
        return hit

    operation = 1
    while asyncio.run(run(operation)):
        operation += 1
    assert operation > 5, "the decision has file operations"


def run_on(files: SimFiles, scene: Callable[[ControlledNode], Awaitable[None]]) -> None:
    async def go() -> None:
        async with ControlledNode(files) as node:
            await scene(node)

    asyncio.run(go())


def test_unknown_directories_are_put_aside_and_free_the_name() -> None:
    files = SimFiles(RealRandom(1))
    run_on(files, nothing)
    files.make_dirs(f"{DATA}/streams/s/0")
    files.open(f"{DATA}/streams/s/0/note", create=True).append(b"mine")

    async def scene(node: ControlledNode) -> None:
        assert files.list_dir(f"{DATA}/aside") == ["s.1"]
        files.make_dirs(f"{DATA}/streams/s/0")
        await create_and_publish(node)
        assert sorted(files.list_dir(f"{DATA}/aside")) == ["s.1", "s.2"]
        assert files.read_bytes(f"{DATA}/aside/s.1/0/note") == b"mine"
        node.check_agreement()

    run_on(files, scene)


def test_a_stream_is_not_created_where_an_unknown_log_cannot_be_put_aside() -> None:
    """Each file operation of the creation fails once; the new stream has a log of its own."""

    async def run(operation: int) -> bool:
        files = SimFiles(RealRandom(operation))
        async with ControlledNode(files) as node:
            await node.controller.create_stream("other", StreamConfig(subject="o"))
            files.make_dirs(f"{DATA}/streams/s/0")
            files.open(f"{DATA}/streams/s/0/{0:020}.log", create=True).append(b"of nobody")
            files.fail(operation, errno.EIO)
            try:
                await create(node)
            except (OSError, DiskFull):
                await create(node)
            hit = not files.fault_pending()
            files.forget_faults()
            await node.settle()
            node.check_agreement()
        return hit

    operation = 1
    while asyncio.run(run(operation)):
        operation += 1
    assert operation > 5, "the creation has file operations"


def test_a_log_of_another_stream_is_not_served() -> None:
    files = SimFiles(RealRandom(1))

    async def write(node: ControlledNode) -> None:
        for name in ("a", "b"):
            await node.controller.create_stream(name, StreamConfig(subject=name))
        await node.publish("a", [b"of a"])

    run_on(files, write)
    for source, target in (("a", "x"), ("b", "a"), ("x", "b")):
        files.rename(f"{DATA}/streams/{source}", f"{DATA}/streams/{target}")

    async def read(node: ControlledNode) -> None:
        for name in ("a", "b"):
            failure = node.info(name).partitions[0].failure
            assert failure is not None
            assert "directories were exchanged" in failure

    run_on(files, read)


def test_a_release_without_identities_is_adopted_once() -> None:
    files = SimFiles(RealRandom(1))
    run_on(files, create_and_publish)
    files.remove(f"{DATA}/layout.json")
    files.remove(f"{DATA}/streams/s/0/identity")

    async def adopt(node: ControlledNode) -> None:
        assert node.end("s") == 2
        node.check_agreement()

    run_on(files, adopt)
    files.remove(f"{DATA}/streams/s/0/identity")

    async def refuse(node: ControlledNode) -> None:
        failure = node.info("s").partitions[0].failure
        assert failure is not None
        assert "identity" in failure

    run_on(files, refuse)


def test_a_request_that_is_cancelled_leaves_no_gap() -> None:
    """Its decision holds or not, and the node is as the image says."""
    files = SimFiles(RealRandom(1))

    async def scene(node: ControlledNode) -> None:
        for turns in range(12):
            creating = asyncio.create_task(node.controller.create_stream("s", CONFIG))
            for _ in range(turns):
                await node.metadata.wait_applied(0)
            creating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await creating
            await node.metadata.settle()
            await node.settle()
            image = node.check_agreement()
            if "s" in image.streams:
                await delete(node)

    run_on(files, scene)


def test_a_directory_with_the_longest_name_is_put_aside() -> None:
    files = SimFiles(RealRandom(1))
    longest = "x" * 255
    run_on(files, nothing)
    files.make_dirs(f"{DATA}/streams/{longest}/0")

    async def scene(node: ControlledNode) -> None:
        assert files.list_dir(f"{DATA}/aside") == ["x" * 253 + ".1"]

    run_on(files, scene)


class ShortNames(SimFiles):
    """A file system whose names have at most 143 bytes, as one of encrypted files."""

    def make_dirs(self, path: str) -> None:
        if len(path.rpartition("/")[2]) > 143:
            raise OSError(errno.ENAMETOOLONG, "File name too long", path)
        super().make_dirs(path)


def test_a_name_that_the_file_system_does_not_take_is_refused() -> None:
    files = ShortNames(RealRandom(1))

    async def scene(node: ControlledNode) -> None:
        await node.controller.create_stream("x" * 143, CONFIG)
        with pytest.raises(InvalidName, match="144 characters are too long for the file system"):
            await node.controller.create_stream("x" * 144, StreamConfig(subject="other"))
        assert list(node.controller.image.streams) == ["x" * 143]
        assert files.list_dir(f"{DATA}/removed") == []
        node.check_agreement()

    run_on(files, scene)


def test_the_longest_name_is_created_and_deleted() -> None:
    files = SimFiles(RealRandom(1))

    async def scene(node: ControlledNode) -> None:
        for name in ("x" * 249, "_schemas"):
            await node.controller.create_stream(name, StreamConfig(subject=name[:100]))
            await node.publish(name, [b"1"])
            await node.controller.delete_stream(name)
            node.check_agreement()
        assert files.list_dir(f"{DATA}/streams") == []

    run_on(files, scene)
