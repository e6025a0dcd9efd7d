"""OffsetFetch: the committed offsets of consumers, from the stream `_offsets`."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from bascule.errors import BasculeError
from bascule.group_results import CommittedOffset
from bascule.kafka.handlers.context import Context, find_stream, offsets_error_code
from bascule.kafka.handlers.find_coordinator import is_coordinator
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.offset_fetch import (
    OffsetFetchGroup,
    OffsetFetchGroupResponse,
    OffsetFetchGroupTopic,
    OffsetFetchGroupTopicResponse,
    OffsetFetchPartitionResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopicResponse,
)

log = logging.getLogger(__name__)


async def handle_offset_fetch(
    request: OffsetFetchRequest, version: int, context: Context
) -> OffsetFetchResponse:
    """The committed offset per partition, -1 for none; includes every commit that was acknowledged
    before, by whichever coordinator."""
    code = ErrorCode.NONE if is_coordinator(context) else ErrorCode.NOT_COORDINATOR
    try:
        await context.offsets.wait_caught_up()
        # A new leader may not have learnt yet that the last commits are committed, and one that
        # stood still that there is another one.
        code = code or await context.groups.confirmed_error()
    except BasculeError as error:
        log.warning("committed offsets not available", extra={"error": str(error)})
        code = code or offsets_error_code(error)
    if version >= 8:
        # Each group once: a short request that repeats a group must not cause a huge response.
        distinct = {group.group_id: group for group in request.groups}.values()
        groups = [_group_response(group, code, version, context) for group in distinct]
        return OffsetFetchResponse(groups=groups)
    requested = None
    if request.topics is not None:
        requested = [
            OffsetFetchGroupTopic(topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    found = _group_response(
        OffsetFetchGroup(request.group_id, topics=requested), code, version, context
    )
    topics = [OffsetFetchTopicResponse(topic.name, topic.partitions) for topic in found.topics]
    return OffsetFetchResponse(topics=topics, error_code=found.error_code)


def _group_response(
    group: OffsetFetchGroup, code: ErrorCode, version: int, context: Context
) -> OffsetFetchGroupResponse:
    if group.member_id and group.member_epoch >= 0:
        code = code or context.groups.fetch_error(
            group.group_id, group.member_id, group.member_epoch
        )
    if code and version >= 2:
        return OffsetFetchGroupResponse(group.group_id, error_code=code)
    committed: dict[str, dict[int, CommittedOffset]] = {}
    for entry in context.offsets.entries(consumer=group.group_id):
        committed.setdefault(entry.stream, {})[entry.partition] = entry
    if group.topics is None:
        topics = _all_topics(committed, version, context)
    else:
        topics = [_topic_response(topic, committed, code, context) for topic in group.topics]
    return OffsetFetchGroupResponse(group.group_id, topics)


def _topic_response(
    topic: OffsetFetchGroupTopic,
    committed: Mapping[str, Mapping[int, CommittedOffset]],
    code: ErrorCode,
    context: Context,
) -> OffsetFetchGroupTopicResponse:
    """The requested partitions. Version 1 has no other field for an error of the whole group."""
    stream, unknown = find_stream(context, name=topic.name, id=topic.topic_id)
    if unknown is ErrorCode.UNKNOWN_TOPIC_ID:
        code = code or unknown
    by_partition = committed.get(stream[0].definition.name if stream else topic.name, {})
    responses = [
        _partition_response(by_partition[index])
        if index in by_partition and not code
        else OffsetFetchPartitionResponse(index, error_code=code)
        for index in topic.partition_indexes
    ]
    return OffsetFetchGroupTopicResponse(topic.name, topic.topic_id, responses)


def _all_topics(
    committed: Mapping[str, Mapping[int, CommittedOffset]], version: int, context: Context
) -> list[OffsetFetchGroupTopicResponse]:
    """All commits of the group; in versions that name topics by id, only of existing streams."""
    topics = []
    for name, entries in committed.items():
        stream, _ = find_stream(context, name=name)
        if stream or version < 10:
            partitions = [_partition_response(entry) for entry in entries.values()]
            topic = OffsetFetchGroupTopicResponse(name, partitions=partitions)
            if stream:
                topic.topic_id = stream[0].definition.id
            topics.append(topic)
    return topics


def _partition_response(entry: CommittedOffset) -> OffsetFetchPartitionResponse:
    return OffsetFetchPartitionResponse(
        entry.partition, entry.offset, entry.leader_epoch, entry.metadata
    )
