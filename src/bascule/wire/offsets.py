"""The records of `_offsets`, the stream with the committed offsets of consumers.

A commit is a NATS message on `_bascule.offsets.CONSUMER.STREAM.PARTITION`. That subject is the
record's key, and the stream is compacted by key, so the last commit of each subject remains. The
value is JSON::

    {"offset": 42, "leader_epoch": 3, "metadata": "", "committed_ms": 1764000000000}

Only `offset` is required: the first offset that the consumer has not processed. A message with the
header `KV-Operation: DEL` (a null value in the log) removes the commit.

Consumer and stream are one token each. Letters, digits, `_` and `-` are written unchanged. Every
other byte of the name's UTF-8 is written as `%XX`. So the stream `eu.flights` is `eu%2Eflights`,
and each subject has exactly one meaning.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Meta

from bascule.errors import InvalidName

OFFSETS_STREAM: Final = "_offsets"
SUBJECT_PREFIX: Final = "_bascule.offsets."
GROUP_PREFIX: Final = "_bascule.groups."
OFFSETS_SUBJECT: Final = "_bascule.offsets.*.*.*"
"""The subject of the stream. Messages with another number of tokens are not commits."""

STREAM_ID_HEADER: Final = "Bascule-Stream-Id"
"""Header of a commit; its value is the hexadecimal id of the stream. The commit does not count for
another stream of the same name."""

CONSUMER_BYTES_MAX: Final = 200
"""A consumer name and a stream name fit a NATS subject when escaped."""
METADATA_BYTES_MAX: Final = 4_096
"""From Kafka's offset.metadata.max.bytes."""

_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_OFFSET_MAX: Final = (1 << 63) - 1
_PLAIN_SUBJECT: Final = re.compile(
    r"_bascule\.offsets\.([A-Za-z0-9_-]{1,200})\.([A-Za-z0-9_-]+)\.(0|[1-9][0-9]{0,8})"
)
"""A subject without escapes. Almost all subjects match, and parsing is ten times as fast."""


_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


class OffsetKey(NamedTuple):
    """The consumer, stream and partition of a commit."""

    consumer: str
    stream: str
    partition: int


class Commit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The value of a commit. Omitted fields have their defaults."""

    offset: Annotated[int, Meta(ge=0, le=_OFFSET_MAX)]
    """The first offset that the consumer has not processed."""
    leader_epoch: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] = -1
    """The leader epoch of the record before `offset`; -1 if unknown."""
    metadata: str = ""
    committed_ms: Annotated[int, Meta(ge=0, le=_OFFSET_MAX)] = 0
    """Unix time; 0 if unknown. The record's timestamp is then used."""


_DECODER: Final = msgspec.json.Decoder(Commit)


def check_consumer(name: str) -> None:
    """Check the name of a consumer: 1 to 200 bytes of printable text.

    Raises: InvalidName naming the violated rule.
    """
    if not name:
        raise InvalidName("consumer", name, "it is empty")
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > CONSUMER_BYTES_MAX:
        raise InvalidName("consumer", name, f"{size} bytes long, at most {CONSUMER_BYTES_MAX}")
    if not name.isprintable():
        raise InvalidName("consumer", name, "it holds a character that is not printable")


def commit_subject(key: OffsetKey) -> str:
    """The subject of the commits of `key`, which is the record's key. Raises: InvalidName."""
    check_consumer(key.consumer)
    return f"{SUBJECT_PREFIX}{_token(key.consumer)}.{_token(key.stream)}.{key.partition}"


def parse_commit_subject(subject: str) -> OffsetKey:
    """The inverse of `commit_subject`. Raises: ValueError for every other text."""
    if plain := _PLAIN_SUBJECT.fullmatch(subject):
        return OffsetKey(plain[1], plain[2], int(plain[3]))
    tokens = subject.removeprefix(SUBJECT_PREFIX).split(".")
    if not subject.startswith(SUBJECT_PREFIX) or len(tokens) != 3 or not tokens[2].isdecimal():
        raise ValueError(f"expected {SUBJECT_PREFIX}CONSUMER.STREAM.PARTITION, got {subject!r}")
    consumer, stream = (unquote_to_bytes(token).decode() for token in tokens[:2])
    key = OffsetKey(consumer, stream, int(tokens[2]))
    try:
        canonical = commit_subject(key)
    except InvalidName as error:
        raise ValueError(str(error)) from error
    if canonical != subject or not stream or key.partition >= 1 << 31:
        raise ValueError(f"expected {canonical!r}, got {subject!r}")
    return key


def group_subject(name: str) -> str:
    """The key of the record with the members of a group. Raises: InvalidName.

    It is none of the stream's subjects: nobody but a node can write such a record.
    """
    check_consumer(name)
    return GROUP_PREFIX + _token(name)


def member_subject(name: str, member_id: str) -> str:
    """The key of the record of one member of a group. Raises: InvalidName."""
    return f"{group_subject(name)}.{_token(member_id)}"


def parse_group_subject(subject: str) -> tuple[str, str | None]:
    """The inverse of `group_subject` and `member_subject`: the group, and the member or None.

    Raises: ValueError for every other text.
    """
    tokens = subject.removeprefix(GROUP_PREFIX).split(".")
    names = [unquote_to_bytes(token).decode(errors="surrogatepass") for token in tokens]
    canonical = GROUP_PREFIX + ".".join(map(_token, names))
    if len(names) > 2 or not all(names) or canonical != subject:
        raise ValueError(f"expected {GROUP_PREFIX}GROUP or .MEMBER behind it, got {subject!r}")
    return names[0], names[1] if len(names) > 1 else None


def encode_commit(commit: Commit) -> bytes:
    """The value of a commit's record."""
    return msgspec.json.encode(commit)


def decode_commit(value: bytes) -> Commit:
    """Decode the value of a commit's record; ignores unknown fields. Raises: ValueError."""
    try:
        commit = _DECODER.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    size = len(commit.metadata.encode("utf-8", "surrogatepass"))
    if size > METADATA_BYTES_MAX:
        raise ValueError(f"metadata has {size} bytes, at most {METADATA_BYTES_MAX}")
    return commit


def _token(name: str) -> str:
    if _PLAIN_NAME.fullmatch(name):
        return name
    return "".join(
        chr(byte) if byte in _PLAIN else f"%{byte:02X}"
        for byte in name.encode("utf-8", "surrogatepass")
    )
