"""OffsetCommit: how far a consumer has come, kept in the stream `_offsets`.

For consumers that assign themselves partitions: they name a group and no member of it. Members of
a group are refused, as Kafka refuses those of a group it does not know.
"""

from __future__ import annotations

import logging

from bascule.errors import BasculeError, InvalidName
from bascule.kafka.handlers.context import Context, find_stream, offsets_code
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


async def handle_offset_commit(
    request: OffsetCommitRequest, version: int, context: Context
) -> OffsetCommitResponse:
    """Answered once the commits are as durable as the stream `_offsets` is."""
    refusal = _refusal(request)
    commits: dict[OffsetKey, Commit] = {}
    topics = [_checked(topic, request.group_id, refusal, context, commits)
              for topic in request.topics]  # fmt: skip
    if commits:
        try:
            await context.offsets.commit(list(commits.items()))
        except BasculeError as error:
            log.warning(
                "offsets not committed", extra={"group": request.group_id, "error": str(error)}
            )
            for answer in (p for t in topics for p in t.partitions if not p.error_code):
                answer.error_code = offsets_code(error)
    return OffsetCommitResponse(topics=topics)


def _refusal(request: OffsetCommitRequest) -> ErrorCode:
    """What is wrong with the request as a whole."""
    if request.generation_id_or_member_epoch >= 0:
        return ErrorCode.ILLEGAL_GENERATION
    if request.member_id or request.group_instance_id is not None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    try:
        check_consumer(request.group_id)
    except InvalidName:
        return ErrorCode.INVALID_GROUP_ID
    return ErrorCode.NONE


def _checked(
    topic: OffsetCommitTopic,
    group: str,
    refusal: ErrorCode,
    context: Context,
    commits: dict[OffsetKey, Commit],
) -> OffsetCommitTopicResponse:
    """The topic's answer if storing goes well; what is to be stored goes to `commits`."""
    stream, unknown = find_stream(context, name=topic.name, id=topic.topic_id)
    answers = []
    for asked in topic.partitions:
        code = refusal or unknown or _wrong(asked, len(stream))
        answers.append(OffsetCommitPartitionResponse(asked.partition_index, code))
        if not code:
            key = OffsetKey(group, stream[0].definition.name, asked.partition_index)
            # Of a partition that is named more than once the last counts, as if one by one.
            commits[key] = Commit(
                offset=asked.committed_offset,
                leader_epoch=max(asked.committed_leader_epoch, -1),
                metadata=asked.committed_metadata or "",
            )
    return OffsetCommitTopicResponse(topic.name, topic.topic_id, answers)


def _wrong(asked: OffsetCommitPartition, partition_count: int) -> ErrorCode:
    if not 0 <= asked.partition_index < partition_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if asked.committed_offset < 0:
        return ErrorCode.INVALID_REQUEST
    if len((asked.committed_metadata or "").encode()) > METADATA_BYTES_MAX:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE
