"""Fetch: committed batches from an offset on, waiting for them where asked to.

The bytes are not touched here: a response carries slices of segment files, which the connection
moves by sendfile.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from bascule.kafka.handlers.context import (
    Context,
    ReadErrors,
    ServedPartition,
    find_stream,
    readable_log,
)
from bascule.storage.partition_log import FileSlice, LogPosition, PartitionLog
from bascule.storage.segment import segment_path
from bascule.wire.error_codes import ErrorCode, code_of
from bascule.wire.messages.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
)

log = logging.getLogger(__name__)

TURN_PARTITIONS: Final = 200
"""Partitions planned without pause, some 4 ms, before other connections get their turn."""


@dataclass(slots=True)
class _Plan:
    """One attempt at an answer."""

    bytes_left: int
    """Of the whole response."""
    topics: list[FetchTopicResponse] = field(default_factory=list)
    bytes_planned: int = 0
    at_once: bool = False
    """Waiting would not help: an error, or more than fits is there already."""
    partitions_planned: int = 0
    watched: list[tuple[ServedPartition, LogPosition]] = field(default_factory=list)
    """Partitions in the answer and the high watermark it was made with."""
    taken: list[tuple[ServedPartition, int]] = field(default_factory=list)
    """Partitions with records in the answer, and how many bytes of them."""

    def is_outdated(self) -> bool:
        """A partition has moved since."""
        return any(
            partition.high_watermark != mark or partition.deleted or partition.failure
            for partition, mark in self.watched
        )


async def handle_fetch(request: FetchRequest, version: int, context: Context) -> FetchResponse:
    """Batches of each partition asked for, from the one holding `fetch_offset`.

    Answers when `min_bytes` are there, when `max_wait_ms` is over, or at once where a partition
    has an error. The first partition with data gives at least one whole batch, whatever the
    limits say (KIP-74); no session is ever granted (KIP-227).
    """
    refusal = _refusal(request)
    if refusal is not ErrorCode.NONE:
        return _refused(request, refusal)
    wait_ms = min(max(request.max_wait_ms, 0), context.fetch_wait_ms_max)
    bytes_max = min(max(request.max_bytes, 0), context.fetch_bytes_max)
    bytes_min = min(request.min_bytes, bytes_max)
    deadline = 0.0
    while True:
        plan = _Plan(bytes_left=bytes_max)
        for topic in request.topics:
            plan.topics.append(await _plan_topic(topic, plan, context))
        if plan.at_once or plan.bytes_planned >= bytes_min or not wait_ms or not plan.watched:
            break
        deadline = deadline or asyncio.get_running_loop().time() + wait_ms / 1000
        watched = [partition for partition, _ in plan.watched]
        if not await context.purgatory.wait(watched, unless=plan.is_outdated, deadline=deadline):
            wait_ms = 0
            if not plan.is_outdated():
                break
    for partition, taken_bytes in plan.taken:
        partition.metrics.on_fetched(taken_bytes)
    return FetchResponse(responses=plan.topics)


def _refusal(request: FetchRequest) -> ErrorCode:
    replica = request.replica_state.replica_id if request.replica_state else request.replica_id
    if replica >= 0:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.FETCH_SESSION_ID_NOT_FOUND if request.session_id else ErrorCode.NONE


def _refused(request: FetchRequest, code: ErrorCode) -> FetchResponse:
    topics = [
        FetchTopicResponse(t.topic, t.topic_id, [_failed(p.partition, code) for p in t.partitions])
        for t in request.topics
    ]
    return FetchResponse(error_code=code, responses=topics)


def _failed(index: int, code: ErrorCode) -> FetchPartitionResponse:
    return FetchPartitionResponse(index, code, high_watermark=-1, records=b"")


async def _plan_topic(topic: FetchTopic, plan: _Plan, context: Context) -> FetchTopicResponse:
    stream, code = find_stream(context, name=topic.topic, id=topic.topic_id)
    answers = []
    for asked in topic.partitions:
        plan.partitions_planned += 1
        if plan.partitions_planned % TURN_PARTITIONS == 0:
            await asyncio.sleep(0)
        if stream:
            answers.append(await _plan_partition(stream, asked, plan, context))
        else:
            plan.at_once = True
            answers.append(_failed(asked.partition, code))
    return FetchTopicResponse(topic.topic, topic.topic_id, answers)


async def _plan_partition(
    stream: tuple[ServedPartition, ...], asked: FetchPartition, plan: _Plan, context: Context
) -> FetchPartitionResponse:
    start_offset = -1
    try:
        partition, records = readable_log(stream, asked.partition, asked.current_leader_epoch)
        start_offset = partition.start_offset
        mark = partition.high_watermark
        answer = FetchPartitionResponse(
            asked.partition, 0, mark.offset, mark.offset, start_offset, records=b""
        )
        plan.watched.append((partition, mark))
        limit = min(asked.partition_max_bytes, plan.bytes_left)
        if limit > 0 or plan.bytes_planned == 0:
            piece = await _plan_read(records, asked.fetch_offset, limit, mark, context)
            if taken_bytes := _take(piece, limit, records, mark, answer, plan):
                plan.taken.append((partition, taken_bytes))
        else:
            plan.at_once = True
        return answer
    except ReadErrors as error:
        plan.at_once = True
        code = code_of(error)
        if code is ErrorCode.KAFKA_STORAGE_ERROR:
            name = stream[0].definition.name
            extra = {"stream": name, "partition": asked.partition, "error": str(error)}
            log.warning("read failed", extra=extra)
        answer = _failed(asked.partition, code)
        answer.log_start_offset = start_offset
        return answer


async def _plan_read(
    records: PartitionLog, offset: int, limit: int, mark: LogPosition, context: Context
) -> FileSlice | None:
    """The slice to send, None where nothing committed is at `offset` yet."""
    if mark.offset <= offset <= records.end.offset:
        # Beyond the high watermark but not beyond the log: it will be served once committed.
        return None
    read = partial(records.plan_read, offset, bytes_max=max(limit, 0), end=mark)
    piece = read(nowait=True)
    return piece if piece is not None else await context.on_thread(read)


def _take(
    piece: FileSlice | None,
    limit: int,
    records: PartitionLog,
    mark: LogPosition,
    answer: FetchPartitionResponse,
    plan: _Plan,
) -> int:
    """Put the slice into the answer; returns its bytes, 0 where it is left out."""
    if piece is None or piece.length == 0:
        return 0
    if piece.length > limit and plan.bytes_planned:
        # One whole batch beyond the limits is for the first partition with data only.
        plan.at_once = True
        return 0
    answer.records = piece
    plan.bytes_planned += piece.length
    plan.bytes_left -= piece.length
    if not _reaches(piece, records, mark):
        plan.at_once = True  # a limit or the end of a segment cut it; more is there already
    return piece.length


def _reaches(piece: FileSlice, records: PartitionLog, mark: LogPosition) -> bool:
    """Whether the slice ends at `mark`; another segment may well end at the same position."""
    return piece.position + piece.length == mark.position and piece.file.path == segment_path(
        records.directory, mark.segment_base
    )
