"""Reading: a range of offsets as Arrow batches, and Arrow batches as messages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeAlias
from weakref import finalize

from bascule.client.connection import LogConnection, PartitionDoor
from bascule.client.fetcher import OFFSET_MAX, Fetcher, FetchOptions
from bascule.client.messages import Message
from bascule.errors import OffsetOutOfRange
from bascule.record.columns import decode_batches

if TYPE_CHECKING:
    import pyarrow as pa

Start: TypeAlias = int | datetime | Literal["earliest", "latest"]
End: TypeAlias = int | Literal["latest"] | None


def resolve_range(
    door: PartitionDoor, connection: LogConnection, *, start: Start, end: End, follow: bool
) -> tuple[int, int]:
    """Turn what was asked for into offsets [start, end).

    A time stands for the first record at or after it, or the end where there is none. `end` None
    is the end of what is committed now, or with `follow` no end. Raises: OffsetOutOfRange where
    the range is not held; without `follow` an `end` that is not committed yet is out of range.
    """
    earliest, latest = door.extent(connection)
    if start == "earliest":
        first = earliest
    elif start == "latest":
        first = latest
    elif isinstance(start, datetime):
        first = _offset_at(door, connection, start, latest)
    elif isinstance(start, int):
        first = start
    else:
        raise ValueError(f"start is {start!r}: expected earliest, latest, an offset or a time")
    if not earliest <= first <= latest:
        raise OffsetOutOfRange(first, earliest, latest)
    if end is None:
        return first, OFFSET_MAX if follow else latest
    if end == "latest":
        return first, latest
    if not isinstance(end, int):
        raise ValueError(f"end is {end!r}: expected None, latest or an offset")
    if end > latest and not follow:
        raise OffsetOutOfRange(end, earliest, latest)
    return first, end


def _offset_at(door: PartitionDoor, connection: LogConnection, time: datetime, latest: int) -> int:
    if time.tzinfo is None:
        raise ValueError(f"start is {time!r}: a time needs a time zone, as in datetime.now(UTC)")
    found = door.find_offset(connection, max(0, round(time.timestamp() * 1000)))
    return latest if found < 0 else found


class BatchReader(Iterator["pa.RecordBatch"]):
    """Arrow batches of [start, end), in order, each offset once. Close it, or read to its end.

    Blocks while it waits; `close` from another thread ends the wait. Raises from `next`:
    OffsetOutOfRange, UnknownStream, PartitionFailed, CorruptData, and Broken where reconnecting
    brought no progress for `options.timeout` seconds.
    """

    def __init__(
        self,
        bootstrap: str,
        stream: str,
        *,
        start: Start,
        end: End,
        partition: int,
        follow: bool,
        options: FetchOptions,
    ) -> None:
        door = PartitionDoor(bootstrap, stream, partition)
        connection, leader = door.open()
        try:
            first, last = resolve_range(door, connection, start=start, end=end, follow=follow)
        except BaseException:
            connection.close()
            raise
        self.start = first
        """The offset that reading begins at."""
        self.end = last
        """The offset that reading ends before; OFFSET_MAX where it has no end."""
        self._partition = partition
        self._fetcher = Fetcher(
            door, connection, leader, start=first, end=last, follow=follow, options=options
        )
        # A reader that is dropped half-way must not leave its thread waiting for buffers.
        finalize(self, Fetcher.close, self._fetcher, wait=False)

    def __next__(self) -> pa.RecordBatch:
        while True:
            fetched = self._fetcher.next()
            if fetched is None:
                raise StopIteration
            try:
                batch, _ = decode_batches(
                    fetched.data,
                    partition=self._partition,
                    offset_min=fetched.offset,
                    offset_end=self.end,
                    origin=fetched.origin,
                )
            except BaseException:
                self.close()
                raise
            self._fetcher.recycle(fetched)
            if batch.num_rows:
                return batch

    def close(self, *, wait: bool = True) -> None:
        """End the reading; idempotent, from any thread. `wait` for its thread to end, too."""
        self._fetcher.close(wait=wait)

    def __enter__(self) -> BatchReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def messages_of(batch: pa.RecordBatch) -> list[Message]:
    """The rows of an Arrow batch as messages."""
    import pyarrow as pa

    offsets, partitions, timestamps, keys, values, subjects, headers = batch.columns
    pairs = headers.values
    return [
        Message(offset, partition, micros // 1000, key, value, subject, *_headers(entries))
        for offset, partition, micros, key, value, subject, entries in zip(
            offsets.to_pylist(),
            partitions.to_pylist(),
            timestamps.view(pa.int64()).to_pylist(),
            keys.to_pylist(),
            values.to_pylist(),
            subjects.to_pylist(),
            _split(
                list(zip(pairs.field(0).to_pylist(), pairs.field(1).to_pylist(), strict=True)),
                headers.offsets.to_pylist(),
            ),
            strict=True,
        )
    ]


Entries: TypeAlias = list[tuple[str, bytes | None]]


def _split(entries: Entries, ends: list[int]) -> Iterator[Entries]:
    """The header entries of each row; `ends` has one number more than there are rows."""
    at = ends[0]
    for end in ends[1:]:
        yield entries[at:end]
        at = end


def _headers(entries: Entries) -> tuple[str | None, tuple[tuple[str, bytes | None], ...]]:
    """The reply subject and the rest; a first `reply` without value only holds the place."""
    if entries and entries[0][0] == "reply":
        reply = entries[0][1]
        return None if reply is None else reply.decode("utf-8", "replace"), tuple(entries[1:])
    return None, tuple(entries)
