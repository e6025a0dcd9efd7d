"""What members of classic groups of protocol type `consumer` tell each other.

It is opaque to the coordinator of a classic group. The coordinator of a group with members of both
protocols reads subscriptions and writes assignments. Each begins with its version as int16; a
reader takes the newest version that it knows and ignores what follows.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, TypeVar

from bascule.errors import RemoteProtocolError
from bascule.wire.codec import decode_prefix, encode
from bascule.wire.primitives import Piece
from bascule.wire.schema import (
    Array,
    Bytes,
    Int32,
    Message,
    NullableString,
    String,
    Structure,
    Versions,
)

PROTOCOL_TYPE: Final = "consumer"
_VERSION: Final = struct.Struct(">h")

M = TypeVar("M", bound=Message)


@dataclass(slots=True)
class OwnedTopic(Structure):
    topic: String = ""
    partitions: Array[Int32] = ()


@dataclass(slots=True)
class ConsumerSubscription(Message):
    """The metadata of a member."""

    VERSIONS: ClassVar[Versions] = Versions("0-3")
    topics: Array[String] = ()
    user_data: Bytes | None = None
    owned_partitions: Annotated[Array[OwnedTopic], Versions("1+")] = ()
    generation_id: Annotated[Int32, Versions("2+")] = -1
    rack_id: Annotated[NullableString, Versions("3+")] = None


@dataclass(slots=True)
class ConsumerAssignment(Message):
    """The assignment of a member."""

    VERSIONS: ClassVar[Versions] = Versions("0-3")
    assigned_partitions: Array[OwnedTopic] = ()
    user_data: Bytes | None = None


def encode_subscription(subscription: ConsumerSubscription) -> bytes:
    """The metadata of a member, in the newest version."""
    version = ConsumerSubscription.VERSIONS.last
    parts: list[Piece] = [_VERSION.pack(version)]
    encode(subscription, version, parts)
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


def decode_subscription(metadata: bytes) -> ConsumerSubscription:
    """Raises: RemoteProtocolError."""
    return _decode(ConsumerSubscription, metadata)


def decode_assignment(assignment: bytes) -> dict[str, list[int]]:
    """Partitions by topic; none where `assignment` is empty. Raises: RemoteProtocolError."""
    if not assignment:
        return {}
    found = _decode(ConsumerAssignment, assignment)
    return {each.topic: list(each.partitions) for each in found.assigned_partitions}


def encode_assignment(partitions: Mapping[str, Sequence[int]], version: int = 0) -> bytes:
    """Partitions by topic, in version `version` at most."""
    version = max(min(version, ConsumerAssignment.VERSIONS.last), 0)
    parts: list[Piece] = [_VERSION.pack(version)]
    topics = [OwnedTopic(topic, partitions[topic]) for topic in sorted(partitions)]
    encode(ConsumerAssignment(topics), version, parts)
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


def subscription_version(metadata: bytes) -> int:
    """The version of a member's metadata; 0 if there is none."""
    return int(_VERSION.unpack_from(metadata)[0]) if len(metadata) >= _VERSION.size else 0


def _decode(kind: type[M], data: bytes) -> M:
    if len(data) < _VERSION.size:
        raise RemoteProtocolError(f"{kind.__name__} has {len(data)} bytes, expected a version")
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise RemoteProtocolError(f"{kind.__name__} has version {version}, expected 0 or more")
    known = min(version, kind.VERSIONS.last)
    return decode_prefix(kind, known, memoryview(data), _VERSION.size)[0]
