"""Metadata: this node, the streams, and the leader of each partition."""

from __future__ import annotations

import re
from typing import Final

from bascule.kafka.handlers.context import Context, ServedPartition, find_stream
from bascule.metadata.controller import INTERNAL_PREFIX
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
)
from bascule.wire.schema import NO_ID

_TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}\Z")
"""Kafka's rule, wider than the rule for stream names. A name that it allows is an unknown topic;
any other name is invalid."""


def handle_metadata(request: MetadataRequest, version: int, context: Context) -> MetadataResponse:
    """All streams if `topics` is null (in version 0: empty), else those named by name or id.

    A request never creates a stream; `allow_auto_topic_creation` is ignored.
    """
    node = context.node
    if request.topics is None or (version == 0 and not request.topics):
        streams = sorted(context.partitions.streams().items())
        topics = [_topic_metadata(node.node_id, s) for _, s in streams if s and not s[0].deleted]
    else:
        topics = [_requested_topic(topic, version, context) for topic in request.topics]
    return MetadataResponse(
        brokers=[MetadataBroker(node.node_id, context.host, context.port)],
        cluster_id=node.cluster_id,
        controller_id=node.node_id,
        topics=topics,
    )


def _requested_topic(topic: MetadataRequestTopic, version: int, context: Context) -> MetadataTopic:
    if topic.topic_id == NO_ID and not _TOPIC_NAME.match(topic.name or ""):
        return MetadataTopic(ErrorCode.INVALID_TOPIC, topic.name or "")
    stream, code = find_stream(context, name=topic.name or "", id=topic.topic_id)
    if stream:
        return _topic_metadata(context.node.node_id, stream)
    if topic.topic_id == NO_ID:
        return MetadataTopic(code, topic.name)
    # Only from version 12 on may the name of an unknown id be null.
    return MetadataTopic(code, None if version >= 12 else "", topic.topic_id)


def _topic_metadata(node_id: int, stream: tuple[ServedPartition, ...]) -> MetadataTopic:
    definition = stream[0].definition
    this_node = [node_id]
    partitions = [
        MetadataPartition(
            partition_index=partition.index,
            leader_id=node_id,
            leader_epoch=partition.leader_epoch,
            replica_nodes=this_node,
            isr_nodes=this_node,
        )
        for partition in stream
    ]
    return MetadataTopic(
        name=definition.name,
        topic_id=definition.id,
        is_internal=definition.name.startswith(INTERNAL_PREFIX),
        partitions=partitions,
    )
