"""Keeps every log within its stream's limits: plans with `storage.retention`, removes segments.

A log within its limits costs a few comparisons, and each tick looks at the next
`PARTITIONS_PER_TICK` of them: the cost does not grow with their number. A thread plans and removes
segments. The log writer ends an active segment that must be removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from bascule.errors import BasculeError, Closed, CorruptData
from bascule.host.api import Clock
from bascule.replica.disk_reserve import DiskReserve
from bascule.replica.failure_run import FailureRun
from bascule.replica.maintenance.purging import sync_to
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.storage.partition_log import PartitionLog
from bascule.storage.payloads.payload_log import PayloadLog
from bascule.storage.retention import (
    RetentionLimits,
    exceeds_limits,
    limits_of,
    plan_retention,
    segments_of,
    wall_time,
)

log = logging.getLogger("bascule.replica")

TICK_SECONDS: Final = 2.0
PARTITIONS_PER_TICK: Final = 1_000
"""With more partitions, each is looked at every few ticks: with 10,000 of them every 20 s."""
PARTITIONS_PER_SLICE: Final = 256
"""Partitions checked, in less than a millisecond, before the event loop runs other tasks."""
Archived = Callable[[str, str, int], int | None]
"""(archive, stream, partition) -> the first offset not archived yet; None: unknown."""


@dataclass(slots=True)
class RetentionCounts:
    """For metrics. Counts only grow."""

    records: int = 0
    """Records removed."""
    segments: int = 0
    bytes: int = 0
    """Bytes of batches in the removed segments."""
    payload_bytes: int = 0
    """Bytes of payloads whose records were removed."""
    failures: int = 0
    """Passes over a log that an error ended."""


class Retention:
    """The loop over all partitions."""

    def __init__(
        self,
        partitions: Partitions,
        *,
        clock: Clock,
        archived: Archived,
        roll: Callable[[Partition], None],
        reserve: DiskReserve,
    ) -> None:
        """`roll` requests that the log writer ends the partition's active segment. `reserve` is
        used where the disk is too full to move the start of a log."""
        self._partitions = partitions
        self._clock = clock
        self._archived = archived
        self._roll = roll
        self._reserve = reserve
        self._next: deque[Partition] = deque()
        """Those of this round that are not checked yet."""
        self._due: dict[Partition, tuple[RetentionLimits, int, int]] = {}
        """The limits, with one on age, and when a log with them must be checked again: by the wall
        clock in milliseconds, or by the monotonic one in nanoseconds, since the first may have been
        ahead when that was computed."""
        self._failing: dict[Partition, FailureRun] = {}
        """The passes in a row that an error ended."""
        self.counts = RetentionCounts()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self.tick()

    async def tick(self) -> None:
        """Check the next partitions once; a tick that finds none left begins another round."""
        due = []
        if not self._next:
            self._next.extend(self._known())
        for number in range(min(PARTITIONS_PER_TICK, len(self._next))):
            partition = self._next.popleft()
            if number % PARTITIONS_PER_SLICE == PARTITIONS_PER_SLICE - 1:
                await asyncio.sleep(0)
            if self._is_due(partition):
                due.append(partition)
        if due:
            await asyncio.to_thread(self._enforce_all, due)

    def _known(self) -> Collection[Partition]:
        """All partitions, in order; the state of removed ones is dropped."""
        known = dict.fromkeys(p for ps in self._partitions.streams().values() for p in ps)
        self._due = {p: due for p, due in self._due.items() if p in known}
        self._failing = {p: run for p, run in self._failing.items() if p in known}
        return known

    def _is_due(self, partition: Partition) -> bool:
        if partition.log is None or partition.failure is not None or partition.deleted:
            return False
        if self._has_to_follow(partition) or _is_sweep_due(partition):
            return True
        if not partition.is_leader:
            return False
        limits = limits_of(partition.definition.config)
        if limits.age_ms_max:
            seen, due_ms, due_ns = self._due.get(partition, (None, 0, 0))
            if seen != limits or due_ms <= self._clock.now_ms():
                return True
            if due_ns <= self._clock.monotonic_ns():
                return True
        return exceeds_limits(partition.log, limits)

    def _enforce_all(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            assert partition.log is not None
            try:
                self._enforce(partition, partition.log)
            except Closed:
                continue  # the node stops, or the stream is deleted
            except (OSError, BasculeError) as error:
                self._note_failure(partition, error)
            else:
                self._failing.pop(partition, None)

    def _note_failure(self, partition: Partition, error: Exception) -> None:
        if isinstance(error, CorruptData):
            self._partitions.notify_damage(partition, error)
        self.counts.failures += 1
        if self._failing.setdefault(partition, FailureRun()).on_failure(error):
            name, index = partition.definition.name, partition.index
            extra = {"stream": name, "partition": index, "error": str(error)}
            log.warning("retention failed", extra=extra)

    def _enforce(self, partition: Partition, store: PartitionLog) -> None:
        """Apply the start of its leader's log to the log of a follower, also if it leads meanwhile;
        and the limits to a leader's.

        Raises: CorruptData, LogFailed, Closed, OSError.
        """
        if self._has_to_follow(partition):
            self._follow_start(partition, store)
        if isinstance(store, PayloadLog) and store.is_sweep_due:
            self._sweep(partition, store)
        if not partition.is_leader:
            return
        limits = limits_of(partition.definition.config)
        now_ms, ahead_ms = self._clock.now_ms(), partition.ahead_ms
        with partition.maintenance_lock:
            if partition.deleted or not partition.is_leader:
                return
            if limits.age_ms_max:
                store.load_timestamps(now_ms + ahead_ms - limits.age_ms_max)
            start = store.start_offset
            plan = plan_retention(
                segments_of(store),
                limits,
                start_offset=start,
                now_ms=now_ms,
                ahead_ms=ahead_ms,
                end_offset=self._end(partition, store),
            )
            if plan.start_offset > start or plan.has_obsolete_segment:
                removed = self._reserve.run(
                    store.advance_start,
                    plan.start_offset,
                    high_watermark=partition.committed_offset,
                )
                self._note_removed(partition, removed.records, removed.segments, removed.bytes)
        if plan.roll:
            self._roll(partition)
        if limits.age_ms_max:
            due_ms = _next_check_ms(store, limits, now_ms, ahead_ms)
            due_ns = self._clock.monotonic_ns() + max(due_ms - now_ms, 0) * 1_000_000
            self._due[partition] = limits, due_ms, due_ns

    def _sweep(self, partition: Partition, store: PayloadLog) -> None:
        """Remove the payloads of removed records. Raises: CorruptData, OSError."""
        with partition.maintenance_lock:
            if not partition.deleted:
                self.counts.payload_bytes += store.sweep()
        self._partitions.remove_unlinked(partition)

    def _has_to_follow(self, partition: Partition) -> bool:
        told = min(partition.told_start.offset, partition.committed_offset)
        return told > partition.start_offset

    def _follow_start(self, partition: Partition, store: PartitionLog) -> None:
        sync_to(partition, store, min(partition.told_start.offset, partition.committed_offset))
        with partition.maintenance_lock:
            if partition.deleted:
                return
            # Looked at only now: an unclean election may have come while this waited, and others
            # in the place of the records that were to be removed. The watermark goes first: what
            # the next epoch commits is not compared with what was told before.
            committed = partition.committed_offset
            removed = self._reserve.run(
                store.advance_start, partition.told_start.offset, high_watermark=committed
            )
        if removed.records:
            self._note_removed(partition, removed.records, removed.segments, removed.bytes)

    def _end(self, partition: Partition, store: PartitionLog) -> int:
        """The first offset that must stay: not synced, not committed, or not archived."""
        end = min(store.synced.offset, partition.committed_offset)
        definition = partition.definition
        if archive := definition.config.retention_after:
            end = min(end, self._archived(archive, definition.name, partition.index) or 0)
        return end

    def _note_removed(self, partition: Partition, records: int, segments: int, size: int) -> None:
        partition.notify()
        counts = self.counts
        counts.records += records
        counts.segments += segments
        counts.bytes += size
        log.info(
            "retention",
            extra={
                "stream": partition.definition.name,
                "partition": partition.index,
                "start_offset": partition.start_offset,
                "records": records,
                "segments": segments,
                "bytes": size,
            },
        )


def _next_check_ms(store: PartitionLog, limits: RetentionLimits, now_ms: int, ahead_ms: int) -> int:
    """When the oldest segment expires, in Unix milliseconds, as far as is known."""
    oldest = store.segments_info()[0]
    if oldest.timestamp_max is None or oldest.bytes == 0:
        return now_ms + limits.age_ms_max // 8
    written_ms = wall_time(oldest.timestamp_max, now_ms=now_ms, ahead_ms=ahead_ms)
    return max(written_ms, now_ms - limits.age_ms_max) + limits.age_ms_max


def _is_sweep_due(partition: Partition) -> bool:
    store = partition.log
    return isinstance(store, PayloadLog) and store.is_sweep_due
