"""Where readers of what comes from now on begin, if a leader has not told the end of its log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa

from bascule.client.consumers import Consumer, GroupConsumer, GroupOptions
from support.metadata_groups import until

ENDS = {0: 7, 1: None}


class Client:
    """Has a stream of two partitions; the leader of the second one does not answer."""

    def __init__(self) -> None:
        self.starts: dict[int, Any] = {}

    async def stream(self, name: str) -> Any:
        partitions = [SimpleNamespace(partition=p, high_watermark=end) for p, end in ENDS.items()]
        return SimpleNamespace(partitions=partitions, definition=SimpleNamespace(id=bytes(16)))

    async def offsets(self, **_: Any) -> list[Any]:
        return []

    async def read_batches(
        self, *_: Any, partition: int, start: Any, **__: Any
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        self.starts[partition] = start
        await asyncio.Event().wait()
        for batch in ():
            yield batch


def test_a_consumer_begins_at_the_end_that_is_told_first() -> None:
    async def scene() -> dict[int, Any]:
        client = Client()
        consumer = Consumer(
            cast(Any, client), "flights", "billing", start="latest", partitions=None, follow=True,
            commit_interval=60, timeout=1,
        )  # fmt: skip
        await consumer.open()
        await until(lambda: len(client.starts) == 2)
        await consumer.close()
        return client.starts

    assert asyncio.run(scene()) == {0: 7, 1: "latest"}


def test_a_member_of_a_group_begins_at_the_end_that_is_told_first() -> None:
    async def scene() -> dict[int, Any]:
        consumer = GroupConsumer(
            cast(Any, Client()), "127.0.0.1:1", "flights", "billing", start="latest", follow=True,
            commit_interval=60, timeout=1, options=GroupOptions(),
        )  # fmt: skip
        membership: Any = consumer._membership
        membership.committed, membership.leave = lambda _: {}, lambda: None
        await consumer.open()
        # Partition 2 was added since.
        found = await consumer._starts(frozenset({0, 1, 2}))
        await consumer.close()
        return dict(found)

    assert asyncio.run(scene()) == {0: 7, 1: "latest", 2: "earliest"}
