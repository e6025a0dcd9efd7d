"""A member of a consumer group as a process: prints what it owns and what it reads, as JSON lines.

    SESSION_MS=6000 python group_member.py CLIENT ADDRESS GROUP TOPIC [INSTANCE]

CLIENT is confluent-kafka, confluent-cooperative, kafka-python, aiokafka, bascule, bascule-sync or
bascule-cooperative. `confluent-kafka/consumer` speaks the consumer protocol of KIP-848, whose
session time-out is the node's. Those of Bascule connect to BASCULE_SERVER. A TOPIC that begins with
^ is a regular expression. Lines: {"owned": [partition, ...]} after each assignment, {"at":
[partition, offset]} for each record. SIGTERM: commit, leave and end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import warnings
from typing import Any

SESSION_MS = int(os.environ["SESSION_MS"])
stopping = False


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def stop(*_: object) -> None:
    global stopping
    stopping = True


def confluent(
    address: str, group: str, topic: str, instance: str | None, *, cooperative: bool
) -> None:
    import confluent_kafka

    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": 500,
        "auto.commit.interval.ms": 500,
    }
    if instance is not None:
        settings["group.instance.id"] = instance
    if cooperative:
        settings["partition.assignment.strategy"] = "cooperative-sticky"
    consumer = confluent_kafka.Consumer(settings)
    owned: set[int] = set()

    def on_assign(_: object, partitions: list[Any]) -> None:
        owned.update(p.partition for p in partitions)
        say(owned=sorted(owned))

    def on_revoke(_: object, partitions: list[Any]) -> None:
        owned.difference_update(p.partition for p in partitions)
        say(owned=sorted(owned))

    consumer.subscribe([topic], on_assign=on_assign, on_revoke=on_revoke)
    while not stopping:
        message = consumer.poll(0.1)
        if message is None:
            continue
        if message.error() is not None:
            say(error=message.error().str())
            continue
        say(at=[message.partition(), message.offset()])
    consumer.close()


def newer(address: str, group: str, topic: str, instance: str | None) -> None:
    import confluent_kafka

    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "group.id": group,
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 500,
        "topic.metadata.refresh.interval.ms": 1_000,
    }
    if instance is not None:
        settings["group.instance.id"] = instance
    consumer = confluent_kafka.Consumer(settings)
    owned: set[int] = set()

    # Such a member keeps what it owns, and is told only of what comes and goes.
    def on_assign(_: object, partitions: list[Any]) -> None:
        owned.update(p.partition for p in partitions)
        say(owned=sorted(owned))

    def on_revoke(_: object, partitions: list[Any]) -> None:
        owned.difference_update(p.partition for p in partitions)
        say(owned=sorted(owned))

    consumer.subscribe([topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_revoke)
    while not stopping:
        message = consumer.poll(0.1)
        if message is None:
            continue
        if message.error() is not None:
            say(error=message.error().str())
            continue
        say(at=[message.partition(), message.offset()])
    consumer.close()


def kafka_python(address: str, group: str, topic: str, instance: str | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[name-defined]
        def on_partitions_revoked(self, revoked: Any) -> None:
            say(owned=[])

        def on_partitions_assigned(self, assigned: Any) -> None:
            say(owned=sorted(p.partition for p in assigned))

    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address,
        group_id=group,
        group_instance_id=instance,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=500,
        auto_commit_interval_ms=500,
    )
    consumer.subscribe([topic], listener=Listener())
    while not stopping:
        try:
            polled = consumer.poll(100)
        except kafka.errors.KafkaConnectionError:
            continue  # where all nodes are away, it raises now and then
        for records in polled.values():
            for record in records:
                say(at=[record.partition, record.offset])
    consumer.close()


async def aio(address: str, group: str, topic: str, instance: str | None) -> None:
    import aiokafka

    class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Any) -> None:
            say(owned=[])

        async def on_partitions_assigned(self, assigned: Any) -> None:
            say(owned=sorted(p.partition for p in assigned))

    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=address,
        group_id=group,
        group_instance_id=instance,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=500,
        auto_commit_interval_ms=500,
    )
    consumer.subscribe([topic], listener=Listener())
    await consumer.start()
    while not stopping:
        for records in (await consumer.getmany(timeout_ms=100)).values():
            for record in records:
                say(at=[record.partition, record.offset])
    await consumer.stop()


def bascule_options(instance: str | None, *, cooperative: bool = False) -> Any:
    from bascule.client import GroupOptions

    owned: set[int] = set()

    def on_assigned(partitions: frozenset[int]) -> None:
        owned.update(partitions)
        say(owned=sorted(owned))

    def on_revoked(partitions: frozenset[int]) -> None:
        owned.difference_update(partitions)
        say(owned=sorted(owned))

    return GroupOptions(
        session_timeout=SESSION_MS / 1000,
        heartbeat_interval=0.5,
        instance=instance,
        on_assigned=on_assigned,
        on_revoked=on_revoked,
        **({"assignors": ["cooperative-sticky"]} if cooperative else {}),
    )


async def own(client: str, group: str, topic: str, instance: str | None) -> None:
    import bascule

    options = bascule_options(instance, cooperative=client == "bascule-cooperative")
    async with (
        bascule.connect() as connected,
        connected.consume(topic, group=group, commit_interval=0.5, options=options) as messages,
    ):
        while not stopping:
            try:
                message = await asyncio.wait_for(anext(messages), 0.2)
            except TimeoutError:
                continue
            say(at=[message.partition, message.offset])


def own_blocking(group: str, topic: str, instance: str | None) -> None:
    import bascule

    signal.signal(signal.SIGTERM, interrupt)
    with (
        bascule.connect_sync() as connected,
        connected.consume(
            topic, group=group, commit_interval=0.5, options=bascule_options(instance)
        ) as messages,
        contextlib.suppress(KeyboardInterrupt),
    ):
        for message in messages:
            say(at=[message.partition, message.offset])


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    client, address, group, topic = sys.argv[1:5]
    instance = sys.argv[5] if len(sys.argv) > 5 else None
    signal.signal(signal.SIGTERM, stop)
    if client == "confluent-kafka/consumer":
        newer(address, group, topic, instance)
    elif client.startswith("confluent"):
        confluent(address, group, topic, instance, cooperative=client == "confluent-cooperative")
    elif client == "kafka-python":
        kafka_python(address, group, topic, instance)
    elif client == "bascule-sync":
        own_blocking(group, topic, instance)
    elif client.startswith("bascule"):
        asyncio.run(own(client, group, topic, instance))
    else:
        asyncio.run(aio(address, group, topic, instance))
    say(ended=True)


if __name__ == "__main__":
    main()
