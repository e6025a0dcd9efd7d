"""DescribeTopicPartitions: the partitions of topics in pages."""

from __future__ import annotations

from typing import Final

from bascule.kafka.handlers.context import Context, find_stream
from bascule.kafka.handlers.metadata import topic_metadata
from bascule.wire.messages.administration.describe_topic_partitions import (
    DescribedPartition,
    DescribedTopic,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    PartitionCursor,
)

PARTITIONS_MAX: Final = 2_000
"""Of one response. Kafka's max.request.partition.size.limit."""


def handle_describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, context: Context
) -> DescribeTopicPartitionsResponse:
    """The topics by name, from the cursor on, up to the limit of partitions."""
    asked = {topic.name for topic in request.topics}
    names = sorted(asked or context.partitions.streams())
    left = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
    first = 0
    if request.cursor is not None:
        names = [name for name in names if name >= request.cursor.topic_name]
        if names and names[0] == request.cursor.topic_name:
            first = max(0, request.cursor.partition_index)
    answer = DescribeTopicPartitionsResponse()
    topics = []
    for name in names:
        if not left:
            answer.next_cursor = PartitionCursor(name, 0)
            break
        topic, following = _described(name, context, first=first, count=left)
        topics.append(topic)
        if following:
            answer.next_cursor = PartitionCursor(name, following)
            break
        # A topic without partitions, such as an unknown one, has its place in the page, too.
        left -= max(1, len(topic.partitions))
        first = 0
    answer.topics = topics
    return answer


def _described(
    name: str, context: Context, *, first: int, count: int
) -> tuple[DescribedTopic, int]:
    """`count` partitions of a topic from `first` on, and the next one; 0: there is none."""
    stream, code = find_stream(context, name=name)
    if not stream:
        return DescribedTopic(code, name), 0
    metadata = topic_metadata(stream, context)
    states = context.cluster.states(metadata.topic_id)
    end = min(first + count, len(states))
    partitions = [
        DescribedPartition(
            each.error_code,
            each.partition_index,
            each.leader_id,
            each.leader_epoch,
            each.replica_nodes,
            each.isr_nodes,
            states[each.partition_index].eligible,
            states[each.partition_index].lossy,
            each.offline_replicas,
        )
        for each in metadata.partitions[first:end]
    ]
    topic = DescribedTopic(
        name=name,
        topic_id=metadata.topic_id,
        is_internal=metadata.is_internal,
        partitions=partitions,
    )
    return topic, end if end < len(states) else 0
