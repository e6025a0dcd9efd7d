"""DeleteRecords: the oldest records of partitions are purged."""

from __future__ import annotations

from functools import partial

from bascule.errors import BasculeError
from bascule.kafka.handlers.administration.access import change_each, described_error, refusal
from bascule.kafka.handlers.context import Context
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.administration.delete_records import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    PartitionToPurge,
    PartitionWithoutRecords,
    TopicWithoutRecords,
)

TO_END = -1
"""In place of an offset: the high watermark."""


async def handle_delete_records(
    request: DeleteRecordsRequest, client_id: str | None, context: Context
) -> DeleteRecordsResponse:
    """Remove the records before an offset from each partition, on all replicas in sync."""
    is_refused = bool(refusal(context, client_id, "DeleteRecords"))
    topics = []
    for topic in request.topics:
        purge = partial(_purged, topic.name, context, is_refused)
        # Each once: a request that repeats one would have it purged as often.
        distinct = {each.partition_index: each for each in topic.partitions}
        purged = await change_each(purge, distinct.values())
        topics.append(TopicWithoutRecords(topic.name, purged))
    return DeleteRecordsResponse(topics=topics)


async def _purged(
    name: str, context: Context, is_refused: bool, partition: PartitionToPurge
) -> PartitionWithoutRecords:
    index, offset = partition.partition_index, partition.offset
    if is_refused:
        return PartitionWithoutRecords(index, -1, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if offset < TO_END:
        return PartitionWithoutRecords(index, -1, ErrorCode.OFFSET_OUT_OF_RANGE)
    try:
        info = await context.streams.purge_stream(
            name,
            to_offset=None if offset == TO_END else offset,
            before_ms=None,
            partition=index,
        )
    except (BasculeError, OSError) as error:
        return PartitionWithoutRecords(index, -1, described_error(error)[0])
    start = info.partitions[index].start_offset
    # The records are removed, also where the leader has not said since where its log starts.
    return PartitionWithoutRecords(index, -1 if start is None else start)
