"""The consumers of a run, a process of their own: `python -m torture.readers SETTINGS`.

Each consumer reads all partitions by the Kafka protocol with `assign()`, one from the leaders and
the others from the replicas in their racks. What one of them has read at an offset, none of them
may ever read differently; they go back to earlier offsets from time to time to look. Each 0.5 s a
line of JSON on standard output says how far they are. After a line on standard input, a last
consumer reads everything once more; what was read is stored in a file then.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import threading
import time
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import numpy as np
from confluent_kafka import KafkaError, TopicPartition

from torture.messages import (
    FOREIGN,
    NO_RECORD,
    TorturedStream,
    identity_in,
    streams_named,
    told,
)

REPORT_SECONDS: Final = 0.5
BACK_SECONDS: Final = 4.0
"""Each consumer goes back in one partition so often,"""
BACK_SECONDS_MAX: Final = 2.0
"""for so long."""
BACK_RECORDS_MAX: Final = 2_000
CLOSE_SECONDS_MAX: Final = 30.0
STILL_SECONDS_MAX: Final = 30.0
STILL_RECORDS: Final = 10_000
"""A consumer that has read nothing for so long, while others have read so many, is given up."""
POLL_SECONDS: Final = 0.2
CALL_SECONDS_MAX: Final = 30.0
"""A call for messages has a timeout of `POLL_SECONDS`. One that takes this long never returns."""
LAST_SECONDS_MAX: Final = 300.0
PASSING: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
)
"""Errors of a cluster under faults. The client goes on by itself."""
DAMAGED: Final = (KafkaError._BAD_MSG, KafkaError.INVALID_MSG)
"""A batch that is damaged on a disk does not pass the CRC of the client."""
ASTRAY: Final = (KafkaError._NOT_IMPLEMENTED, KafkaError._AUTO_OFFSET_RESET)
"""Behind a batch with a wrong CRC librdkafka goes on at a byte where no batch begins
(`rd_kafka_buf_skip_to` with a length), and takes its offset from there."""
PATIENCE_SECONDS: Final = 0.5
"""Before a damaged batch is read once more."""


class Known:
    """What was read: stream and partition -> the message at each offset."""

    def __init__(self, streams: Sequence[TorturedStream]) -> None:
        self.records: dict[tuple[str, int], array[int]] = {
            (stream.name, partition): array("q")
            for stream in streams
            for partition in range(stream.partitions)
        }
        self.findings: list[str] = []
        self.damaged = 0
        self.read = 0
        self.stuck = 0
        """Consumers that stood still, and were given up."""
        self._lock = threading.Lock()

    def take(self, at: tuple[str, int], offset: int, value: bytes | None, who: str) -> None:
        """One record that `who` has read."""
        identity = identity_in(value)
        with self._lock:
            self.read += 1
            records = self.records[at]
            if offset >= len(records):
                records.extend([NO_RECORD] * (offset + 1 - len(records)))
            before = records[offset]
            if before == NO_RECORD:
                records[offset] = identity
            elif before != identity:
                self.find(f"{at} offset {offset}: {told(before)}, and {told(identity)} at {who}")
            if identity == FOREIGN:
                self.find(f"{at} offset {offset} at {who}: {(value or b'')[:60]!r} was not sent")

    def find(self, text: str) -> None:
        self.findings.append(f"{time.strftime('%H:%M:%S')} {text}")

    def save(self, path: Path) -> None:
        arrays = {f"{name}/{index}": np.array(r) for (name, index), r in self.records.items()}
        with path.open("wb") as file:
            np.savez(file, **arrays)


class Reader:
    """One consumer."""

    def __init__(
        self,
        known: Known,
        servers: str,
        name: str,
        rack: str,
        seed: int,
        stopping: threading.Event,
        places: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        """`rack`: where it reads; empty: from the leaders. `places`: where it begins."""
        self.name = name
        self._seed = seed
        self._servers = servers
        self._rack = rack
        self._known = known
        self._dice = random.Random(f"{seed} {name}")
        self._places: dict[tuple[str, int], int] = dict(places or {})
        self._damaged: set[tuple[str, int]] = set()
        """Where a damaged batch was met."""
        self._stopping = stopping
        self._given_up: list[confluent_kafka.Consumer] = []
        """They cannot be closed, and the last reference would do it."""
        self._moved_at = time.monotonic()
        self._sum = self._all_read = 0
        """The offsets of this consumer, and the records of all, when it has last read one."""
        self._called_at = math.inf
        """When it called librdkafka, as long as that has not returned."""
        self._is_left = False
        self._consumer = self._consumer_at(self._next_places())
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _consumer_at(self, places: dict[tuple[str, int], int]) -> confluent_kafka.Consumer:
        """One that reads these partitions from these offsets on.

        Its assignment is never changed: librdkafka may wait for ever for that where a leader is
        lost meanwhile, and no thread of this process runs as long as it waits.
        """
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "torture",
                "client.id": self.name,
                "client.rack": self._rack,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "reconnect.backoff.max.ms": 1_000,
                "topic.metadata.refresh.interval.ms": 2_000,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(*at, offset) for at, offset in places.items()])
        return consumer

    def start(self) -> None:
        self._thread.start()

    @property
    def hangs(self) -> bool:
        """It is in a call of librdkafka that does not return, see `_give_up`."""
        return time.monotonic() - self._called_at > CALL_SECONDS_MAX

    def successor(self) -> Reader:
        """Another one that goes on in the place of this one, which hangs."""
        self._is_left = True
        self._give_up(self._consumer)
        return Reader(
            self._known,
            self._servers,
            self.name,
            self._rack,
            self._seed,
            self._stopping,
            self._places,
        )

    def join(self) -> None:
        """Wait for the end of a consumer that was told to stop."""
        self._thread.join(3 * CLOSE_SECONDS_MAX)
        if not self._thread.is_alive():
            return
        if self.hangs:
            self._give_up(self._consumer)
        else:
            self._known.find(f"{self.name}: a consumer does not end")

    def _run(self) -> None:
        back_at = time.monotonic() + BACK_SECONDS
        while not self._stopping.is_set() and not self._is_left:
            self._poll()
            self._replace_still()
            if time.monotonic() > back_at:
                self._go_back()
                back_at = time.monotonic() + BACK_SECONDS
        self._close(self._consumer)

    def read_to(self, ends: dict[tuple[str, int], int]) -> list[str]:
        """Read everything up to these offsets; what is missing."""
        deadline = time.monotonic() + LAST_SECONDS_MAX
        while left := [f"{at} from {self._places.get(at, 0)} to {end}" for at, end in ends.items()
                       if self._places.get(at, 0) < end]:  # fmt: skip
            if time.monotonic() > deadline:
                break
            self._poll()
        return left

    def _close(self, consumer: confluent_kafka.Consumer) -> None:
        closing = threading.Thread(target=consumer.close, daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS_MAX)
        if closing.is_alive():
            self._give_up(consumer)

    def _give_up(self, consumer: confluent_kafka.Consumer) -> None:
        """It stands still for ever.

        In librdkafka 2.16.1 the main thread, with the lock of a partition, can wait for that of the
        client (`rd_kafka_toppar_handle_OffsetForLeaderEpoch`, `rd_kafka_metadata_refresh_topics`),
        while the thread of a broker that is lost has the second one and waits for the first
        (`rd_kafka_broker_fail`, `rd_kafka_toppar_forget_leader`). A call for messages waits for the
        first one, too, whatever its timeout is.
        """
        self._given_up.append(consumer)
        self._known.stuck += 1

    def _replace_still(self) -> None:
        """Give the consumer up where it stands still."""
        now, offsets = time.monotonic(), sum(self._places.values())
        if offsets != self._sum:
            self._sum, self._moved_at, self._all_read = offsets, now, self._known.read
        elif (
            now - self._moved_at > STILL_SECONDS_MAX
            and self._known.read > self._all_read + STILL_RECORDS
        ):
            self._give_up(self._consumer)
            self._moved_at = now
            self._consumer = self._consumer_at(self._next_places())

    def _next_places(self) -> dict[tuple[str, int], int]:
        return {at: self._places.get(at, 0) for at in self._known.records}

    def _poll(self) -> None:
        if self._read(self._consumer, self._places):
            self._stopping.wait(PATIENCE_SECONDS)
            self._close(self._consumer)
            self._consumer = self._consumer_at(self._next_places())

    def _read(self, consumer: confluent_kafka.Consumer, places: dict[tuple[str, int], int]) -> bool:
        """Take what has come, and note in `places` where to go on; whether some of it was
        damaged."""
        damaged = set()
        self._called_at = time.monotonic()
        messages = consumer.consume(1_000, timeout=POLL_SECONDS)
        self._called_at = math.inf
        for message in messages:
            error = message.error()
            at = message.topic(), message.partition()
            if at in damaged:
                continue  # it goes on at the damage, and not behind it
            if error is None:
                places[at] = message.offset() + 1
                self._known.take(at, message.offset(), message.value(), self.name)
            elif error.code() in DAMAGED or (error.code() in ASTRAY and at in self._damaged):
                self._damaged.add(at)
                self._known.damaged += 1
                damaged.add(at)
            elif error.code() not in PASSING:
                self._known.find(f"{self.name}: {at}: {error}")
        return bool(damaged)

    def _go_back(self) -> None:
        """What was read once is read again, perhaps from another replica."""
        at = self._dice.choice(sorted(self._places)) if self._places else None
        if at is None:
            return
        end = self._places[at]
        places = {at: max(0, end - self._dice.randrange(1, BACK_RECORDS_MAX))}
        consumer = self._consumer_at(places)
        deadline = time.monotonic() + BACK_SECONDS_MAX
        while places[at] < end and time.monotonic() < deadline and not self._stopping.is_set():
            if self._read(consumer, places):
                break
        self._close(consumer)


def replace_hanging(readers: list[Reader]) -> None:
    for index, reader in enumerate(readers):
        if reader.hangs:
            readers[index] = reader.successor()
            readers[index].start()


def report(known: Known) -> None:
    state: dict[str, Any] = {
        "read": known.read,
        "ends": {f"{name}/{index}": len(r) for (name, index), r in known.records.items()},
        "damaged": known.damaged,
        "stuck": known.stuck,
        "findings": known.findings[:20],
        "finding_count": len(known.findings),
    }
    print(json.dumps(state), flush=True)


def main() -> None:
    settings = json.loads(sys.argv[1])
    known = Known(streams_named(settings["streams"]))
    stopping = threading.Event()
    racks = {"leaders": "", **{f"rack {rack}": rack for rack in settings["racks"]}}
    readers = [
        Reader(known, settings["servers"], name, rack, settings["seed"], stopping)
        for name, rack in racks.items()
    ]
    asked: list[str] = []
    listening = threading.Thread(target=lambda: asked.append(sys.stdin.readline()), daemon=True)
    for each in readers:
        each.start()
    listening.start()
    while not asked:
        report(known)
        replace_hanging(readers)
        listening.join(REPORT_SECONDS)
    stopping.set()
    for reader in readers:
        reader.join()
    if asked[0].strip():
        ends = {
            (name, int(index)): end
            for place, end in json.loads(asked[0]).items()
            for name, _, index in [place.rpartition("/")]
        }
        ending = threading.Event()
        last = Reader(known, settings["servers"], "last", "", settings["seed"], ending)
        for missing in last.read_to(ends):
            known.find(f"not read at the end: {missing}")
    known.save(Path(settings["reads"]))
    report(known)
    sys.stdout.flush()
    os._exit(0)  # the interpreter would wait for those that were given up


if __name__ == "__main__":
    main()
