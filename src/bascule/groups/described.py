"""Groups as they are listed and described, of whatever kind they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class GroupType(StrEnum):
    """Kafka's names (KIP-848)."""

    CLASSIC = "classic"
    """Its members assign the partitions; also a group that has only committed offsets."""
    CONSUMER = "consumer"
    """Its coordinator assigns the partitions."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group as it is listed."""

    name: str
    type: GroupType = GroupType.CLASSIC
    state: str = "Empty"
    """Kafka's names, which depend on the type."""
    protocol_type: str = ""
    """`consumer` for groups of consumers; empty for a group that has only offsets."""
    members: int = 0


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """A member of a group."""

    member_id: str
    instance_id: str | None
    """Of a static member."""
    client_id: str
    client_host: str
    partitions: tuple[tuple[str, int], ...] | None
    """The streams and partitions that it owns; None: its assignment cannot be read."""
    metadata: bytes = b""
    """As it was sent for the protocol of the group; empty while that is not chosen."""
    assignment: bytes = b""
    """As its group's leader has sent it."""


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group with its members."""

    summary: GroupSummary
    protocol: str = ""
    """The assignor that is in force."""
    members: tuple[DescribedMember, ...] = ()
    topics: frozenset[str] | None = field(default=frozenset())
    """What the members subscribe to; None: that cannot be read."""


class RunningGroups(Protocol):
    """The groups with members that this node coordinates, whatever their kind."""

    def names(self) -> list[str]: ...

    def summary(self, name: str) -> GroupSummary | None:
        """None: it has no members."""
        ...

    def describe(self, name: str) -> DescribedGroup | None:
        """None: it has no members."""
        ...
