"""The sync threads: one fdatasync for everything that was appended before it.

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

from bascule.host.api import Clock
from bascule.replica.partition import Partition

log = logging.getLogger("bascule.replica")

SYNC_THREADS: Final = 4
"""Syncs in flight at a time; one journal commit of the file system serves them all."""
PACE_NS: Final = 5_000_000
"""Time between two syncs of a partition whose records nobody waits for."""


class LogSyncer:
    """A few threads that sync the partitions that ask for it."""

    def __init__(self, *, clock: Clock, threads: int = SYNC_THREADS) -> None:
        self._send: Callable[[bytes], None] = _send_nothing
        self._queue: SimpleQueue[Partition | None] = SimpleQueue()
        self._idle = threading.Condition()
        self._hurried = threading.Condition()
        self._stopping = False
        self._clock = clock
        self._threads = [
            threading.Thread(target=self._run, name=f"sync-{n}", daemon=True)
            for n in range(threads)
        ]

    def start(self, send: Callable[[bytes], None]) -> None:
        """`send` takes NATS operations with acks, from any of the threads."""
        self._send = send
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

    def stop_partition(self, partition: Partition, cause: str) -> None:
        """Stop the partition for good, soon and on a sync thread, with error acks for all."""
        partition.stop_cause = cause
        self.request(partition)

    def _send_some(self, operations: bytes) -> None:
        if operations:
            self._send(operations)

    def _pace(self, partition: Partition) -> None:
        """Let more be appended before a sync that neither publisher nor reader waits for.

        A batch that somebody waits for ends the pause, and so does another partition that asks.
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
                    cause = partition.stop_cause
                try:
                    self._send_some(partition.sync() if cause is None else partition.fail(cause))
                    if checkpoint:
                        partition.checkpoint()
                except Exception as error:  # boundary: a bug stops one partition, not the thread
                    log.exception("sync thread failed")
                    self._send_some(partition.fail(f"internal error while syncing: {error!r}"))
                with partition.sync_lock:
                    again = partition.sync_wanted_again
                    partition.sync_queued = again
            with self._idle:
                self._idle.notify_all()


def _send_nothing(operations: bytes) -> None:
    raise AssertionError("the sync threads are not started")
