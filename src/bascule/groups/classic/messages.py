"""What goes into a group and comes out of it, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from bascule.groups.classic.snapshot import GroupSnapshot
from bascule.wire.error_codes import ErrorCode


class GroupState(StrEnum):
    """Kafka's names, as tools show them."""

    EMPTY = "Empty"
    """No members; some that were given an id may be about to join."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Joins wait until all members have joined."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A generation has begun; syncs wait for its assignment."""
    STABLE = "Stable"
    DEAD = "Dead"
    """This node does not coordinate the group any more."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Bounds of one group, and its initial delay."""

    initial_delay_ms: int = 1_000
    """How long the first rebalance of an empty group waits for more members."""
    session_ms_min: int = 6_000
    """From Kafka's group.min.session.timeout.ms."""
    session_ms_max: int = 1_800_000
    """From Kafka's group.max.session.timeout.ms."""
    members_max: int = 1_000
    bytes_max: int = 1 << 20
    """Metadata of all members, and their assignments. A state is one record of `_offsets`, and as
    JSON it must fit into a segment. 1,000 members of 200 bytes with 5 assignments take 0.3 MiB."""
    total_bytes_max: int = 256 << 20
    """Of all groups that a node coordinates, in memory, about: members, assignments and their
    stored states. Beyond it nothing is taken that makes a group larger. 10,000 groups of 3 members
    that say 200 bytes and have assignments of 200 bytes take 90 MiB."""
    consumer_session_ms: int = 45_000
    """Of members of the consumer protocol. From Kafka's group.consumer.session.timeout.ms."""
    consumer_heartbeat_ms: int = 5_000
    """From Kafka's group.consumer.heartbeat.interval.ms."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup request."""

    member_id: str
    """Empty: a new member."""
    instance_id: str | None
    """Of a static member (KIP-345)."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata, the preferred one first."""
    new_member_id: str = ""
    """The id of a new member, which nobody has had before."""
    client_id: str = ""
    client_host: str = ""
    knows_required_ids: bool = True
    """Whether the client joins again when it is given an id (KIP-394, version 4)."""
    may_skip_assignment: bool = True
    """Whether a leader can be told to assign nothing (KIP-814, version 9)."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the leader learns of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """The answer to a join."""

    error: ErrorCode = ErrorCode.NONE
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    member_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    """Of all members, for the leader alone."""
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """The answer to a sync: the member's assignment."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """Answer the request that came with `ticket`."""

    ticket: int
    answer: JoinAnswer | SyncAnswer


@dataclass(frozen=True, slots=True)
class Store:
    """Store the state, then call `on_stored` with `number`. States are stored in order."""

    number: int
    snapshot: GroupSnapshot | None
    """None: the group has no members any more."""


Effect: TypeAlias = GroupAnswer | Store
