"""Changes of streams through Kafka's requests, by a real controller over simulated files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bascule.config import ClientConfig, Config, StreamDefaults
from bascule.errors import ConfigError, Indeterminate, RequestExpired
from bascule.host.real import RealRandom
from bascule.kafka.handlers import handle
from bascule.kafka.handlers.administration.access import (
    AT_ONCE_MAX,
    CHANGES_MAX,
    TOO_MANY,
    described_error,
)
from bascule.kafka.handlers.context import Context, NodeIdentity
from bascule.kafka.settings.topic_settings import NAMES, OWN_SETTINGS, TOPIC_SETTINGS, parse_setting
from bascule.listening.refusals import RefusalLog
from bascule.model import Cleanup, Compression, PartitionBy, StreamConfig
from bascule.replica.purgatory import Purgatory
from bascule.sim.disk import SimFiles
from bascule.wire.connection import ReceivedRequest
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.administration.create_partitions import (
    CreatePartitionsRequest,
    PartitionReplicas,
    TopicToExtend,
)
from bascule.wire.messages.administration.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    ReplicaAssignment,
)
from bascule.wire.messages.administration.delete_records import (
    DeleteRecordsRequest,
    PartitionToPurge,
    TopicToPurge,
)
from bascule.wire.messages.administration.delete_topics import DeleteTopicsRequest, TopicToDelete
from bascule.wire.messages.administration.incremental_alter_configs import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    AlterableConfig,
    IncrementalAlterConfigsRequest,
    ResourceToAlter,
)
from bascule.wire.messages.describe_configs import BROKER, TOPIC
from bascule.wire.schema import Message, Request
from support.controlled_node import NODE, ControlledNode
from support.served_stream import make_coordinator, make_offset_store

DEFAULTS = -1


class Asked:
    """The handlers over a node alone."""

    def __init__(self, node: ControlledNode, config: Config) -> None:
        self.node = node
        offsets = make_offset_store(node.partitions)
        self.context = Context(
            partitions=node.partitions,
            offsets=offsets,
            groups=make_coordinator(node.partitions, offsets),
            node=NodeIdentity(NODE, "c"),
            host="here",
            port=9092,
            fetch_bytes_max=1 << 20,
            fetch_wait_ms_max=1_000,
            purgatory=Purgatory(),
            run_on_thread=None,  # type: ignore[arg-type]
            peer="127.0.0.1:50000",
            refusals=RefusalLog(lambda: 0.0),
            cluster=node.controller.views,
            config=config,
            streams=node.controller,
        )

    async def __call__(self, request: Request[Any], version: int | None = None) -> Any:
        version = request.VERSIONS.last if version is None else version
        received = ReceivedRequest(request.API_KEY, version, 1, "test", request, version)
        response = handle(received, self.context)
        return response if isinstance(response, Message) else await response

    async def create(self, *topics: CreatableTopic, **more: Any) -> list[Any]:
        return list((await self(CreateTopicsRequest(topics, **more))).topics)

    async def alter(self, name: str, *configs: AlterableConfig, **more: Any) -> Any:
        asked = [ResourceToAlter(TOPIC, name, configs)]
        (answer,) = (await self(IncrementalAlterConfigsRequest(asked, **more))).responses
        return answer

    def config(self, name: str) -> StreamConfig:
        return self.node.controller.views.definition(name).config


def run(scene: Callable[[Asked], Awaitable[None]], config: Config | None = None) -> None:
    async def main() -> None:
        async with ControlledNode(SimFiles(RealRandom(1))) as node:
            await scene(Asked(node, config or Config()))

    asyncio.run(main())


def topic(name: str, partitions: int = 1, replicas: int = 1, **configs: str) -> CreatableTopic:
    settings = [
        CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()
    ]
    return CreatableTopic(name, partitions, replicas, configs=settings)


def test_a_topic_is_a_stream_below_the_prefix() -> None:
    async def scene(ask: Asked) -> None:
        asked = CreatableTopic(
            "_schemas",
            DEFAULTS,
            DEFAULTS,
            configs=[
                CreatableTopicConfig("cleanup.policy", "compact"),
                CreatableTopicConfig("retention.ms", None),
            ],
        )
        (made,) = await ask.create(asked)
        assert (made.name, made.error_code, made.error_message) == ("_schemas", 0, None)
        config = ask.config("_schemas")
        assert config.subject == "topics._schemas"
        assert config.cleanup == (Cleanup.COMPACT,)
        assert made.topic_id == ask.node.controller.views.definition("_schemas").id
        assert (made.num_partitions, made.replication_factor) == (2, 1)
        values = {each.name: (each.value, each.config_source) for each in made.configs}
        assert values["cleanup.policy"] == ("compact", 1)
        assert values["retention.ms"] == ("-1", 5)

    run(scene, Config(streams=StreamDefaults(partitions=2)))


def test_settings_of_a_topic_are_those_of_the_stream() -> None:
    async def scene(ask: Asked) -> None:
        configs = {
            "bascule.subject": "orders.>",
            "bascule.partition_by": "key",
            "bascule.dedupe_window_ms": "5",
            "bascule.record_headers": "subject,reply",
            "compression.type": "zstd",
            "max.compaction.lag.ms": str((1 << 63) - 1),
            "message.timestamp.type": "LogAppendTime",
            "min.cleanable.dirty.ratio": "0.25",
            "min.insync.replicas": "1",
            "retention.bytes": "-1",
            "retention.ms": "60000",
            "unclean.leader.election.enable": "TRUE",
        }
        settings = [CreatableTopicConfig(*each) for each in configs.items()]
        (made,) = await ask.create(CreatableTopic("orders", 3, 1, configs=settings))
        assert made.error_code == 0, made.error_message
        config = ask.config("orders")
        assert (config.subject, config.partitions) == ("orders.>", 3)
        assert config.partition_by is PartitionBy.KEY
        assert config.compression is Compression.ZSTD
        assert (config.dedupe_window_ms, config.max_compaction_lag_ms) == (5, 0)
        assert (config.dirty_percent_min, config.min_isr) == (25, 1)
        assert (config.retention_bytes_max, config.retention_ms_max) == (0, 60_000)
        assert config.unclean_election

    run(scene)


@pytest.mark.parametrize(
    ("asked", "code", "text"),
    [
        (topic("a/b"), ErrorCode.INVALID_TOPIC, "'/' at position 1"),
        (topic("a..b"), ErrorCode.INVALID_TOPIC, "empty token"),
        (topic("_bascule.x"), ErrorCode.INVALID_TOPIC, "reserved"),
        (topic("x", partitions=0), ErrorCode.INVALID_PARTITIONS, "between 1 and 1024"),
        (topic("x", replicas=3), ErrorCode.INVALID_REPLICATION_FACTOR, "3 replicas are asked for"),
        (topic("x", replicas=0), ErrorCode.INVALID_REPLICATION_FACTOR, "between 1 and 15"),
        (topic("x", flush_ms="1"), ErrorCode.INVALID_CONFIG, "known are cleanup.policy"),
        (topic("x", retention_ms="0"), ErrorCode.INVALID_CONFIG, "at least 1, or -1 for no limit"),
        (topic("x", retention_ms="day"), ErrorCode.INVALID_CONFIG, "must be a number, got 'day'"),
        (topic("x", cleanup_policy="rot"), ErrorCode.INVALID_CONFIG, "'rot'"),
        (topic("x", compression_type="rar"), ErrorCode.INVALID_CONFIG, "one of producer"),
        (
            topic("x", min_insync_replicas="2"),
            ErrorCode.INVALID_CONFIG,
            "more than the 1 replicas",
        ),
        (
            topic("x", message_timestamp_type="CreateTime"),
            ErrorCode.INVALID_CONFIG,
            "can only be LogAppendTime",
        ),
        (topic("x", bascule_sync="now"), ErrorCode.INVALID_CONFIG, "one of always"),
        (
            CreatableTopic("x", -1, -1, [ReplicaAssignment(0, [1])]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "placed by the cluster",
        ),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_the_reason(
    asked: CreatableTopic, code: ErrorCode, text: str
) -> None:
    async def scene(ask: Asked) -> None:
        for validate_only in (True, False):
            (made,) = await ask.create(asked, validate_only=validate_only)
            assert made.error_code == code, made.error_message
            assert text in made.error_message
        assert not ask.node.controller.image.streams

    run(scene)


def test_a_topic_is_made_once() -> None:
    async def scene(ask: Asked) -> None:
        (made,) = await ask.create(topic("x"), validate_only=True)
        assert made.error_code == 0
        assert not ask.node.controller.image.streams
        (made,) = await ask.create(topic("x"))
        assert made.error_code == 0
        for asked in (topic("x"), topic("x", partitions=2)):
            for validate_only in (False, True):
                (again,) = await ask.create(asked, validate_only=validate_only)
                assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        (twice,) = await ask.create(topic("y"), topic("y"))
        assert twice.error_code == ErrorCode.INVALID_REQUEST
        made = await ask.create(*(topic(f"many{n}") for n in range(40)))
        assert [(each.name, each.error_code) for each in made] == [
            (f"many{n}", 0) for n in range(40)
        ]

    run(scene)


def test_topics_are_deleted_by_name_and_id() -> None:
    async def scene(ask: Asked) -> None:
        one, two = await ask.create(topic("one"), topic("two"))
        answer = await ask(DeleteTopicsRequest(topic_names=["one", "nobody"]), 5)
        assert [(each.name, each.error_code) for each in answer.responses] == [
            ("one", 0),
            ("nobody", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        asked = [TopicToDelete(topic_id=two.topic_id), TopicToDelete(topic_id=one.topic_id)]
        answer = await ask(DeleteTopicsRequest(asked))
        assert [(each.name, each.error_code) for each in answer.responses] == [
            ("two", 0),
            (None, ErrorCode.UNKNOWN_TOPIC_ID),
        ]
        assert not ask.node.controller.image.streams

    run(scene)


def test_partitions_are_added_and_never_removed() -> None:
    async def scene(ask: Asked) -> None:
        await ask.create(topic("x", partitions=2))

        async def extend(count: int, name: str = "x", **more: Any) -> tuple[int, str]:
            asked = CreatePartitionsRequest([TopicToExtend(name, count, None)], **more)
            (answer,) = (await ask(asked)).results
            return answer.error_code, answer.error_message

        assert await extend(3, validate_only=True) == (0, None)
        assert ask.config("x").partitions == 2
        assert await extend(3) == (0, None)
        assert ask.config("x").partitions == 3
        for count, text in ((3, "has 3 partitions already"), (1, "can only be added")):
            code, message = await extend(count)
            assert code == ErrorCode.INVALID_PARTITIONS
            assert text in message
        assert (await extend(9, "nobody"))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        placed = TopicToExtend("x", 4, [PartitionReplicas([1])])
        (answer,) = (await ask(CreatePartitionsRequest([placed]))).results
        assert answer.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT

    run(scene)


def test_settings_are_altered_one_by_one() -> None:
    async def scene(ask: Asked) -> None:
        await ask.create(topic("x", retention_bytes="7"))
        answer = await ask.alter(
            "x",
            AlterableConfig("retention.ms", SET, "5000"),
            AlterableConfig("cleanup.policy", APPEND, "compact"),
        )
        assert (answer.error_code, answer.error_message) == (0, None)
        config = ask.config("x")
        assert (config.retention_ms_max, config.retention_bytes_max) == (5_000, 7)
        assert config.cleanup == (Cleanup.DELETE, Cleanup.COMPACT)
        answer = await ask.alter(
            "x",
            AlterableConfig("retention.ms", DELETE, None),
            AlterableConfig("cleanup.policy", SUBTRACT, "compact"),
            AlterableConfig("message.timestamp.type", DELETE, None),
        )
        assert answer.error_code == 0, answer.error_message
        assert ask.config("x").retention_ms_max == 99
        assert ask.config("x").cleanup == (Cleanup.DELETE,)
        answer = await ask.alter("x", AlterableConfig("retention.ms", SET, "1"), validate_only=True)
        assert answer.error_code == 0
        assert ask.config("x").retention_ms_max == 99

    run(scene, Config(streams=StreamDefaults(retention_ms_max=99)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (AlterableConfig("flush.ms", SET, "1"), "known are cleanup.policy"),
        (AlterableConfig("flush.ms", DELETE, None), "known are cleanup.policy"),
        (AlterableConfig("retention.ms", APPEND, "1"), "not a list"),
        (AlterableConfig("retention.ms", SET, None), "no value"),
        (AlterableConfig("retention.ms", 9, "1"), "operation 9"),
        (AlterableConfig("bascule.subject", SET, "other"), "cannot become 'other'"),
        (AlterableConfig("bascule.subject", DELETE, None), "no default"),
        (AlterableConfig("bascule.partition_by", SET, "key"), "cannot become 'key'"),
    ],
)
def test_a_change_that_cannot_be_is_refused_with_the_reason(
    change: AlterableConfig, text: str
) -> None:
    async def scene(ask: Asked) -> None:
        await ask.create(topic("x"))
        before = ask.config("x")
        for validate_only in (True, False):
            answer = await ask.alter("x", change, validate_only=validate_only)
            assert answer.error_code == ErrorCode.INVALID_CONFIG
            assert text in answer.error_message
        assert ask.config("x") == before

    run(scene)


def test_only_topics_can_be_altered() -> None:
    async def scene(ask: Asked) -> None:
        answer = await ask.alter("nobody", AlterableConfig("retention.ms", SET, "1"))
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        asked = [ResourceToAlter(BROKER, "1", [AlterableConfig("num.partitions", SET, "1")])]
        (answer,) = (await ask(IncrementalAlterConfigsRequest(asked))).responses
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert "configuration file" in answer.error_message

    run(scene)


class Others:
    """What else the event loop does while a request is handled."""

    def __init__(self) -> None:
        self.turns = self.tasks_max = 0
        self._next = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self.turns += 1
        self.tasks_max = max(self.tasks_max, len(asyncio.all_tasks()))
        self._next = asyncio.get_running_loop().call_soon(self._turn)

    def end(self) -> None:
        self._next.cancel()


def test_a_request_changes_so_many_topics_and_others_go_on_meanwhile() -> None:
    names = [f"t{n}" for n in range(CHANGES_MAX + 100)]

    def check(found: list[tuple[int, str | None]], code: ErrorCode) -> None:
        assert {each[0] for each in found[:CHANGES_MAX]} == {code}
        assert set(found[CHANGES_MAX:]) == {(ErrorCode.INVALID_REQUEST, TOO_MANY)}

    async def scene(ask: Asked) -> None:
        others = Others()
        created = CreateTopicsRequest([topic(name) for name in names], validate_only=True)
        answer = await ask(created)
        assert answer.is_large
        assert [each.name for each in answer.topics] == names
        check([(e.error_code, e.error_message) for e in answer.topics], ErrorCode.NONE)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        begun = others.turns
        extended = [TopicToExtend(name, 5) for name in names]
        answer = await ask(CreatePartitionsRequest(extended, validate_only=True))
        assert answer.is_large
        check([(e.error_code, e.error_message) for e in answer.results], unknown)
        altered = [ResourceToAlter(TOPIC, name, []) for name in names]
        answer = await ask(IncrementalAlterConfigsRequest(altered, validate_only=True))
        assert answer.is_large
        check([(e.error_code, e.error_message) for e in answer.responses], unknown)
        answer = await ask(DeleteTopicsRequest(topics=[TopicToDelete(name) for name in names]))
        assert answer.is_large
        check([(e.error_code, e.error_message) for e in answer.responses], unknown)
        assert others.turns - begun > 3 * CHANGES_MAX / AT_ONCE_MAX
        # Those of the node itself are some.
        assert others.tasks_max < 5 * AT_ONCE_MAX
        others.end()

    run(scene)


def test_records_are_deleted_up_to_an_offset() -> None:
    async def scene(ask: Asked) -> None:
        await ask.create(topic("x"))
        await ask.node.publish("x", [b"%d" % n for n in range(5)])

        async def delete(offset: int, partition: int = 0, name: str = "x") -> tuple[int, int]:
            asked = TopicToPurge(name, [PartitionToPurge(partition, offset)])
            (answer,) = (await ask(DeleteRecordsRequest([asked]))).topics
            (found,) = answer.partitions
            return found.error_code, found.low_watermark

        assert await delete(3) == (0, 3)
        assert await delete(1) == (0, 3)
        assert await delete(-1) == (0, 5)
        assert await delete(6) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert await delete(-2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        for partition in (1, -1):
            assert await delete(0, partition) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert await delete(0, name="y") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        repeated = TopicToPurge("x", [PartitionToPurge(0, -2), PartitionToPurge(0, 0)])
        (answer,) = (await ask(DeleteRecordsRequest([repeated]))).topics
        assert [each.error_code for each in answer.partitions] == [ErrorCode.NONE]

    run(scene)


def test_a_listener_that_others_reach_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(ask: Asked) -> None:
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        (made,) = await ask.create(topic("x"))
        assert made.error_code == code
        assert "client.administration is auto and client.host is 192.0.2.1" in made.error_message
        (gone,) = (await ask(DeleteTopicsRequest([TopicToDelete("x")]))).responses
        assert gone.error_code == code
        (more,) = (await ask(CreatePartitionsRequest([TopicToExtend("x", 2)]))).results
        assert more.error_code == code
        assert (await ask.alter("x", AlterableConfig("retention.ms", SET, "1"))).error_code == code
        purge = TopicToPurge("x", [PartitionToPurge(0, 1)])
        (purged,) = (await ask(DeleteRecordsRequest([purge]))).topics
        assert purged.partitions[0].error_code == code

    run(scene, Config(client=ClientConfig(host="192.0.2.1")))
    refused = [r.api for r in caplog.records if r.getMessage() == "request refused"]  # type: ignore[attr-defined]
    assert refused == [
        "CreateTopics",
        "DeleteTopics",
        "CreatePartitions",
        "IncrementalAlterConfigs",
        "DeleteRecords",
    ]


def test_the_cluster_s_own_streams_are_left_alone() -> None:
    async def scene(ask: Asked) -> None:
        config = StreamConfig(subject="own")
        await ask.node.controller.create_stream("_offsets", config, internal=True)
        (gone,) = (await ask(DeleteTopicsRequest([TopicToDelete("_offsets")]))).responses
        assert gone.error_code == ErrorCode.POLICY_VIOLATION
        assert "internal" in gone.error_message
        answer = await ask.alter("_offsets", AlterableConfig("retention.ms", SET, "1"))
        assert answer.error_code == ErrorCode.POLICY_VIOLATION

    run(scene)


def test_a_prefix_may_be_empty() -> None:
    async def scene(ask: Asked) -> None:
        await ask.create(topic("orders.new"))
        assert ask.config("orders.new").subject == "orders.new"

    run(scene, Config(client=ClientConfig(topic_prefix="")))


@pytest.mark.parametrize("name", ["retention.ms", "bascule.rate_messages_max"])
def test_no_number_is_too_long_for_the_node_that_decides(name: str) -> None:
    """Another node is told of it in 64 bits; the limit of a setting is checked there."""
    assert parse_setting(name, str((1 << 63) - 1)) is not None
    with pytest.raises(ConfigError, match="at most 9223372036854775807"):
        parse_setting(name, str(1 << 63))


def test_what_is_shown_can_be_set() -> None:
    """Tools copy a topic by its described settings."""

    async def scene(ask: Asked) -> None:
        (made,) = await ask.create(topic("x"))
        shown = {each.name: each.value for each in made.configs}
        shown.pop("bascule.stream.id")
        assert set(shown) == set(NAMES)
        copies = {name: value for name, value in shown.items() if name != "bascule.subject"}
        settings = [CreatableTopicConfig(*each) for each in copies.items()]
        (copy,) = await ask.create(CreatableTopic("y", 1, 1, configs=settings))
        assert copy.error_code == 0, copy.error_message

    run(scene)
    assert set(TOPIC_SETTINGS) & set(OWN_SETTINGS) == set()
    assert parse_setting("message.timestamp.type", "LogAppendTime") is None


def test_errors_that_a_retry_cannot_help_are_not_retriable() -> None:
    assert described_error(Indeterminate("?"))[0] == ErrorCode.REQUEST_TIMED_OUT
    assert described_error(RequestExpired(1, 2))[0] == ErrorCode.UNKNOWN_SERVER_ERROR
    assert described_error(OSError("disk"))[0] == ErrorCode.UNKNOWN_SERVER_ERROR
