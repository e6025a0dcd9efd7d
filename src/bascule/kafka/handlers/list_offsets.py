"""ListOffsets: the start and end of a partition, and offsets by timestamp."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from bascule.kafka.handlers.context import (
    READ_ERRORS,
    Context,
    ServedPartition,
    find_stream,
    readable_log,
)
from bascule.storage.partition_log import PartitionLog
from bascule.wire.error_codes import ErrorCode, code_of
from bascule.wire.messages.list_offsets import (
    TIMESTAMP_EARLIEST,
    TIMESTAMP_EARLIEST_LOCAL,
    TIMESTAMP_EARLIEST_PENDING_UPLOAD,
    TIMESTAMP_LATEST,
    TIMESTAMP_LATEST_TIERED,
    TIMESTAMP_MAX,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)

log = logging.getLogger(__name__)
_FIRST_VERSION = {
    TIMESTAMP_MAX: 7,
    TIMESTAMP_EARLIEST_LOCAL: 8,
    TIMESTAMP_LATEST_TIERED: 9,
    TIMESTAMP_EARLIEST_PENDING_UPLOAD: 11,
}
_AT_START = (TIMESTAMP_EARLIEST, TIMESTAMP_EARLIEST_LOCAL)
NOT_AVAILABLE_SINCE: Final = 5
_REMOTE = (TIMESTAMP_LATEST_TIERED, TIMESTAMP_EARLIEST_PENDING_UPLOAD)
"""Ask about remote storage. A node has none, and answers -1 as a Kafka broker without it does."""


async def handle_list_offsets(
    request: ListOffsetsRequest, version: int, context: Context
) -> ListOffsetsResponse:
    """One offset per requested partition; only committed records are searched."""
    topics = [
        ListOffsetsTopicResponse(
            topic.name,
            [
                await _partition_response(topic, requested, version, context)
                for requested in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return ListOffsetsResponse(topics=topics)


async def _partition_response(
    topic: ListOffsetsTopic, requested: ListOffsetsPartition, version: int, context: Context
) -> ListOffsetsPartitionResponse:
    index = requested.partition_index
    stream, code = find_stream(context, name=topic.name)
    if not stream:
        return ListOffsetsPartitionResponse(index, code)
    if requested.timestamp < 0 and not _is_supported(requested.timestamp, version):
        return ListOffsetsPartitionResponse(index, ErrorCode.UNSUPPORTED_VERSION)
    try:
        partition, records = readable_log(stream, index, requested.current_leader_epoch)
        if requested.timestamp not in _AT_START and not partition.knows_end:
            # The high watermark of an earlier leader may have been higher: see KIP-207.
            is_known = version >= NOT_AVAILABLE_SINCE
            return ListOffsetsPartitionResponse(
                index,
                ErrorCode.OFFSET_NOT_AVAILABLE if is_known else ErrorCode.LEADER_NOT_AVAILABLE,
            )
        return await _look_up(partition, records, requested.timestamp, context)
    except READ_ERRORS as error:
        code = code_of(error)
        is_failure = code is ErrorCode.KAFKA_STORAGE_ERROR
        if is_failure and stream[index].failed_reads.on_failure(error):
            extra = {"stream": topic.name, "partition": index, "error": str(error)}
            log.warning("offset lookup failed", extra=extra)
        return ListOffsetsPartitionResponse(index, code)


def _is_supported(timestamp: int, version: int) -> bool:
    if timestamp in (TIMESTAMP_LATEST, TIMESTAMP_EARLIEST):
        return True
    return version >= _FIRST_VERSION.get(timestamp, version + 1)


async def _look_up(
    partition: ServedPartition, records: PartitionLog, timestamp: int, context: Context
) -> ListOffsetsPartitionResponse:
    end = partition.high_watermark
    found = ListOffsetsPartitionResponse(partition.index)
    if timestamp == TIMESTAMP_LATEST:
        found.offset = end.offset
        found.leader_epoch = partition.leader_epoch
        return found
    if timestamp in _REMOTE:
        return found
    if timestamp in (TIMESTAMP_EARLIEST, TIMESTAMP_EARLIEST_LOCAL):
        found.offset = partition.start_offset
        # The log has no epoch of an offset that is not written yet; it will be the present one.
        is_written = found.offset < end.offset
        found.leader_epoch = (
            records.epochs.at(found.offset) if is_written else partition.leader_epoch
        )
        return found
    if timestamp == TIMESTAMP_MAX:
        found_record = await context.run_on_thread(partial(records.find_timestamp_max, end=end))
    else:
        found_record = await context.run_on_thread(
            partial(records.find_timestamp, timestamp, end=end)
        )
    if found_record is not None:
        found.offset, found.timestamp = found_record
        found.leader_epoch = records.epochs.at(found.offset)
    return found
