"""Compacts the logs of streams with `cleanup = compact`, the dirtiest first, on one thread.

Choosing a log reads only the list of its segments. A run reads the log twice in compiled code that
releases the GIL, and holds the partition's maintenance lock only while files are renamed. Its rate
may be limited (`bytes_per_second_max`). When the node stops, a run ends within a MiB of work.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, NamedTuple

from bascule.errors import BasculeError, Closed, CorruptData
from bascule.host.api import Clock, Files, Random
from bascule.model import Cleanup, StreamConfig
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.roles.commitment import Commitment, TombstoneReader
from bascule.storage.compaction.clean_offset import read_clean_offset
from bascule.storage.compaction.keys.key_map import SECRET_BYTES
from bascule.storage.compaction.plan import CompactionPlan, CompactionReason, plan_compaction
from bascule.storage.compaction.run import Compaction, CompactionConfig, CompactionProgress
from bascule.storage.partition_log import PartitionLog
from bascule.storage.retention import limits_of, log_config

log = logging.getLogger("bascule.replica")

TICK_SECONDS: Final = 5.0
RETRY_NS: Final = 600 * 1_000_000_000
"""Pause after a failed compaction of a log."""
BEHIND_NS: Final = 10 * 1_000_000_000
"""Until a table is asked again whether its log may remove tombstones."""


@dataclass(slots=True)
class CompactionCounts:
    """For metrics. Counts only grow."""

    runs: int = 0
    runs_cut_short: int = 0
    """Runs that cleaned a part only, because the key map was full."""
    failures: int = 0
    """Runs that an error ended."""
    records: int = 0
    """Records removed."""
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_removed: int = 0
    """Bytes by which logs became smaller."""
    run_ns: int = 0
    """Time spent in runs."""


class CleanerLimits(NamedTuple):
    """The memory and the rate that compaction may use."""

    map_bytes_max: int
    bytes_per_second_max: int
    """Bytes read and written; 0: no limit."""


class _Chosen(NamedTuple):
    partition: Partition
    store: PartitionLog
    plan: CompactionPlan


class _Removal(AbstractContextManager[bool]):
    """Entered while segments are replaced: whether tombstones below an offset may still go."""

    def __init__(
        self, commitment: Commitment, reader: TombstoneReader | None, tombstones_end: int
    ) -> None:
        self._commitment = commitment
        self._reader = reader
        self._tombstones_end = tombstones_end

    def __enter__(self) -> bool:
        commitment, reader, end = self._commitment, self._reader, self._tombstones_end
        commitment.replacing.acquire()
        # The stream may have become a table since the run began.
        is_read = commitment.tombstone_reader is reader
        if is_read and reader is not None and end > 0:
            is_read = reader.has_synced(end)
        return commitment.begin_removal(end) and is_read

    def __exit__(self, *_: object) -> None:
        self._commitment.end_removal()
        self._commitment.replacing.release()


class Cleaner:
    """The loop over all partitions."""

    def __init__(
        self,
        partitions: Partitions,
        *,
        files: Files,
        clock: Clock,
        random: Random,
        limits: CleanerLimits,
        roll: Callable[[Partition], None],
        checkpoint: Callable[[Partition], None],
    ) -> None:
        """`roll` requests that the log writer ends the partition's active segment, `checkpoint`
        that a sync thread syncs the log and writes its checkpoint."""
        self._partitions = partitions
        self._files = files
        self._clock = clock
        self._random = random
        self._limits = limits
        self._roll = roll
        self._checkpoint = checkpoint
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cleaner")
        self._stopping = threading.Event()
        self._retry_ns: dict[Partition, int] = {}
        self.counts = CompactionCounts()

    async def run(self) -> None:
        """Run until cancelled; `close` must follow."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            while await self.tick():
                pass

    async def close(self) -> None:
        """Return once the thread has stopped; logs may be closed then."""
        self._stopping.set()
        await asyncio.to_thread(self._thread.shutdown)

    async def tick(self) -> bool:
        """Compact the dirtiest log; return whether there was one."""
        due = [
            partition
            for partitions in self._partitions.streams().values()
            if partitions and Cleanup.COMPACT in partitions[0].definition.config.cleanup
            for partition in partitions
        ]
        if self._retry_ns:
            known = set(due)
            self._retry_ns = {p: at for p, at in self._retry_ns.items() if p in known}
        if not due or self._stopping.is_set():
            return False
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._clean_dirtiest, due)

    def _clean_dirtiest(self, partitions: list[Partition]) -> bool:
        chosen: _Chosen | None = None
        for partition in partitions:
            plan = self._plan(partition)
            if plan is None or plan.reason is None:
                continue
            assert partition.log is not None, "only open logs have a plan"
            if chosen is None or plan.dirty_share > chosen.plan.dirty_share:
                chosen = _Chosen(partition, partition.log, plan)
        if chosen is None or self._stopping.is_set():
            return False
        self._clean(chosen)
        return True

    def _plan(self, partition: Partition) -> CompactionPlan | None:
        """The plan for one log; None where it cannot be planned now."""
        store = partition.log
        if store is None or partition.failure is not None or partition.deleted:
            return None
        if self._retry_ns.get(partition, 0) > self._clock.monotonic_ns():
            return None
        version = store.truncation_version  # before all that may be true of an older log
        try:
            plan = plan_compaction(
                store,
                partition.definition.config,
                read_clean_offset(self._files, store.directory),
                truncation_version=version,
                high_watermark=partition.committed_offset,
                replicated_offset=partition.replicated_offset,
                now_ms=partition.now_ms(),
            )
        except (OSError, BasculeError) as error:
            self._note_failure(partition, error)
            return None
        if plan.roll:
            self._roll(partition)
        if store.end.segment_base > store.replacement.recovery_segment:
            self._checkpoint(partition)
        return plan

    def _clean(self, chosen: _Chosen) -> None:
        partition, store, plan = chosen
        config = partition.definition.config
        started_ns = self._clock.monotonic_ns()
        tombstones_end, reader = plan.tombstones_end, partition.commitment.tombstone_reader
        if reader is not None:
            tombstones_end = min(tombstones_end, reader.sync_to(tombstones_end))
            if plan.reason is CompactionReason.TOMBSTONES and tombstones_end < plan.clean_offset:
                self._retry_ns[partition] = started_ns + BEHIND_NS
                return  # the table is behind: a run would find the same tombstones again
        compaction = Compaction(
            self._files,
            store,
            _run_config(config, self._limits.map_bytes_max),
            end_offset=plan.end_offset,
            now_ms=partition.now_ms(),
            secret=self._random.bytes(SECRET_BYTES),
            lock=partition.maintenance_lock,
            tombstones_end=tombstones_end,
            committed_end=partition.committed_offset,
            removal=_Removal(partition.commitment, reader, tombstones_end),
            truncation_version=plan.truncation_version,
        )
        steps = compaction.steps()
        spent = 0
        try:
            for step in steps:
                spent += step
                self._pace(spent, started_ns)
                if self._stopping.is_set() or partition.deleted:
                    break
            else:
                self._note_done(chosen, compaction.done, started_ns)
        except (OSError, BasculeError) as error:
            self._note_failure(partition, error)
        finally:
            steps.close()
            self._count(compaction.done, started_ns)

    def _pace(self, spent: int, started_ns: int) -> None:
        """Wait until `spent` bytes since the start are within the rate, or the node stops."""
        if rate := self._limits.bytes_per_second_max:
            elapsed = (self._clock.monotonic_ns() - started_ns) / 1e9
            if (ahead := spent / rate - elapsed) > 0:
                self._stopping.wait(ahead)

    def _count(self, done: CompactionProgress, started_ns: int) -> None:
        counts = self.counts
        counts.records += done.records_removed
        counts.bytes_read += done.bytes_read
        counts.bytes_written += done.bytes_written
        counts.bytes_removed += done.bytes_removed
        counts.run_ns += self._clock.monotonic_ns() - started_ns

    def _note_done(self, chosen: _Chosen, done: CompactionProgress, started_ns: int) -> None:
        self.counts.runs += 1
        self.counts.runs_cut_short += done.map_is_full
        partition, store, plan = chosen
        log.info(
            "compaction",
            extra={
                "stream": partition.definition.name,
                "partition": partition.index,
                "reason": plan.reason,
                "clean_offset": done.clean_offset,
                "keys": done.keys,
                "records_removed": done.records_removed,
                "bytes_read": done.bytes_read,
                "bytes_written": done.bytes_written,
                "bytes_removed": done.bytes_removed,
                "milliseconds": (self._clock.monotonic_ns() - started_ns) // 1_000_000,
            },
        )
        if done.map_is_full and done.clean_offset <= plan.clean_offset:
            self._retry_ns[partition] = self._clock.monotonic_ns() + RETRY_NS
            log.error(
                "one batch has more keys than compaction may remember; "
                "raise limits.compaction_map_bytes_max",
                extra={
                    "stream": partition.definition.name,
                    "partition": partition.index,
                    "offset": done.clean_offset,
                    "directory": store.directory,
                },
            )

    def _note_failure(self, partition: Partition, error: OSError | BasculeError) -> None:
        if isinstance(error, Closed) or partition.deleted:
            return  # the node stops, or the stream is deleted
        if isinstance(error, CorruptData):
            self._partitions.notify_damage(partition, error)
        self.counts.failures += 1
        self._retry_ns[partition] = self._clock.monotonic_ns() + RETRY_NS
        log.error(
            "compaction failed; the log stays as it is",
            extra={
                "stream": partition.definition.name,
                "partition": partition.index,
                "error": str(error),
            },
        )


def _run_config(config: StreamConfig, map_bytes_max: int) -> CompactionConfig:
    """Segments are joined up to what retention asks for; without a limit of age up to any age."""
    sizes = log_config(config)
    return CompactionConfig(
        segment_bytes_max=sizes.segment_bytes_max,
        tombstone_retention_ms=config.tombstone_retention_ms,
        map_bytes_max=map_bytes_max,
        messages_max=sizes.segment_messages_max,
        age_ms_max=sizes.segment_age_ms_max if limits_of(config).age_ms_max else 0,
    )
