"""What operators are told of consumer groups: members, committed offsets, lag, resets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


def lag_of(offset: int | None, high_watermark: int | None) -> int | None:
    """Records from `offset` to the end; None if one of both is not known."""
    if offset is None or high_watermark is None:
        return None
    return max(0, high_watermark - offset)


def lag_sum(lags: Iterable[int | None]) -> int | None:
    """The sum of those that are known; None: none is."""
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The committed offset of a consumer in one partition."""

    consumer: str
    stream: str
    partition: int
    offset: int
    """The next offset that the consumer processes."""
    leader_epoch: int
    """As the consumer sent it; -1 for none."""
    metadata: str
    committed_ms: int
    start_offset: int | None
    """First offset in the partition's log; None if the partition does not exist."""
    high_watermark: int | None

    @property
    def lag(self) -> int | None:
        """Offsets from `offset` to the high watermark; None if the partition does not exist."""
        return None if self.high_watermark is None else max(0, self.high_watermark - self.offset)


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as it is listed."""

    name: str
    type: str
    """`classic` or `consumer`."""
    state: str
    """`Empty` without members; else Kafka's name of the state."""
    members: int
    partitions: int
    """With a committed offset."""
    lag: int | None
    """Of these partitions; None: the end of none of them is known."""


@dataclass(frozen=True, slots=True)
class GroupMemberInfo:
    """A member of a group."""

    member_id: str
    instance_id: str | None
    """Of a static member."""
    client_id: str
    host: str
    partitions: tuple[tuple[str, int], ...] | None
    """The streams and partitions that it owns; None: its assignment cannot be read."""


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A partition that a group has committed an offset for, or that one of its members owns."""

    stream: str
    partition: int
    offset: int | None
    """The next offset that the group processes; None: it has not committed one."""
    start_offset: int | None
    """First offset that the partition holds; None: the partition is gone, or not known now."""
    high_watermark: int | None
    member_id: str
    """Of its owner; empty: nobody owns it."""
    committed_ms: int
    """Unix time of the commit, milliseconds; 0: none."""
    metadata: str

    @property
    def lag(self) -> int | None:
        """Records from `offset` to the end."""
        return lag_of(self.offset, self.high_watermark)


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group with its members and offsets."""

    name: str
    type: str
    state: str
    protocol_type: str
    """`consumer`; empty for a group that has only offsets."""
    protocol: str
    """The assignor that is in force."""
    coordinator: int
    """The node that coordinates it."""
    members: tuple[GroupMemberInfo, ...]
    offsets: tuple[GroupOffset, ...]

    @property
    def lag(self) -> int | None:
        """Of all partitions."""
        return lag_sum(each.lag for each in self.offsets)


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """What a reset does to one partition."""

    stream: str
    partition: int
    before: int | None
    """The committed offset before; None: there was none."""
    offset: int
    """The committed offset now, or after it."""
    start_offset: int
    high_watermark: int

    @property
    def lag(self) -> int:
        """Records from `offset` to the end."""
        return max(0, self.high_watermark - self.offset)
