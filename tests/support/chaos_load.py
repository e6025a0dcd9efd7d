"""Load on one stream of a cluster under faults, what was promised of it, and what is found."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

ACK_SECONDS = 2.0
"""After so long without an ack a message is sent again."""
WINDOW = 20
PAUSE_SECONDS = 0.02
"""Between two messages."""
KEYS = 7


@dataclass
class Sent:
    """A message of a publisher."""

    first_sent: float
    times: int = 0
    connection: int = 0
    """Of its first time."""
    sent_at: float = 0.0
    ack: dict[str, Any] | None = None
    refusal: dict[str, Any] | None = None


@dataclass
class StreamLoad:
    """Publishes numbered messages with ids to one stream, and remembers their acks."""

    name: str
    config: dict[str, Any]
    servers: Callable[[], Sequence[int]]
    """The ports of the NATS servers."""
    sent: list[Sent] = field(default_factory=list)
    acks_since: dict[int, float] = field(default_factory=dict)
    """Partition -> when the last acked message of it was sent for the first time."""
    stopping: bool = False
    _acked: set[int] = field(default_factory=set)
    _connection: int = 0
    _lowest: int = 0
    """All messages below are acked."""

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.config.get("cleanup", ())

    @property
    def is_kept(self) -> bool:
        """Whether acked messages are promised to stay."""
        return self.config.get("ack_policy", "all") == "all"

    async def run(self) -> None:
        dice = random.Random(self.name)
        while not (self.stopping and len(self._acked) == len(self.sent)):
            try:
                await self._connected(dice.choice(self.servers()))
            except (OSError, EOFError, TimeoutError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.1)

    async def _connected(self, port: int) -> None:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            inbox = f"_INBOX.{os.urandom(6).hex()}"
            async with asyncio.timeout(5):
                await reader.readline()
                options = b'{"verbose":false,"headers":true,"no_responders":true}'
                writer.write(b"CONNECT " + options + f"\r\nSUB {inbox}.* 1\r\nPING\r\n".encode())
                while not (line := await reader.readline()).startswith(b"PONG"):
                    if not line:
                        raise EOFError
            self._connection += 1
            for n, message in enumerate(self.sent):
                if n not in self._acked:
                    message.sent_at = 0.0
            reading = asyncio.create_task(self._read(reader, writer))
            try:
                while not reading.done() and not (
                    self.stopping and len(self._acked) == len(self.sent)
                ):
                    self._send_due(writer, inbox)
                    await asyncio.sleep(PAUSE_SECONDS)
                if reading.done():
                    reading.result()
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
        finally:
            writer.close()

    def _send_due(self, writer: asyncio.StreamWriter, inbox: str) -> None:
        now = time.monotonic()
        waiting = self._waiting()
        for n in waiting:
            if now - self.sent[n].sent_at > ACK_SECONDS:
                self._send(writer, inbox, n, now)
        if len(waiting) < WINDOW and not self.stopping:
            self.sent.append(Sent(now))
            self._send(writer, inbox, len(self.sent) - 1, now)

    @property
    def acked(self) -> int:
        """How many messages were acked."""
        return len(self._acked)

    def _waiting(self) -> list[int]:
        """The messages without ack."""
        while self._lowest in self._acked:
            self._lowest += 1
        return [n for n in range(self._lowest, len(self.sent)) if n not in self._acked]

    def _send(self, writer: asyncio.StreamWriter, inbox: str, n: int, now: float) -> None:
        message = self.sent[n]
        message.times += 1
        message.connection = message.connection or self._connection
        message.sent_at = now
        head = b"NATS/1.0\r\nNats-Msg-Id: m%d\r\nBascule-Key: k%d\r\n\r\n" % (n, n % KEYS)
        body = self.body(n)
        subject = f"{self.name}.{n % KEYS}"
        writer.write(
            f"HPUB {subject} {inbox}.{n} {len(head)} {len(head) + len(body)}\r\n".encode()
            + head + body + b"\r\n"
        )  # fmt: skip

    def body(self, n: int) -> bytes:
        return b"%d %d " % (n % KEYS, n) + b"x" * (n * 37 % 400)

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            line = await reader.readline()
            if not line:
                raise EOFError
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
            words = line.split()
            if not words or words[0] not in (b"MSG", b"HMSG"):
                continue
            body = (await reader.readexactly(int(words[-1]) + 2))[:-2]
            n = int(words[1].rsplit(b".", 1)[1])
            if words[0] == b"MSG":
                self._on_reply(n, json.loads(body))
            else:
                self.sent[n].sent_at = time.monotonic() - ACK_SECONDS + 0.2

    def _on_reply(self, n: int, reply: dict[str, Any]) -> None:
        message = self.sent[n]
        if reply.get("error"):
            message.refusal = reply["error"]
            message.sent_at = time.monotonic() - ACK_SECONDS + 0.1
            return
        if message.ack is None:
            message.ack = reply
            self._acked.add(n)
        elif (
            self.is_kept
            and reply["partition"] == message.ack["partition"]
            and reply["offset"] != message.ack["offset"]
        ):
            raise AssertionError(f"{self.name} {n}: acked as {message.ack} and as {reply}")
        known = self.acks_since.get(reply["partition"], 0.0)
        self.acks_since[reply["partition"]] = max(known, message.first_sent)

    def check(self, stored: dict[tuple[int, int], bytes], ends: dict[int, int]) -> list[str]:
        """What of the promise is broken; `ends`: below these offsets `stored` has everything."""
        if not self.is_kept:
            return []
        found: list[str] = []
        last_of_key: dict[tuple[int, bytes], int] = {}
        for (partition, offset), value in stored.items():
            at = (partition, value.split(b" ", 1)[0])
            last_of_key[at] = max(last_of_key.get(at, -1), offset)
        last: dict[tuple[int, int], tuple[int, int]] = {}
        for n, message in enumerate(self.sent):
            if message.ack is None:
                continue
            at, value = place(message.ack), self.body(n)
            if at[1] < ends.get(at[0], 0) and stored.get(at) != value:
                later = last_of_key.get((at[0], b"%d" % (n % KEYS)), -1)
                if not (self.is_compacted and at not in stored and later > at[1]):
                    text = (stored.get(at) or b"nothing")[:20]
                    found.append(f"{self.name} {n} acked at {at}, where is {text!r}: {message}")
            if message.times == 1:
                order = at[0], message.connection
                before = last.get(order)
                if before is not None and before[1] > at[1]:
                    found.append(f"{self.name}: {before} was sent before {n}, stored at {at}")
                last[order] = n, at[1]
        if not self.is_compacted:
            found += self._doubles(stored)
        return found

    def _doubles(self, stored: dict[tuple[int, int], bytes]) -> list[str]:
        """Messages that are stored twice in one partition."""
        places: dict[tuple[int, bytes], list[int]] = defaultdict(list)
        for (partition, offset), value in stored.items():
            places[partition, value].append(offset)
        return [
            f"{self.name}: {value[:20]!r} is stored at {offsets} of partition {partition}"
            for (partition, value), offsets in places.items()
            if len(offsets) > 1
        ]


def place(ack: dict[str, Any]) -> tuple[int, int]:
    return ack["partition"], ack["offset"]


class KafkaReader:
    """Reads streams from their beginnings on a thread, as a Kafka client without a group."""

    def __init__(self, servers: str) -> None:
        import confluent_kafka

        self._kafka = confluent_kafka
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "chaos",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 1000,
                "topic.metadata.refresh.interval.ms": 2000,
                "log_level": 0,
            }
        )
        self.stored: dict[str, dict[tuple[int, int], bytes]] = defaultdict(dict)
        self.ends: dict[str, dict[int, int]] = defaultdict(dict)
        """Stream -> partition -> the offset after the last one that was read."""
        self.errors: list[str] = []
        self._wanted: set[tuple[str, int]] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def follow(self, stream: str, partitions: int) -> None:
        self._wanted |= {(stream, index) for index in range(partitions)}

    def known(self, stream: str) -> tuple[dict[tuple[int, int], bytes], dict[int, int]]:
        """What was read of a stream, and up to where."""
        ends = dict(self.ends[stream])
        return dict(self.stored[stream]), ends

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        assigned: set[tuple[str, int]] = set()
        while not self._stopping.is_set():
            added = self._wanted - assigned
            if added:
                self._consumer.incremental_assign(
                    [self._kafka.TopicPartition(*each, 0) for each in sorted(added)]
                )
                assigned |= added
            for message in self._consumer.consume(500, timeout=0.2):
                self._take(message)
        self._consumer.close()

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is not None:
            text = f"{message.topic()} {message.partition()}: {error}"
            # A topic that was created a moment ago may not be known to the node that is asked.
            if error.code() not in (
                self._kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
                self._kafka.KafkaError._UNKNOWN_TOPIC,
                self._kafka.KafkaError._UNKNOWN_PARTITION,
                self._kafka.KafkaError._ALL_BROKERS_DOWN,
                self._kafka.KafkaError._TRANSPORT,
            ):
                self.errors.append(text)
            return
        stream, at, offset = message.topic(), message.partition(), message.offset()
        if offset < self.ends[stream].get(at, 0):
            self.errors.append(f"{stream} {at}: offset {offset} came again")
        self.stored[stream][at, offset] = message.value()
        self.ends[stream][at] = offset + 1
