"""Decisions: one at a time, retried after failures, and deletions recorded until they are done."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable

import pytest

from bascule.errors import Closed, UnknownStream
from bascule.host.real import RealRandom
from bascule.metadata.image import Deletion
from bascule.model import StreamConfig
from bascule.replica.partition import Partition
from bascule.sim.disk import SimFiles
from support.controlled_node import DATA, ControlledNode

CONFIG = StreamConfig(subject="s")


def run(scenario: Callable[[ControlledNode], Awaitable[None]]) -> None:
    async def go() -> None:
        async with ControlledNode(SimFiles(RealRandom(1))) as node:
            await scenario(node)

    asyncio.run(go())


def test_one_of_several_equal_creations_creates_the_stream() -> None:
    async def scenario(node: ControlledNode) -> None:
        create = node.controller.create_stream
        found = await asyncio.gather(*(create("a", CONFIG) for _ in range(3)))
        assert sum(created for _, created in found) == 1
        assert len({definition.id for definition, _ in found}) == 1
        node.check_agreement()

    run(scenario)


def test_one_of_several_deletions_deletes_the_stream() -> None:
    async def scenario(node: ControlledNode) -> None:
        await node.controller.create_stream("a", CONFIG)
        delete = node.controller.delete_stream
        found = await asyncio.gather(*(delete("a") for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in found] == [type(None), UnknownStream, UnknownStream]
        node.check_agreement()

    run(scenario)


def test_a_deletion_stays_recorded_until_its_data_is_removed() -> None:
    async def scenario(node: ControlledNode) -> None:
        definition, _ = await node.controller.create_stream("a", CONFIG)
        remove_tree = node.files.remove_tree

        def fail(path: str) -> None:
            raise OSError(errno.EIO, "EIO", path)

        node.files.remove_tree = fail  # type: ignore[method-assign]
        await node.controller.delete_stream("a")
        assert node.controller.pending_steps()
        await node.controller.create_stream("b", CONFIG)
        assert dict(node.controller.image.deletions) == {definition.id: Deletion("a", (1,))}
        assert node.files.list_dir(f"{DATA}/removed") == [definition.id.hex()]
        node.files.remove_tree = remove_tree  # type: ignore[method-assign]
        await node.settle()
        assert node.files.list_dir(f"{DATA}/removed") == []
        assert not node.check_agreement().deletions

    run(scenario)


def test_data_is_removed_after_its_logs_are_closed() -> None:
    async def scenario(node: ControlledNode) -> None:
        await node.controller.create_stream("a", CONFIG)
        (partition,) = node.partitions.streams()["a"]
        remove_tree, closed = node.files.remove_tree, []

        def record(path: str) -> None:
            assert partition.log is not None
            try:
                partition.log.roll()
            except Closed:
                closed.append(path)
            remove_tree(path)

        node.files.remove_tree = record  # type: ignore[method-assign]
        await node.controller.delete_stream("a")
        assert len(closed) == 1

    run(scenario)


@pytest.mark.parametrize("step", ["append", "sync"])
def test_a_log_is_closed_after_its_last_append_and_sync(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step blocks until the controller waits for it, or closes the log."""

    async def scenario(node: ControlledNode) -> None:
        await node.controller.create_stream("a", CONFIG)
        (partition,) = node.partitions.streams()["a"]
        log = partition.log
        assert log is not None
        began, go_on, done = threading.Event(), threading.Event(), threading.Event()
        original, close = getattr(log, step), log.abandon
        closed_early: list[bool] = []

        def blocked(*args: object) -> object:
            began.set()
            assert go_on.wait(20)
            result = original(*args)
            done.set()
            return result

        def record_close() -> None:
            closed_early.append(not done.is_set())
            go_on.set()
            close()

        def releasing(wait: Callable[..., None]) -> Callable[..., None]:
            def run(*args: Partition) -> None:
                go_on.set()
                wait(*args)

            return run

        monkeypatch.setattr(log, step, blocked)
        monkeypatch.setattr(log, "abandon", record_close)
        owner, name = (
            (node.writer, "wait_written") if step == "append" else (node.syncer, "wait_idle")
        )
        publishing = asyncio.create_task(node.publish("a", [b"1"]))
        await asyncio.to_thread(began.wait, 20)
        monkeypatch.setattr(owner, name, releasing(getattr(owner, name)))
        await node.controller.delete_stream("a")
        assert closed_early == [False]
        publishing.cancel()
        await asyncio.wait([publishing])

    run(scenario)
