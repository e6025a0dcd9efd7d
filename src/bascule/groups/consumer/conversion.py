"""Makes a group of one protocol from one of the other, with members that go on.

A group of the classic protocol becomes one of the consumer protocol when the first member joins
that speaks it, and is one of the classic protocol again when the last such member has gone. Source:
KIP-848, the migration of live groups in both directions.
"""

from __future__ import annotations

from bascule.errors import RemoteProtocolError
from bascule.groups.classic import ClassicGroup, GroupLimits, GroupSnapshot, MemberSnapshot
from bascule.groups.classic.member import Member, choose_protocol, restored_member
from bascule.groups.classic.snapshot import encode_snapshot
from bascule.groups.consumer.classic_members import encoded
from bascule.groups.consumer.group import ConsumerGroup
from bascule.groups.consumer.member import ClassicSide, ConsumerMember
from bascule.groups.consumer.messages import Partitions, StoreRecords, TopicPartition, Topics
from bascule.groups.consumer.roster import Roster
from bascule.wire.messages.group.consumer_protocol import (
    PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
)


def to_consumer_group(
    group: ClassicGroup, limits: GroupLimits, topics: Topics, incarnation: str, now_ms: int
) -> ConsumerGroup | None:
    """The group with the members of `group`, under its generation as epoch.

    None if it has members whose metadata are not those of consumers. `group` is not changed.
    """
    if group.members and group.protocol_type != PROTOCOL_TYPE:
        return None
    roster = Roster(limits, topics, incarnation)
    roster.epoch = roster.assignment_epoch = group.generation
    try:
        for member in group.members.values():
            roster.adopt(_consumer_member(member, group.generation, topics, now_ms))
    except RemoteProtocolError:
        return None
    for each in roster.members.values():
        roster.watch(each)
    return ConsumerGroup(roster)


def _consumer_member(
    member: Member, generation: int, topics: Topics, now_ms: int
) -> ConsumerMember:
    """Raises: RemoteProtocolError."""
    epoch = generation if member.earlier_generation is None else member.earlier_generation
    said = decode_subscription(member.protocols[0][1])
    assigned: Partitions = frozenset(
        TopicPartition(found[0], partition)
        for name, partitions in decode_assignment(member.assignment).items()
        if (found := topics.find(name)) is not None
        for partition in partitions
        if 0 <= partition < found[1]
    )
    return ConsumerMember(
        member.member_id,
        instance_id=member.instance_id,
        rack_id=said.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topics=frozenset(said.topics),
        epoch=epoch,
        previous_epoch=epoch,
        target=assigned,
        assigned=assigned,
        heard_ms=now_ms,
        classic=ClassicSide(member.session_timeout_ms, member.protocols),
    )


def to_classic_group(
    group: ConsumerGroup, limits: GroupLimits, now_ms: int
) -> tuple[ClassicGroup, StoreRecords]:
    """The group with the members of `group`, which all speak the classic protocol, in a rebalance;
    and what has to be stored.

    Its generation is the newest epoch that a member has. Members with an earlier one go on with it
    until they have joined, and what a member has not given up yet stays its.
    """
    roster = group.roster
    members = []
    for member in roster.members.values():
        assert member.classic is not None
        metadata = member.classic.protocols[0][1]
        members.append(
            MemberSnapshot(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.classic.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                protocols=member.classic.protocols,
                assignment=encoded(roster, member.assigned | member.revoking, metadata),
            )
        )
    protocol = choose_protocol([restored_member(each, now_ms) for each in members])
    snapshot = GroupSnapshot(
        generation=max(member.epoch for member in roster.members.values()),
        protocol_type=PROTOCOL_TYPE,
        protocol=protocol,
        leader=members[0].member_id,
        members=tuple(members),
    )
    classic = ClassicGroup.restore(snapshot, limits, now_ms)
    for member in roster.members.values():
        if member.epoch != snapshot.generation:
            classic.members[member.member_id].earlier_generation = member.epoch
    classic.begin_rebalance(now_ms)
    # Also of members that have left, whose removal is not stored yet.
    known = roster.journal.unsettled.union(roster.members)
    removed = tuple((each, None) for each in sorted(filter(None, known)))
    return classic, StoreRecords(0, ((None, encode_snapshot(snapshot)), *removed))
