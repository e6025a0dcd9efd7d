"""What a watcher of a key-value client is sent first: the message behind which nothing is pending
ends the values that were there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import pytest

from bascule.host.real import RealClock, RealRandom
from bascule.keyvalue.consumers import PushConsumers
from bascule.keyvalue.held_tables import HeldTable
from bascule.keyvalue.requests import ApiRequest
from bascule.model import Cleanup, KeyFrom, StreamConfig
from bascule.record.batch import Record
from bascule.tables import Tables
from bascule.wire.tables.conditions import FORGETTING_HEADERS, REMOVAL_HEADER
from bascule.wire.tables.keys import TableKeys, bucket_subject
from support.served_stream import append
from support.tables_harness import TablesHarness

CONFIG: Final = StreamConfig(
    bucket_subject("b"), cleanup=(Cleanup.COMPACT,), key_from=KeyFrom.SUBJECT, table=True
)
REMOVAL: Final = ((REMOVAL_HEADER, b"DEL"),)
_DELIVERED: Final = re.compile(rb"MSG \S+ \$JS\.ACK\.KV_b\.\w+\.1\.(\d+)\.\d+\.\d+\.(\d+)@(\S+) ")


class FakeLink:
    """Somebody listens once `has_listener` is set."""

    is_connected = is_writable = True
    payload_bytes_max = 1 << 20
    may_take_more = has_listener = False

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, str, bool]] = []
        """Of each message: sequence, what is pending, subject, and whether it is a marker."""
        self.has_sent = asyncio.Event()

    def renew(self) -> None:
        raise AssertionError

    def has_interest(self, subject: str) -> bool:
        return self.has_listener

    def send(self, data: bytes) -> None:
        found = _DELIVERED.search(data)
        assert found is not None, data
        sequence, pending, subject = int(found[1]), int(found[2]), found[3].decode()
        self.sent.append((sequence, pending, subject, b"KV-Operation" in data))
        self.has_sent.set()

    async def drain(self) -> None:
        pass


class Bucket:
    """A table of real files, as a bucket, and its watchers."""

    def __init__(self, harness: TablesHarness, tables: Tables) -> None:
        self._partition = harness.partition
        # Keys of the records are those of the table, not subjects: the stream is one of headers.
        definition = replace(self._partition.definition, config=CONFIG)
        self.replica = tables.replica("t", 0)
        self._held = HeldTable("b", definition, self._partition, self.replica, TableKeys(CONFIG))
        self.link = FakeLink()
        self.consumers = PushConsumers(cast("Any", self.link), RealClock(), RealRandom())

    async def change(
        self, key: bytes, value: bytes | None, headers: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        offset, now_ms = self._partition.high_watermark.offset, self._partition.now_ms()
        append(self._partition, [Record(offset, now_ms, key, value, tuple(headers))])
        await self.replica.wait_position(offset + 1)

    async def create(self) -> int:
        """What is pending, as the client of the new consumer is told."""
        config = {"deliver_subject": "inbox", "ack_policy": "none", "deliver_policy": "all"}
        body = msgspec.json.encode({"config": config})
        request = ApiRequest("CONSUMER.CREATE", "KV_b", "", body)
        return int((await self.consumers.create(self._held, request))["num_pending"])

    async def listen(self, count: int) -> list[tuple[int, int, str, bool]]:
        """So many messages that the client is sent."""
        self.link.has_listener = True
        self.consumers.on_interest("inbox")
        async with asyncio.timeout(20):
            while len(self.link.sent) < count:
                self.link.has_sent.clear()
                await self.link.has_sent.wait()
        return self.link.sent


@pytest.mark.parametrize("had_value", [False, True])
def test_the_state_ends_though_its_only_key_is_forgotten(tmp_path: Path, had_value: bool) -> None:
    """The client waited for the next change of any key: `keys` and `history` did not return."""
    harness = TablesHarness(tmp_path)

    async def test(tables: Tables) -> None:
        bucket = Bucket(harness, tables)
        await bucket.change(b"k", b"1")
        if not had_value:
            await bucket.change(b"k", None, REMOVAL)
        assert await bucket.create() == 1
        await bucket.change(b"k", None, FORGETTING_HEADERS)
        sequence = bucket.replica.position
        assert await bucket.listen(1) == [(sequence, 0, "$KV.b.k", True)]
        await bucket.change(b"other", b"1")
        assert (await bucket.listen(2))[1:] == [(sequence + 1, 0, "$KV.b.other", False)]
        await bucket.consumers.close()

    harness.run(test)


def test_the_state_ends_though_its_only_row_is_gone(tmp_path: Path) -> None:
    """As after a purge of the stream."""
    harness = TablesHarness(tmp_path)

    async def test(tables: Tables) -> None:
        bucket = Bucket(harness, tables)
        await bucket.change(b"k", b"1")
        assert await bucket.create() == 1
        assert bucket.replica._file is not None
        bucket.replica._file._writer.execute("delete from entries")
        assert await bucket.listen(1) == [(1, 0, "$KV.b.k", True)]
        await bucket.consumers.close()

    harness.run(test)


def test_the_state_ends_with_what_was_changed_meanwhile(tmp_path: Path) -> None:
    """No marker comes before the value, and one key that is left ends it."""
    harness = TablesHarness(tmp_path)

    async def test(tables: Tables) -> None:
        bucket = Bucket(harness, tables)
        await bucket.change(b"k", b"1")
        assert await bucket.create() == 1
        await bucket.change(b"k", b"2")
        assert await bucket.listen(1) == [(2, 0, "$KV.b.k", False)]
        await bucket.consumers.close()

        bucket = Bucket(harness, tables)
        await bucket.change(b"l", None, REMOVAL)
        assert await bucket.create() == 2
        await bucket.change(b"l", None, FORGETTING_HEADERS)
        await bucket.change(b"m", b"1")
        assert await bucket.listen(2) == [(2, 0, "$KV.b.k", False), (5, 0, "$KV.b.m", False)]
        await bucket.consumers.close()

    harness.run(test)
