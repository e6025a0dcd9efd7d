"""Reads a range of offsets as Arrow batches, and converts batches to messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from weakref import finalize

from bascule.client.connection import Leader, LeaderMoved, PartitionConnector
from bascule.client.fetcher import (
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    OFFSET_MAX,
    Fetcher,
    FetchOptions,
)
from bascule.client.messages import NEW_MESSAGE, Message, NewMessage
from bascule.errors import OffsetOutOfRange
from bascule.host.real import RealClock
from bascule.log_connection import LogConnection

if TYPE_CHECKING:
    import pyarrow as pa

Start: TypeAlias = int | datetime | Literal["earliest", "latest"]
End: TypeAlias = int | Literal["latest"] | None
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

MESSAGES_AT_ONCE: Final = 4_096
_CLOCK: Final = RealClock()


def resolve_range(
    connector: PartitionConnector,
    connection: LogConnection,
    *,
    start: Start,
    end: End,
    follow: bool,
) -> tuple[int, int]:
    """Resolve the requested range to offsets [start, end).

    A time stands for the first record at or after it, or the end if there is none. `end` None is
    the currently committed end, or no end with `follow`. Raises: OffsetOutOfRange if the range is
    not available. Without `follow` an `end` that is not committed yet is out of range.
    """
    earliest, latest = connector.extent(connection)
    if start == "earliest":
        first = earliest
    elif start == "latest":
        first = latest
    elif isinstance(start, datetime):
        first = _offset_at(connector, connection, start, latest)
    elif isinstance(start, int):
        first = start
    else:
        raise ValueError(f"start is {start!r}: expected earliest, latest, an offset or a datetime")
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


def _offset_at(
    connector: PartitionConnector, connection: LogConnection, time: datetime, latest: int
) -> int:
    if time.tzinfo is None:
        raise ValueError(f"start is {time!r}: a time needs a time zone, as in datetime.now(UTC)")
    found = connector.find_offset(connection, max(0, round(time.timestamp() * 1000)))
    return latest if found < 0 else found


def _open(
    connector: PartitionConnector,
    resolve: Callable[[LogConnection], tuple[int, int]],
    timeout: float,
) -> tuple[tuple[LogConnection, Leader], tuple[int, int]]:
    """Connect to the leader, and resolve the range there.

    Finds the leader again while the partition changes it. Raises LeaderMoved after `timeout`
    seconds.
    """
    begun = _CLOCK.monotonic_ns()
    backoff = BACKOFF_S_MIN
    while True:
        try:
            connection, leader = connector.open()
            try:
                return (connection, leader), resolve(connection)
            except BaseException:
                connection.close()
                raise
        except LeaderMoved:
            if _CLOCK.monotonic_ns() - begun > timeout * 1e9:
                raise
        threading.Event().wait(backoff)
        backoff = min(2 * backoff, BACKOFF_S_MAX)


class BatchReader(Iterator["pa.RecordBatch"]):
    """Arrow batches of [start, end), in order, each offset once. Close it or read it to its end.

    `next` blocks; `close` from another thread ends the wait. `next` raises OffsetOutOfRange,
    UnknownStream, PartitionFailed, CorruptData, and Broken if reconnecting made no progress for
    `options.timeout` seconds.
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
        open_timeout: float | None = None,
    ) -> None:
        """`open_timeout` is how long to look for a leader that takes requests, in seconds; None:
        `options.timeout`."""
        connector = PartitionConnector(bootstrap, stream, partition)

        def resolve(connection: LogConnection) -> tuple[int, int]:
            return resolve_range(connector, connection, start=start, end=end, follow=follow)

        opened, (first, last) = _open(
            connector, resolve, options.timeout if open_timeout is None else open_timeout
        )
        connector.topic_id = opened[1].topic_id
        self.start = first
        """The first offset to read."""
        self.end = last
        """The end offset, exclusive; OFFSET_MAX without an end."""
        self._connector = connector
        self._options = options
        self._fetcher = Fetcher(
            connector, opened, start=first, end=last, follow=follow, options=options
        )
        # A reader that is dropped before its end closes its connection.
        finalize(self, self._fetcher.close)

    def follow(self) -> None:
        """Continue after the end, which has been reached: `next` waits for new records.

        The next fetch connects. It waits for a node that does not reply as after a lost
        connection. Not thread-safe.
        """
        first, self.end = self.end, OFFSET_MAX
        self._fetcher = Fetcher(
            self._connector, None, start=first, end=self.end, follow=True, options=self._options
        )
        finalize(self, self._fetcher.close)

    def __next__(self) -> pa.RecordBatch:
        batch = self._fetcher.next()
        if batch is None:
            raise StopIteration
        return batch

    def close(self) -> None:
        """End the read. Idempotent and thread-safe."""
        self._fetcher.close()

    def __enter__(self) -> BatchReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def messages_of(batch: pa.RecordBatch, new: NewMessage = NEW_MESSAGE) -> Iterator[Message]:
    """Convert the rows of an Arrow batch to messages, a few thousand at a time."""
    for at in range(0, batch.num_rows, MESSAGES_AT_ONCE):
        yield from _messages(batch.slice(at, MESSAGES_AT_ONCE), new)


def _messages(batch: pa.RecordBatch, new: NewMessage) -> Iterator[Message]:
    offsets, partitions, timestamps, keys, values, subjects, headers = batch.columns
    replies, others = _headers(headers)
    columns = zip(
        offsets.to_pylist(),
        partitions.to_pylist(),
        [micros // 1000 for micros in timestamps.view("int64").to_pylist()],
        keys.to_pylist(),
        values.to_pylist(),
        subjects.to_pylist(),
        replies,
        others,
        strict=True,
    )
    return map(new, columns)


def _headers(column: pa.ListArray) -> tuple[list[str | None], list[Headers]]:
    """The reply subject and the other headers of each row.

    A first header `reply` is the reply subject. Without a value it is a placeholder.
    """
    ends = column.offsets.to_pylist()
    first = ends[0]
    pairs = column.values.slice(first, ends[-1] - first)
    names, contents = pairs.field(0).to_pylist(), pairs.field(1).to_pylist()
    replies: list[str | None] = []
    others: list[Headers] = []
    at = 0
    for end in ends[1:]:
        end -= first
        reply = None
        if at < end and names[at] == "reply":
            reply = contents[at]
            at += 1
        replies.append(None if reply is None else reply.decode("utf-8", "replace"))
        others.append(tuple(zip(names[at:end], contents[at:end], strict=True)) if at < end else ())
        at = end
    return replies, others
