"""DescribeConfigs: the subject and the id of a stream, and those settings that are Kafka's too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bascule.kafka.handlers.context import Context, find_stream
from bascule.model import Compression, StreamDefinition
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.describe_configs import (
    STREAM_ID,
    SUBJECT,
    TOPIC,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfig,
    DescribedResource,
)

_TOPIC_CONFIG: Final = 1
"""Kafka's source of a value that was set for the topic."""
_STRING, _INT, _LONG, _LIST = 2, 3, 5, 7
"""Kafka's types of values (KIP-569)."""


def handle_describe_configs(
    request: DescribeConfigsRequest, context: Context
) -> DescribeConfigsResponse:
    """The settings of each topic, all of them read-only here; an error for other resources."""
    # Each once: a short request that repeats one must not cause a huge response.
    distinct = {(each.resource_type, each.resource_name): each for each in request.resources}
    return DescribeConfigsResponse(
        results=[_described(resource, context) for resource in distinct.values()]
    )


def _described(resource: ConfigResource, context: Context) -> DescribedResource:
    kind, name = resource.resource_type, resource.resource_name
    if kind != TOPIC:
        reason = f"resource type {kind}: only topics (2) have settings here"
        return DescribedResource(ErrorCode.INVALID_REQUEST, reason, kind, name)
    stream, code = find_stream(context, name=name)
    if not stream:
        return DescribedResource(code, "unknown stream", kind, name)
    wanted = resource.configuration_keys
    configs = [
        DescribedConfig(key, value, True, _TOPIC_CONFIG, config_type=type_, documentation=None)
        for key, value, type_ in _settings(stream[0].definition)
        if not wanted or key in wanted
    ]
    return DescribedResource(ErrorCode.NONE, None, kind, name, configs)


def _settings(definition: StreamDefinition) -> Iterator[tuple[str, str, int]]:
    """Name, value and type of each setting. Kafka's -1 is no limit."""
    config = definition.config
    codec = config.compression
    yield SUBJECT, config.subject, _STRING
    yield STREAM_ID, definition.id.hex(), _STRING
    yield "cleanup.policy", ",".join(config.cleanup), _LIST
    yield "compression.type", "uncompressed" if codec is Compression.NONE else codec, _STRING
    yield "delete.retention.ms", str(config.tombstone_retention_ms), _LONG
    yield "max.message.bytes", str(config.message_bytes_max), _INT
    yield "message.timestamp.type", "LogAppendTime", _STRING
    yield "min.compaction.lag.ms", str(config.min_compaction_lag_ms), _LONG
    yield "retention.bytes", str(config.retention_bytes_max or -1), _LONG
    yield "retention.ms", str(config.retention_ms_max or -1), _LONG
    yield "segment.bytes", str(config.segment_bytes_max), _INT
    yield "segment.ms", str(config.segment_age_ms_max), _LONG
