"""OffsetCommit: stores the committed offsets of a consumer in the stream `_offsets`.

Members of a group are fenced by their id and generation. Consumers that assign their partitions
themselves send a group id and no generation; they are served while the group has no members. Some
of them send a member id, which then means nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from functools import partial

from bascule.errors import BasculeError, InvalidName
from bascule.kafka.handlers.context import (
    Context,
    ServedOffsets,
    find_stream,
    offsets_error_code,
)
from bascule.listening.deferred import Deferred
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitPartitionResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetCommitTopicResponse,
)
from bascule.wire.offsets import METADATA_BYTES_MAX, Commit, OffsetKey, check_consumer

log = logging.getLogger(__name__)


def handle_offset_commit(
    request: OffsetCommitRequest, version: int, context: Context
) -> OffsetCommitResponse | Deferred:
    """Respond once the commits are stored under the sync policy of the stream `_offsets`."""
    request_error = _request_error(request, context)
    commits: dict[OffsetKey, Commit] = {}
    topics = [_validate_topic(topic, request.group_id, request_error, context, commits)
              for topic in request.topics]  # fmt: skip
    response = OffsetCommitResponse(topics=topics)
    if not commits:
        return response
    try:
        stored = context.offsets.store_checked(list(commits.items()))
    except BasculeError as error:
        return failed_commit(response, request.group_id, error)
    finish = partial(_stored, response, request.group_id, len(commits), context.offsets, stored)
    return Deferred(stored, finish)


def _stored(
    response: OffsetCommitResponse,
    group: str,
    count: int,
    offsets: ServedOffsets,
    stored: asyncio.Future[int],
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    """The response once the commits are stored, or are not."""
    error = stored.exception()
    if isinstance(error, BasculeError):
        return failed_commit(response, group, error)
    offset = stored.result()
    if offsets.has_read(offset, count):
        return response
    return _read(response, group, offsets.wait_read(offset, count))


async def _read(
    response: OffsetCommitResponse, group: str, read: Awaitable[None]
) -> OffsetCommitResponse:
    try:
        await read
    except BasculeError as error:
        return failed_commit(response, group, error)
    return response


def failed_commit(
    response: OffsetCommitResponse, group: str, error: BasculeError
) -> OffsetCommitResponse:
    """The response, with the error for each partition that has none."""
    log.warning("offsets not committed", extra={"group": group, "error": str(error)})
    for partition in (p for t in response.topics for p in t.partitions if not p.error_code):
        partition.error_code = offsets_error_code(error)
    return response


def _request_error(request: OffsetCommitRequest, context: Context) -> ErrorCode:
    """The error of the request as a whole, or NONE."""
    try:
        check_consumer(request.group_id)
    except InvalidName:
        return ErrorCode.INVALID_GROUP_ID
    return context.groups.commit_error(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
    )


def _validate_topic(
    topic: OffsetCommitTopic,
    group: str,
    request_error: ErrorCode,
    context: Context,
    commits: dict[OffsetKey, Commit],
) -> OffsetCommitTopicResponse:
    """The topic's response if the commits are stored; adds the valid commits to `commits`."""
    stream, unknown = find_stream(context, name=topic.name, id=topic.topic_id)
    responses = []
    for requested in topic.partitions:
        code = request_error or unknown or partition_error(requested, len(stream))
        responses.append(OffsetCommitPartitionResponse(requested.partition_index, code))
        if not code:
            key = OffsetKey(group, stream[0].definition.name, requested.partition_index)
            # If a request names a partition twice, the last entry counts.
            commits[key] = Commit(
                offset=requested.committed_offset,
                leader_epoch=max(requested.committed_leader_epoch, -1),
                metadata=requested.committed_metadata or "",
            )
    return OffsetCommitTopicResponse(topic.name, topic.topic_id, responses)


def partition_error(requested: OffsetCommitPartition, partition_count: int) -> ErrorCode:
    """Why an offset cannot be committed whatever the state of the group, or NONE."""
    if not 0 <= requested.partition_index < partition_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if requested.committed_offset < 0:
        return ErrorCode.INVALID_REQUEST
    metadata = requested.committed_metadata
    if metadata and len(metadata.encode()) > METADATA_BYTES_MAX:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE
