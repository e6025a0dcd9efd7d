"""One member of a group of the consumer protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from bascule.groups.classic.member import kept_bytes, protocols_bytes
from bascule.groups.consumer.messages import NOTHING, Partitions


class MemberState(StrEnum):
    """How far a member is on the way to its target."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    """It has to say that it does not own `revoking` any more."""
    UNRELEASED = "unreleased"
    """Others still own partitions of its target."""


@dataclass(slots=True)
class ClassicSide:
    """What a member that speaks the classic protocol has besides."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata, the preferred one first."""
    due_ms: int | None = None
    """When it must have joined or synced; None: neither is expected."""


@dataclass(slots=True)
class ConsumerMember:
    """A member, what it subscribes to, and what it owns."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 0
    topics: frozenset[str] = frozenset()
    """Subscribed by name."""
    regex: str = ""
    """Subscribed by a regular expression; empty: none."""
    assignor: str | None = None
    """The one that it prefers."""
    epoch: int = 0
    """Of the assignment that it has, or -2: a static member that is away."""
    previous_epoch: int = 0
    """The one before `epoch`: the member knows only that one if it missed an answer."""
    state: MemberState = MemberState.STABLE
    target: Partitions = NOTHING
    """What it shall own."""
    assigned: Partitions = NOTHING
    """What it may own."""
    revoking: Partitions = NOTHING
    """What it may not own any more, but has not given up yet."""
    heard_ms: int = field(default=0)
    revoke_due_ms: int | None = None
    """When it must have given up `revoking`."""
    classic: ClassicSide | None = None
    """None: it speaks the consumer protocol."""

    @property
    def is_away(self) -> bool:
        return self.epoch < 0

    def deadline_ms(self, session_ms: int) -> int:
        """When it is removed unless it is heard of; `session_ms` is for the consumer protocol."""
        classic = self.classic
        due_ms = self.heard_ms + (session_ms if classic is None else classic.session_timeout_ms)
        if self.revoke_due_ms is not None:
            due_ms = min(due_ms, self.revoke_due_ms)
        if classic is not None and classic.due_ms is not None:
            due_ms = min(due_ms, classic.due_ms)
        return due_ms

    @property
    def size_bytes(self) -> int:
        """Of what it says about itself, and of its assignments as they are stored."""
        partitions = len(self.target) + len(self.assigned) + len(self.revoking)
        return self.said_bytes + 6 * partitions

    @property
    def kept_bytes(self) -> int:
        """What it takes in memory, and as it is stored, without its assignments."""
        protocols = 0 if self.classic is None else len(self.classic.protocols)
        return kept_bytes(self.said_bytes, len(self.topics) + protocols)

    @property
    def said_bytes(self) -> int:
        """Of what it says about itself."""
        said = len(self.member_id) + len(self.instance_id or "") + len(self.client_id)
        said += len(self.rack_id or "") + len(self.regex) + sum(map(len, self.topics))
        return said if self.classic is None else said + protocols_bytes(self.classic.protocols)
