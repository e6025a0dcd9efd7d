"""What a member of a group does about notices that come while it joins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from bascule.client.consumers import GroupConsumer, GroupOptions
from bascule.wire.error_codes import ErrorCode


class Client:
    """Has a stream of one partition, without messages."""

    async def stream(self, name: str) -> Any:
        partition = SimpleNamespace(partition=0, high_watermark=0)
        return SimpleNamespace(partitions=[partition], definition=SimpleNamespace(id=bytes(16)))

    async def read_batches(self, *_: Any, **__: Any) -> AsyncGenerator[pa.RecordBatch, None]:
        await asyncio.Event().wait()
        for batch in ():
            yield batch


def test_a_member_that_is_removed_before_it_knows_its_partitions_joins_again() -> None:
    """The application has blocked the event loop for so long: it hears of the join, and that the
    group has removed it since, at once."""
    joins: list[frozenset[int]] = []

    async def scene() -> frozenset[int]:
        consumer = GroupConsumer(
            Client(), "127.0.0.1:1", "flights", "billing", start="earliest", follow=True,
            commit_interval=60, timeout=1, options=GroupOptions(),
        )  # fmt: skip
        membership: Any = consumer._membership

        def join(owned: Iterable[int]) -> frozenset[int]:
            joins.append(frozenset(owned))
            membership._member_id, membership._generation = "m", len(joins)
            if len(joins) == 1:
                membership._lose(ErrorCode.UNKNOWN_MEMBER_ID)
            return frozenset({0})

        membership.join, membership.committed = join, lambda _: {}
        membership.leave = lambda: None
        await consumer.open()
        async with asyncio.timeout(20):
            while len(joins) < 2 or not consumer.partitions:
                await consumer.refill()
        found = consumer.partitions
        assert membership.is_member
        await consumer.close()
        return found

    assert asyncio.run(scene()) == {0}
    assert joins == [frozenset(), frozenset()]
