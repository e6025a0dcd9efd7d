"""Commits of one request but for their offsets: a member makes the same ones again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from bascule.errors import UnknownStream
from bascule.groups.offset_records import CHECKED_HEADER, OffsetChange, StoredCommit
from bascule.record._hot_encode import encode_headers
from bascule.replica.internal_publisher import EncodableRecord
from bascule.wire.offsets import (
    STREAM_ID_HEADER,
    Commit,
    OffsetKey,
    commit_subject,
    encode_commit,
)

KEYS_CACHED: Final = 4_096
"""Of records that are written again and again, about 500 bytes each."""


class PreparedCommit(msgspec.Struct, gc=False):
    """The commit of one key, with what its records have in common."""

    key: OffsetKey
    metadata: str
    record_key: bytes
    headers: bytes
    """As they are in the record."""
    stream_id: str


def prepare_commits(
    commits: Sequence[tuple[OffsetKey, str]], stream_id_of: Callable[[str], str | None]
) -> list[PreparedCommit]:
    """`commits` has keys and metadata. Raises: InvalidName, UnknownStream where a stream is not
    here."""
    prepared = []
    for key, metadata in commits:
        stream_id = stream_id_of(key.stream)
        if stream_id is None:
            raise UnknownStream(key.stream)
        subject, key_bytes = record_key(key)
        headers = encode_headers((("subject", subject.encode()), *commit_headers(stream_id)))
        prepared.append(PreparedCommit(key, metadata, key_bytes, headers, stream_id))
    return prepared


def encode_prepared(
    prepared: Sequence[PreparedCommit], values: Sequence[int], now_ms: int
) -> tuple[list[EncodableRecord], list[OffsetChange | None], int]:
    """The records of commits, what they change in memory, and the bytes of their keys and values.

    `values` has the offset and the leader epoch of each, in turn; an epoch below 0 is unknown.
    """
    records: list[EncodableRecord] = []
    changes: list[OffsetChange | None] = []
    size = at = 0
    for each in prepared:
        epoch = values[at + 1]
        commit = Commit(
            offset=values[at],
            leader_epoch=-1 if epoch < 0 else epoch,
            metadata=each.metadata,
            committed_ms=now_ms,
        )
        at += 2
        value = encode_commit(commit)
        size += len(each.record_key) + len(value)
        records.append((each.record_key, value, each.headers))
        stored = StoredCommit(commit, now_ms, -1, each.stream_id)
        changes.append(OffsetChange(each.key, stored, is_checked=True))
    return records, changes, size


@lru_cache(maxsize=KEYS_CACHED)
def record_key(key: OffsetKey) -> tuple[str, bytes]:
    """The subject of a commit's record, and its key. Raises: InvalidName."""
    subject = commit_subject(key)
    return subject, subject.encode()


@lru_cache(maxsize=KEYS_CACHED)
def hexadecimal(id: bytes) -> str:
    """The id of a stream as text."""
    return id.hex()


@lru_cache(maxsize=KEYS_CACHED)
def commit_headers(stream_id: str | None) -> tuple[tuple[str, bytes | None], ...]:
    """The headers of a record of the coordinator, behind the subject."""
    checked = (CHECKED_HEADER, None)
    return (checked,) if stream_id is None else ((STREAM_ID_HEADER, stream_id.encode()), checked)
