"""The time of the log of `_offsets`, by which a commit that names no stream id belongs to a stream.

A stream's time of creation is by the clock of the node that was asked for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bascule.groups import OFFSETS_CONFIG
from bascule.groups.offset_records import StoredCommit, is_for
from bascule.host.real import RealRandom
from bascule.model import StreamConfig
from bascule.sim.disk import SimFiles
from bascule.wire.offsets import OFFSETS_STREAM, Commit
from support.controlled_node import ControlledNode
from support.stored_batches import read_records

NOW_MS = 1_700_000_000_000


def run(files: SimFiles, scenario: Callable[[ControlledNode], Awaitable[None]]) -> None:
    async def go() -> None:
        async with ControlledNode(files) as node:
            node.clock.ms = NOW_MS
            await scenario(node)

    asyncio.run(go())


async def create(node: ControlledNode, name: str, *, ahead_ms: int) -> None:
    """Create a stream where the clock of the node that is asked is ahead of this one's."""
    node.clock.ms += ahead_ms
    await node.controller.create_stream(name, StreamConfig(subject=f"{name}.>"))
    node.clock.ms -= ahead_ms


async def append(node: ControlledNode, name: str) -> StoredCommit:
    """Append a record; a commit, as it would be read."""
    await node.publish(name, [b"x"])
    log = node.partitions.stream(name)[0].log  # type: ignore[index]
    assert log is not None
    return StoredCommit(Commit(offset=1), read_records(log)[-1].timestamp, 0)


@pytest.mark.parametrize("ahead_ms", [-300_000, 0, 2_000, 300_000])
def test_a_commit_after_the_creation_of_a_stream_is_for_it(ahead_ms: int) -> None:
    files = SimFiles(RealRandom(1))

    async def scenario(node: ControlledNode) -> None:
        await node.controller.create_stream(OFFSETS_STREAM, OFFSETS_CONFIG, internal=True)
        await append(node, OFFSETS_STREAM)
        await create(node, "s", ahead_ms=ahead_ms)
        node.clock.ms += 10
        stored = await append(node, OFFSETS_STREAM)
        assert is_for(stored, node.controller.views.definition("s"))
        if ahead_ms <= 0:
            assert stored.appended_ms == NOW_MS + 10
        node.clock.ms += 1_000
        if ahead_ms > 60_000:
            again = await append(node, OFFSETS_STREAM)
            assert again.appended_ms == stored.appended_ms + 1_000, "it does not stand still"

    async def restarted(node: ControlledNode) -> None:
        node.clock.ms = NOW_MS + 2_000
        stored = await append(node, OFFSETS_STREAM)
        assert is_for(stored, node.controller.views.definition("s"))

    run(files, scenario)
    run(files, restarted)


def test_a_leader_that_has_not_led_yet_knows_of_earlier_creations() -> None:
    files = SimFiles(RealRandom(1))

    async def create_all(node: ControlledNode) -> None:
        await create(node, "s", ahead_ms=300_000)
        await node.controller.create_stream(OFFSETS_STREAM, OFFSETS_CONFIG, internal=True)

    async def scenario(node: ControlledNode) -> None:
        stored = await append(node, OFFSETS_STREAM)
        assert is_for(stored, node.controller.views.definition("s"))

    run(files, create_all)
    run(files, scenario)


def test_the_time_of_other_streams_is_that_of_the_clock() -> None:
    async def scenario(node: ControlledNode) -> None:
        await create(node, "s", ahead_ms=300_000)
        assert (await append(node, "s")).appended_ms == NOW_MS

    run(SimFiles(RealRandom(1)), scenario)
