"""Reads a topic with the common Kafka clients, for comparison with the stored records."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka

from bascule.record.batch import RecordBatch, scan_batches

with warnings.catch_warnings():
    # kafka-python reads its schema files in a way that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

HEADERS = list[tuple[str, bytes | None]]


class ClientRecord(NamedTuple):
    """One record as a client returned it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: HEADERS


def decode_records(data: bytes) -> list[ClientRecord]:
    """The records of stored batches."""
    return [
        ClientRecord(r.offset, r.timestamp, r.key, r.value, list(r.headers))
        for batch in scan_batches(memoryview(data))
        for r in RecordBatch(memoryview(data)[batch.start : batch.end])
    ]


def read_confluent(address: str, topic: str, count: int) -> list[ClientRecord]:
    problems: list[Any] = []
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "never joined",
            "check.crcs": True,
            "error_cb": problems.append,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    records = []
    while len(records) < count:
        for m in consumer.consume(1_000, timeout=1.0):
            assert m.error() is None, m.error()
            headers = list(m.headers() or [])
            records.append(ClientRecord(m.offset(), m.timestamp()[1], m.key(), m.value(), headers))
    consumer.close()
    assert problems == [], "the client reported errors"
    return records


def read_kafka_python(address: str, topic: str, count: int) -> list[ClientRecord]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address, group_id="never joined", check_crcs=True
    )
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning()
    records = []
    while len(records) < count:
        for r in consumer.poll(1000).get(partition, ()):
            records.append(ClientRecord(r.offset, r.timestamp, r.key, r.value, list(r.headers)))
    consumer.close()
    return records


def read_aiokafka(address: str, topic: str, count: int) -> list[ClientRecord]:
    async def read() -> list[ClientRecord]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address, group_id="never joined", check_crcs=True
        )
        await consumer.start()
        partition = aiokafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning()
        records = []
        while len(records) < count:
            got = await consumer.getmany(timeout_ms=1000)
            for r in got.get(partition, ()):
                records.append(ClientRecord(r.offset, r.timestamp, r.key, r.value, list(r.headers)))
        await consumer.stop()
        return records

    return asyncio.run(read())


READERS = {
    "confluent-kafka": read_confluent,
    "kafka-python": read_kafka_python,
    "aiokafka": read_aiokafka,
}
