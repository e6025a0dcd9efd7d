"""Fetch: committed batches from an offset on, with an optional wait for new ones.

The handler does not read record bytes. A response carries slices of segment files, which the
connection sends by sendfile.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from bascule.kafka.handlers.context import (
    READ_ERRORS,
    Context,
    ServedPartition,
    find_stream,
    readable_log,
)
from bascule.model import NO_LEADER
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

YIELD_PARTITIONS: Final = 200
"""Partitions planned, in about 4 ms, before the event loop may run other connections."""
FOLLOWERS_SINCE_VERSION: Final = 11
"""From this version on consumers say their rack, and may ask followers. KIP-392."""
NO_PREFERENCE: Final = -1


@dataclass(slots=True)
class _FetchPlan:
    """One attempt at a response."""

    bytes_left: int
    """Record bytes that the response may still take."""
    rack: str = ""
    """The consumer's; empty: it does not say."""
    follower: int = NO_LEADER
    """This node if the consumer may read from followers."""
    topics: list[FetchTopicResponse] = field(default_factory=list)
    bytes_planned: int = 0
    respond_now: bool = False
    """Respond without waiting: a partition has an error, or more data than fits is available."""
    partitions_planned: int = 0
    watched: list[tuple[ServedPartition, LogPosition]] = field(default_factory=list)
    """Partitions of the response, each with the high watermark that was used."""
    included: list[tuple[ServedPartition, int]] = field(default_factory=list)
    """Partitions with records in the response, each with its record bytes."""

    def is_outdated(self) -> bool:
        """Whether a partition has changed since the attempt."""
        return any(
            partition.high_watermark != mark or partition.deleted or partition.failure
            for partition, mark in self.watched
        )


async def handle_fetch(request: FetchRequest, version: int, context: Context) -> FetchResponse:
    """Batches of each requested partition, starting with the batch that contains `fetch_offset`.

    Responds when `min_bytes` are available, when `max_wait_ms` has passed, or at once if a
    partition has an error. A consumer in another rack is told of the closest replica (KIP-392). A
    follower that is in sync serves what it knows to be committed. The first partition with data
    returns at least one whole batch, even beyond the limits (KIP-74). No fetch session is ever
    created (KIP-227).
    """
    refusal = _request_error(request)
    if refusal is not ErrorCode.NONE:
        return _refuse(request, refusal)
    wait_ms = min(max(request.max_wait_ms, 0), context.fetch_wait_ms_max)
    bytes_max = min(max(request.max_bytes, 0), context.fetch_bytes_max)
    bytes_min = min(request.min_bytes, bytes_max)
    deadline = 0.0
    while True:
        plan = _FetchPlan(bytes_left=bytes_max)
        if version >= FOLLOWERS_SINCE_VERSION:
            plan.rack, plan.follower = request.rack_id, context.node.node_id
        for topic in request.topics:
            plan.topics.append(await _plan_topic(topic, plan, context))
        if plan.respond_now or plan.bytes_planned >= bytes_min or not wait_ms or not plan.watched:
            break
        deadline = deadline or asyncio.get_running_loop().time() + wait_ms / 1000
        watched = [partition for partition, _ in plan.watched]
        if not await context.purgatory.wait(watched, unless=plan.is_outdated, deadline=deadline):
            wait_ms = 0
            if not plan.is_outdated():
                break
    for partition, included_bytes in plan.included:
        partition.metrics.on_fetched(included_bytes)
    return FetchResponse(responses=plan.topics)


def _request_error(request: FetchRequest) -> ErrorCode:
    replica = request.replica_state.replica_id if request.replica_state else request.replica_id
    if replica >= 0:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.FETCH_SESSION_ID_NOT_FOUND if request.session_id else ErrorCode.NONE


def _refuse(request: FetchRequest, code: ErrorCode) -> FetchResponse:
    topics = [
        FetchTopicResponse(
            t.topic, t.topic_id, [_error_response(p.partition, code) for p in t.partitions]
        )
        for t in request.topics
    ]
    return FetchResponse(error_code=code, responses=topics)


def _error_response(index: int, code: ErrorCode) -> FetchPartitionResponse:
    return FetchPartitionResponse(index, code, high_watermark=-1, records=b"")


async def _plan_topic(topic: FetchTopic, plan: _FetchPlan, context: Context) -> FetchTopicResponse:
    stream, code = find_stream(context, name=topic.topic, id=topic.topic_id)
    responses = []
    for requested in topic.partitions:
        plan.partitions_planned += 1
        if plan.partitions_planned % YIELD_PARTITIONS == 0:
            await asyncio.sleep(0)
        if stream:
            responses.append(await _plan_partition(stream, requested, plan, context))
        else:
            plan.respond_now = True
            responses.append(_error_response(requested.partition, code))
    return FetchTopicResponse(topic.topic, topic.topic_id, responses)


async def _plan_partition(
    stream: tuple[ServedPartition, ...],
    requested: FetchPartition,
    plan: _FetchPlan,
    context: Context,
) -> FetchPartitionResponse:
    start_offset = -1
    try:
        partition, records = readable_log(
            stream,
            requested.partition,
            requested.current_leader_epoch,
            follower=plan.follower,
        )
        start_offset = partition.start_offset
        mark = partition.high_watermark
        response = FetchPartitionResponse(
            requested.partition, 0, mark.offset, mark.offset, start_offset, records=b""
        )
        if start_offset <= requested.fetch_offset <= mark.offset:
            response.preferred_read_replica = _closest_replica(partition, plan.rack, context)
            if response.preferred_read_replica != NO_PREFERENCE:
                plan.respond_now = True
                return response
        if requested.fetch_offset > records.end.offset and not partition.is_leader:
            # This follower has not heard of the offset yet, which the leader may have.
            plan.respond_now = True
            return _error_response(requested.partition, ErrorCode.OFFSET_NOT_AVAILABLE)
        plan.watched.append((partition, mark))
        limit = min(requested.partition_max_bytes, plan.bytes_left)
        if limit > 0 or plan.bytes_planned == 0:
            piece = await _plan_read(records, requested.fetch_offset, limit, mark, context)
            if included_bytes := _include(piece, limit, records, mark, response, plan):
                plan.included.append((partition, included_bytes))
        else:
            plan.respond_now = True
        return response
    except READ_ERRORS as error:
        plan.respond_now = True
        code = code_of(error)
        if code is ErrorCode.KAFKA_STORAGE_ERROR:
            name, index = stream[0].definition.name, requested.partition
            if stream[index].failed_reads.on_failure(error):
                extra = {"stream": name, "partition": index, "error": str(error)}
                log.warning("read failed", extra=extra)
        response = _error_response(requested.partition, code)
        response.log_start_offset = start_offset
        return response


def _closest_replica(partition: ServedPartition, rack: str, context: Context) -> int:
    """The node that a consumer in `rack` should ask; NO_PREFERENCE if this one.

    Only a leader says so. The other node is in sync, is alive, and is in the consumer's rack, while
    this one is not. Consumers of different partitions are spread over such nodes.
    """
    state, cluster = partition.state, context.cluster
    if not rack or state is None or not partition.is_leader:
        return NO_PREFERENCE
    racks = {node.node_id: node.rack for node in cluster.nodes()}
    if racks.get(context.node.node_id) == rack:
        return NO_PREFERENCE
    near = [node for node in state.isr if racks.get(node) == rack]
    return near[partition.index % len(near)] if near else NO_PREFERENCE


async def _plan_read(
    records: PartitionLog, offset: int, limit: int, mark: LogPosition, context: Context
) -> FileSlice | None:
    """The slice to send; None if no committed batch exists at `offset` yet."""
    if mark.offset <= offset <= records.end.offset:
        # Above the high watermark but within the log: served once it is committed.
        return None
    read = partial(records.plan_read, offset, bytes_max=max(limit, 0), end=mark)
    piece = read(nowait=True)
    if piece is None:
        context.note_cold_read()
        piece = await context.run_on_thread(read)
    return piece


def _include(
    piece: FileSlice | None,
    limit: int,
    records: PartitionLog,
    mark: LogPosition,
    response: FetchPartitionResponse,
    plan: _FetchPlan,
) -> int:
    """Put the slice into the response; returns its bytes, 0 if it is left out."""
    if piece is None or piece.length == 0:
        return 0
    if piece.length > limit and plan.bytes_planned:
        # Only the first partition with data may exceed the limits by one whole batch.
        plan.respond_now = True
        return 0
    response.records = piece
    plan.bytes_planned += piece.length
    plan.bytes_left -= piece.length
    if not _ends_at(piece, records, mark):
        plan.respond_now = True  # a limit or the segment's end cut it: more data is available
    return piece.length


def _ends_at(piece: FileSlice, records: PartitionLog, mark: LogPosition) -> bool:
    """Whether the slice ends at `mark`. The position alone is not unique across segments."""
    return piece.position + piece.length == mark.position and piece.file.path == segment_path(
        records.directory, mark.segment_base
    )
