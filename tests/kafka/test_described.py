"""Responses about the cluster and its settings, over real logs without a socket."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bascule.config import ClientConfig, Config, StreamDefaults
from bascule.model import NodeRegistration, PartitionState
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.administration.describe_cluster import DescribeClusterRequest
from bascule.wire.messages.administration.describe_log_dirs import (
    DescribableLogTopic,
    DescribeLogDirsRequest,
)
from bascule.wire.messages.administration.describe_producers import (
    DescribeProducersRequest,
    TopicWithProducers,
)
from bascule.wire.messages.administration.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    PartitionCursor,
    TopicToDescribe,
)
from bascule.wire.messages.describe_configs import (
    BROKER,
    TOPIC,
    ConfigResource,
    DescribeConfigsRequest,
    DescribedConfig,
)
from support.handlers import FLIGHTS_ID, HandlerHarness
from support.served_stream import OneNode

DEFAULT, STATIC_BROKER, OF_TOPIC = 5, 4, 1

# -- DescribeConfigs ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 5))
def test_the_settings_of_a_stream_include_its_subject(
    harness: HandlerHarness, version: int
) -> None:
    asked = [
        ConfigResource(TOPIC, "flights", None),
        ConfigResource(TOPIC, "empty", ["bascule.subject", "nothing"]),
        ConfigResource(TOPIC, "nobody", None),
        ConfigResource(TOPIC, "flights", ["retention.ms"]),
    ]
    answer = harness.handle(DescribeConfigsRequest(asked), version)
    found = {(r.resource_type, r.resource_name): r for r in answer.results}
    assert len(found) == len(answer.results) == 3, "a repeated resource is answered once"
    (one,) = found[TOPIC, "empty"].configs
    assert (one.name, one.value, one.read_only) == ("bascule.subject", "empty.>", True)
    assert [c.name for c in found[TOPIC, "flights"].configs] == ["retention.ms"]
    assert found[TOPIC, "nobody"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answer = harness.handle(DescribeConfigsRequest(asked[:1]), version)
    values = {c.name: c.value for c in answer.results[0].configs}
    assert values["bascule.subject"] == "flights.>"
    assert values["bascule.stream.id"] == FLIGHTS_ID.hex()
    assert values["retention.ms"] == values["retention.bytes"] == "-1"
    assert values["cleanup.policy"] == "delete"
    assert values["min.insync.replicas"] == "1"
    assert values["unclean.leader.election.enable"] == "false"
    assert values["max.compaction.lag.ms"] == str((1 << 63) - 1)
    assert values["min.cleanable.dirty.ratio"] == "0.5"
    assert values["bascule.sync"] == "always"


def described(harness: HandlerHarness, kind: int, name: str, **more: Any) -> Any:
    request = DescribeConfigsRequest([ConfigResource(kind, name, None)], **more)
    (result,) = harness.handle(request, 4).results
    return result


def topic_config(harness: HandlerHarness, name: str, **more: Any) -> DescribedConfig:
    configs = described(harness, TOPIC, "flights", **more).configs
    return next(each for each in configs if each.name == name)


def test_the_source_of_a_value_is_the_topic_where_it_is_not_the_default(
    harness: HandlerHarness,
) -> None:
    assert topic_config(harness, "retention.ms").config_source == DEFAULT
    streams = StreamDefaults(retention_ms_max=1_000)
    config = Config(streams=streams, origins={"streams.retention_ms_max": "file.toml"})
    harness.context = replace(harness.context, config=config)
    found = topic_config(harness, "retention.ms", include_synonyms=True)
    assert (found.value, found.config_source) == ("-1", OF_TOPIC)
    assert [(s.name, s.value, s.source) for s in found.synonyms] == [
        ("retention.ms", "-1", OF_TOPIC),
        ("log.retention.ms", "1000", STATIC_BROKER),
    ]
    assert topic_config(harness, "retention.ms").synonyms == ()
    about = topic_config(harness, "retention.ms", include_documentation=True).documentation
    assert about is not None
    assert "Segments whose newest record is older" in about


def test_settings_are_read_only_where_clients_may_not_change_them(harness: HandlerHarness) -> None:
    for client, read_only in (
        (ClientConfig(), False),
        (ClientConfig(host="::1"), False),
        (ClientConfig(host="192.0.2.1"), True),
        (ClientConfig(host="192.0.2.1", administration="on"), False),
        (ClientConfig(administration="off"), True),
    ):
        harness.context = replace(harness.context, config=Config(client=client))
        assert topic_config(harness, "retention.ms").read_only is read_only
        assert topic_config(harness, "bascule.partition_by").read_only


def test_the_settings_of_this_node_have_kafka_s_names(harness: HandlerHarness) -> None:
    config = Config(
        node_id=7,
        streams=StreamDefaults(replicas=3, retention_bytes_max=9),
        origins={"streams.replicas": "file.toml"},
    )
    harness.context = replace(harness.context, config=config)
    answer = described(harness, BROKER, "7")
    found = {each.name: each for each in answer.configs}
    assert all(each.read_only for each in answer.configs)
    expected = {
        "node.id": ("7", DEFAULT),
        "broker.id": ("7", DEFAULT),
        "default.replication.factor": ("3", STATIC_BROKER),
        "min.insync.replicas": ("2", DEFAULT),
        "log.retention.bytes": ("9", DEFAULT),
        "log.retention.ms": ("-1", DEFAULT),
        "auto.create.topics.enable": ("false", DEFAULT),
        "connections.max.idle.ms": ("600000", DEFAULT),
        "leader.imbalance.check.interval.seconds": ("10", DEFAULT),
        "advertised.listeners": ("PLAINTEXT://here:9092", DEFAULT),
    }
    assert {name: (found[name].value, found[name].config_source) for name in expected} == expected
    assert len(found) == len(answer.configs)


def test_other_nodes_and_kinds_of_resources_are_refused(harness: HandlerHarness) -> None:
    other = described(harness, BROKER, "8")
    assert other.error_code == ErrorCode.INVALID_REQUEST
    assert other.error_message == "this is node 7, ask node 8 for its settings"
    assert (described(harness, BROKER, "").error_code, described(harness, BROKER, "").configs) == (
        0,
        (),
    )
    logger = described(harness, 8, "7")
    assert logger.error_code == ErrorCode.INVALID_REQUEST
    assert "only topics (2) and brokers (4)" in logger.error_message


# -- DescribeCluster ----------------------------------------------------------------------------


class WithLostNode(OneNode):
    """A second node, which is lost."""

    def registrations(self) -> list[NodeRegistration]:
        lost = NodeRegistration(
            8, "there:9093", "[fd00::8]:9092", "http://there:9080", rack="b", alive=False
        )
        return [*self.nodes(), lost]


@pytest.mark.parametrize("version", range(3))
def test_the_nodes_of_the_cluster(harness: HandlerHarness, version: int) -> None:
    harness.context = replace(harness.context, cluster=WithLostNode(harness.partitions))
    answer = harness.handle(DescribeClusterRequest(), version)
    assert (answer.cluster_id, answer.controller_id) == ("served-stream-tests", 7)
    assert [(b.broker_id, b.host, b.port) for b in answer.brokers] == [(7, "here", 9092)]
    answer = harness.handle(DescribeClusterRequest(include_fenced_brokers=True), version)
    assert [(b.broker_id, b.host, b.rack, b.is_fenced) for b in answer.brokers] == [
        (7, "here", None, False),
        (8, "fd00::8", "b", True),
    ]
    answer = harness.handle(DescribeClusterRequest(endpoint_type=2), version)
    assert answer.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


# -- DescribeLogDirs, DescribeTopicPartitions, DescribeProducers --------------------------------


@pytest.mark.parametrize("version", range(1, 6))
def test_the_sizes_of_replicas(harness: HandlerHarness, version: int) -> None:
    assert harness.flights.log is not None
    size = harness.flights.log.size_bytes()
    (found,) = harness.handle(DescribeLogDirsRequest(None), version).results
    assert (found.error_code, found.log_dir) == (0, "data")
    assert [
        (
            topic.name,
            [(p.partition_index, p.partition_size, p.offset_lag) for p in topic.partitions],
        )
        for topic in found.topics
    ] == [("empty", [(0, 0, 0)]), ("flights", [(0, size, 0)])]
    asked = [DescribableLogTopic("flights", [0, 5]), DescribableLogTopic("nobody", [0])]
    (found,) = harness.handle(DescribeLogDirsRequest(asked), version).results
    assert [topic.name for topic in found.topics] == ["flights"]


def test_partitions_come_in_pages(harness: HandlerHarness) -> None:
    def page(cursor: PartitionCursor | None, *names: str) -> tuple[list[Any], Any]:
        asked = DescribeTopicPartitionsRequest([TopicToDescribe(n) for n in names], 1, cursor)
        answer = harness.handle(asked, 0)
        return [
            (t.name, t.error_code, len(t.partitions)) for t in answer.topics
        ], answer.next_cursor

    found, cursor = page(None)
    assert found == [("broken", 0, 1)]
    found, cursor = page(cursor)
    assert found == [("empty", 0, 1)]
    found, cursor = page(cursor)
    assert (found, cursor) == ([("flights", 0, 1)], None)
    found, cursor = page(None, "flights", "nobody")
    assert found == [("flights", 0, 1)]
    found, cursor = page(cursor, "flights", "nobody")
    assert (found, cursor) == ([("nobody", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)], None)


class WithFourPartitions(OneNode):
    """The stream `flights` has four partitions."""

    def states(self, stream_id: bytes) -> list[PartitionState]:
        return [
            PartitionState((7, 8, 9), (7,), 7, 5, 0, eligible=(8,), lossy=(9,)) for _ in range(4)
        ]


def test_a_page_may_end_within_a_topic(harness: HandlerHarness) -> None:
    harness.context = replace(harness.context, cluster=WithFourPartitions(harness.partitions))
    asked = DescribeTopicPartitionsRequest([TopicToDescribe("flights")], 3)
    answer = harness.handle(asked, 0)
    (topic,) = answer.topics
    assert [each.partition_index for each in topic.partitions] == [0, 1, 2]
    first = topic.partitions[0]
    assert (first.eligible_leader_replicas, first.last_known_elr) == ((8,), (9,))
    assert (first.leader_id, first.leader_epoch, first.offline_replicas) == (7, 5, [8, 9])
    assert answer.next_cursor == PartitionCursor("flights", 3)
    asked = DescribeTopicPartitionsRequest([TopicToDescribe("flights")], 3, answer.next_cursor)
    answer = harness.handle(asked, 0)
    assert [each.partition_index for each in answer.topics[0].partitions] == [3]
    assert answer.next_cursor is None


def test_partitions_have_no_producers(harness: HandlerHarness) -> None:
    asked = [TopicWithProducers("flights", [0, 1]), TopicWithProducers("nobody", [0])]
    answer = harness.handle(DescribeProducersRequest(asked), 0)
    assert [
        [(p.partition_index, p.error_code, len(p.active_producers)) for p in topic.partitions]
        for topic in answer.topics
    ] == [
        [(0, 0, 0), (1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)],
        [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)],
    ]
