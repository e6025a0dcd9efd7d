"""Reading of partitions begins as soon as it can, and its errors are not passed over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pyarrow as pa
import pytest

from bascule.client.consumers.delivery import Delivery
from bascule.errors import BasculeError, Broken, OffsetOutOfRange, UnknownPartition, UnknownStream


class Source:
    """Fails with `errors` in turn, one for each read; then the read has ended."""

    def __init__(self, *errors: BasculeError) -> None:
        self.errors = list(errors)
        self.reads = 0

    async def read_batches(self, *_: Any, **__: Any) -> AsyncGenerator[pa.RecordBatch, None]:
        self.reads += 1
        if self.errors:
            raise self.errors.pop(0)
        for batch in ():
            yield batch


async def read(source: Source, *, timeout: float) -> Delivery:
    delivery = Delivery(source, "flights", follow=False, timeout=timeout)
    delivery.start({0: "earliest"})
    try:
        while not delivery.has_ended:
            await asyncio.wait_for(delivery.wait(), 30)
    finally:
        await delivery.stop(delivery.partitions)
    return delivery


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bascule.client.consumers.delivery.RETRY_S", 0)


def test_a_partition_without_a_leader_yet_is_tried_again() -> None:
    source = Source(
        Broken("no leader now"), UnknownPartition("flights", 0, 0), UnknownStream("flights")
    )
    asyncio.run(read(source, timeout=30))
    assert source.reads == 4


def test_it_is_not_tried_for_ever() -> None:
    with pytest.raises(Broken, match="no leader now"):
        asyncio.run(read(Source(Broken("no leader now")), timeout=-1))


def test_an_error_is_raised_until_the_partition_is_stopped() -> None:
    async def test() -> None:
        delivery = Delivery(
            Source(OffsetOutOfRange(5, 10, 20)), "flights", follow=False, timeout=30
        )
        delivery.start({0: 5})
        for _ in range(2):
            with pytest.raises(OffsetOutOfRange):
                await asyncio.wait_for(delivery.wait(), 30)
        await delivery.stop(frozenset({0}))
        delivery.start({0: 10})
        while not delivery.has_ended:
            await asyncio.wait_for(delivery.wait(), 30)
        await delivery.stop(frozenset({0}))

    asyncio.run(test())
