"""Data of an earlier release, which kept its metadata in a file, opens unchanged."""

from __future__ import annotations

import asyncio
import errno

import pytest

from bascule.controller.cluster.image_files.earlier_image import FILE_NAME, RETIRED_SUFFIX
from bascule.host.real import RealRandom
from bascule.metadata.image import Deletion, Image
from bascule.model import StreamConfig
from bascule.sim.disk import SimFiles
from support.controlled_node import DATA, STORES, ControlledNode
from support.earlier_images import encode_image

PATH = f"{DATA}/{FILE_NAME}"
GONE = b"g" * 16


async def write_earlier(files: SimFiles) -> Image:
    """Leave a data directory as an earlier release does; return the image in its file."""
    async with ControlledNode(files) as node:
        await node.controller.create_stream("a", StreamConfig(subject="a", partitions=2))
        await node.controller.create_stream("b", StreamConfig(subject="b"))
        await node.controller.set_paused("b", True)
        await node.publish("a", [b"1", b"2"])
        image = Image(node.controller.image.streams, {GONE: Deletion("gone", ())})
    files.make_dirs(f"{DATA}/streams/gone/0")
    file = files.open(PATH, create=True)
    file.append(encode_image(image))
    file.sync()
    files.sync_dir(DATA)
    del STORES[files]
    return image


def check_taken_over(node: ControlledNode, before: Image) -> None:
    image = node.check_agreement()
    assert image.streams == before.streams
    assert node.end("a") == 2
    assert node.files.exists(PATH + RETIRED_SUFFIX)
    assert not node.files.exists(PATH)


def test_the_metadata_of_an_earlier_release_is_taken_over_once() -> None:
    async def scene() -> None:
        files = SimFiles(RealRandom(1))
        before = await write_earlier(files)
        for _ in range(3):
            async with ControlledNode(files) as node:
                await node.settle()
                check_taken_over(node, before)
                assert not node.controller.image.deletions
                assert node.info("b").definition.paused

    asyncio.run(scene())


def test_power_is_lost_at_each_file_operation_of_a_take_over() -> None:
    async def run(operation: int) -> bool:
        files = SimFiles(RealRandom(operation))
        before = await write_earlier(files)
        files.fail(operation, errno.EIO)
        node = ControlledNode(files)
        try:
            async with node:
                await node.settle()
        except OSError:
            await node.__aexit__()
        hit = not files.fault_pending()
        files.forget_faults()
        files.crash()
        async with ControlledNode(files) as again:
            await again.settle()
            check_taken_over(again, before)
        return hit

    operation = 1
    while asyncio.run(run(operation)):
        operation += 1
    assert operation > 5, "the take-over has file operations"


def test_an_epoch_is_begun_that_no_log_is_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start of an earlier release began an epoch that only the logs know."""

    async def scene() -> None:
        files = SimFiles(RealRandom(1))
        await write_earlier(files)
        for _ in range(3):
            # As a node whose metadata comes from an old copy: every log is ahead of it.
            async with ControlledNode(files) as node:
                await node.settle()
                await node.publish("a", [b"3"])
        async with ControlledNode(files) as node:
            log = node.partitions.streams()["a"][0].log
            assert log is not None
            assert [epoch.number for epoch in log.epochs.entries] == sorted(
                {epoch.number for epoch in log.epochs.entries}
            )
            assert node.end("a") == 5

    asyncio.run(scene())
