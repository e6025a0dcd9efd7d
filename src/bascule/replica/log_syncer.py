"""The sync threads: one fdatasync for everything that was appended before it.

While a sync of a partition runs, more batches are appended to it, and the next sync covers all of
them: group commit. One thread at a time syncs a partition. Several partitions are synced in
parallel, so the file system can commit them together.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from bascule.errors import BasculeError, is_damage, reason_without_paths
from bascule.host.api import Clock
from bascule.replica.partition import Partition

log = logging.getLogger("bascule.replica")

T = TypeVar("T")

SYNC_THREADS: Final = 4
"""Parallel syncs; one journal commit of the file system can cover all of them."""
UNAWAITED_SYNC_INTERVAL_NS: Final = 5_000_000
"""Least time between two syncs of a partition that no publisher or reader waits for."""


class LogSyncer:
    """The threads that sync partitions on request."""

    def __init__(self, *, clock: Clock, threads: int = SYNC_THREADS) -> None:
        self._send: Callable[[bytes], None] = _send_nothing
        self._queue: WorkQueue[Partition | None] = WorkQueue()
        self._idle = threading.Condition()
        self._urgent = threading.Condition()
        self._stopping = self._has_stopped = False
        self.clock = clock
        self.on_synced: Callable[[int, int], None] = _ignore
        """Called by the threads when a sync has ended that had something to write: when it began
        and ended, on the monotonic clock, ns."""
        self._running: dict[Partition, int] = {}
        """The partitions that are being synced, and since when, on the monotonic clock."""
        self._threads = [
            threading.Thread(target=self._run, name=f"sync-{n}", daemon=True)
            for n in range(threads)
        ]

    def start(self, send: Callable[[bytes], None]) -> None:
        """`send` takes NATS operations with acks; any of the threads calls it."""
        self._send = send
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Return once everything requested before is synced. What is requested later is not."""
        self._stopping = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        with self._idle:
            self._has_stopped = True
            self._idle.notify_all()

    def request(self, partition: Partition, *, checkpoint: bool = False) -> None:
        """Sync what is appended by now, soon. A request while a sync runs causes another one.

        With `checkpoint` the same thread writes the log's checkpoint afterwards.
        """
        with partition.sync_lock:
            partition.checkpoint_requested |= checkpoint
            queued = partition.sync_queued
            if queued:
                partition.sync_requested_again = True
            partition.sync_queued = True
        if not queued:
            self._queue.put(partition)
        elif partition.is_awaited:
            with self._urgent:
                self._urgent.notify_all()

    def stop_partition(self, partition: Partition, cause: BasculeError) -> None:
        """Stop the partition soon, on a sync thread; waiting publishers get error acks."""
        partition.stop_cause = cause
        self.request(partition)

    def _send_acks(self, operations: bytes) -> None:
        if operations:
            self._send(operations)

    def _delay_unawaited(self, partition: Partition) -> None:
        """Delay a sync that no publisher or reader waits for, so that it covers more batches.

        The delay ends when someone waits, and when another partition requests a sync.
        """
        while self._queue.empty() and not partition.is_awaited:
            pause = partition.synced_at_ns + UNAWAITED_SYNC_INTERVAL_NS - self.clock.monotonic_ns()
            if pause <= 0 or self._stopping:
                return
            with self._urgent:
                if not partition.is_awaited:
                    self._urgent.wait(pause / 1e9)

    def stuck_ns(self) -> int:
        """How long the longest sync has run for which publishers wait; any thread may call it."""
        now_ns = self.clock.monotonic_ns()
        running = [
            now_ns - began_ns
            for partition, began_ns in list(self._running.items())
            if partition.is_leader and partition.needs_sync
        ]
        return max(running, default=0)

    def wait_idle(self, partition: Partition) -> None:
        """Return once no sync of the partition runs or is queued, or the threads have stopped."""
        with self._idle:
            self._idle.wait_for(lambda: self._has_stopped or not partition.sync_queued)

    def _run(self) -> None:
        while True:
            partition = self._queue.get()
            if partition is None:
                return
            again = True
            while again:
                self._delay_unawaited(partition)
                with partition.sync_lock:
                    partition.sync_requested_again = False
                    checkpoint = partition.checkpoint_requested
                    partition.checkpoint_requested = False
                    cause = partition.stop_cause
                self._running[partition] = self.clock.monotonic_ns()
                try:
                    if cause is not None:
                        self._send_acks(_stop(partition, cause))
                    else:
                        self._sync(partition)
                    if checkpoint:
                        partition.checkpoint()
                except Exception as error:  # boundary: a bug stops one partition, not the thread
                    log.exception("sync thread failed")
                    self._send_acks(partition.fail(f"internal error while syncing: {error!r}"))
                finally:
                    del self._running[partition]
                with partition.sync_lock:
                    again = partition.sync_requested_again
                    partition.sync_queued = again
            with self._idle:
                self._idle.notify_all()

    def _sync(self, partition: Partition) -> None:
        had_records, began_ns = partition.is_dirty, self._running[partition]
        acks = partition.sync()
        if had_records and partition.synced_at_ns >= began_ns:
            self.on_synced(began_ns, partition.synced_at_ns)
        self._send_acks(acks)


def _stop(partition: Partition, cause: BasculeError) -> bytes:
    return partition.fail(
        str(cause), reason=reason_without_paths(cause), is_damage=is_damage(cause)
    )


def _ignore(began_ns: int, ended_ns: int) -> None:
    pass


def _send_nothing(operations: bytes) -> None:
    raise AssertionError("the sync threads are not started")


class WorkQueue(Generic[T]):
    """Items in order, each for one of the threads that wait.

    The thread that waited last gets the next item. `queue.SimpleQueue` wakes a second thread for
    each item, which finds nothing: with a thread switch and a turn of the interpreter lock for
    each, that is much where items come one at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: deque[T] = deque()
        self._idle: list[_Place[T]] = []
        self._places = threading.local()

    def put(self, item: T) -> None:
        """Any thread may call it."""
        with self._lock:
            if not self._idle:
                self._items.append(item)
                return
            place = self._idle.pop()
        place.item = item
        place.wake.release()

    def get(self) -> T:
        """The next item; wait for it."""
        with self._lock:
            if self._items:
                return self._items.popleft()
            place: _Place[T] | None = getattr(self._places, "own", None)
            if place is None:
                place = self._places.own = _Place()
            self._idle.append(place)
        place.wake.acquire()
        return place.item

    def empty(self) -> bool:
        """Whether no item waits for a thread."""
        return not self._items


class _Place(Generic[T]):
    """Where one thread waits."""

    __slots__ = ("item", "wake")
    item: T

    def __init__(self) -> None:
        self.wake = threading.Lock()
        self.wake.acquire()
