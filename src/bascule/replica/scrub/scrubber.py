"""The thread that reads logs: first those that somebody asks for, then those that are due."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

from bascule.errors import BasculeError, Closed, CorruptData
from bascule.host.api import Clock, Files, Random
from bascule.model import Cleanup
from bascule.record.header import HEADER_BYTES, read_header
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.scrub.payloads import ScrubbedPayloads
from bascule.replica.scrub.progress import Key, ScrubProgress, ScrubProgressFile
from bascule.replica.scrub.report import ScrubbedLog, ScrubReport, ScrubState
from bascule.replica.scrub.schedule import ScrubSchedule, key_of
from bascule.storage.compaction.keys.key_map import SECRET_BYTES
from bascule.storage.partition_log import LogPosition, PartitionLog
from bascule.storage.scrub import DigestedRanges, RangeDigests
from bascule.storage.scrub.latest import LatestDigest, LatestValues

log = logging.getLogger("bascule.replica")

TICK_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 0.05
"""After a log that nobody has asked for, so that many small ones take little of a processor."""
SAVE_NS: Final = 60_000_000_000
"""Between two notes of the progress on the disk."""
DIGESTS_BYTES_MAX: Final = 64 << 20
"""Of the digests in memory. Those of the log that was read longest ago are dropped first."""


def _may_be_compacted(partition: Partition) -> bool:
    log, cleanup = partition.log, partition.definition.config.cleanup
    return Cleanup.COMPACT in cleanup or (log is not None and log.gaps_allowed)


class ScrubLimits(NamedTuple):
    """How often and how fast logs are read when nobody asks for it."""

    period_ms: int
    """Each log once in so long; 0: never."""
    bytes_per_second_max: int
    """0: no limit."""


@dataclass(slots=True)
class ScrubCounts:
    """For metrics. Counts only grow."""

    bytes: int = 0
    records: int = 0
    passes: int = 0
    """Logs read to their end."""
    damaged: int = 0
    """Passes that have found damage."""
    failures: int = 0
    """Passes that another error ended."""
    payload_bytes: int = 0
    payloads_damaged: int = 0
    """Payloads that do not have the checksum that their records say, or are lost."""
    last_pass_ms: int = 0
    """When a log was read last and no other one was due; Unix milliseconds, 0: not yet."""


class _Request(NamedTuple):
    id: str
    limit: int


class Scrubber:
    """The loop over all partitions. Its methods belong to the event loop."""

    def __init__(
        self,
        partitions: Partitions,
        *,
        files: Files,
        data_directory: str,
        clock: Clock,
        limits: ScrubLimits,
        random: Random,
    ) -> None:
        self._partitions = partitions
        self._random = random
        self._clock = clock
        self._limits = limits
        self._file = ScrubProgressFile(files, data_directory)
        self._schedule = ScrubSchedule(partitions, limits.period_ms)
        self._is_loaded = False
        self._saved_ns = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scrubber")
        self._stopping = threading.Event()
        self._requests: OrderedDict[Key, _Request] = OrderedDict()
        self._wake = asyncio.Event()
        self._logs: dict[Key, ScrubbedLog] = {}
        self._digested: OrderedDict[Key, int] = OrderedDict()
        """Logs with digests -> their bytes, those read longest ago first."""
        self._digests_bytes = 0
        self.counts = ScrubCounts()
        self.on_done: Callable[[Partition, ScrubbedLog], None] = lambda _, __: None
        """Called on the event loop after each pass that read a log to its end."""

    async def run(self) -> None:
        """Run until cancelled; `close` must follow."""
        self._schedule.progress = await asyncio.to_thread(self._file.load)
        self._is_loaded = True
        while True:
            self._wake.clear()
            seconds = PAUSE_SECONDS if await self.tick() else TICK_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0 if self._requests else seconds):
                    await self._wake.wait()

    async def close(self) -> None:
        """Return once the thread has stopped; logs may be closed then."""
        self._stopping.set()
        await asyncio.to_thread(self._thread.shutdown)
        if self._is_loaded:
            await asyncio.to_thread(self._save, is_due=True)

    def request(self, partition: Partition, id: str, limit: int) -> None:
        """Read a log soon, and digest it up to the offset `limit`. The request has an `id`."""
        key = key_of(partition)
        known = self._logs.setdefault(key, ScrubbedLog())
        if known.report is None or known.report.id != id:
            known.report = ScrubReport(id)
            self._requests[key] = _Request(id, limit)
            self._wake.set()

    def known(self, partition: Partition) -> ScrubbedLog:
        """What is known of a log."""
        found = self._logs.get(key_of(partition))
        if found is None:
            progress = self._schedule.progress.get(key_of(partition))
            found = ScrubbedLog(finished_ms=0 if progress is None else progress.finished_ms)
        return found

    async def tick(self) -> bool:
        """Read the log that is due; return whether there was one."""
        if self._stopping.is_set():
            return False
        chosen = self._chosen()
        if chosen is None:
            return False
        partition, request = chosen
        key = key_of(partition)
        known = self._logs.setdefault(key, ScrubbedLog())
        if request is None or known.report is None or known.report.id != request.id:
            known.report = ScrubReport("" if request is None else request.id)
        loop = asyncio.get_running_loop()
        state, digests, latest = await loop.run_in_executor(
            self._thread, self._scrub, partition, known.report, request
        )
        # Nobody sees the end of a pass without its digests.
        known.report.state = state
        if known.report.is_done:
            self._conclude(partition, known, digests, latest)
        return True

    def _chosen(self) -> tuple[Partition, _Request | None] | None:
        """The log to read next, and who has asked for it."""
        while self._requests:
            (stream_id, index), request = self._requests.popitem(last=False)
            present = self._partitions.stream_by_id(stream_id) or ()
            if index < len(present):
                return present[index], request
        rounds = self._schedule.rounds
        due = self._schedule.next_due(self._clock.now_ms())
        if self._schedule.rounds != rounds:
            self._forget()
        self.counts.last_pass_ms = self._schedule.last_pass_ms
        return None if due is None else (due, None)

    def _forget(self) -> None:
        """Drop what is known of logs that are gone."""
        for key in self._logs.keys() - self._schedule.progress.keys() - self._requests.keys():
            del self._logs[key]
            self._digests_bytes -= self._digested.pop(key, 0)

    def _conclude(
        self,
        partition: Partition,
        known: ScrubbedLog,
        digests: RangeDigests | None,
        latest: LatestValues | None,
    ) -> None:
        assert known.report is not None
        key, now_ms = key_of(partition), self._clock.now_ms()
        known.finished_ms, known.latest = now_ms, latest
        # Also where it failed: the next log is due.
        self._schedule.progress[key] = ScrubProgress(now_ms, now_ms)
        if known.report.state is ScrubState.OK:
            self.counts.passes += 1
            self._keep(key, known, None if digests is None else digests.ranges())
            self.on_done(partition, known)

    def _keep(self, key: Key, known: ScrubbedLog, digests: DigestedRanges | None) -> None:
        """Keep the digests of a log, and drop what is too much."""
        known.digests = digests
        self._digests_bytes -= self._digested.pop(key, 0)
        if digests is not None:
            self._digested[key] = digests.bytes
            self._digests_bytes += digests.bytes
        while self._digests_bytes > DIGESTS_BYTES_MAX:
            oldest, size = self._digested.popitem(last=False)
            self._digests_bytes -= size
            self._logs[oldest].digests = None

    # -- on the thread --------------------------------------------------------------------------

    def _scrub(
        self, partition: Partition, report: ScrubReport, request: _Request | None
    ) -> tuple[ScrubState, RangeDigests | None, LatestValues | None]:
        """Read a log from its beginning, or from where an earlier pass ended.

        Returns how the pass ended, or that it goes on, and the digests; the first is None if a part
        of the log was read by an earlier process.
        """
        key, store = key_of(partition), partition.log
        at = self._schedule.progress[key].next if request is None else None
        is_whole = at is None
        report.state = ScrubState.RUNNING
        if store is None or partition.failure is not None:
            failure = partition.failure
            report.found = "there is no log" if failure is None else failure.cause
            is_damage = failure is not None and failure.is_damage
            return ScrubState.CORRUPT if is_damage else ScrubState.FAILED, None, None
        report.bytes_total = store.size_bytes()
        limit = partition.committed_offset if request is None else request.limit
        digests, latest = RangeDigests(store.start_offset, limit), None
        try:
            state = self._read(partition, store, report, digests, at, is_paced=request is None)
            if state is ScrubState.OK and request is not None and _may_be_compacted(partition):
                latest = self._read_latest(store, report, request)
        except CorruptData as error:
            state, report.found = ScrubState.CORRUPT, str(error)
            self.counts.damaged += 1
            self._partitions.notify_damage(partition, error)
        except Closed:  # the node stops, or the partition was opened anew, moved or deleted
            state, report.found = ScrubState.FAILED, "the log was closed"
        except (BasculeError, OSError) as error:
            state, report.found = ScrubState.FAILED, str(error)
            self.counts.failures += 1
            log.warning(
                "scrub of a log broken off",
                extra={
                    "stream": partition.definition.name,
                    "partition": partition.index,
                    "error": str(error),
                },
            )
        report.records = digests.records
        self._save()
        return state, digests if is_whole else None, latest

    def _read_latest(
        self, store: PartitionLog, report: ScrubReport, request: _Request
    ) -> LatestValues | None:
        """Digest the latest values of a log that may be compacted; None where other replicas cannot
        be compared with it. Raises: as `PartitionLog.verify`; Closed if the node stops."""

        def step(
            at: LogPosition | None, observe: Callable[[memoryview], None]
        ) -> LogPosition | None:
            if self._stopping.is_set():
                raise Closed("the node stops")
            began_ns = self._clock.monotonic_ns()
            at = store.verify(at, observe)
            report.busy_ns += self._clock.monotonic_ns() - began_ns
            return at

        # The hashes of keys have no part in the digest, but who writes keys must not choose them.
        return LatestDigest(store, request.limit, self._random.bytes(SECRET_BYTES)).read(step)

    def _read(
        self,
        partition: Partition,
        store: PartitionLog,
        report: ScrubReport,
        digests: RangeDigests,
        at: LogPosition | None,
        *,
        is_paced: bool,
    ) -> ScrubState:
        """Read a log step by step; the report says how far. Returns how the pass ended, or that it
        goes on. Raises: as `PartitionLog.verify`."""
        key, seen, found = key_of(partition), 0, 0
        progress = self._schedule.progress
        payloads = ScrubbedPayloads(store)
        known = progress.get(key, ScrubProgress(self._clock.now_ms()))

        def observe(data: memoryview) -> None:
            nonlocal seen
            digests.add(data)
            payloads.observe(data)
            # Of a batch that is larger than one read there is only the header.
            seen += read_header(data).total_bytes if len(data) == HEADER_BYTES else len(data)

        while True:
            began_ns, seen = self._clock.monotonic_ns(), 0
            at = store.verify(at, observe)
            spent_ns = self._clock.monotonic_ns() - began_ns
            report.busy_ns += spent_ns
            report.bytes += seen
            report.records = digests.records
            self.counts.bytes += seen
            found += self._read_payloads(partition, payloads, report, is_paced=is_paced)
            if at is None:
                return ScrubState.CORRUPT if found else ScrubState.OK
            if is_paced:
                progress[key] = known._replace(next=at)
                self._save()
                if self._requests:
                    return ScrubState.RUNNING  # it goes on afterwards
                if rate := self._limits.bytes_per_second_max:
                    self._stopping.wait(max(seen / rate - spent_ns / 1e9, 0))
            if self._stopping.is_set():
                if is_paced:
                    return ScrubState.RUNNING  # the next process goes on
                report.found = "the node stops"
                return ScrubState.FAILED

    def _read_payloads(
        self,
        partition: Partition,
        payloads: ScrubbedPayloads,
        report: ScrubReport,
        *,
        is_paced: bool,
    ) -> int:
        """Read the payloads of a step; how many are damaged or lost. Raises: Closed if the node
        stops; as `ScrubbedPayloads.verify`."""
        began_ns = self._clock.monotonic_ns()
        rate = self._limits.bytes_per_second_max if is_paced else 0

        def on_block(size: int) -> None:
            nonlocal began_ns
            spent_ns = self._clock.monotonic_ns() - began_ns
            report.busy_ns += spent_ns
            report.bytes += size
            self.counts.payload_bytes += size
            if self._stopping.wait(max(size / rate - spent_ns / 1e9, 0) if rate else 0):
                raise Closed("the node stops")
            began_ns = self._clock.monotonic_ns()

        damaged = 0
        for link, found in payloads.verify(on_block):
            damaged += 1
            self.counts.payloads_damaged += 1
            report.found = f"payload of offset {link.offset}: {found}"
            self._partitions.on_payload_damaged(partition, link)
        return damaged

    def _save(self, *, is_due: bool = False) -> None:
        """Note the progress on the disk, now and then."""
        now_ns = self._clock.monotonic_ns()
        if not is_due and now_ns - self._saved_ns < SAVE_NS:
            return
        self._saved_ns = now_ns
        try:
            self._file.save(dict(self._schedule.progress))
        except OSError as error:
            log.warning("progress of the scrubber not noted", extra={"error": str(error)})
