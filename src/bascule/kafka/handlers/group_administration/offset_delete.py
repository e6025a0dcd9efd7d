"""OffsetDelete: committed offsets of a group are removed, partition by partition."""

from __future__ import annotations

import logging

from bascule.errors import BasculeError
from bascule.groups import GroupAdministration
from bascule.groups.administration import removal_error
from bascule.groups.described import DescribedGroup
from bascule.kafka.handlers.administration.access import refusal
from bascule.kafka.handlers.context import Context, find_stream, offsets_error_code
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteTopic,
    PartitionWithoutOffset,
    TopicWithoutOffsets,
)
from bascule.wire.offsets import OffsetKey

log = logging.getLogger(__name__)


async def handle_offset_delete(
    request: OffsetDeleteRequest, client_id: str | None, context: Context
) -> OffsetDeleteResponse:
    """Respond once the removal is stored. An offset that was not committed is no error."""
    name = request.group_id
    error = context.groups.error()
    if refusal(context, client_id, "OffsetDelete"):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if error:
        return OffsetDeleteResponse(error_code=error)
    try:
        await context.offsets.wait_caught_up()
        group = GroupAdministration(context.groups, context.offsets).describe(name)
        if error := removal_error(group):
            return OffsetDeleteResponse(error_code=error)
        held = set(context.offsets.keys(name))
        removed: set[OffsetKey] = set()
        topics = [_answer(name, topic, group, context, held, removed) for topic in request.topics]
        if removed:
            await context.offsets.remove_keys(sorted(removed))
    except BasculeError as failure:
        log.warning("offsets of a group not removed", extra={"group": name, "error": str(failure)})
        return OffsetDeleteResponse(error_code=offsets_error_code(failure))
    return OffsetDeleteResponse(topics=topics)


def _answer(
    name: str,
    topic: OffsetDeleteTopic,
    group: DescribedGroup | None,
    context: Context,
    held: set[OffsetKey],
    removed: set[OffsetKey],
) -> TopicWithoutOffsets:
    """The topic's response if the offsets are removed; adds their keys to `removed`."""
    stream, unknown = find_stream(context, name=topic.name)
    error = unknown or removal_error(group, topic.name)
    partitions = []
    for each in topic.partitions:
        index = each.partition_index
        code = error
        if not code and not 0 <= index < len(stream):
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        key = OffsetKey(name, topic.name, index)
        if not code and key in held:
            removed.add(key)
        partitions.append(PartitionWithoutOffset(index, code))
    return TopicWithoutOffsets(topic.name, partitions)
