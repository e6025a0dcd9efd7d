"""The thread that reads logs: those that somebody asks for first, then those read longest ago."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

from bascule.errors import BasculeError, Closed, CorruptData
from bascule.host.api import Clock, Files
from bascule.record.header import HEADER_BYTES, read_header
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.scrub.progress import Key, ScrubProgress, ScrubProgressFile
from bascule.replica.scrub.report import ScrubbedLog, ScrubReport, ScrubState
from bascule.storage.partition_log import LogPosition, PartitionLog
from bascule.storage.scrub import RangeDigests

log = logging.getLogger("bascule.replica")

TICK_SECONDS: Final = 1.0
LOOK_MS: Final = 10_000
"""Between two looks at all logs for one that is due, where none was."""
SAVE_NS: Final = 10_000_000_000
"""Between two notes of the progress on the disk."""


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
    last_pass_ms: int = 0
    """When every log of the node had been read within a period; Unix milliseconds, 0: not yet."""


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
    ) -> None:
        self._partitions = partitions
        self._clock = clock
        self._limits = limits
        self._file = ScrubProgressFile(files, data_directory)
        self._progress: dict[Key, ScrubProgress] = {}
        self._is_loaded = False
        self._saved_ns = 0
        self._looked_until_ms = 0
        """Before that no log is due."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scrubber")
        self._stopping = threading.Event()
        self._requests: OrderedDict[Key, _Request] = OrderedDict()
        self._wake = asyncio.Event()
        self._logs: dict[Key, ScrubbedLog] = {}
        self.counts = ScrubCounts()
        self.on_done: Callable[[Partition, ScrubbedLog], None] = lambda _, __: None
        """Called on the event loop after each pass that read a log to its end."""

    async def run(self) -> None:
        """Run until cancelled; `close` must follow."""
        self._progress = await asyncio.to_thread(self._file.load)
        self._is_loaded = True
        while True:
            self._wake.clear()
            while await self.tick():
                pass
            try:
                async with asyncio.timeout(TICK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        """Return once the thread has stopped; logs may be closed then."""
        self._stopping.set()
        await asyncio.to_thread(self._thread.shutdown)
        if self._is_loaded:
            await asyncio.to_thread(self._save, is_due=True)

    def request(self, partition: Partition, id: str, limit: int) -> None:
        """Read a log soon, and digest it up to the offset `limit`. The request has an `id`."""
        key = _key_of(partition)
        known = self._logs.setdefault(key, ScrubbedLog())
        if known.report is None or known.report.id != id:
            known.report = ScrubReport(id)
            self._requests[key] = _Request(id, limit)
            self._wake.set()

    def known(self, partition: Partition) -> ScrubbedLog:
        """What is known of a log."""
        found = self._logs.get(_key_of(partition))
        if found is None:
            finished_ms = self._progress.get(_key_of(partition), ScrubProgress()).finished_ms
            found = ScrubbedLog(finished_ms=finished_ms)
        return found

    async def tick(self) -> bool:
        """Read the log that is due; return whether there was one."""
        if self._stopping.is_set():
            return False
        chosen = self._chosen()
        if chosen is None:
            return False
        partition, request = chosen
        key = _key_of(partition)
        known = self._logs.setdefault(key, ScrubbedLog())
        if request is None or known.report is None or known.report.id != request.id:
            known.report = ScrubReport("" if request is None else request.id)
        loop = asyncio.get_running_loop()
        digests = await loop.run_in_executor(
            self._thread, self._scrub, partition, known.report, request
        )
        if known.report.is_done:
            self._conclude(partition, known, digests)
        return True

    def _chosen(self) -> tuple[Partition, _Request | None] | None:
        """The log to read next, and who has asked for it."""
        while self._requests:
            (stream_id, index), request = self._requests.popitem(last=False)
            present = self._partitions.stream_by_id(stream_id) or ()
            if index < len(present):
                return present[index], request
        partition = self._longest_ago()
        return None if partition is None else (partition, None)

    def _longest_ago(self) -> Partition | None:
        """The log that was read longest ago, if a period has passed since."""
        now_ms = self._clock.now_ms()
        if not self._limits.period_ms or now_ms < self._looked_until_ms:
            return None
        every = [each for some in self._partitions.streams().values() for each in some]
        oldest: Partition | None = None
        oldest_ms = newest_ms = 0
        for partition in every:
            if partition.log is None or partition.failure is not None or partition.deleted:
                continue
            at_ms = self._progress.get(_key_of(partition), ScrubProgress()).finished_ms
            newest_ms = max(newest_ms, at_ms)
            if oldest is None or at_ms < oldest_ms:
                oldest_ms, oldest = at_ms, partition
        if oldest is not None and oldest_ms + self._limits.period_ms <= now_ms:
            return oldest
        if oldest is not None:
            # That one was read within the period, so all of them were.
            self.counts.last_pass_ms = newest_ms
        self._looked_until_ms = now_ms + LOOK_MS
        present = set(map(_key_of, every))
        self._progress = {key: each for key, each in self._progress.items() if key in present}
        self._logs = {key: each for key, each in self._logs.items() if key in present}
        return None

    def _conclude(
        self, partition: Partition, known: ScrubbedLog, digests: RangeDigests | None
    ) -> None:
        assert known.report is not None
        key, now_ms = _key_of(partition), self._clock.now_ms()
        known.finished_ms = now_ms
        # Also where it failed: the next log is due now.
        self._progress[key] = ScrubProgress(now_ms)
        if known.report.state is ScrubState.OK:
            self.counts.passes += 1
            if digests is not None:
                known.digests = digests.ranges()
            self.on_done(partition, known)

    # -- on the thread --------------------------------------------------------------------------

    def _scrub(
        self, partition: Partition, report: ScrubReport, request: _Request | None
    ) -> RangeDigests | None:
        """Read a log from its beginning, or from where an earlier pass ended.

        Returns the digests; None if a part of the log was read by an earlier process.
        """
        key, store = _key_of(partition), partition.log
        at = self._progress.get(key, ScrubProgress()).next if request is None else None
        is_whole = at is None
        report.state = ScrubState.RUNNING
        if store is None or partition.failure is not None:
            report.state = ScrubState.FAILED
            failure = partition.failure
            report.found = "there is no log" if failure is None else failure.cause
            if failure is not None and failure.is_damage:
                report.state = ScrubState.CORRUPT
            return None
        report.bytes_total = store.size_bytes()
        limit = partition.committed_offset if request is None else request.limit
        digests = RangeDigests(store.start_offset, limit)
        try:
            self._read(partition, store, report, digests, at, is_paced=request is None)
        except CorruptData as error:
            report.state, report.found = ScrubState.CORRUPT, str(error)
            self.counts.damaged += 1
            self._partitions.notify_damage(partition, error)
        except Closed:  # the node stops, or the partition was opened anew, moved or deleted
            report.state, report.found = ScrubState.FAILED, "the log was closed"
        except (BasculeError, OSError) as error:
            report.state, report.found = ScrubState.FAILED, str(error)
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
        return digests if is_whole else None

    def _read(
        self,
        partition: Partition,
        store: PartitionLog,
        report: ScrubReport,
        digests: RangeDigests,
        at: LogPosition | None,
        *,
        is_paced: bool,
    ) -> None:
        """Read a log step by step; the report says how far. Raises: as `PartitionLog.verify`."""
        key, seen = _key_of(partition), 0
        finished_ms = self._progress.get(key, ScrubProgress()).finished_ms

        def observe(data: memoryview) -> None:
            nonlocal seen
            digests.add(data)
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
            if at is None:
                report.state = ScrubState.OK
                return
            if is_paced:
                self._progress[key] = ScrubProgress(finished_ms, at)
                self._save()
                if self._requests:
                    return  # it goes on afterwards
                if rate := self._limits.bytes_per_second_max:
                    self._stopping.wait(max(seen / rate - spent_ns / 1e9, 0))
            if self._stopping.is_set():
                if not is_paced:
                    report.state, report.found = ScrubState.FAILED, "the node stops"
                return

    def _save(self, *, is_due: bool = False) -> None:
        """Note the progress on the disk, now and then."""
        now_ns = self._clock.monotonic_ns()
        if not is_due and now_ns - self._saved_ns < SAVE_NS:
            return
        self._saved_ns = now_ns
        try:
            self._file.save(dict(self._progress))
        except OSError as error:
            log.warning("progress of the scrubber not noted", extra={"error": str(error)})


def _key_of(partition: Partition) -> Key:
    return partition.definition.id, partition.index
