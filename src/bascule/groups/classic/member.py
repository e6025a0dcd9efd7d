"""One member of a classic group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from bascule.groups.classic.messages import JoinedMember, JoinRequest
from bascule.groups.classic.snapshot import MemberSnapshot

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]

PROTOCOL_BYTES: Final = 64
"""Of a name and metadata in memory, beyond what they say: a request may have 300,000 empty ones."""


MEMBER_BYTES: Final = 1_300
"""Of a member in memory and in the record of its group, beyond what it says; measured: 600 in
memory and 200 to 250 in the record. The rest is for what the memory allocator loses."""
PROTOCOL_KEPT_BYTES: Final = 100
"""Of a protocol in memory, beyond what `protocols_bytes` says; measured: 165 bytes in all."""


def protocols_bytes(protocols: Protocols) -> int:
    """What the protocols of a member count for the size of its group."""
    return sum(PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in protocols)


def stored_twice_bytes(size: int) -> int:
    """What some bytes take that are kept in memory, and as base64 in the record of the group."""
    return size + (4 * size + 2) // 3


def kept_bytes(said_bytes: int, protocols: int) -> int:
    """What a member takes in memory, and as it is stored, without its assignment."""
    return MEMBER_BYTES + stored_twice_bytes(said_bytes) + PROTOCOL_KEPT_BYTES * protocols


def joining_bytes(request: JoinRequest) -> int:
    """What the member of a join will take; see `Member.kept_bytes`."""
    ids = len(request.member_id or request.new_member_id)
    ids += len(request.instance_id or "") + len(request.client_id)
    return kept_bytes(ids + protocols_bytes(request.protocols), len(request.protocols))


@dataclass(slots=True)
class Member:
    """A member that has joined at least once."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join_ticket: int | None = None
    """Of the join that waits; None: none."""
    sync_ticket: int | None = None
    has_synced: bool = False
    """Whether it has sent a sync for the present generation."""
    is_known: bool = False
    """Whether its client has been told its id."""
    heard_ms: int = field(default=0)
    """When it was last heard of."""
    earlier_generation: int | None = None
    """That which it knows, if not the present one: in a group of the consumer protocol, which this
    one was, each member has its own. It counts until the next generation begins."""

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def deadline_ms(self) -> int | None:
        """When its session ends; None while it waits for an answer."""
        if self.join_ticket is not None or self.sync_ticket is not None:
            return None
        return self.heard_ms + self.session_timeout_ms

    @property
    def size_bytes(self) -> int:
        """Of its ids and its metadata."""
        ids = len(self.member_id) + len(self.instance_id or "") + len(self.client_id)
        return ids + protocols_bytes(self.protocols)

    @property
    def kept_bytes(self) -> int:
        """What it takes in memory, and as it is stored, without its assignment."""
        return kept_bytes(self.size_bytes, len(self.protocols))

    @property
    def protocol_names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.protocols)

    def update(self, request: JoinRequest) -> None:
        """Take over what a join says."""
        self.protocols = request.protocols
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.client_id = request.client_id
        self.client_host = request.client_host

    def metadata(self, protocol: str) -> bytes:
        """The metadata for a protocol; empty if the member has none for it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def joined(self, protocol: str) -> JoinedMember:
        return JoinedMember(self.member_id, self.instance_id, self.metadata(protocol))

    def snapshot(self, assignment: bytes) -> MemberSnapshot:
        """The member with the assignment that it is about to be given."""
        return MemberSnapshot(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocols=self.protocols,
            assignment=assignment,
        )


def new_member(request: JoinRequest, member_id: str, now_ms: int) -> Member:
    """The member that a join makes."""
    return Member(
        member_id=member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        heard_ms=now_ms,
    )


def restored_member(stored: MemberSnapshot, now_ms: int) -> Member:
    """The member of a stored generation; its session begins now."""
    return Member(
        member_id=stored.member_id,
        instance_id=stored.instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        session_timeout_ms=stored.session_timeout_ms,
        rebalance_timeout_ms=stored.rebalance_timeout_ms,
        protocols=stored.protocols,
        assignment=stored.assignment,
        has_synced=True,
        is_known=True,
        heard_ms=now_ms,
    )


def choose_protocol(members: list[Member]) -> str:
    """The protocol that all members support and most prefer; of several the first one's choice.

    Empty if the members have none in common.
    """
    common = set.intersection(*({name for name, _ in member.protocols} for member in members))
    votes = dict.fromkeys((name for name, _ in members[0].protocols if name in common), 0)
    if not votes:
        return ""
    for member in members:
        votes[next(name for name, _ in member.protocols if name in common)] += 1
    return max(votes, key=lambda name: votes[name])
