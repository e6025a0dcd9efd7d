"""The sync threads: one fdatasync for everything that was appended before it.

While a sync of a partition runs, more batches are appended to it, and the next sync covers all of
them: group commit. One thread at a time syncs a partition. Several partitions are synced in
parallel, so the file system can commit them together.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from bascule.errors import BasculeError, is_damage, reason_without_paths
from bascule.host.api import Clock
from bascule.replica.partition import Partition
from bascule.replica.syncing.checkpointing import write_checkpoint
from bascule.replica.syncing.work_queue import WorkQueue

log = logging.getLogger("bascule.replica")

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
        self._ending = threading.Lock()
        """Held to begin the stop, and by threads that queue what they have not ended."""
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
        with self._ending:
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
        if not partition.syncing.request(checkpoint=checkpoint):
            self._queue.put(partition)
        elif partition.is_awaited:
            with self._urgent:
                self._urgent.notify_all()

    def stop_partition(self, partition: Partition, cause: BasculeError) -> None:
        """Stop the partition soon, on a sync thread; waiting publishers get error acks."""
        partition.syncing.stop_cause = cause
        self.request(partition)

    def _send_acks(self, operations: bytes) -> None:
        if operations:
            self._send(operations)

    def _delay_unawaited(self, partition: Partition) -> None:
        """Delay a sync that no publisher or reader waits for, so that it covers more batches.

        The delay ends when someone waits, and when another partition requests a sync.
        """
        while self._queue.empty() and not partition.is_awaited:
            pause = (
                partition.syncing.synced_at_ns
                + UNAWAITED_SYNC_INTERVAL_NS
                - self.clock.monotonic_ns()
            )
            if pause <= 0 or self._stopping:
                return
            with self._urgent:
                if not partition.is_awaited:
                    self._urgent.wait(pause / 1e9)

    def stuck_ns(self) -> int:
        """How long a sync for which publishers wait has had no file on the disk; the longest.

        A sync of many segments takes long on a disk that works. One that waits for a thread is
        stuck as long as all threads are, whatever they sync. Any thread may call it.
        """
        now_ns = self.clock.monotonic_ns()
        running = {
            partition: now_ns - max(began_ns, partition.syncing.progressed_ns)
            for partition, began_ns in list(self._running.items())
        }
        longest = max((each for p, each in running.items() if _is_waited_for(p)), default=0)
        if len(running) < len(self._threads) or (least := min(running.values())) <= longest:
            return longest
        queued = (p for p in self._queue.waiting() if p is not None)
        return least if any(map(_is_waited_for, queued)) else longest

    def wait_idle(self, partition: Partition) -> None:
        """Return once no sync of the partition runs or is queued, or the threads have stopped."""
        with self._idle:
            self._idle.wait_for(lambda: self._has_stopped or not partition.syncing.is_queued)

    def _run(self) -> None:
        while (partition := self._queue.get()) is not None:
            while self._take_turn(partition) and not self._give_way(partition):
                pass
            with self._idle:
                self._idle.notify_all()

    def _take_turn(self, partition: Partition) -> bool:
        """Do what is requested of one partition; whether there is more to do."""
        self._delay_unawaited(partition)
        turn = partition.syncing.begin_turn()
        cause = partition.syncing.stop_cause
        self._running[partition] = self.clock.monotonic_ns()
        try:
            if cause is not None:
                self._send_acks(_stop(partition, cause))
            elif turn.sync or partition.is_dirty:  # else only a checkpoint was put off
                self._sync(partition)
            if turn.checkpoint and not write_checkpoint(partition):
                partition.syncing.put_off_checkpoint()
        except Exception as error:  # boundary: a bug stops one partition, not the thread
            log.exception("sync thread failed")
            self._send_acks(partition.fail(f"internal error while syncing: {error!r}"))
        finally:
            del self._running[partition]
        return partition.syncing.end_turn()

    def _give_way(self, partition: Partition) -> bool:
        """Queue a partition that needs another turn behind those that wait for theirs; False where
        none does. Partitions that always have more to do would keep the threads from all others.
        """
        with self._ending:
            if self._stopping or self._queue.empty():
                return False  # a thread that stops takes nothing from behind its end
            self._queue.put(partition)
            return True

    def _sync(self, partition: Partition) -> None:
        had_records, began_ns = partition.is_dirty, self._running[partition]
        acks = partition.sync()
        if had_records and partition.syncing.synced_at_ns >= began_ns:
            self.on_synced(began_ns, partition.syncing.synced_at_ns)
        self._send_acks(acks)


def _is_waited_for(partition: Partition) -> bool:
    """Whether publishers wait for a sync of the partition."""
    return partition.is_leader and partition.needs_sync


def _stop(partition: Partition, cause: BasculeError) -> bytes:
    return partition.fail(
        str(cause), reason=reason_without_paths(cause), is_damage=is_damage(cause)
    )


def _ignore(began_ns: int, ended_ns: int) -> None:
    pass


def _send_nothing(operations: bytes) -> None:
    raise AssertionError("the sync threads are not started")
