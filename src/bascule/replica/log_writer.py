"""The threads that wait for the disk: one appends, a few sync.

Grouped syncs come by themselves: while a partition's sync runs, batches go on being appended to it,
and the next sync covers all of them. A partition is synced by one thread at a time; partitions
sync beside each other, so the file system can commit them together.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from bascule.errors import BasculeError
from bascule.host.api import Clock
from bascule.ingest.ingest_buffer import IngestBuffer
from bascule.ingest.sequencer import UnstampedBatch
from bascule.replica.partition import Partition

log = logging.getLogger("bascule.replica")

SYNC_THREADS: Final = 4
"""Syncs in flight at a time; one journal commit of the file system serves them all."""
PACE_NS: Final = 5_000_000
"""Time between two syncs of a partition whose records nobody waits for."""


class LogSyncer:
    """A few threads that sync whatever partition asks."""

    def __init__(
        self, send: Callable[[bytes], None], *, clock: Clock, threads: int = SYNC_THREADS
    ) -> None:
        """`send` takes ready acks, from any of the threads."""
        self._send = send
        self._queue: SimpleQueue[Partition | None] = SimpleQueue()
        self._idle = threading.Condition()
        self._hurried = threading.Condition()
        self._stopping = False
        self._clock = clock
        self._threads = [
            threading.Thread(target=self._run, name=f"sync-{n}", daemon=True)
            for n in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Return once everything asked for is synced."""
        self._stopping = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def request(self, partition: Partition, *, checkpoint: bool = False) -> None:
        """Sync what is appended by now, soon; a request while a sync runs starts another.

        With `checkpoint` the log's checkpoint follows, on the same thread.
        """
        with partition.sync_lock:
            partition.checkpoint_wanted |= checkpoint
            queued = partition.sync_queued
            if queued:
                partition.sync_wanted_again = True
            partition.sync_queued = True
        if not queued:
            self._queue.put(partition)
        elif partition.is_awaited:
            with self._hurried:
                self._hurried.notify_all()

    def _pace(self, partition: Partition) -> None:
        """Let more be appended before a sync that neither publisher nor reader waits for.

        A batch somebody waits for ends the pause (`hurry`), and other partitions' syncs forbid it.
        """
        while self._queue.empty() and not partition.is_awaited:
            pause = partition.synced_at_ns + PACE_NS - self._clock.monotonic_ns()
            if pause <= 0 or self._stopping:
                return
            with self._hurried:
                if not partition.is_awaited:
                    self._hurried.wait(pause / 1e9)

    def wait_idle(self, partition: Partition) -> None:
        """Return once no sync of the partition runs or is queued."""
        with self._idle:
            self._idle.wait_for(lambda: not partition.sync_queued)

    def _run(self) -> None:
        while True:
            partition = self._queue.get()
            if partition is None:
                return
            again = True
            while again:
                self._pace(partition)
                with partition.sync_lock:
                    partition.sync_wanted_again = False
                    checkpoint = partition.checkpoint_wanted
                    partition.checkpoint_wanted = False
                try:
                    answers = partition.sync()
                    if answers:
                        self._send(answers)
                    if checkpoint:
                        partition.checkpoint()
                except Exception as error:  # door: a bug stops one partition, not the thread
                    log.exception("sync thread failed")
                    partition.fail(f"internal error while syncing: {error!r}")
                with partition.sync_lock:
                    again = partition.sync_wanted_again
                    partition.sync_queued = again
            with self._idle:
                self._idle.notify_all()


class LogWriter:
    """The thread that writes batches, in the order in which they were read."""

    def __init__(
        self, buffer: IngestBuffer, syncer: LogSyncer, send: Callable[[bytes], None]
    ) -> None:
        self._buffer = buffer
        self._syncers = syncer
        self._send = send
        self._routes: list[Partition | None] = []
        self._thread = threading.Thread(target=self._run, name="appender", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def route(self, slot: int, partition: Partition | None) -> None:
        """Batches of `slot` belong to `partition` from now on."""
        while len(self._routes) <= slot:
            self._routes.append(None)
        self._routes[slot] = partition

    def stop(self) -> None:
        """Return once everything submitted before is appended."""
        self._buffer.queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            batches = self._buffer.queue.get()
            if batches is None:
                return
            if isinstance(batches, threading.Event):
                batches.set()
                continue
            if isinstance(batches, Partition):
                self._roll(batches)
                continue
            for draft in batches:
                try:
                    self._append(draft)
                except Exception:  # door: a bug stops one partition, not the thread
                    log.exception("append thread failed")
                    partition = self._routes[draft.slot]
                    if partition is not None:
                        partition.fail("internal error while appending; see the node's log")
                finally:
                    self._buffer.release(draft.slab, 1)

    def _roll(self, partition: Partition) -> None:
        """End the active segment, which retention or compaction wants closed."""
        if partition.log is None or partition.failure is not None or partition.deleted:
            return
        try:
            partition.log.roll()
        except (OSError, BasculeError) as error:
            name, index = partition.definition.name, partition.index
            extra = {"stream": name, "partition": index, "error": str(error)}
            log.warning("segment not ended", extra=extra)
        else:
            self._syncers.request(partition)

    def _append(self, draft: UnstampedBatch) -> None:
        partition = self._routes[draft.slot] if draft.slot < len(self._routes) else None
        if partition is None:
            log.warning("batch without a stream", extra={"slot": draft.slot})
            return
        answers = partition.append(draft)
        if answers:
            self._send(answers)
        if partition.wants_sync:
            self._syncers.request(partition)
