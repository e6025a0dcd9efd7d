"""OffsetForLeaderEpoch: where an epoch ended, so that a client notices lost records (KIP-320)."""

from __future__ import annotations

from bascule.kafka.handlers.context import Context, ReadErrors, find_stream, readable_log
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
    """The largest epoch not above the asked one, and its end among what is committed."""
    topics = [
        EpochTopicResponse(topic.topic, [_answer(topic, p, context) for p in topic.partitions])
        for topic in request.topics
    ]
    return OffsetForLeaderEpochResponse(topics=topics)


def _answer(topic: EpochTopic, asked: EpochPartition, context: Context) -> EpochPartitionResponse:
    stream, code = find_stream(context, name=topic.topic)
    if not stream:
        return EpochPartitionResponse(code, asked.partition)
    try:
        partition, records = readable_log(stream, asked.partition, asked.current_leader_epoch)
    except ReadErrors as error:
        return EpochPartitionResponse(code_of(error), asked.partition)
    high_watermark = partition.high_watermark
    epoch, end = -1, -1
    if asked.leader_epoch == partition.leader_epoch:
        # The log knows of an epoch only once a batch was written in it.
        epoch, end = asked.leader_epoch, high_watermark.offset
    elif asked.leader_epoch < partition.leader_epoch:
        epoch, end = records.epoch_end(asked.leader_epoch, end=high_watermark)
    return EpochPartitionResponse(partition=asked.partition, leader_epoch=epoch, end_offset=end)
