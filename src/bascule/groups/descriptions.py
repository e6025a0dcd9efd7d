"""Makes the summaries and descriptions of groups of either kind; `described` has their types."""

from __future__ import annotations

from bascule.groups.classic import description
from bascule.groups.consumer import ConsumerGroup, ConsumerMember
from bascule.groups.described import DescribedGroup, DescribedMember, GroupSummary, GroupType
from bascule.groups.running import Group


def summary_of(name: str, group: Group) -> GroupSummary:
    """A group as it is listed."""
    if not isinstance(group, ConsumerGroup):
        return description.summary_of(name, group)
    return GroupSummary(
        name, GroupType.CONSUMER, str(group.state), group.protocol_type, len(group.members)
    )


def describe_group(name: str, group: Group) -> DescribedGroup:
    """A group with its members."""
    if not isinstance(group, ConsumerGroup):
        return description.describe_group(name, group)
    return DescribedGroup(
        summary_of(name, group),
        group.protocol,
        tuple(_describe(group, member) for member in group.members.values()),
        frozenset(name for m in group.members.values() for name in group.topic_names(m)),
    )


def _describe(group: ConsumerGroup, member: ConsumerMember) -> DescribedMember:
    owned = (
        (topic, index)
        for topic_id, index in sorted(member.assigned)
        if (topic := group.name_of(topic_id)) is not None
    )
    return DescribedMember(
        member.member_id, member.instance_id, member.client_id, member.client_host, tuple(owned)
    )
