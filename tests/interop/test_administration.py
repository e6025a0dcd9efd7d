"""What the administration clients that nobody here wrote are told."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from bascule.replica.partitions import Partitions
from support.served_stream import (
    NODE,
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
