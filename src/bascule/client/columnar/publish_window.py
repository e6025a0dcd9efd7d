"""A publish window over Arrow batches: sends operations in chunks, counts acks."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from bascule.client import _hot as acks_hot
from bascule.client.columnar import _hot
from bascule.client.columnar.columns import ColumnBuffers, PublishRoute
from bascule.client.publish_window import CHUNK_BYTES_MAX, HasStream, PublishWindow
from bascule.errors import BasculeError, RemoteProtocolError
from bascule.model import PARTITION_COUNT_MAX
from bascule.nats_connection import NatsConnection

HELD_BYTES_MAX: Final = 32 << 20
"""Bytes of operations without ack. Beyond it sending waits, whatever the window: for large
messages."""
ACKS_KEPT: Final = 16_384
"""Acks kept before they are counted and dropped; 16 bytes each."""
_TALLY_FIELDS: Final = 5


@dataclass(frozen=True, slots=True)
class PublishedSpan:
    """Counts of the rows stored in one partition of a stream."""

    stream: str
    partition: int
    messages: int
    duplicates: int
    """Messages that an earlier attempt stored; included in `messages`."""
    start_offset: int
    end_offset: int
    """All offsets are in [start_offset, end_offset). Other publishers' messages may be in
    between."""


@dataclass(frozen=True, slots=True)
class Published:
    """Counts of all rows. Every row is acked."""

    messages: int = 0
    duplicates: int = 0
    """Messages that an earlier attempt stored; included in `messages`."""
    unsynced: int = 0
    """Messages acked before they were synced, by the stream's `sync`; included in `messages`."""
    spans: tuple[PublishedSpan, ...] = ()
    """Counts by stream and partition."""


class _Chunk:
    """The operations of messages [first, first + len(ends)) in one bytes object."""

    __slots__ = ("data", "ends", "first")

    def __init__(self, first: int, data: bytes, ends: array[int]) -> None:
        self.first = first
        self.data = data
        self.ends = ends

    @property
    def end(self) -> int:
        return self.first + len(self.ends)

    def frame(self, index: int) -> bytes:
        at = index - self.first
        return self.data[self.ends[at - 1] if at else 0 : self.ends[at]]


class ColumnarWindow(PublishWindow):
    """A window of rows of Arrow batches."""

    def __init__(
        self,
        nats: NatsConnection,
        route: PublishRoute,
        *,
        id: int,
        has_stream: HasStream,
        window: int,
        stream: str | None,
        timeout: float,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        super().__init__(
            nats, id=id, has_stream=has_stream, window=window, stream=stream, timeout=timeout,
            on_progress=on_progress,
        )  # fmt: skip
        self._route = route
        self._chunks: deque[_Chunk] = deque()
        self._held_bytes = 0
        self._ends = array("i", bytes(4 * self._chunk))
        self._state = array("q", [0] * 4)
        self._tally = array("q")
        self._unsynced = 0
        self.failed_row: int | None = None
        """The row that ended the window, if any."""
        self.failed_subject: str | None = None

    @property
    def taken(self) -> int:
        """Rows encoded so far, with or without ack."""
        return self._count

    @property
    def acked(self) -> int:
        return self._acked

    async def send(self, batch: pa.RecordBatch) -> None:
        """Send all rows. Waits while the window is full.

        Raises: ColumnMismatch, RowRefused (earlier rows were sent), and the error that ended the
        window.
        """
        if self._failure is not None:
            raise self._failure
        columns = ColumnBuffers(batch, self._route, first_row=self._count)
        row = 0
        while row < columns.rows:
            row += self._take(columns, row)
            await self._pace()
            while self._held_bytes > HELD_BYTES_MAX:
                await self._settle(max(self._count - self._acked - 1, 0))

    async def finish(self) -> Published:
        """Return once every row is acked."""
        await self._settle(0)
        if self._failure is not None:
            raise self._failure
        self._count_acks(self._first)
        return self._published()

    def _take(self, columns: ColumnBuffers, row: int) -> int:
        """Encode and send as many rows as fit in a chunk. Return their number. Raises:
        RowRefused."""
        state, ends = self._state, self._ends
        size, payload_bytes_max = CHUNK_BYTES_MAX, self._nats.info.max_payload
        while True:
            out = bytearray(size)
            taken = columns.encode(
                row, len(ends), prefix=self._prefix, payload_bytes_max=payload_bytes_max,
                out=out, ends=ends, state=state,
            )  # fmt: skip
            if taken:
                break
            if state[1] != _hot.FULL:
                refusal = columns.refusal(row, state, payload_bytes_max)
                self.failed_row, self.failed_subject = refusal.row, refusal.subject
                raise refusal
            size = state[2]
        data = bytes(memoryview(out)[: state[0]])
        self._chunks.append(_Chunk(self._count, data, ends[:taken]))
        self._held_bytes += len(data)
        self._count += taken
        lacking = self._count - self._base - len(self._acks)
        if lacking > 0:
            self._acks.make_room(max(lacking, self._window))
        self._nats.send(data)
        self._note_sent()
        return taken

    def subject_of(self, index: int) -> str:
        if not self._chunks or not self._chunks[0].first <= index < self._count:
            return "?"
        return self._frames_of([index])[0].split(b" ", 2)[1].decode()

    def _frames_of(self, indexes: list[int]) -> list[bytes]:
        chunks = list(self._chunks)
        firsts = [chunk.first for chunk in chunks]
        return [chunks[bisect_right(firsts, index) - 1].frame(index) for index in indexes]

    def _forget(self, first: int) -> None:
        chunks = self._chunks
        while chunks and chunks[0].end <= first:
            self._held_bytes -= len(chunks.popleft().data)
        if first - self._base >= ACKS_KEPT:
            self._count_acks(first)

    def _count_acks(self, first: int) -> None:
        """Count the acks before message `first` and drop their columns."""
        acks, count = self._acks, first - self._base
        lacking = _TALLY_FIELDS * PARTITION_COUNT_MAX * len(acks.names) - len(self._tally)
        self._tally.frombytes(bytes(8 * max(lacking, 0)))
        counted = acks_hot.tally_acks(
            acks.offsets, acks.partitions, acks.details, acks.streams, count,
            PARTITION_COUNT_MAX, self._tally,
        )  # fmt: skip
        if counted < count:
            self.fail(
                RemoteProtocolError(
                    f"an ack names partition {acks.partitions[counted]}, "
                    f"expected at most {PARTITION_COUNT_MAX - 1}"
                )
            )
        acks.drop(count)
        self._base = first

    def _published(self) -> Published:
        spans, unsynced = [], 0
        for slot in range(0, len(self._tally), _TALLY_FIELDS):
            messages, duplicates, late, low, high = self._tally[slot : slot + _TALLY_FIELDS]
            if messages:
                name, partition = divmod(slot // _TALLY_FIELDS, PARTITION_COUNT_MAX)
                stream = self._acks.names[name]
                spans.append(PublishedSpan(stream, partition, messages, duplicates, low, high + 1))
                unsynced += late
        return Published(
            self._count, sum(span.duplicates for span in spans), unsynced, tuple(spans)
        )

    def _explain(self, index: int, reply: BasculeError) -> BasculeError:
        if self.failed_row is None or index < self.failed_row:
            # Refusals arrive in any order. Report the first row.
            self.failed_row, self.failed_subject = index, self.subject_of(index)
            self._failure = None
        return super()._explain(index, reply)

    def _silence(self) -> BasculeError:
        self.failed_row, self.failed_subject = self._first, self.subject_of(self._first)
        return super()._silence()

    def _may_give_up(self) -> bool:
        # A named stream exists; its node may be restarting.
        return self.only is None and super()._may_give_up()
