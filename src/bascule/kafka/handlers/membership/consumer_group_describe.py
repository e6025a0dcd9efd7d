"""ConsumerGroupDescribe: groups of the consumer protocol, with targets and members (KIP-848)."""

from __future__ import annotations

from bascule.groups.consumer import ConsumerGroup, ConsumerMember, Partitions
from bascule.kafka.handlers.context import Context
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedConsumerMember,
    DescribedTopicPartitions,
)

CLASSIC, CONSUMER = 0, 1
"""Types of members."""


def handle_consumer_group_describe(
    request: ConsumerGroupDescribeRequest, context: Context
) -> ConsumerGroupDescribeResponse:
    """Each group once. GROUP_ID_NOT_FOUND where it is none of the consumer protocol."""
    names = dict.fromkeys(request.group_ids)
    return ConsumerGroupDescribeResponse(groups=[_described(name, context) for name in names])


def _described(name: str, context: Context) -> DescribedConsumerGroup:
    error = context.groups.error()
    if error:
        return DescribedConsumerGroup(error, group_id=name)
    group = context.groups.consumer_group(name)
    if group is None:
        return DescribedConsumerGroup(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"group {name!r} does not exist, or has no members of the consumer protocol",
            name,
        )
    return DescribedConsumerGroup(
        group_id=name,
        group_state=str(group.state),
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.protocol,
        members=[_member(group, each) for each in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerMember) -> DescribedConsumerMember:
    return DescribedConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex or None,
        assignment=_assignment(group, member.assigned),
        target_assignment=_assignment(group, member.target),
        member_type=CONSUMER if member.classic is None else CLASSIC,
    )


def _assignment(group: ConsumerGroup, partitions: Partitions) -> DescribedAssignment:
    """Without the partitions of streams that are deleted."""
    found: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        found.setdefault(topic_id, []).append(partition)
    return DescribedAssignment(
        [
            DescribedTopicPartitions(topic_id, name, indexes)
            for topic_id, indexes in found.items()
            if (name := group.name_of(topic_id)) is not None
        ]
    )
