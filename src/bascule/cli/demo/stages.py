"""The stages of the demo. Each one does its work, measures it and checks the result."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

import bascule
from bascule.cli.demo.flights import Flights
from bascule.cli.demo.processes import Program
from bascule.errors import BasculeError, Broken, ConfigError

STREAM: Final = "flights"
SUBJECT: Final = "flights.>"
NODE_START_SECONDS_MAX: Final = 60.0
SILENCE_SECONDS_MAX: Final = 30.0
CONSUME_COUNT: Final = 10_000
PARTITION_EOF: Final = -191
"""librdkafka's code for the end of a partition."""
JAVA_MIN: Final = 17

OnProgress = Callable[[int], None]


class CheckFailed(BasculeError):
    """A count differs from the CSV."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """The duration of a stage without its checks, and a text about the checks."""

    seconds: float
    check: str


@dataclass(frozen=True, slots=True)
class NodeAddresses:
    """The addresses of the demo's node, from its ready file."""

    nats: str
    client: str
    http: str


class Distance(msgspec.Struct):
    """The field of a flight that is summed."""

    distance: int


def require(holds: bool, what: str) -> None:
    if not holds:
        raise CheckFailed(what)


def start_node(folder: Path) -> Program:
    """Start a node on free ports, with the embedded NATS server."""
    arguments = [sys.executable, "-m", "bascule.cli.main", "serve", "--data", str(folder / "data")]
    for port in ("--client-port", "--http-port", "--nats-port", "--peer-port"):
        arguments += [port, "0"]
    arguments += ["--ready-file", str(folder / "ready.json")]
    # The user's node configuration does not apply to this node.
    return Program("the node", arguments, log=folder / "node.log", without="BASCULE_")


def wait_until_ready(node: Program, folder: Path) -> NodeAddresses:
    """Wait until the node is ready. Return its addresses. Raises: Broken if it ends or takes too
    long."""
    ready = folder / "ready.json"
    deadline = time.monotonic() + NODE_START_SECONDS_MAX
    while not ready.exists():
        if node.has_ended() or time.monotonic() > deadline:
            raise node.failure()
        time.sleep(0.05)
    addresses = json.loads(ready.read_text())
    return NodeAddresses(nats=addresses["nats"], client=addresses["client"], http=addresses["http"])


def publish(addresses: NodeAddresses, flights: Flights, on_progress: OnProgress) -> StageResult:
    """Publish all flights in order. Each is acked after its batch is on disk."""
    with bascule.connect_sync(addresses.http) as client:
        client.create_stream(STREAM, SUBJECT)
        started = time.perf_counter()
        acks = client.publish_many(flights.messages, on_progress=on_progress)
        seconds = time.perf_counter() - started
    count = len(flights.messages)
    require(len(acks) == count, f"{len(acks)} acks for {count} messages")
    require(
        acks.offsets == array("q", range(count)),
        f"the acked offsets are not 0 to {count - 1} in order",
    )
    require(all(ack.synced for ack in acks), "an ack reports an unsynced message")
    return StageResult(seconds, f"offsets 0..{count - 1}")


def read_back(addresses: NodeAddresses, flights: Flights, on_progress: OnProgress) -> StageResult:
    """Read the stream with confluent-kafka, and compare it with the published messages.

    The time includes the comparison.
    """
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": addresses.client,
            "group.id": "bascule-demo",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        started = time.perf_counter()
        consumer.assign([TopicPartition(STREAM, 0, 0)])
        distance_sum = _compare(consumer, flights, on_progress)
        seconds = time.perf_counter() - started
    finally:
        consumer.close()
    require(
        distance_sum == flights.distance_sum,
        f"the distances add up to {distance_sum}, in the CSV to {flights.distance_sum}",
    )
    return StageResult(seconds, f"Σ miles {distance_sum:,}")


def _compare(consumer: Any, flights: Flights, on_progress: OnProgress) -> int:
    """Compare every message until the end of the stream. Return the sum of distances."""
    decode = msgspec.json.Decoder(Distance).decode
    distance_sum = position = 0
    heard = time.monotonic()
    while True:
        messages = consumer.consume(CONSUME_COUNT, 1.0)
        if messages:
            heard = time.monotonic()
        elif time.monotonic() - heard > SILENCE_SECONDS_MAX:
            raise Broken(f"confluent-kafka received nothing for {SILENCE_SECONDS_MAX:.0f} s")
        for message in messages:
            if message.error() is not None:
                if message.error().code() != PARTITION_EOF:
                    raise Broken(f"confluent-kafka: {message.error()}")
                require(
                    position == len(flights.messages),
                    f"the stream ends at offset {position}, expected {len(flights.messages)}",
                )
                return distance_sum
            require(position < len(flights.messages), "the stream holds more than was published")
            sent = flights.messages[position]
            key = None if message.key() is None else message.key().decode()
            require(
                message.offset() == position and message.value() == sent.value and key == sent.key,
                f"what was read at offset {message.offset()} is not flight {position}",
            )
            distance_sum += decode(message.value()).distance
            position += 1
        on_progress(position)


def read_columns(
    addresses: NodeAddresses, flights: Flights, on_progress: OnProgress
) -> StageResult:
    """Read the stream with the Python client, as Arrow batches."""
    import pyarrow.compute as pc

    count = value_bytes = 0
    with bascule.connect_sync(addresses.http) as client:
        started = time.perf_counter()
        for batch in client.read_batches(STREAM):
            count += batch.num_rows
            value_bytes += pc.sum(pc.binary_length(batch.column("value"))).as_py()
            on_progress(count)
        seconds = time.perf_counter() - started
    require(count == len(flights.messages), f"{count} rows, expected {len(flights.messages)}")
    require(
        value_bytes == flights.value_bytes,
        f"{value_bytes} bytes of values, expected {flights.value_bytes}",
    )
    return StageResult(seconds, "count and bytes")


class SparkQuery:
    """The query of `bascule.pipeline.demo_query` in a separate process, event by event."""

    def __init__(self, addresses: NodeAddresses, folder: Path) -> None:
        require_java()
        arguments = [
            sys.executable,
            "-m",
            "bascule.pipeline.demo_query",
            "--server",
            addresses.http,
        ]
        arguments += ["--stream", STREAM, "--output", str(folder)]
        environment = {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONWARNINGS": "ignore",
        }
        self.program = Program(
            "Spark", arguments, log=folder / "spark.log", environment=environment, piped=True
        )

    def write(self, on_progress: OnProgress) -> StageResult:
        """Wait until the stream is written to Parquet."""
        written = self.wait_for("written", on_progress)
        return StageResult(written["seconds"], f"{written['rows']:,} rows")

    def wait_for(self, event: str, on_progress: OnProgress | None = None) -> dict[str, Any]:
        """Return the fields of the next `event`. Raises: Broken if Spark ends first."""
        for line in self.program.output:
            facts: dict[str, Any] = json.loads(line)
            if facts["event"] == event:
                return facts
            if on_progress is not None and facts["event"] == "progress":
                on_progress(facts["rows"])
        self.program.wait(SILENCE_SECONDS_MAX)
        raise self.program.failure()


def check_summary(summary: dict[str, Any], flights: Flights) -> str:
    """Compare the Parquet files with the CSV."""
    count = len(flights.messages)
    expected = {
        "rows": count,
        "offsets": count,
        "first": 0,
        "last": count - 1,
        "keys_matching": count,
        "distance_sum": flights.distance_sum,
    }
    found = {name: summary[name] for name in expected}
    require(found == expected, f"the Parquet files hold {found}, expected {expected}")
    return f"Σ miles {flights.distance_sum:,}"


def require_java() -> None:
    """Raises: ConfigError with an installation hint if there is no suitable Java."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    found = "none"
    if java is not None:
        # Java prints `openjdk version "17.0.15" 2025-04-15` to standard error.
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
        found = said.stderr.partition('"')[2].partition('"')[0] or "unknown"
        major = found.partition(".")[0]
        if not major.isdecimal() or int(major) >= JAVA_MIN:
            return
    raise ConfigError(
        f"Spark needs Java {JAVA_MIN} or newer, found {found}: apt-get install "
        "openjdk-17-jre-headless (Debian), or set JAVA_HOME"
    )
