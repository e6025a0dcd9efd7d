"""Reading from a node over reading from Apache Kafka, with the same clients on the same machine.

Both servers run during the whole measurement with their default settings, hold equal records in
batches of about 256 KiB, and are read in turn. Values are counted, not bytes on the wire: a MB/s of
values costs both the same number of records. CPU is the server's: of the node's process, of the
broker's. `client_cpu_us` is the client's for a record, ours and Kafka's: the part of a rate that
no server decides, and steadier than rates where other processes use the cores.

The rate of a client with librdkafka's defaults is in steps: it pauses for a second when 100,000
messages are queued.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from bench import ingest
from bench.harness import Node, Running, median_ratio, node, report, row, work_directory
from bench.kafka.broker import broker, class_path, fill
from bench.kafka.readers import TUNED, Read, cpu_seconds, java_reader, read_confluent, read_kcat

RECORDS: Final = {128: 2_000_000, 1024: 500_000}
ROUNDS: Final = 5
WARM_READS: Final = 2
"""Reads of each server by each client before the first round: both JVMs compile what they use."""
RATE_MIN: Final = 0.95
CPU_MAX: Final = 0.5


@dataclass
class Served:
    """A topic at one of the servers, and how it was read."""

    running: Running
    address: str
    topic: str
    records: int
    size: int
    rates: list[float] = field(default_factory=list)
    """Records/s."""
    cpu: list[float] = field(default_factory=list)
    """CPU seconds of the server for a GiB of values."""
    client_cpu: list[float] = field(default_factory=list)
    """CPU microseconds of the client for a record."""

    def read(self, read: Read) -> None:
        """Read all of it once more."""
        cpu = cpu_seconds(self.running.process.pid)
        seconds, client = read(self.address, self.topic, self.records, self.size)
        cpu = cpu_seconds(self.running.process.pid) - cpu
        self.rates.append(self.records / seconds)
        self.cpu.append(cpu / (self.records * self.size) * (1 << 30))
        self.client_cpu.append(client / self.records * 1e6)

    def forget(self) -> None:
        self.rates, self.cpu, self.client_cpu = [], [], []


def rows_of(client: str, ours: Served, theirs: Served) -> list[dict[str, Any]]:
    mb = ours.size / 1e6
    measured = {
        "records": ours.records,
        "client_cpu_us": [round(statistics.median(s.client_cpu), 3) for s in (ours, theirs)],
        "mb_s": [round(statistics.median(side.rates) * mb, 1) for side in (ours, theirs)],
    }
    rate = {**median_ratio(ours.rates, theirs.rates), **measured}
    cpu = {**median_ratio(ours.cpu, theirs.cpu), "unit": "CPU s per GiB"}
    name = f"{client}, {ours.size} B"
    return [
        row(f"{name}: records/s and MB/s over Kafka's", rate, at_least=RATE_MIN),
        row(f"{name}: CPU of the server over Kafka's", cpu, at_most=CPU_MAX),
    ]


def compare(
    readers: dict[str, Read], ours: Served, theirs: Served, rounds: int
) -> list[dict[str, Any]]:
    """Read both in turn with each client; the one that is first changes with each round."""
    rows = []
    for client, read in readers.items():
        for _ in range(WARM_READS):
            ours.read(read)
            theirs.read(read)
        ours.forget()
        theirs.forget()
        for number in range(rounds):
            for side in (ours, theirs) if number % 2 == 0 else (theirs, ours):
                side.read(read)
        rows += rows_of(client, ours, theirs)
    return rows


@contextlib.contextmanager
def all_readers(jars: str) -> Iterator[dict[str, Read]]:
    with java_reader(jars) as read_java:
        yield {
            "confluent-kafka": read_confluent({}),
            "confluent-kafka tuned": read_confluent(TUNED),
            "kcat": read_kcat,
            "Java": read_java,
        }


def congestion_control() -> str:
    """What a connection on loopback has where neither side chooses."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sock,
    ):
        name: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return name.rstrip(b"\0").decode()


def stored_bytes(running: Node, name: str) -> float:
    """Bytes of the node's log for a record."""
    info = running.partition(name)
    return round(float(info["bytes"]) / int(info["end_offset"]), 1)


def run(*, quick: bool = False) -> None:
    rounds = 3 if quick else ROUNDS
    rows: list[dict[str, Any]] = []
    with work_directory() as directory:
        (directory / "node").mkdir()
        (directory / "kafka").mkdir()
        jars = class_path(directory)
        with (
            node(directory / "node") as running,
            broker(directory / "kafka", jars) as other,
            all_readers(jars) as readers,
        ):
            for size, full in RECORDS.items():
                records = full // 4 if quick else full
                name = f"values{size}"
                running.create(name, ingest.SUBJECT)
                ingest.publish(running.port, size, records)
                running.wait_stored(name, records)
                # The next stream takes the same subject, and this one no more of it.
                running.call("POST", f"/v1/streams/{name}/pause", {})
                fill(other.url, name, size=size, records=records)
                ours = Served(running, running.addresses["client"], name, records, size)
                theirs = Served(other, other.url, name, records, size)
                found = compare(readers, ours, theirs, rounds)
                rows += [
                    line | {"our_bytes_per_record": stored_bytes(running, name)} for line in found
                ]
    for line in rows:
        line["congestion_control"] = congestion_control()
    report("beside_kafka", rows)
