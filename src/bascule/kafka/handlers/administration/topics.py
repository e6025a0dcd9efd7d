"""CreateTopics, DeleteTopics and CreatePartitions: streams are created, deleted and extended."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Final

from bascule.config import stream_config
from bascule.errors import BasculeError, ConfigError
from bascule.kafka.handlers.administration.access import (
    CHANGES_MAX,
    TOO_MANY,
    change_each,
    described_error,
    named_twice,
    refusal,
)
from bascule.kafka.handlers.context import Context, find_stream
from bascule.kafka.settings.topic_settings import parse_setting, topic_settings
from bascule.model import StreamConfig, StreamDefinition
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.administration.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    TopicToExtend,
    TopicWithPartitions,
)
from bascule.wire.messages.administration.create_topics import (
    CreatableTopic,
    CreatedTopic,
    CreatedTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from bascule.wire.messages.administration.delete_topics import (
    DeletedTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    TopicToDelete,
)
from bascule.wire.schema import NO_ID

CONFIGS_SINCE: Final = 5
"""The first version of CreateTopics whose response has the settings of the topics."""
NO_ASSIGNMENT: Final = (
    "replicas are placed by the cluster: give a number of them, and move them with "
    "`bascule stream reassign` then"
)
TWICE: Final = "the request names this topic more than once"


async def handle_create_topics(
    request: CreateTopicsRequest, version: int, client_id: str | None, context: Context
) -> CreateTopicsResponse:
    """Create a stream for each topic, on the subject `client.topic_prefix` and its name."""
    twice = named_twice(topic.name for topic in request.topics)
    refused = refusal(context, client_id, "CreateTopics")

    async def create(topic: CreatableTopic) -> CreatedTopic:
        if refused:
            return _not_created(topic.name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, refused)
        if topic.name in twice:
            return _not_created(topic.name, ErrorCode.INVALID_REQUEST, TWICE)
        if topic.assignments:
            return _not_created(topic.name, ErrorCode.INVALID_REPLICA_ASSIGNMENT, NO_ASSIGNMENT)
        try:
            return await _created(topic, version, context, is_check=request.validate_only)
        except (BasculeError, OSError) as error:
            return _not_created(topic.name, *described_error(error))

    distinct = list({topic.name: topic for topic in request.topics}.values())
    topics = await change_each(create, distinct[:CHANGES_MAX])
    for topic in distinct[CHANGES_MAX:]:
        topics.append(_not_created(topic.name, ErrorCode.INVALID_REQUEST, TOO_MANY))
    return CreateTopicsResponse(topics=topics)


def _not_created(name: str, code: ErrorCode, text: str) -> CreatedTopic:
    return CreatedTopic(name, error_code=code, error_message=text)


async def _created(
    topic: CreatableTopic, version: int, context: Context, *, is_check: bool
) -> CreatedTopic:
    """Raises: as `create_stream` of the controller."""
    config = _stream_config(topic, context)
    if is_check:
        definition, is_new = await context.streams.check_creation(topic.name, config)
    else:
        definition, is_new = await context.streams.create_stream(topic.name, config)
    if not is_new:
        text = f"stream {topic.name!r} exists with this configuration"
        return _not_created(topic.name, ErrorCode.TOPIC_ALREADY_EXISTS, text)
    return CreatedTopic(
        topic.name,
        NO_ID if is_check else definition.id,
        error_message=None,
        num_partitions=config.partitions,
        replication_factor=config.replicas,
        configs=_configs(definition, context) if version >= CONFIGS_SINCE else (),
    )


def _stream_config(topic: CreatableTopic, context: Context) -> StreamConfig:
    """What the request asks for; the rest are defaults of this node. Raises: ConfigError."""
    plain = asdict(context.config.streams)
    prefix = context.config.client.topic_prefix
    plain["subject"] = f"{prefix}.{topic.name}" if prefix else topic.name
    plain["group"] = None
    for asked in topic.configs:
        if asked.value is not None and (found := parse_setting(asked.name, asked.value)):
            plain[found[0]] = found[1]
    if topic.num_partitions != -1:
        plain["partitions"] = topic.num_partitions
    if topic.replication_factor != -1:
        plain["replicas"] = topic.replication_factor
    subject, group = plain.pop("subject"), plain.pop("group") or None
    try:
        return stream_config(plain, subject=subject, group=group)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _configs(definition: StreamDefinition, context: Context) -> list[CreatedTopicConfig]:
    return [
        CreatedTopicConfig(each.name, each.value, each.read_only, each.source)
        for each in topic_settings(definition, context.config, writable=True)
    ]


async def handle_delete_topics(
    request: DeleteTopicsRequest, client_id: str | None, context: Context
) -> DeleteTopicsResponse:
    """Delete the stream of each topic, which is named or has an id."""
    refused = refusal(context, client_id, "DeleteTopics")
    asked = [*request.topics, *(TopicToDelete(name) for name in request.topic_names)]
    distinct = list({(topic.name, topic.topic_id): topic for topic in asked}.values())

    async def delete(topic: TopicToDelete) -> DeletedTopic:
        failed = partial(DeletedTopic, topic.name, topic.topic_id)
        if refused:
            return failed(ErrorCode.TOPIC_AUTHORIZATION_FAILED, refused)
        name = topic.name
        if topic.topic_id != NO_ID:
            stream, code = find_stream(context, id=topic.topic_id)
            if not stream:
                return failed(code, f"no stream has the id {topic.topic_id.hex()}")
            name = stream[0].definition.name
        try:
            await context.streams.delete_stream(name or "")
        except (BasculeError, OSError) as error:
            return failed(*described_error(error))
        return DeletedTopic(name, topic.topic_id)

    responses = await change_each(delete, distinct[:CHANGES_MAX])
    for topic in distinct[CHANGES_MAX:]:
        responses.append(
            DeletedTopic(topic.name, topic.topic_id, ErrorCode.INVALID_REQUEST, TOO_MANY)
        )
    return DeleteTopicsResponse(responses=responses)


async def handle_create_partitions(
    request: CreatePartitionsRequest, client_id: str | None, context: Context
) -> CreatePartitionsResponse:
    """Add partitions to the stream of each topic."""
    twice = named_twice(topic.name for topic in request.topics)
    refused = refusal(context, client_id, "CreatePartitions")

    async def extend(topic: TopicToExtend) -> TopicWithPartitions:
        failed = partial(TopicWithPartitions, topic.name)
        if refused:
            return failed(ErrorCode.TOPIC_AUTHORIZATION_FAILED, refused)
        if topic.name in twice:
            return failed(ErrorCode.INVALID_REQUEST, TWICE)
        if topic.assignments:
            return failed(ErrorCode.INVALID_REPLICA_ASSIGNMENT, NO_ASSIGNMENT)
        # A stream that this node has not heard of yet may be known to the controller.
        stream, _ = find_stream(context, name=topic.name)
        if stream and stream[0].definition.partition_count == topic.count:
            text = f"stream {topic.name!r} has {topic.count} partitions already"
            return failed(ErrorCode.INVALID_PARTITIONS, text)
        try:
            changes = {"partitions": topic.count}
            if request.validate_only:
                context.streams.check_alteration(topic.name, changes)
            else:
                await context.streams.alter_stream(topic.name, changes)
        except (BasculeError, OSError) as error:
            return failed(*described_error(error))
        return TopicWithPartitions(topic.name)

    distinct = list({topic.name: topic for topic in request.topics}.values())
    results = await change_each(extend, distinct[:CHANGES_MAX])
    for topic in distinct[CHANGES_MAX:]:
        results.append(TopicWithPartitions(topic.name, ErrorCode.INVALID_REQUEST, TOO_MANY))
    return CreatePartitionsResponse(results=results)
