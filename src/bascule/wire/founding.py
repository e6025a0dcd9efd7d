"""What the founders of a cluster tell each other over NATS before the cluster exists.

One JSON object on `_bascule.founding.NAME`, where NAME is the cluster's::

    {"v": 1, "expect": 3, "age_ms": 1500, "decided": false,
     "founder": {"node_id": 2, "directory": "0011223344556677", "peer": "10.0.0.2:9093"},
     "promise": {"round": 1, "founders": [{"node_id": 1, ...}, ...]}}

`directory` is drawn when a data directory is first used: a node that has lost its disk is another
founder than before. `promise` is on the sender's disk, and absent before its first one. `decided`
says that the sender has heard the same promise from all its founders. `age_ms` is the time since
the sender's start. A receiver ignores fields that it does not know, and later versions.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from bascule.config.addresses import parse_address

FOUNDING_SUBJECT_PREFIX: Final = "_bascule.founding"
FOUNDING_VERSION: Final = 1
FOUNDING_BYTES_MAX: Final = 16 << 10
"""15 founders are some 2 KiB."""
FOUNDERS_MAX: Final = 15
NODE_ID_MAX: Final = (1 << 31) - 1

Directory = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class Founder(msgspec.Struct, frozen=True, order=True):
    """One founding node."""

    node_id: Annotated[int, Meta(ge=0, le=NODE_ID_MAX)]
    directory: Directory
    peer: Annotated[str, Meta(max_length=300, pattern="^[^\\s,@]+$")]
    """host:port of its peer listener."""


class FoundingSet(msgspec.Struct, frozen=True, order=True):
    """A set of founders to which a node promises itself. A node has one in a round, and its rounds
    only rise."""

    round: Annotated[int, Meta(ge=1, le=(1 << 53) - 1)]
    founders: Annotated[tuple[Founder, ...], Meta(min_length=1, max_length=FOUNDERS_MAX)]
    """By node id."""


class FounderAnnouncement(msgspec.Struct, frozen=True, kw_only=True):
    """What one node says; see the module."""

    v: Annotated[int, Meta(ge=1)] = FOUNDING_VERSION
    expect: Annotated[int, Meta(ge=1, le=FOUNDERS_MAX)]
    age_ms: Annotated[int, Meta(ge=0)]
    founder: Founder
    promise: FoundingSet | None = None
    decided: bool = False


class KeptPromise(msgspec.Struct, frozen=True):
    """What a node keeps in `founders.json`."""

    directory: Directory
    promise: FoundingSet | None = None
    decided: bool = False


def founding_subject(cluster: str) -> str:
    """The subject of a cluster; its name is one token of a subject."""
    return f"{FOUNDING_SUBJECT_PREFIX}.{cluster}"


def encode_founder(announcement: FounderAnnouncement) -> bytes:
    return msgspec.json.encode(announcement)


def decode_founder(data: bytes) -> FounderAnnouncement | None:
    """None for what is malformed, too large, of a later version or contradicts itself."""
    if len(data) > FOUNDING_BYTES_MAX:
        return None
    try:
        found = msgspec.json.decode(data, type=FounderAnnouncement)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    promise = found.promise
    founders = [found.founder, *(promise.founders if promise is not None else ())]
    try:
        for each in founders:
            parse_address(each.peer)
    except ValueError:
        return None
    if found.v > FOUNDING_VERSION or (found.decided and promise is None):
        return None
    if promise is not None:
        ids = [each.node_id for each in promise.founders]
        if ids != sorted(set(ids)):
            return None
        if found.founder.directory not in {each.directory for each in promise.founders}:
            return None
    return found
