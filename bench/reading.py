"""Reading 1 GiB of 128 B records: our columnar read, confluent-kafka, a JetStream pull."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import nats
from confluent_kafka import Consumer, TopicPartition
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamConfig

import bascule
from bench import acked
from bench.acked import MessageCounter, acked_rate
from bench.harness import (
    Node,
    confirm,
    median_ratio,
    nats_connection,
    nats_server,
    node,
    report,
    row,
    work_directory,
)
from bench.ingest import publish

RECORDS = (1 << 30) // 128
PULL = 50_000


def our_rate(running: Node, records: int) -> float:
    with bascule.connect_sync(running.addresses["http"]) as client:
        client.node()
        began = time.perf_counter()
        count = sum(batch.num_rows for batch in client.read_batches("read"))
        seconds = time.perf_counter() - began
    assert count == records, count
    return count / seconds


def confluent_rate(running: Node, records: int) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": running.addresses["client"],
            "group.id": "bench",
            "enable.auto.commit": False,
            # librdkafka's defaults starve on small records; these are what helps it most.
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 2,
            "fetch.message.max.bytes": 8 << 20,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition("read", 0, 0)])
    count = 0
    began = time.perf_counter()
    while count < records:
        for message in consumer.consume(min(10_000, records - count), timeout=10):
            assert message.error() is None, message.error()
            count += 1
    seconds = time.perf_counter() - began
    consumer.close()
    return count / seconds


async def add_stream(url: str, subject: str) -> None:
    client = await nats.connect(url)
    config = StreamConfig(name="bench", subjects=[subject], storage=StorageType.FILE)
    await client.jetstream().add_stream(config)
    await client.close()


async def add_consumer(url: str) -> str:
    client = await nats.connect(url)
    info = await client.jetstream().add_consumer(
        "bench",
        ConsumerConfig(
            ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL, inactive_threshold=60
        ),
    )
    await client.close()
    return str(info.name)


def jetstream_rate(url: str, port: int, records: int) -> float:
    """Two pull requests of 50,000 messages in flight; the client counts and does nothing else."""
    name = asyncio.run(add_consumer(url))
    sock = nats_connection(port)
    sock.sendall(b"SUB in.pull 1\r\n")
    confirm(sock)
    body = json.dumps({"batch": PULL, "expires": 30_000_000_000}).encode()
    pull = b"PUB $JS.API.CONSUMER.MSG.NEXT.bench.%s in.pull %d\r\n%s\r\n" % (
        name.encode(), len(body), body,
    )  # fmt: skip
    counter = MessageCounter(sock)
    count = asked = 0
    began = time.perf_counter()
    while count < records:
        while asked - count < 2 * PULL and asked < records:
            sock.sendall(pull)
            asked += PULL
        count += counter.receive()
    seconds = time.perf_counter() - began
    sock.close()
    return count / seconds


def run(*, quick: bool = False) -> None:
    records = RECORDS // 16 if quick else RECORDS
    few = records // 4
    rounds = 3
    figures: dict[str, list[float]] = {"ours": [], "confluent": [], "jetstream": []}
    with work_directory() as directory:
        (directory / "js").mkdir()
        (directory / "node").mkdir()
        with (
            nats_server(directory / "js", jetstream=True) as other,
            node(directory / "node") as running,
        ):
            running.create("read", "bench.ingest")
            publish(running.port, 128, records)
            running.wait_stored("read", records)
            asyncio.run(add_stream(other.url, acked.SUBJECT))
            acked_rate(other.port, few)
            our_rate(running, records)
            for _ in range(rounds):
                figures["ours"].append(our_rate(running, records))
                figures["jetstream"].append(jetstream_rate(other.url, other.port, few))
                figures["confluent"].append(confluent_rate(running, records))
    measured: dict[str, Any] = {"records": records, "jetstream_records": few}
    report(
        "reading",
        [
            row("our columnar read over a JetStream pull without acks",
                {**median_ratio(figures["ours"], figures["jetstream"]), **measured}, at_least=10),
            row("our columnar read over confluent-kafka at our listener",
                {**median_ratio(figures["ours"], figures["confluent"]), **measured}, at_least=5),
        ],
    )  # fmt: skip
