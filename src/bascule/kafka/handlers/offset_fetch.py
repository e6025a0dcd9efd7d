"""OffsetFetch: where consumers left off, from the stream `_offsets`."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from bascule.errors import BasculeError
from bascule.kafka.handlers.context import Context, find_stream, offsets_code
from bascule.model import CommittedOffset
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
    """Every commit that was answered before is seen; -1 stands for none."""
    code = ErrorCode.NONE
    try:
        await context.offsets.caught_up()
    except BasculeError as error:
        log.warning("committed offsets cannot be told", extra={"error": str(error)})
        code = offsets_code(error)
    if version >= 8:
        # Once each: a short request that repeats a group must not make a huge answer.
        asked_once = {group.group_id: group for group in request.groups}.values()
        groups = [_group(group, code, version, context) for group in asked_once]
        return OffsetFetchResponse(groups=groups)
    asked = None
    if request.topics is not None:
        asked = [
            OffsetFetchGroupTopic(topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    found = _group(OffsetFetchGroup(request.group_id, topics=asked), code, version, context)
    topics = [OffsetFetchTopicResponse(topic.name, topic.partitions) for topic in found.topics]
    return OffsetFetchResponse(topics=topics, error_code=found.error_code)


def _group(
    group: OffsetFetchGroup, code: ErrorCode, version: int, context: Context
) -> OffsetFetchGroupResponse:
    if group.member_id and group.member_epoch >= 0:
        code = code or ErrorCode.UNKNOWN_MEMBER_ID
    if code and version >= 2:
        return OffsetFetchGroupResponse(group.group_id, error_code=code)
    held: dict[str, dict[int, CommittedOffset]] = {}
    for entry in context.offsets.entries(consumer=group.group_id):
        held.setdefault(entry.stream, {})[entry.partition] = entry
    if group.topics is None:
        topics = _all(held, version, context)
    else:
        topics = [_topic(topic, held, code, context) for topic in group.topics]
    return OffsetFetchGroupResponse(group.group_id, topics)


def _topic(
    topic: OffsetFetchGroupTopic,
    held: Mapping[str, Mapping[int, CommittedOffset]],
    code: ErrorCode,
    context: Context,
) -> OffsetFetchGroupTopicResponse:
    """The partitions asked for; version 1 has no other place for an error of the whole."""
    stream, unknown = find_stream(context, name=topic.name, id=topic.topic_id)
    if unknown is ErrorCode.UNKNOWN_TOPIC_ID:
        code = code or unknown
    here = held.get(stream[0].definition.name if stream else topic.name, {})
    answers = [
        _answer(here[index])
        if index in here and not code
        else OffsetFetchPartitionResponse(index, error_code=code)
        for index in topic.partition_indexes
    ]
    return OffsetFetchGroupTopicResponse(topic.name, topic.topic_id, answers)


def _all(
    held: Mapping[str, Mapping[int, CommittedOffset]], version: int, context: Context
) -> list[OffsetFetchGroupTopicResponse]:
    """Everything the group has; where topics have only ids, those that are still there."""
    topics = []
    for name, entries in held.items():
        stream, _ = find_stream(context, name=name)
        if stream or version < 10:
            partitions = [_answer(entry) for entry in entries.values()]
            topic = OffsetFetchGroupTopicResponse(name, partitions=partitions)
            if stream:
                topic.topic_id = stream[0].definition.id
            topics.append(topic)
    return topics


def _answer(entry: CommittedOffset) -> OffsetFetchPartitionResponse:
    return OffsetFetchPartitionResponse(
        entry.partition, entry.offset, entry.leader_epoch, entry.metadata
    )
