"""The state of a group as it is stored: what its members know, and nothing that is under way."""

from __future__ import annotations

import msgspec

FORMAT = 1


class MemberSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a stored generation."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata, in the member's order of preference."""
    assignment: bytes


class GroupSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A generation with its assignment; a group without members is not stored."""

    format: int = FORMAT
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[MemberSnapshot, ...]


_DECODER = msgspec.json.Decoder(GroupSnapshot)


def encode_snapshot(snapshot: GroupSnapshot) -> bytes:
    """The value of a group's record: JSON, bytes as base64."""
    return msgspec.json.encode(snapshot)


def decode_snapshot(value: bytes) -> GroupSnapshot:
    """Ignores unknown fields. Raises: ValueError."""
    try:
        snapshot = _DECODER.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if snapshot.format != FORMAT:
        raise ValueError(f"format {snapshot.format}, expected {FORMAT}")
    if snapshot.leader not in {member.member_id for member in snapshot.members}:
        raise ValueError(f"the leader {snapshot.leader!r} is no member")
    return snapshot
