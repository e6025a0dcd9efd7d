"""A classic group as it is listed and described."""

from __future__ import annotations

from bascule.errors import RemoteProtocolError
from bascule.groups.classic.group import ClassicGroup
from bascule.groups.classic.member import Member
from bascule.groups.classic.messages import GroupState
from bascule.groups.described import DescribedGroup, DescribedMember, GroupSummary, GroupType
from bascule.wire.messages.group.consumer_protocol import (
    PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
)


def summary_of(name: str, group: ClassicGroup) -> GroupSummary:
    """A group as it is listed."""
    return GroupSummary(
        name,
        GroupType.CLASSIC,
        str(group.state),
        group.protocol_type or "",
        len(group.members),
    )


def describe_group(name: str, group: ClassicGroup) -> DescribedGroup:
    """A group with its members. They have metadata and a protocol while it is stable."""
    is_stable = group.state is GroupState.STABLE
    protocol = (group.protocol or "") if is_stable else ""
    members = group.members.values()
    return DescribedGroup(
        summary_of(name, group),
        protocol,
        tuple(_describe(member, group.protocol_type, protocol) for member in members),
        _topics(group),
    )


def _describe(member: Member, protocol_type: str | None, protocol: str) -> DescribedMember:
    partitions: tuple[tuple[str, int], ...] | None = None
    if protocol_type == PROTOCOL_TYPE:
        try:
            assigned = decode_assignment(member.assignment)
            partitions = tuple((topic, i) for topic, indexes in assigned.items() for i in indexes)
        except RemoteProtocolError:
            partitions = None
    return DescribedMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        partitions,
        member.metadata(protocol) if protocol else b"",
        member.assignment,
    )


def _topics(group: ClassicGroup) -> frozenset[str] | None:
    """What the members subscribe to by the protocol that was chosen last; None: not known."""
    if group.protocol_type != PROTOCOL_TYPE or group.protocol is None:
        return None
    topics: set[str] = set()
    try:
        for member in group.members.values():
            topics.update(decode_subscription(member.metadata(group.protocol)).topics)
    except RemoteProtocolError:
        return None
    return frozenset(topics)
