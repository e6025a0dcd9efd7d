"""OffsetForLeaderEpoch: the end offset of an epoch; clients detect truncation by it (KIP-320)."""

from __future__ import annotations

from bascule.kafka.handlers.context import READ_ERRORS, Context, find_stream, readable_log
from bascule.wire.error_codes import code_of
from bascule.wire.messages.offset_for_leader_epoch import (
    EpochPartition,
    EpochPartitionResponse,
    EpochTopic,
    EpochTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)


def handle_offset_for_leader_epoch(
    request: OffsetForLeaderEpochRequest, version: int, context: Context
) -> OffsetForLeaderEpochResponse:
    """The largest epoch that is at most the requested one, and its end offset.

    An earlier epoch ends where it ends in the log. A new leader does not know at first how much of
    it was committed, and consumers may have read more than its high watermark says.
    """
    topics = [
        EpochTopicResponse(
            topic.topic, [_partition_response(topic, p, context) for p in topic.partitions]
        )
        for topic in request.topics
    ]
    return OffsetForLeaderEpochResponse(topics=topics)


def _partition_response(
    topic: EpochTopic, requested: EpochPartition, context: Context
) -> EpochPartitionResponse:
    stream, code = find_stream(context, name=topic.topic)
    if not stream:
        return EpochPartitionResponse(code, requested.partition)
    try:
        partition, records = readable_log(
            stream, requested.partition, requested.current_leader_epoch
        )
    except READ_ERRORS as error:
        return EpochPartitionResponse(code_of(error), requested.partition)
    epoch, end = -1, -1
    if requested.leader_epoch == partition.leader_epoch:
        # The log records an epoch only once a batch of it is written.
        epoch, end = requested.leader_epoch, partition.high_watermark.offset
    elif requested.leader_epoch < partition.leader_epoch:
        epoch, end = records.epoch_end(requested.leader_epoch, end=records.end)
    return EpochPartitionResponse(partition=requested.partition, leader_epoch=epoch, end_offset=end)
