"""Metadata: the nodes, the streams, and the leader of each partition."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from bascule.config.addresses import parse_address
from bascule.kafka.handlers.context import Context, ServedPartition, find_stream
from bascule.model import NO_LEADER, PartitionState, is_internal_stream
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
"""Kafka's rule. A stream's name may not begin with a dot or a dash; such a name is an unknown
topic, and one that Kafka forbids is an invalid topic."""


def handle_metadata(request: MetadataRequest, version: int, context: Context) -> MetadataResponse:
    """All streams if `topics` is null (in version 0: empty), else those named by name or id.

    A request never creates a stream; `allow_auto_topic_creation` is ignored.
    """
    if request.topics is None or (version == 0 and not request.topics):
        streams = sorted(context.partitions.streams().items())
        topics = [topic_metadata(s, context) for _, s in streams if s and not s[0].deleted]
    else:
        # Each topic once: a short request that repeats one must not cause a huge response.
        distinct = {(topic.topic_id, topic.name): topic for topic in request.topics}.values()
        topics = [_requested_topic(topic, version, context) for topic in distinct]
    return MetadataResponse(
        brokers=_brokers(context),
        cluster_id=context.node.cluster_id,
        controller_id=context.cluster.controller_id or -1,
        topics=topics,
    )


def _brokers(context: Context) -> list[MetadataBroker]:
    """This node at the address where the client has reached it, and the others as they say."""
    node_id = context.node.node_id
    brokers = [MetadataBroker(node_id, context.host, context.port)]
    for node in context.cluster.nodes():
        if node.node_id == node_id:
            brokers[0].rack = node.rack or None
            continue
        host, port = parse_address(node.client)
        brokers.append(MetadataBroker(node.node_id, host, port, node.rack or None))
    return brokers


def _requested_topic(topic: MetadataRequestTopic, version: int, context: Context) -> MetadataTopic:
    if topic.topic_id == NO_ID and not _TOPIC_NAME.match(topic.name or ""):
        return MetadataTopic(ErrorCode.INVALID_TOPIC, topic.name or "")
    stream, code = find_stream(context, name=topic.name or "", id=topic.topic_id)
    if stream:
        return topic_metadata(stream, context)
    if topic.topic_id == NO_ID:
        return MetadataTopic(code, topic.name)
    # Only from version 12 on may the name of an unknown id be null.
    return MetadataTopic(code, None if version >= 12 else "", topic.topic_id)


def topic_metadata(stream: tuple[ServedPartition, ...], context: Context) -> MetadataTopic:
    """A stream and the leaders and replicas of its partitions."""
    definition = stream[0].definition
    alive = {node.node_id for node in context.cluster.nodes()}
    states = enumerate(context.cluster.states(definition.id))
    return MetadataTopic(
        name=definition.name,
        topic_id=definition.id,
        is_internal=is_internal_stream(definition.name),
        partitions=[_partition(index, state, alive) for index, state in states],
    )


def _partition(index: int, state: PartitionState, alive: Collection[int]) -> MetadataPartition:
    has_leader = state.leader in alive
    return MetadataPartition(
        error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=state.leader if has_leader else NO_LEADER,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        offline_replicas=[node for node in state.replicas if node not in alive],
    )
