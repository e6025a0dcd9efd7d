"""Load on several streams of one node, and the records that must survive a kill."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from bascule.record.batch import Record, RecordBatch, scan_batches
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from support.processes import Node, RawNats
from support.raw_client import RawClient

STREAMS: dict[str, dict[str, object]] = {
    "always": {},
    "interval": {"sync": "interval", "sync_interval_ms": 20},
    "partitioned": {"partitions": 3, "partition_by": "subject"},
    "ids": {},
    "small": {"segment_bytes_max": 20_000},
    "short": {"segment_bytes_max": 20_000, "retention_messages_max": 2_000},
    "keys": {
        "segment_bytes_max": 20_000, "cleanup": ["compact"], "key_from": "subject",
        "dirty_percent_min": 0,
    },
}  # fmt: skip
"""Name -> configuration. Messages to `ids` have a Nats-Msg-Id and are published again under the
same id without an ack; no other message is published twice."""
KEYS = 40
WINDOW = 300
"""Most messages of a stream without an ack."""


@dataclass
class Ledger:
    """The messages sent to one stream, those acked, and those found."""

    name: str
    next: int = 0
    open: dict[int, bytes] = field(default_factory=dict)
    """Message number -> subject, of messages without an ack since the last start of the node."""
    acked: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Message number -> (partition, offset)."""
    unchecked: list[int] = field(default_factory=list)
    """Messages acked since the last check."""
    found: dict[int, tuple[int, int]] = field(default_factory=dict)
    read_to: dict[int, int] = field(default_factory=dict)
    """Partition -> first offset not read yet."""
    refused: list[object] = field(default_factory=list)

    @property
    def partitions(self) -> int:
        count = STREAMS[self.name].get("partitions", 1)
        assert isinstance(count, int)
        return count

    def subject(self, number: int) -> bytes:
        return b"%s.%d" % (self.name.encode(), number % KEYS)

    def take(self, partition: int, record: Record) -> None:
        """Check a new record: no message twice, and none at an offset acked for another one."""
        assert record.value is not None
        number = int(record.value.split(b" ")[1])
        place = partition, record.offset
        assert number < self.next, f"{self.name}: {number} was never sent"
        assert number not in self.found, (
            f"{self.name}: message {number} is at {self.found[number]} and at {place}"
        )
        self.found[number] = place
        assert self.acked.get(number, place) == place, f"{self.name}: {number} was acked elsewhere"

    def check(self, starts: dict[int, int]) -> None:
        """Check that every acked message was found, is below the start of its partition, or has a
        newer record of its key."""
        latest: dict[bytes, int] = {}
        if self.name == "keys":
            for number, (_, offset) in self.found.items():
                key = self.subject(number)
                latest[key] = max(latest.get(key, -1), offset)
        for number in self.unchecked:
            partition, offset = self.acked[number]
            if number in self.found or offset < starts[partition]:
                continue
            newer = latest.get(self.subject(number), -1)
            assert newer > offset, f"{self.name}: acked message {number}, offset {offset}, is lost"
        self.unchecked.clear()


class Load(threading.Thread):
    """Publishes to all streams in turn and collects acks, until `stop`."""

    def __init__(self, port: int, ledgers: list[Ledger]) -> None:
        super().__init__(daemon=True)
        self._nats = RawNats(port)
        self._nats.socket.settimeout(0.2)
        self._ledgers = ledgers
        self._stopping = threading.Event()
        self.failure: Exception | None = None
        self.acks = 0

    def run(self) -> None:
        inbox = f"_INBOX.{random.Random().getrandbits(60):x}"
        self._nats.send(f"SUB {inbox}.* 1\r\n".encode())
        again = {ledger.name: list(ledger.open) for ledger in self._ledgers}
        for ledger in self._ledgers:
            if ledger.name != "ids":
                ledger.open.clear()
        try:
            self._nats.send(b"".join(self._again(inbox, again["ids"])))
            while not self._stopping.is_set():
                for place, ledger in enumerate(self._ledgers):
                    count = min(WINDOW - len(ledger.open), 20)
                    if count > 0:
                        self._nats.send(b"".join(self._next(inbox, place, ledger, count)))
                self._take_acks()
            self._take_acks()
        except Exception as error:
            self.failure = error
        finally:
            self._nats.close()

    def stop(self) -> None:
        self._stopping.set()
        self.join(20)
        if self.failure is not None:
            raise self.failure

    def _again(self, inbox: str, numbers: list[int]) -> Iterator[bytes]:
        place = next(n for n, ledger in enumerate(self._ledgers) if ledger.name == "ids")
        for number in numbers:
            yield self._publication(inbox, place, self._ledgers[place], number)

    def _next(self, inbox: str, place: int, ledger: Ledger, count: int) -> Iterator[bytes]:
        for _ in range(count):
            number, ledger.next = ledger.next, ledger.next + 1
            ledger.open[number] = ledger.subject(number)
            yield self._publication(inbox, place, ledger, number)

    @staticmethod
    def _publication(inbox: str, place: int, ledger: Ledger, number: int) -> bytes:
        payload = b"message %d %s" % (number, b"." * (number * 7 % 90))
        reply = f"{inbox}.{place}-{number}".encode()
        subject = ledger.subject(number)
        if ledger.name != "ids":
            return b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(payload), payload)
        block = b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % number
        sizes = len(block), len(block) + len(payload)
        return b"HPUB %s %s %d %d\r\n%s%s\r\n" % (subject, reply, *sizes, block, payload)

    def _take_acks(self) -> None:
        try:
            messages = self._nats.messages()
        except TimeoutError:
            return
        for subject, payload in messages:
            place, number = map(int, subject.rsplit(b".", 1)[1].split(b"-"))
            ledger, ack = self._ledgers[place], json.loads(payload)
            if "error" in ack:
                ledger.refused.append(ack)
                continue
            assert ack["stream"] == ledger.name
            where = ack["partition"], ack["offset"]
            assert ledger.acked.setdefault(number, where) == where
            ledger.unchecked.append(number)
            ledger.open.pop(number, None)
            self.acks += 1


def read_on(client: RawClient, ledger: Ledger, starts: dict[int, int]) -> None:
    """Read new records of a stream as a Kafka client does. They are contiguous unless the stream is
    compacted. `starts` is updated when retention moves a start.
    """
    for partition in range(ledger.partitions):
        offset = max(ledger.read_to.get(partition, 0), starts[partition])
        for records, end in batches(client, ledger.name, partition, offset):
            if end < 0:
                starts[partition] = offset = -end
                continue
            for record in records:
                if record.offset < offset:
                    continue
                assert ledger.name == "keys" or record.offset == offset, f"a gap at {offset}"
                ledger.take(partition, record)
                offset = record.offset + 1
            offset = max(offset, end)
        ledger.read_to[partition] = offset


def batches(
    client: RawClient, name: str, partition: int, offset: int
) -> Iterator[tuple[list[Record], int]]:
    """(records, end) of each batch from `offset` on. If the log now begins after `offset`: no
    records and the negative start."""
    for attempt in itertools.count():
        assert attempt < 10_000, "the end is not reached"
        asked = FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        request = FetchRequest(max_wait_ms=0, topics=[FetchTopic(name, partitions=[asked])])
        (found,) = client.request(request, 11).responses[0].partitions
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and found.log_start_offset > offset:
            offset = found.log_start_offset
            yield [], -offset
            continue
        assert found.error_code == ErrorCode.NONE, (name, partition, offset, found)
        data = memoryview(found.records or b"")
        whole = list(scan_batches(data))
        if not whole:
            assert offset >= found.high_watermark or not len(data)
            return
        for header, start, end in whole:
            yield list(RecordBatch(data[start:end])), header.end_offset
            offset = header.end_offset


def starts_of(node: Node, ledger: Ledger) -> dict[int, int]:
    """The start offset of each partition. Checks that no partition has stopped."""
    found = node.call("GET", f"/v1/streams/{ledger.name}")["partitions"]
    assert [p["failure"] for p in found] == [None] * len(found)
    return {p["partition"]: p["start_offset"] for p in found}
