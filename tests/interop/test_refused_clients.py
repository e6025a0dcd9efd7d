"""What is refused is refused at once and in words: no client tries again in silence."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Iterator

import confluent_kafka
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import IncompatibleBrokerVersion
from confluent_kafka.admin import AdminClient, ConfigResource

from bascule.replica.partitions import Partitions
from bascule.wire.offsets import OFFSETS_STREAM
from support.served_stream import ListenerThread, open_stream, running_listener

with warnings.catch_warnings():
    # It reads its own schema files in a way that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.admin

    import kafka

SECONDS_MAX = 60
"""A client that tries again does so for ever, or for as long."""


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ListenerThread]:
    partitions = Partitions()
    open_stream(tmp_path_factory.mktemp("streams"), partitions)
    open_stream(tmp_path_factory.mktemp("offsets"), partitions, OFFSETS_STREAM)
    with running_listener(partitions) as running:
        yield running


def test_confluent_kafka_s_idempotent_and_transactional_producers(listener: ListenerThread) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": listener.address, "enable.idempotence": True}
    )
    deadline = time.monotonic() + SECONDS_MAX
    with pytest.raises(confluent_kafka.KafkaException, match="Idempotent producer not supported"):
        while time.monotonic() < deadline:
            producer.poll(0.1)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": listener.address, "transactional.id": "t"}
    )
    with pytest.raises(confluent_kafka.KafkaException, match="Transactions not supported"):
        producer.init_transactions(SECONDS_MAX)


@pytest.mark.parametrize("settings", [{}, {"transactional_id": "t"}])
def test_kafka_python_s_idempotent_and_transactional_producers(
    listener: ListenerThread, settings: dict[str, str]
) -> None:
    """Its producers are idempotent unless told otherwise."""
    producer = kafka.KafkaProducer(
        bootstrap_servers=listener.address, max_block_ms=SECONDS_MAX * 1_000, **settings
    )
    try:
        with pytest.raises(kafka.errors.IncompatibleBrokerVersion, match="InitProducerId"):
            if settings:
                producer.init_transactions()
            producer.send("flights", b"x").get(SECONDS_MAX)
    finally:
        producer.close(SECONDS_MAX)


@pytest.mark.parametrize("settings", [{"enable_idempotence": True}, {"transactional_id": "t"}])
def test_aiokafka_s_idempotent_and_transactional_producers(
    listener: ListenerThread, settings: dict[str, str | bool]
) -> None:
    async def scene() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=listener.address, **settings)
        async with asyncio.timeout(SECONDS_MAX):
            with pytest.raises(IncompatibleBrokerVersion, match="InitProducerId"):
                await producer.start()
            await producer.stop()

    asyncio.run(scene())


def test_administration_that_there_is_not(listener: ListenerThread) -> None:
    """AlterConfigs would reset every setting that it does not name."""
    admin = AdminClient({"bootstrap.servers": listener.address})
    resource = ConfigResource("topic", "flights", set_config={"retention.ms": "5"})
    with pytest.deprecated_call():
        (future,) = admin.alter_configs([resource]).values()
    with pytest.raises(confluent_kafka.KafkaException, match="not supported by broker"):
        future.result(SECONDS_MAX)
    other = kafka.admin.KafkaAdminClient(bootstrap_servers=listener.address)
    with pytest.raises(kafka.errors.IncompatibleBrokerVersion, match="ListTransactions"):
        other.list_transactions()
    other.close()


def test_confluent_kafka_s_share_consumer(
    listener: ListenerThread, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = confluent_kafka.ShareConsumer(
        {"bootstrap.servers": listener.address, "group.id": "workers", "client.id": "share"}
    )
    consumer.subscribe(["flights"])
    deadline = time.monotonic() + SECONDS_MAX
    with pytest.raises(confluent_kafka.KafkaException, match="ShareGroupHeartbeat"):
        while time.monotonic() < deadline:
            consumer.poll(1)
    consumer.close()
    (line,) = [
        record
        for record in caplog.records
        if record.getMessage() == "request refused" and record.client == "share"  # type: ignore[attr-defined]
    ]
    assert "no share groups" in line.reason  # type: ignore[attr-defined]
