"""Decodes the records of the stream `_offsets`, and resolves the offsets of a reset."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from bascule.errors import NotLeader, OffsetOutOfRange, PartitionFailed
from bascule.model import StreamDefinition
from bascule.record.batch import Record, RecordBatch, scan_batches
from bascule.replica.partition import Partition
from bascule.storage.partition_log import LogPosition, PartitionLog
from bascule.wire.offsets import (
    GROUP_PREFIX,
    STREAM_ID_HEADER,
    Commit,
    OffsetKey,
    decode_commit,
    parse_commit_subject,
    parse_group_subject,
)

READ_BYTES: Final = 1 << 20
REPAIRS_HEADER: Final = "Bascule-Repairs"
"""Header of a repair; its value is the last offset of `_offsets` that the node had read."""

CHECKED_HEADER: Final = "Bascule-Checked"
"""Header without a value of what the coordinator of the consumer's group has written. A message of
NATS cannot have it: its headers have values."""


class StoredCommit(msgspec.Struct, gc=False):
    """A commit and its record in `_offsets`. Structs, since there are two for each commit."""

    commit: Commit
    appended_ms: int
    """Timestamp of the record, from this node's clock."""
    record_offset: int
    """-1 until it is committed."""
    stream_id: str | None = None
    """Hexadecimal id of the stream that it was committed for; None in commits over NATS."""


class OffsetChange(msgspec.Struct, gc=False):
    """One record of `_offsets`: a commit, a removal (`stored` is None), or malformed (`error`)."""

    key: OffsetKey | None
    """None if the record's key is not a commit's key."""
    stored: StoredCommit | None = None
    read_up_to: int | None = None
    """For a repair, the last offset that its publisher had read; else None."""
    error: str = ""
    is_checked: bool = False
    """Whether the coordinator has written it."""
    record_offset: int = -1
    """Of a removal, once it is committed."""
    group: str | None = None
    """The group whose record it is, if it is no commit."""
    member_id: str | None = None
    """The member of the group; None: the record is of the group as a whole."""
    state: bytes | None = None
    """Of that group or member; None: it has no members any more, or is gone."""


def dated_commit(commit: Commit, ms: int) -> Commit:
    """`commit` with `committed_ms` set to `ms` if it has none."""
    if commit.committed_ms:
        return commit
    return Commit(
        offset=commit.offset,
        leader_epoch=commit.leader_epoch,
        metadata=commit.metadata,
        committed_ms=ms,
    )


@dataclass(slots=True)
class OffsetsCounts:
    """Counters for metrics; all but `held` only grow."""

    commits: int = 0
    """Commits read from the stream, including those read at start."""
    removals: int = 0
    malformed: int = 0
    """Records that are not valid commits, and commits over NATS beyond COMMITS_MAX."""
    repairs: int = 0
    """Commits published again because a malformed record had replaced them."""
    fenced: int = 0
    """Commits and removals over NATS for groups with members, which are ignored."""
    held: int = 0
    """Commits in memory now."""


def is_for(stored: StoredCommit, stream: StreamDefinition) -> bool:
    """Whether a commit was made for this stream, not for an earlier one of its name."""
    if stored.stream_id is not None:
        return stored.stream_id == stream.id.hex()
    # A commit over NATS names no stream id, and one of release 0.1.0 has none.
    return stored.appended_ms >= stream.created_ms


def read_changes(
    store: PartitionLog, start: int, end: LogPosition
) -> tuple[list[OffsetChange], int]:
    """The changes in about `READ_BYTES` from offset `start` on, and their end offset.

    Blocks on the disk.

    Raises: CorruptData, LogFailed, Closed, OSError.
    """
    start = max(start, store.start_offset)
    piece = store.plan_read(start, bytes_max=READ_BYTES, end=end)
    assert piece is not None
    if not piece.length:
        # Compaction removed all records in this range.
        return [], end.offset
    origin = piece.file.path
    data = memoryview(piece.file.read_at(piece.position, piece.length))
    changes: list[OffsetChange] = []
    reached = start
    for header, at, to in scan_batches(data, origin=origin, origin_position=piece.position):
        reached = max(reached, header.end_offset)
        records = RecordBatch(data[at:to], origin=origin)
        changes += [_change_of(record) for record in records if record.offset >= start]
    return changes, reached


def _change_of(record: Record) -> OffsetChange:
    key: OffsetKey | None = None
    try:
        if (record.key or b"").startswith(GROUP_PREFIX.encode()):
            name, member_id = parse_group_subject((record.key or b"").decode())
            return OffsetChange(None, group=name, member_id=member_id, state=record.value)
        key = _key_of(record)
        headers = dict(record.headers)
        is_checked = headers.get(CHECKED_HEADER, b"") is None
        repaired = headers.get(REPAIRS_HEADER)
        read_up_to = None if repaired is None else int(repaired)
        if record.value is None:
            return OffsetChange(
                key, None, read_up_to, is_checked=is_checked, record_offset=record.offset
            )
        stream_id = headers.get(STREAM_ID_HEADER)
        stored = StoredCommit(
            decode_commit(record.value),
            record.timestamp,
            record.offset,
            None if stream_id is None else stream_id.decode(errors="replace"),
        )
        return OffsetChange(key, stored, read_up_to, is_checked=is_checked)
    except ValueError as error:
        return OffsetChange(key, error=str(error))


def _key_of(record: Record) -> OffsetKey:
    """Raises: ValueError if the key is not a commit's key, or not the subject of the record."""
    name, subject = record.headers[0] if record.headers else ("", None)
    if not record.key or name != "subject" or subject != record.key:
        raise ValueError(f"expected the subject as key, got {(record.key or b'')[:80]!r}")
    return parse_commit_subject(record.key.decode())


def stop_of(partition: Partition) -> PartitionFailed | NotLeader | None:
    """Why a partition that has stopped cannot be asked; None: it has not stopped.

    Where another replica is in sync, or eligible, that one is about to lead. Else it stays so until
    an operator acts: clients must not try again without end.
    """
    state = partition.state
    if partition.failure is None or state is None:
        return partition.failure
    if not partition.is_leader:
        return NotLeader.of_partition(state, partition.leader_epoch)
    if {*state.isr, *state.eligible}.difference((state.leader,)):
        return NotLeader(None, partition.leader_epoch)
    return partition.failure


async def resolve_offset(
    partition: Partition, to: int | str, *, at_ms: int, is_clamped: bool
) -> int:
    """The offset that `to` means: an offset itself, `earliest`, `latest` or `time` (`at_ms`).

    With `is_clamped` an offset out of range is the nearest one within.

    Raises: OffsetOutOfRange, PartitionFailed, CorruptData, OSError.
    """
    end = partition.high_watermark
    if isinstance(to, int):
        if is_clamped:
            to = min(max(to, partition.start_offset), end.offset)
        if not partition.start_offset <= to <= end.offset:
            raise OffsetOutOfRange(to, partition.start_offset, end.offset)
        return to
    if to == "earliest":
        return partition.start_offset
    if to == "latest":
        return end.offset
    if partition.failure is not None or partition.log is None:
        name = partition.definition.name
        raise partition.failure or PartitionFailed(name, partition.index, "its log is not open")
    find: Callable[[], tuple[int, int] | None] = partial(
        partition.log.find_timestamp, at_ms, end=end
    )
    found = await asyncio.to_thread(find)
    return end.offset if found is None else found[0]
