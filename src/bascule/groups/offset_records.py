"""Read commits out of the stream's log, and find the places of other logs to commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from bascule.errors import OffsetOutOfRange, PartitionFailed
from bascule.record.batch import Record, RecordBatch, scan_batches
from bascule.replica.partition import Partition
from bascule.storage.partition_log import LogPosition, PartitionLog
from bascule.wire.offsets import Commit, OffsetKey, decode_commit, parse_commit_subject

READ_BYTES: Final = 1 << 20
REPAIRS_HEADER: Final = "Bascule-Repairs"
"""Marks what `Offsets` commits again; its value is the last offset it had read by then."""


class Held(NamedTuple):
    commit: Commit
    appended_ms: int
    """When its record came to the log, on this node's clock."""
    at: int
    """The offset of its record."""


class Change(NamedTuple):
    """What one record does: a commit, a removal (`held` None), or nothing (`why` says why)."""

    key: OffsetKey | None
    """None where the record has no key of a commit."""
    held: Held | None = None
    repairs: int | None = None
    """It makes a commit again whose place the record at this offset had taken."""
    why: str = ""


def read_changes(store: PartitionLog, start: int, end: LogPosition) -> tuple[list[Change], int]:
    """What about `READ_BYTES` from offset `start` on hold, and where they end; blocks on the disk.

    Raises: CorruptData, LogFailed, Closed, OSError.
    """
    start = max(start, store.start_offset)
    piece = store.plan_read(start, bytes_max=READ_BYTES, end=end)
    assert piece is not None
    if not piece.length:
        # Compaction has removed all that was there.
        return [], end.offset
    origin = piece.file.path
    data = memoryview(piece.file.read_at(piece.position, piece.length))
    changes: list[Change] = []
    reached = start
    for header, at, to in scan_batches(data, origin=origin, origin_position=piece.position):
        reached = max(reached, header.end_offset)
        records = RecordBatch(data[at:to], origin=origin)
        changes += [_change_of(record) for record in records if record.offset >= start]
    return changes, reached


def _change_of(record: Record) -> Change:
    key: OffsetKey | None = None
    try:
        key = _key_of(record)
        if record.value is None:
            return Change(key)
        held = Held(decode_commit(record.value), record.timestamp, record.offset)
        repairs = dict(record.headers).get(REPAIRS_HEADER)
        return Change(key, held, None if repairs is None else int(repairs))
    except ValueError as error:
        return Change(key, why=str(error))


def _key_of(record: Record) -> OffsetKey:
    """Raises: ValueError where it is no commit's key, or not the subject it was published on."""
    name, subject = record.headers[0] if record.headers else ("", None)
    if not record.key or name != "subject" or subject != record.key:
        raise ValueError(f"expected the subject as key, got {(record.key or b'')[:80]!r}")
    return parse_commit_subject(record.key.decode())


async def place_in(partition: Partition, to: int | str, *, at_ms: int) -> int:
    """Raises: OffsetOutOfRange, PartitionFailed; CorruptData, OSError."""
    end = partition.high_watermark
    if isinstance(to, int):
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
    look: Callable[[], tuple[int, int] | None] = partial(
        partition.log.find_timestamp, at_ms, end=end
    )
    found = await asyncio.to_thread(look)
    return end.offset if found is None else found[0]
