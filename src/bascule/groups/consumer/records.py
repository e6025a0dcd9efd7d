"""The records of a group of the consumer protocol: one of the group, and one of each member."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from bascule.groups.consumer.member import ClassicSide, ConsumerMember, MemberState
from bascule.groups.consumer.messages import Partitions, TopicPartition

FORMAT: Final = 2
"""A group of the classic protocol has format 1."""


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The group without its members."""

    format: Literal[2] = 2
    incarnation: str
    """Records of members that have another one are of an earlier group of this name."""
    epoch: int
    assignment_epoch: int
    assignor: str
    topics: dict[str, tuple[str, int]]
    """Subscribed streams as they were for `epoch`: name -> id and number of partitions."""


class ClassicRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a member that speaks the classic protocol has besides."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One member. Partitions are by the id of their stream."""

    incarnation: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 0
    topics: tuple[str, ...] = ()
    regex: str = ""
    assignor: str | None = None
    epoch: int
    previous_epoch: int
    state: MemberState = MemberState.STABLE
    target: dict[str, list[int]] = {}
    assigned: dict[str, list[int]] = {}
    revoking: dict[str, list[int]] = {}
    classic: ClassicRecord | None = None


class _Head(msgspec.Struct, frozen=True):
    format: int = 0


_GROUP: Final = msgspec.json.Decoder(GroupRecord)
_MEMBER: Final = msgspec.json.Decoder(MemberRecord)
_HEAD: Final = msgspec.json.Decoder(_Head)


def is_consumer_group(value: bytes) -> bool:
    """Whether a group's record is one of the consumer protocol. Raises: ValueError."""
    try:
        return _HEAD.decode(value).format == FORMAT
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def encode_group(record: GroupRecord) -> bytes:
    return msgspec.json.encode(record)


def decode_group(value: bytes) -> GroupRecord:
    """Ignores unknown fields. Raises: ValueError."""
    try:
        return _GROUP.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def encode_member(member: ConsumerMember, incarnation: str) -> bytes:
    """The value of a member's record: JSON."""
    classic = member.classic
    return msgspec.json.encode(
        MemberRecord(
            incarnation=incarnation,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            topics=tuple(sorted(member.topics)),
            regex=member.regex,
            assignor=member.assignor,
            epoch=member.epoch,
            previous_epoch=member.previous_epoch,
            state=member.state,
            target=_by_topic(member.target),
            assigned=_by_topic(member.assigned),
            revoking=_by_topic(member.revoking),
            classic=None
            if classic is None
            else ClassicRecord(
                session_timeout_ms=classic.session_timeout_ms, protocols=classic.protocols
            ),
        )
    )


def decode_member(member_id: str, value: bytes, now_ms: int) -> tuple[ConsumerMember, str]:
    """The member, whose session begins now, and its incarnation. Raises: ValueError."""
    try:
        stored = _MEMBER.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    classic = stored.classic
    revoking = _partitions(stored.revoking)
    member = ConsumerMember(
        member_id,
        instance_id=stored.instance_id,
        rack_id=stored.rack_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        rebalance_timeout_ms=stored.rebalance_timeout_ms,
        topics=frozenset(stored.topics),
        regex=stored.regex,
        assignor=stored.assignor,
        epoch=stored.epoch,
        previous_epoch=stored.previous_epoch,
        state=stored.state,
        target=_partitions(stored.target),
        assigned=_partitions(stored.assigned),
        revoking=revoking,
        heard_ms=now_ms,
        revoke_due_ms=now_ms + stored.rebalance_timeout_ms if revoking else None,
        classic=None
        if classic is None
        else ClassicSide(classic.session_timeout_ms, classic.protocols),
    )
    return member, stored.incarnation


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        found.setdefault(topic_id.hex(), []).append(partition)
    return found


def _partitions(stored: dict[str, list[int]]) -> Partitions:
    """Raises: ValueError."""
    return frozenset(
        TopicPartition(bytes.fromhex(topic_id), partition)
        for topic_id, partitions in stored.items()
        for partition in partitions
    )
