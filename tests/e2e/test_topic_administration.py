"""Topics made, altered and removed by Kafka's administration clients, on real nodes."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

import bascule
from bascule.wire.messages.administration.create_partitions import (
    CreatePartitionsRequest,
    TopicToExtend,
)
from bascule.wire.messages.administration.create_topics import CreatableTopic, CreateTopicsRequest
from bascule.wire.messages.administration.delete_records import (
    DeleteRecordsRequest,
    PartitionToPurge,
    TopicToPurge,
)
from bascule.wire.messages.administration.delete_topics import DeleteTopicsRequest, TopicToDelete
from bascule.wire.messages.administration.incremental_alter_configs import (
    AlterableConfig,
    IncrementalAlterConfigsRequest,
    ResourceToAlter,
)
from support.clusters import RunningCluster
from support.processes import NatsServer, Node, running_node, wait_for
from support.raw_client import RawClient

with warnings.catch_warnings():
    # It reads its own schema files in a way that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.admin

    import kafka

pytestmark = pytest.mark.tier3

SECONDS_MAX = 60


def result(futures: dict[Any, Future[Any]]) -> Any:
    (future,) = futures.values()
    return future.result(SECONDS_MAX)


def stream(node: Node, name: str) -> Any:
    return node.call("GET", f"/v1/streams/{name}")


def names(node: Node) -> list[str]:
    return [each["name"] for each in node.call("GET", "/v1/streams")["streams"]]


def publish(node: Node, subject: str, count: int) -> None:
    with bascule.connect_sync(node.addresses["http"]) as client:
        for n in range(count):
            client.publish(subject, b"%d" % n)


def test_a_topic_of_confluent_kafka_from_creation_to_deletion(
    cluster: RunningCluster,
) -> None:
    admins = [
        AdminClient({"bootstrap.servers": node.addresses["client"]})
        for node in cluster.nodes.values()
    ]
    one, two, three = admins
    node = cluster.nodes[1]
    topic = NewTopic("_schemas", 1, 3, config={"cleanup.policy": "compact"})
    assert result(one.create_topics([topic])) is None
    made = stream(node, "_schemas")["config"]
    assert (made["subject"], made["replicas"]) == ("topics._schemas", 3)
    with pytest.raises(confluent_kafka.KafkaException, match="TOPIC_ALREADY_EXISTS"):
        result(two.create_topics([topic]))

    cluster.wait_in_sync("_schemas")
    publish(node, "topics._schemas", 10)
    partition = confluent_kafka.TopicPartition("_schemas", 0)
    end = result(three.list_offsets({partition: OffsetSpec.latest()}))
    assert end.offset == 10

    change = ConfigEntry("retention.ms", "60000", incremental_operation=AlterConfigOpType.SET)
    policy = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.APPEND)
    resource = ConfigResource(ResourceType.TOPIC, "_schemas", incremental_configs=[change, policy])
    result(two.incremental_alter_configs([resource]))

    def altered() -> bool | None:
        return stream(node, "_schemas")["config"]["retention_ms_max"] == 60_000 or None

    wait_for(altered, node.process, node.log)

    def shown() -> bool | None:
        asked = ConfigResource(ResourceType.TOPIC, "_schemas")
        found = result(one.describe_configs([asked]))
        return True if found["retention.ms"].value == "60000" else None

    wait_for(shown, node.process, node.log)

    before = confluent_kafka.TopicPartition("_schemas", 0, 4)
    assert result(three.delete_records([before])).low_watermark == 4
    assert stream(node, "_schemas")["partitions"][0]["start_offset"] == 4

    assert result(one.create_partitions([NewPartitions("_schemas", 2)])) is None
    assert len(stream(node, "_schemas")["partitions"]) == 2
    with pytest.raises(confluent_kafka.KafkaException, match="can only be added"):
        result(two.create_partitions([NewPartitions("_schemas", 1)]))

    assert result(two.delete_topics(["_schemas"])) is None
    assert "_schemas" not in names(node)


def test_any_node_passes_changes_on_to_the_controller(cluster: RunningCluster) -> None:
    """Clients ask the controller or a leader; a node that is neither answers as well."""
    nodes = list(cluster.nodes.values())
    for turn, node in enumerate(nodes):
        with contextlib.ExitStack() as stack:
            clients = []
            for other in nodes[turn:] + nodes[:turn]:
                host, _, port = other.addresses["client"].rpartition(":")
                client = RawClient(host, int(port))
                stack.callback(client.close)
                clients.append(client)
            first, second, third = clients
            name = f"from{turn}"
            (made,) = first.request(CreateTopicsRequest([CreatableTopic(name, 1, 3)]), 7).topics
            assert made.error_code == 0, made.error_message
            extend = CreatePartitionsRequest([TopicToExtend(name, 2)])
            (more,) = second.request(extend, 3).results
            assert more.error_code == 0, more.error_message
            change = ResourceToAlter(2, name, [AlterableConfig("retention.ms", 0, "5000")])
            (altered,) = third.request(IncrementalAlterConfigsRequest([change]), 1).responses
            assert altered.error_code == 0, altered.error_message
            # Another node than the one that was asked may follow the controller a moment later.
            found = wait_for(
                lambda node=node, name=name: (
                    found
                    if (found := stream(node, name))["config"]["retention_ms_max"] == 5_000
                    else None
                ),
                node.process,
                node.log,
            )
            assert len(found["partitions"]) == 2
            cluster.wait_in_sync(name)
            publish(node, f"topics.{name}", 10)
            ends = [each["high_watermark"] for each in stream(node, name)["partitions"]]
            for client in clients:
                purge = TopicToPurge(name, [PartitionToPurge(n, end) for n, end in enumerate(ends)])
                (purged,) = client.request(DeleteRecordsRequest([purge]), 2).topics
                assert [(p.error_code, p.low_watermark) for p in purged.partitions] == [
                    (0, end) for end in ends
                ]
            (gone,) = second.request(DeleteTopicsRequest([TopicToDelete(name)]), 6).responses
            assert gone.error_code == 0, gone.error_message
            other = nodes[(turn + 1) % 3]
            wait_for(
                lambda other=other, name=name: name not in names(other) or None,
                other.process,
                other.log,
            )


def test_what_confluent_kafka_is_refused_says_why(tmp_path: Path, nats_server: NatsServer) -> None:
    with running_node(tmp_path, nats=nats_server.url) as node:
        admin = AdminClient({"bootstrap.servers": node.addresses["client"]})
        for topic, text in (
            (NewTopic("x", 1, 3), "3 replicas are asked for, and 1 node is alive"),
            (NewTopic("x", 1, 1, config={"flush.ms": "1"}), "known are cleanup.policy"),
            (NewTopic("x..y", 1, 1), "empty token"),
        ):
            with pytest.raises(confluent_kafka.KafkaException, match=text):
                result(admin.create_topics([topic]))
        check = NewTopic("x", 1, 1)
        assert result(admin.create_topics([check], validate_only=True)) is None
        assert "x" not in names(node)


def test_a_node_that_others_reach_takes_no_changes_by_default(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    open_to_all = {"BASCULE_CLIENT_HOST": "0.0.0.0"}
    with running_node(tmp_path, nats=nats_server.url, environment=open_to_all) as node:
        port = node.addresses["client"].rpartition(":")[2]
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
        with pytest.raises(confluent_kafka.KafkaException, match=r"client\.administration is auto"):
            result(admin.create_topics([NewTopic("x", 1, 1)]))
        node.create("x", "x.>")
        # librdkafka asks in a version without texts; the log of the node has the reason.
        with pytest.raises(confluent_kafka.KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
            result(admin.delete_topics(["x"]))
        (line,) = [line for line in node.log.read_text().splitlines() if "api=DeleteTopics" in line]
        assert "client.administration is auto" in line
        assert "x" in names(node)


def test_topics_of_kafka_python(tmp_path: Path, nats_server: NatsServer) -> None:
    prefix = {"BASCULE_CLIENT_TOPIC_PREFIX": "from.kafka"}
    with running_node(tmp_path, nats=nats_server.url, environment=prefix) as node:
        admin = kafka.admin.KafkaAdminClient(bootstrap_servers=node.addresses["client"])
        # It is closed before the node stops: its connections to a lost node leave sockets behind.
        with contextlib.closing(admin):
            admin.create_topics({"one": {"num_partitions": 2, "replication_factor": 1}})
            made = stream(node, "one")
            assert (made["config"]["subject"], len(made["partitions"])) == ("from.kafka.one", 2)
            resource = kafka.admin.ConfigResource("TOPIC", "one", {"retention.ms": "5"})
            admin.alter_configs([resource])
            assert stream(node, "one")["config"]["retention_ms_max"] == 5
            publish(node, "from.kafka.one", 5)
            end = node.partition("one")["high_watermark"]
            first = kafka.TopicPartition("one", 0)
            assert admin.delete_records({first: end})[first]["low_watermark"] == end
            admin.delete_topics(["one"])
            assert "one" not in names(node)


def test_topics_of_aiokafka(tmp_path: Path, nats_server: NatsServer) -> None:
    with running_node(tmp_path, nats=nats_server.url) as node:

        async def scene() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=node.addresses["client"])
            await admin.start()
            await admin.create_topics([AioNewTopic("two", 1, 1)])
            await admin.create_partitions({"two": AioNewPartitions(3)})
            assert len(stream(node, "two")["partitions"]) == 3
            await admin.delete_topics(["two"])
            await admin.close()

        asyncio.run(scene())
        assert "two" not in names(node)
