"""ConsumerGroupHeartbeat: a member of the consumer protocol joins, lives and leaves (KIP-848)."""

from __future__ import annotations

from collections.abc import Awaitable

from bascule.errors import InvalidName
from bascule.groups.consumer import MemberAnswer, MemberHeartbeat, Partitions, TopicPartition
from bascule.kafka.handlers.context import Context
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    GroupAssignment,
    GroupTopicPartitions,
)
from bascule.wire.offsets import check_consumer


def handle_consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, client_id: str | None, context: Context
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    """Respond at once if nothing has changed, else when the change is stored."""
    try:
        check_consumer(request.group_id)
    except InvalidName as error:
        return heartbeat_response(MemberAnswer(ErrorCode.INVALID_GROUP_ID, str(error)))
    answer = context.groups.member_heartbeat(
        request.group_id, member_heartbeat(request, client_id, context)
    )
    if isinstance(answer, MemberAnswer):
        if answer.error is ErrorCode.UNSUPPORTED_VERSION:
            context.refusals.note(
                context.peer, client_id, api="ConsumerGroupHeartbeat", reason=answer.reason or ""
            )
        return heartbeat_response(answer)
    return _respond_later(answer)


async def _respond_later(answer: Awaitable[MemberAnswer]) -> ConsumerGroupHeartbeatResponse:
    return heartbeat_response(await answer)


def member_heartbeat(
    request: ConsumerGroupHeartbeatRequest, client_id: str | None, context: Context
) -> MemberHeartbeat:
    """What a request says to the group."""
    topics, owned = request.subscribed_topic_names, request.topic_partitions
    return MemberHeartbeat(
        member_id=request.member_id,
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=None if topics is None else tuple(topics),
        regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None
        if owned is None
        else frozenset(
            TopicPartition(each.topic_id, partition)
            for each in owned
            for partition in each.partitions
        ),
        client_id=client_id or "",
        client_host=context.peer.rpartition(":")[0],
    )


def heartbeat_response(answer: MemberAnswer) -> ConsumerGroupHeartbeatResponse:
    """The group's answer, as the client gets it."""
    assigned = answer.assigned
    return ConsumerGroupHeartbeatResponse(
        error_code=answer.error,
        error_message=answer.reason,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.interval_ms,
        assignment=None if assigned is None else GroupAssignment(by_topic(assigned)),
    )


def by_topic(partitions: Partitions) -> list[GroupTopicPartitions]:
    """Partitions in order, those of a stream together."""
    found: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        found.setdefault(topic_id, []).append(partition)
    return [GroupTopicPartitions(topic_id, indexes) for topic_id, indexes in found.items()]
