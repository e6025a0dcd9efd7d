"""The reader of a stream: all partitions, or one of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from weakref import finalize

from bascule.client.batch_reader import BatchReader, End, Start
from bascule.client.connection import count_partitions
from bascule.client.fetcher import OFFSET_MAX, FetchOptions
from bascule.client.stream_reader.arrivals import Arrivals
from bascule.errors import (
    BasculeError,
    Broken,
    Closed,
    ConfigError,
    UnknownPartition,
    UnknownStream,
)
from bascule.host.real import RealClock

if TYPE_CHECKING:
    import pyarrow as pa

Order: TypeAlias = Literal["partition", "timestamp"]
ORDERS: Final[tuple[Order, ...]] = ("partition", "timestamp")

BYTES_MAX: Final = 32 << 20
"""Decoded bytes of all partitions of a read together, while each can have BYTES_EACH_MIN."""
BYTES_EACH_MIN: Final = 64 << 10
CHECK_SECONDS: Final = 10.0
"""Time between checks for partitions that were added while a stream is followed. Kafka's
metadata.max.age.ms is 5 minutes."""
_CLOCK: Final = RealClock()


def bytes_of_each(partitions: int) -> int:
    """Most bytes to decode at once of each of `partitions` that are read together."""
    return max(BYTES_MAX // max(partitions, 1), BYTES_EACH_MIN)


def check_positions(stream: str, partition_count: int, *positions: object) -> None:
    """Return if `positions` are valid for all partitions of a stream together.

    Raises: ConfigError for an offset in a stream of several partitions: each has its own offsets.
    """
    for position in positions:
        if isinstance(position, int) and partition_count > 1:
            raise ConfigError(
                f"stream {stream!r} has {partition_count} partitions, each with its own offsets: "
                f"give a partition with offset {position}, or earliest, latest or a time"
            )


class StreamReader(Iterator["pa.RecordBatch"]):
    """Arrow batches of a stream's partitions. Close it or read it to its end.

    Every record of the range comes exactly once. The records of a partition come in the order of
    their offsets. `next` blocks; `close` from another thread ends the wait. `next` raises what
    `BatchReader` raises; the first error of a partition ends the whole read.
    """

    def __init__(
        self,
        bootstrap: str,
        stream: str,
        *,
        start: Start,
        end: End,
        partition: int | None,
        order: Order,
        follow: bool,
        options: FetchOptions,
    ) -> None:
        """`partition` None means all partitions, including those that are added while the stream is
        followed. Raises: UnknownStream, UnknownPartition, OffsetOutOfRange, ConfigError, Broken."""
        if order not in ORDERS:
            raise ValueError(f"order is {order!r}: expected {' or '.join(ORDERS)}")
        work = _Partitions(bootstrap, stream, options)
        try:
            if partition is None:
                work.open_all(start, end, follow=follow)
            else:
                work.open(partition, start=start, end=end, follow=follow)
        except BaseException:
            work.close()
            raise
        self.ranges = dict(work.ranges)
        """Partition -> [start, end) of its offsets; end OFFSET_MAX without an end."""
        self._work = work
        self._batches = work.batches(order)
        self._failure: BasculeError | None = None
        # A reader that is dropped before its end closes its connections.
        finalize(self, work.close)

    def __next__(self) -> pa.RecordBatch:
        if self._work.is_closed:
            raise Closed("the read was closed")
        if self._failure is not None:
            raise self._failure  # an end would say that all was read
        try:
            return next(self._batches)
        except BasculeError as error:
            self._failure = error
            raise

    def close(self) -> None:
        """End the read. Idempotent and thread-safe."""
        self._work.close()

    def __enter__(self) -> StreamReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Partitions:
    """The readers of the partitions, and their threads once the stream is followed."""

    def __init__(self, bootstrap: str, stream: str, options: FetchOptions) -> None:
        self._bootstrap = bootstrap
        self._stream = stream
        self._options = options
        self._readers: dict[int, BatchReader] = {}
        self._arrivals = Arrivals()
        self._lock = threading.Lock()
        self._tail = False
        self.ranges: dict[int, tuple[int, int]] = {}
        self.is_closed = False

    def open_all(self, start: Start, end: End, *, follow: bool) -> None:
        count = count_partitions(self._bootstrap, self._stream)
        check_positions(self._stream, count, start, end)
        each = bytes_of_each(count)
        self._options = replace(
            self._options,
            fetch_bytes=min(self._options.fetch_bytes, each),
            batch_bytes=min(self._options.batch_bytes, each),
        )
        # A read with an end never reaches partitions that are added later.
        self._tail = follow and end is None
        for partition in range(count):
            self.open(partition, start=start, end=end, follow=follow and not self._tail)
        if self._tail:
            self.ranges = {
                number: (first, OFFSET_MAX) for number, (first, _) in self.ranges.items()
            }

    def open(
        self,
        partition: int,
        *,
        start: Start,
        end: End,
        follow: bool,
        open_timeout: float | None = None,
    ) -> BatchReader:
        reader = BatchReader(
            self._bootstrap,
            self._stream,
            start=start,
            end=end,
            partition=partition,
            follow=follow,
            options=self._options,
            open_timeout=open_timeout,
        )
        with self._lock:
            if not self.is_closed:
                self._readers[partition] = reader
                self.ranges[partition] = reader.start, reader.end
                return reader
        reader.close()
        raise Closed("the read was closed")

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
        for reader in self._readers.values():
            reader.close()
        self._arrivals.close()

    def batches(self, order: Order) -> Iterator[pa.RecordBatch]:
        readers = dict(self._readers)
        if len(readers) == 1:
            yield from next(iter(readers.values()))
        elif order == "timestamp":
            from bascule.client.stream_reader.time_merge import merged_by_time

            yield from merged_by_time(readers)
        else:
            yield from _in_turn(list(readers.values()))
        if self._tail:
            yield from self._follow(readers)

    def _follow(self, read: dict[int, BatchReader]) -> Iterator[pa.RecordBatch]:
        """The batches after the ends of `read` as they arrive, and those of new partitions."""
        for partition, reader in read.items():
            with self._lock:
                if self.is_closed:
                    raise Closed("the read was closed")
                reader.follow()
            self._arrivals.start_thread(partition, reader)
        checked_at = _CLOCK.monotonic_ns()
        while True:
            due = checked_at + int(CHECK_SECONDS * 1e9)
            wait_s = max(0, due - _CLOCK.monotonic_ns()) / 1e9
            batch = self._arrivals.take(wait_s)
            if batch is not None:
                yield batch
                del batch
            if _CLOCK.monotonic_ns() >= due:
                self._open_added()
                checked_at = _CLOCK.monotonic_ns()

    def _open_added(self) -> None:
        """Follow partitions that were added, from their start."""
        try:
            count = count_partitions(self._bootstrap, self._stream)
        except Broken:
            return  # the threads reconnect, and raise after their timeout; checked again later
        for partition in range(len(self._readers), count):
            try:
                added = self.open(
                    partition, start="earliest", end=None, follow=True, open_timeout=0
                )
            except (Broken, UnknownStream, UnknownPartition):
                return  # its node has not opened it yet; checked again later
            self._arrivals.start_thread(partition, added)


def _in_turn(readers: list[BatchReader]) -> Iterator[pa.RecordBatch]:
    """A batch of each reader in turn, until all of them have ended."""
    while readers:
        for reader in list(readers):
            batch = next(reader, None)
            if batch is None:
                readers.remove(reader)
            else:
                yield batch
                # Release it before the next one is made: its memory is in the cache.
                del batch
