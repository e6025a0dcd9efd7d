"""Announcements: what nodes on one NATS tell each other about their streams.

All announcements are JSON objects on one subject, `_bascule.announce`. Every one names its sender::

    {"v": 1, "kind": "alive", "cluster": "5f...", "node": 1, "run": "0011223344556677",
     "revision": 3, "interval_ms": 10000}

`run` is drawn at each start of a node. `revision` counts the changes of the sender's streams in
this run. The kinds, with the fields that only they have:

    alive     sent at the start, after a reconnect and at each interval. `asking`: receivers
              answer with an `alive`
    request   asks the node with the run `target` for its list
    list      all streams of the sender: page `page` of `pages`
    change    the streams that were added, altered or `removed` since the revision `base`
    end       the node stops

A receiver ignores fields that it does not know, and whole announcements of a later version. An
announcement never has a reply subject.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from bascule.errors import InvalidName
from bascule.model import STREAM_NAME_LENGTH_MAX
from bascule.wire.subjects import SUBJECT_BYTES_MAX, check_subject

ANNOUNCE_SUBJECT: Final = "_bascule.announce"
VERSION: Final = 1
ANNOUNCEMENT_BYTES_MAX: Final = 64 << 10
"""Largest announcement that is sent or read: a page of some 600 streams, far below the default
max_payload of NATS (1 MiB)."""
PAGES_MAX: Final = 10_000
INTERVAL_MS_MIN: Final = 100
INTERVAL_MS_MAX: Final = 3_600_000

Kind = Literal["alive", "request", "list", "change", "end"]
StreamName = Annotated[str, Meta(min_length=1, max_length=STREAM_NAME_LENGTH_MAX)]
Run = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
_Revision = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]


class StreamClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """One stream of the sender, as far as other clusters are concerned."""

    name: StreamName
    subject: Annotated[str, Meta(min_length=1, max_length=SUBJECT_BYTES_MAX)]
    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    acks: bool = True
    shared: bool = False
    group: Annotated[str, Meta(max_length=SUBJECT_BYTES_MAX)] = ""
    """The NATS queue group of its subscriptions; empty: none."""


class Announcement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One announcement; see the module."""

    v: Annotated[int, Meta(ge=1)]
    kind: Kind
    cluster: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
    node: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
    run: Run
    revision: _Revision
    interval_ms: Annotated[int, Meta(ge=INTERVAL_MS_MIN, le=INTERVAL_MS_MAX)]
    asking: bool = False
    target: Run = "0" * 16
    base: _Revision = 0
    page: Annotated[int, Meta(ge=0, lt=PAGES_MAX)] = 0
    pages: Annotated[int, Meta(ge=1, le=PAGES_MAX)] = 1
    streams: msgspec.Raw = msgspec.Raw(b"[]")
    """JSON of the `StreamClaim`s; `decode_claims` reads it."""
    removed: Annotated[list[StreamName], Meta(max_length=PAGES_MAX)] = msgspec.field(
        default_factory=list
    )


class Unreadable(StrEnum):
    """Why an announcement is ignored. The values are labels of a metric."""

    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    VERSION = "version"
    """A later version of Bascule sent it."""


class _Versioned(msgspec.Struct):
    v: int


_ANNOUNCEMENT: Final = msgspec.json.Decoder(Announcement)
_CLAIMS: Final = msgspec.json.Decoder(list[StreamClaim])
_VERSIONED: Final = msgspec.json.Decoder(_Versioned)
_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_announcement(data: bytes) -> Announcement | Unreadable:
    """Read an announcement, without its streams. Any bytes are read, or refused with the reason."""
    if len(data) > ANNOUNCEMENT_BYTES_MAX:
        return Unreadable.TOO_LARGE
    try:
        found = _ANNOUNCEMENT.decode(data)
    except _ERRORS:
        try:
            later = _VERSIONED.decode(data).v > VERSION
        except _ERRORS:
            later = False
        return Unreadable.VERSION if later else Unreadable.MALFORMED
    return Unreadable.VERSION if found.v > VERSION else found


def decode_claims(announcement: Announcement) -> list[StreamClaim] | Unreadable:
    """The streams of a list or a change. Their subjects are not checked, because most claims are
    dropped at once: see `is_valid`."""
    try:
        return _CLAIMS.decode(announcement.streams)
    except _ERRORS:
        return Unreadable.MALFORMED


def is_valid(claim: StreamClaim) -> bool:
    """Whether the subject of a claim is one."""
    try:
        check_subject(claim.subject, wildcards=True)
    except InvalidName:
        return False
    return True


def encode_announcement(announcement: Announcement) -> bytes:
    return msgspec.json.encode(announcement)


def encode_list(
    announcement: Announcement, claims: Iterable[StreamClaim], *, bytes_max: int
) -> tuple[list[bytes], int]:
    """The pages of a list with the sender of `announcement`, each of at most `bytes_max` bytes.

    The second value is the number of streams left out, because one of them alone is larger.
    """
    # Every page has the longest numbers of any page, so that its size is known before its number.
    widest = msgspec.structs.replace(
        announcement, kind="list", page=PAGES_MAX - 1, pages=PAGES_MAX, streams=msgspec.Raw(b"[0]")
    )
    room = min(bytes_max, ANNOUNCEMENT_BYTES_MAX) - len(encode_announcement(widest))
    grouped: list[list[bytes]] = [[]]
    used = left_out = 0
    for claim in claims:
        text = msgspec.json.encode(claim)
        if len(text) + 1 > room:
            left_out += 1
            continue
        if used + len(text) + 1 > room:
            grouped.append([])
            used = 0
        grouped[-1].append(text)
        used += len(text) + 1
    if len(grouped) > PAGES_MAX:
        left_out += sum(map(len, grouped[PAGES_MAX:]))
        del grouped[PAGES_MAX:]
    pages = [
        encode_announcement(
            msgspec.structs.replace(
                widest,
                page=number,
                pages=len(grouped),
                streams=msgspec.Raw(b"[" + b",".join(texts) + b"]"),
            )
        )
        for number, texts in enumerate(grouped)
    ]
    return pages, left_out


def encode_change(
    announcement: Announcement,
    claims: Sequence[StreamClaim],
    removed: Sequence[str],
    *,
    bytes_max: int,
) -> bytes | None:
    """A change with the sender and `base` of `announcement`; None if it is larger than
    `bytes_max`."""
    if len(claims) + len(removed) > PAGES_MAX:
        return None
    change = msgspec.structs.replace(
        announcement,
        kind="change",
        streams=msgspec.Raw(msgspec.json.encode(claims)),
        removed=list(removed),
    )
    data = encode_announcement(change)
    return data if len(data) <= min(bytes_max, ANNOUNCEMENT_BYTES_MAX) else None
