"""What the administration clients that nobody here wrote are told."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from bascule.replica.partitions import Partitions
from support.served_stream import (
    NODE,
    TIMESTAMP,
    ListenerThread,
    append,
    make_records,
    open_stream,
    running_listener,
)

with warnings.catch_warnings():
    # It reads its own schema files in a way that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.admin

    import kafka

SECONDS_MAX = 30


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ListenerThread]:
    partitions = Partitions()
    flights = open_stream(tmp_path_factory.mktemp("streams"), partitions)
    append(flights, make_records(0, 50))
    with running_listener(partitions) as running:
        yield running


@pytest.fixture(scope="module")
def confluent(listener: ListenerThread) -> AdminClient:
    return AdminClient({"bootstrap.servers": listener.address})


@pytest.fixture(scope="module")
def kafka_python(listener: ListenerThread) -> Iterator[kafka.admin.KafkaAdminClient]:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=listener.address)
    yield admin
    admin.close()


def test_the_cluster(
    confluent: AdminClient, kafka_python: kafka.admin.KafkaAdminClient, listener: ListenerThread
) -> None:
    found = confluent.describe_cluster(request_timeout=SECONDS_MAX).result(SECONDS_MAX)
    assert found.cluster_id == NODE.cluster_id
    assert [(node.id, node.port) for node in found.nodes] == [(NODE.node_id, listener.port)]
    said = kafka_python.describe_cluster()
    assert said["cluster_id"] == NODE.cluster_id
    assert said["controller_id"] == NODE.node_id
    (broker,) = said["brokers"]
    assert (broker["broker_id"], broker["port"]) == (NODE.node_id, listener.port)


def test_settings_of_topics_and_brokers(
    confluent: AdminClient, kafka_python: kafka.admin.KafkaAdminClient
) -> None:
    for kind, name, setting, value in (
        ("topic", "flights", "retention.ms", "-1"),
        ("topic", "flights", "bascule.subject", "flights.>"),
        ("broker", str(NODE.node_id), "num.partitions", "1"),
    ):
        asked = ConfigResource(kind, name)
        (future,) = confluent.describe_configs([asked], request_timeout=SECONDS_MAX).values()
        assert future.result(SECONDS_MAX)[setting].value == value
        other = kafka.admin.ConfigResource(kind.upper(), name)
        said = kafka_python.describe_configs([other], config_filter="all")
        assert said[kind][name][setting]["value"] == value


def test_offsets_by_every_kind_of_time(
    confluent: AdminClient, kafka_python: kafka.admin.KafkaAdminClient
) -> None:
    """kafka-python asks in the latest version, which has all kinds; librdkafka in version 7."""
    flights = kafka.TopicPartition("flights", 0)
    for timestamp, offset in (
        (-1, 50),  # latest
        (-2, 0),  # earliest
        (-3, 0),  # of the largest timestamp: the batch has one
        (-4, 0),  # earliest on this disk
        (-5, -1),  # latest in remote storage: there is none
        (TIMESTAMP, 0),
        (TIMESTAMP + 1, -1),
    ):
        found = kafka_python.list_partition_offsets({flights: timestamp})[flights]
        assert found.offset == offset, timestamp
    partition = TopicPartition("flights", 0)
    for spec, offset in (
        (OffsetSpec.latest(), 50),
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.max_timestamp(), 0),
        (OffsetSpec.for_timestamp(TIMESTAMP + 1), -1),
    ):
        (future,) = confluent.list_offsets({partition: spec}).values()
        assert future.result(SECONDS_MAX).offset == offset


def test_replicas_partitions_and_producers(kafka_python: kafka.admin.KafkaAdminClient) -> None:
    (node,) = kafka_python.describe_log_dirs()
    (directory,) = node["log_dirs"]
    (topic,) = directory["topics"]
    assert (node["broker"], topic["name"]) == (NODE.node_id, "flights")
    assert topic["partitions"][0]["partition_size"] > 0
    (topic,) = kafka_python.describe_topic_partitions(["flights"])["topics"]
    assert topic["partitions"][0]["leader_id"] == NODE.node_id
    flights = kafka.TopicPartition("flights", 0)
    assert kafka_python.describe_producers([flights])[flights].active_producers == []
