"""What goes into a group of the consumer protocol and comes out of it, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec

from bascule.groups.classic.messages import JoinAnswer, SyncAnswer
from bascule.wire.error_codes import ErrorCode

JOINS: Final = 0
"""Epoch of a member that joins."""
LEAVES: Final = -1
"""Epoch of a member that leaves."""
LEAVES_FOR_A_WHILE: Final = -2
"""Epoch of a static member that leaves and means to come back."""


class TopicPartition(NamedTuple):
    """A partition of a stream, by the stream's id."""

    topic_id: bytes
    partition: int


Partitions: TypeAlias = frozenset[TopicPartition]
NOTHING: Final[Partitions] = frozenset()


class Topics(Protocol):
    """The streams that can be subscribed."""

    @property
    def version(self) -> int:
        """Another number after each change of streams or their partitions."""
        ...

    def find(self, name: str) -> tuple[bytes, int] | None:
        """The id of a stream and how many partitions it has."""
        ...

    def names(self) -> list[str]:
        """All streams that a regular expression may match."""
        ...

    def name_of(self, topic_id: bytes) -> str | None: ...


class MemberHeartbeat(msgspec.Struct, frozen=True, gc=False):
    """A ConsumerGroupHeartbeat request. None: as the member has said before."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    """Matches whole names of streams; empty: no expression."""
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def said_bytes(self) -> int:
        """Of what it says about the member; see `ConsumerMember.said_bytes`."""
        said = len(self.member_id) + len(self.instance_id or "") + len(self.client_id)
        return (
            said
            + len(self.rack_id or "")
            + len(self.regex or "")
            + sum(map(len, frozenset(self.topics or ())))
        )

    @property
    def says_all(self) -> bool:
        """Whether it has all fields, as a member sends them that has missed an answer."""
        subscribes = self.topics is not None or self.regex is not None
        return self.rebalance_timeout_ms >= 0 and subscribes and self.owned is not None


class MemberAnswer(msgspec.Struct, frozen=True, gc=False):
    """The answer to a `MemberHeartbeat`."""

    error: ErrorCode = ErrorCode.NONE
    reason: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assigned: Partitions | None = None
    """All partitions that the member may have; None: as it was told before."""


@dataclass(frozen=True, slots=True)
class ReadyAnswer:
    """Answer the request that came with `ticket`."""

    ticket: int
    answer: MemberAnswer | JoinAnswer | SyncAnswer


@dataclass(frozen=True, slots=True)
class StoreRecords:
    """Store these records in one batch, then call `on_stored` with `number`."""

    number: int
    records: tuple[tuple[str | None, bytes | None], ...]
    """Id of a member, None for the group, and its record; without one the record is removed."""


ConsumerEffect: TypeAlias = ReadyAnswer | StoreRecords
