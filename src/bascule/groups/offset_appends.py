"""Appends to the stream `_offsets`: what arrives while a batch is stored is the next batch."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

import msgspec

from bascule.errors import BasculeError, Indeterminate, NotLeader
from bascule.groups.offset_records import OffsetChange
from bascule.publish.acks import not_stored
from bascule.replica.internal_publisher import (
    EncodableRecord,
    InternalPublisher,
    InternalRecord,
    encodable,
)
from bascule.wire.ack_codes import publish_error
from bascule.wire.offsets import OFFSETS_STREAM

log = logging.getLogger("bascule.offsets")

STORE_SECONDS_MAX: Final = 10.0
BATCH_BYTES_MAX: Final = 256 << 10
"""Of the keys and values of one batch, unless one request brings more."""
WAITING_BYTES_MAX: Final = 64 << 20
"""Of the commits that wait: those of a client that has left wait on, and count nowhere else."""
RECORD_BYTES: Final = 1_000
"""Of a record in memory, beyond its key and its value."""
GATHERED_MIN: Final = 8
"""Requests in a batch after which the next one is gathered: so many may come at once again."""
GATHER_SECONDS: Final = 0.005
"""How long a batch is gathered. A batch costs as much CPU as ten commits."""


class OffsetRecord(msgspec.Struct, gc=False):
    """A record to append, and what it changes in memory once it is committed."""

    record: InternalRecord
    change: OffsetChange | None
    """A commit in it gets its `record_offset` then. None: it has to be read back."""


OnStored: TypeAlias = Callable[[int, BaseException | None], None]
"""Takes the offset of the first record, or -1 and the error; CancelledError: the node stops."""


class _Waiting(NamedTuple):
    records: Sequence[EncodableRecord]
    changes: Sequence[OffsetChange | None]
    size: int
    taken: int
    """Of WAITING_BYTES_MAX."""
    epoch: int
    """The leader epoch in which they were found to be in order. Another leader may have taken
    others since, which they must not replace."""
    on_stored: OnStored


class OffsetAppends:
    """At most one batch is under way: a hundred commits that wait for a sync cost one sync.

    Behind a batch of many requests the next one is gathered: until three quarters as many wait as
    were there at once lately, or a moment has passed. Otherwise the first of those who commit again
    would be a batch of its own. A client that commits alone, again and again, never waits for
    others.
    """

    def __init__(
        self,
        publisher: InternalPublisher,
        leader_epoch: Callable[[], int],
        on_committed: Callable[[int, list[OffsetChange | None]], None],
    ) -> None:
        """`leader_epoch` is the epoch that this node leads; it raises BasculeError where the node
        cannot append. `on_committed` takes the offset of the first record of a batch and its
        changes, before who waits for it goes on."""
        self._publisher = publisher
        self._leader_epoch = leader_epoch
        self._on_committed = on_committed
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._task: asyncio.Task[None] | None = None
        """Stores the batch under way."""
        self._gathering: asyncio.TimerHandle | None = None
        """Begins the next batch, which is being gathered."""
        self._gathered = 0
        """As soon as so many requests wait, the next batch begins."""
        self._seen_max = 0
        """As many requests were there at once lately: those of a batch, and those behind it."""
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def append(
        self, records: Sequence[OffsetRecord], *, is_accounted: bool = False
    ) -> asyncio.Future[int]:
        """Append `records` in one batch; the result is the offset of the first once all are
        committed. Its errors: PublishRejected, PartitionFailed, NotLeader; Indeterminate after a
        timeout. `is_accounted`: the caller bounds their memory, and WAITING_BYTES_MAX does not.

        Raises: PartitionFailed, NotLeader where nothing is appended; PublishRejected while too much
        waits.
        """
        done: asyncio.Future[int] = self._find_loop().create_future()
        size = 0
        for each in records:
            size += len(each.record.key or b"") + len(each.record.value or b"")
        self.append_encodable(
            [encodable(each.record) for each in records],
            [each.change for each in records],
            size,
            partial(_settle, done),
            is_accounted=is_accounted,
        )
        if self._is_closed:
            done.cancel()
        return done

    def append_encodable(
        self,
        records: Sequence[EncodableRecord],
        changes: Sequence[OffsetChange | None],
        size: int,
        on_stored: OnStored,
        *,
        is_accounted: bool = False,
    ) -> None:
        """As `append`; `changes` has what each record changes, `size` is the bytes of their keys
        and values, and `on_stored` is called later, once."""
        epoch, taken = self._leader_epoch(), 0
        if not is_accounted:
            taken = size + RECORD_BYTES * len(records)
            if self._waiting_bytes and self._waiting_bytes + taken > WAITING_BYTES_MAX:
                raise _refused("too many commits wait to be stored")
        if self._is_closed:
            self._find_loop().call_soon(on_stored, -1, asyncio.CancelledError())
            return
        self._waiting.append(_Waiting(records, changes, size, taken, epoch, on_stored))
        self._waiting_bytes += taken
        if self._task is None and len(self._waiting) >= self._gathered:
            self._begin()

    async def wait_stored(self) -> None:
        """Return once everything is stored that waits or is under way. Raises: as the future of
        `append` where that is not certain."""
        if self._task is not None or self._waiting:
            stored: asyncio.Future[int] = self._find_loop().create_future()
            self.append_encodable((), (), 0, partial(_settle, stored), is_accounted=True)
            await stored

    def _find_loop(self) -> asyncio.AbstractEventLoop:
        """The running loop; to ask asyncio costs a system call."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    async def close(self) -> None:
        """Cancel everyone who waits. Whether the batch under way is stored is not known."""
        self._is_closed = True
        self._stop_gathering()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        _cancel(self._waiting)

    def _gather(self, stored: int) -> None:
        """Begin the next batch, or gather it, after one of `stored` requests."""
        seen = stored + len(self._waiting)
        self._seen_max = max(seen, self._seen_max - self._seen_max // 8)
        if stored >= GATHERED_MIN:
            self._gathered = self._seen_max - self._seen_max // 4
        if len(self._waiting) >= max(self._gathered, 1):
            self._begin()
        elif self._gathered:
            self._gathering = self._find_loop().call_later(GATHER_SECONDS, self._begin)

    def _stop_gathering(self) -> None:
        self._gathered = 0
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None

    def _begin(self) -> None:
        self._stop_gathering()
        if not self._waiting:
            return
        batch = self._take()
        self._task = asyncio.create_task(self._store(batch), name="appends to _offsets")
        self._task.add_done_callback(partial(self._end, batch))

    def _end(self, batch: Sequence[_Waiting], task: asyncio.Task[None]) -> None:
        """Answer those whose batch was not stored, and begin with the next one."""
        self._task = None
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            _cancel(batch)
        elif isinstance(error, BasculeError):
            _fail(batch, error)
        elif error is not None:
            log.error("batch of commits failed", exc_info=error)
            _fail(batch, Indeterminate("internal error while the commit was stored"))
        if not self._is_closed:
            self._gather(len(batch))

    def _take(self) -> list[_Waiting]:
        """The next batch: those of one epoch who wait, up to BATCH_BYTES_MAX."""
        batch = [self._waiting.popleft()]
        size, self._waiting_bytes = batch[0].size, self._waiting_bytes - batch[0].taken
        while self._waiting and self._waiting[0].epoch == batch[0].epoch:
            size += self._waiting[0].size
            if size > BATCH_BYTES_MAX:
                break
            batch.append(self._waiting.popleft())
            self._waiting_bytes -= batch[-1].taken
        return batch

    async def _store(self, batch: Sequence[_Waiting]) -> None:
        if self._leader_epoch() != batch[0].epoch:
            raise NotLeader(None, batch[0].epoch)
        records = list(chain.from_iterable(each.records for each in batch))
        changes = list(chain.from_iterable(each.changes for each in batch))
        if not records:
            _answer(batch, -1)
            return
        try:
            async with asyncio.timeout(STORE_SECONDS_MAX):
                base = await self._publisher.publish_encodable(OFFSETS_STREAM, 0, records)
        except TimeoutError:
            self._refuse_waiting()
            raise Indeterminate(f"the commit is not stored after {STORE_SECONDS_MAX} s") from None
        for offset, change in enumerate(changes, base):
            if change is None:
                continue
            if change.stored is not None:
                change.stored.record_offset = offset
            else:
                change.record_offset = offset
        self._on_committed(base, changes)
        _answer(batch, base)

    def _refuse_waiting(self) -> None:
        """Those who waited behind a batch that is not stored in time have waited long enough."""
        waiting, self._waiting, self._waiting_bytes = list(self._waiting), deque(), 0
        _fail(
            waiting, _refused(f"the commits before it are not stored after {STORE_SECONDS_MAX} s")
        )


def _refused(reason: str) -> BasculeError:
    why = not_stored(reason)
    return publish_error(why.code, why.err_code, why.description)


def _settle(done: asyncio.Future[int], base: int, error: BaseException | None) -> None:
    if isinstance(error, asyncio.CancelledError):
        done.cancel()
    elif done.done():
        return  # its client has left
    elif error is not None:
        done.set_exception(error)
    else:
        done.set_result(base)


def _answer(batch: Iterable[_Waiting], base: int) -> None:
    for each in batch:
        each.on_stored(base, None)
        base += len(each.records)


def _cancel(batch: Iterable[_Waiting]) -> None:
    for each in batch:
        each.on_stored(-1, asyncio.CancelledError())


def _fail(batch: Iterable[_Waiting], error: BasculeError) -> None:
    for each in batch:
        each.on_stored(-1, error)
