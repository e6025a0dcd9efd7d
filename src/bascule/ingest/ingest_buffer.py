"""The bounded room between the reader of a NATS connection and the disk.

Batches are written back to back into slabs. A slab that is full goes to the appender's queue with
its batches and comes back once all of them are written. While many small chunks wait for a slow
disk they share slabs, so the bound is one of bytes, not of chunks.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

from bascule.host.api import Clock
from bascule.ingest.sequencer import Slab, UnstampedBatch
from bascule.replica.partition import Partition

log = logging.getLogger("bascule.ingest")

SLAB_BYTES: Final = 2 << 20
"""Holds what a few receives of 256 KiB become, and is soon reused while it is in a cache."""
FREE_SLABS_MAX: Final = 32
"""Kept for the next burst: fresh memory costs as much as the copy into it."""
STALL_LOG_NS: Final = 10_000_000_000
"""A disk that stays slow is logged this often; the counters have every stall."""


class BufferSlab:
    """One slab and how much of it waits for the disk."""

    __slots__ = ("outstanding", "used", "view")

    def __init__(self, size: int) -> None:
        self.view = memoryview(bytearray(size))
        self.used = 0
        """Bytes from the start that hold batches, written or not."""
        self.outstanding = 0
        """Batches submitted and not yet written."""


@dataclass(slots=True)
class BufferCounts:
    """For metrics; the first two only grow."""

    stalls: int = 0
    """Times the reader had to wait for room."""
    stalled_ns: int = 0
    allocated_bytes: int = 0
    allocated_bytes_max: int = 0


class IngestBuffer:
    """One reader reserves and submits; one appender takes from `queue` and releases."""

    def __init__(self, *, bytes_max: int, clock: Clock) -> None:
        self._bytes_max = bytes_max
        self._clock = clock
        self._freed = threading.Condition()
        self._current = BufferSlab(SLAB_BYTES)
        self._stall_logged_ns = -STALL_LOG_NS
        self._free: deque[BufferSlab] = deque()
        self.queue: SimpleQueue[list[UnstampedBatch] | Partition | threading.Event | None] = (
            SimpleQueue()
        )
        """What is to be written, in order: an event is set when its turn comes, the active
        segment of a partition is ended, None stops."""
        self.counts = BufferCounts(allocated_bytes=SLAB_BYTES, allocated_bytes_max=SLAB_BYTES)

    def reserve(self, size: int) -> tuple[Slab, int]:
        """Wait for `size` bytes of room: a slab and where its free part starts.

        A message larger than a slab gets one of its own, as soon as the rest leaves it room.
        """
        with self._freed:
            current = self._current
            if current.outstanding == 0:
                current.used = 0
            if len(current.view) - current.used < size:
                current = self._next(size)
            return current, current.used

    def submit(self, slab: Slab, end: int, batches: list[UnstampedBatch]) -> None:
        """Queue the batches, in order; the slab is used up to `end`."""
        if not batches:
            return
        assert slab is self._current
        with self._freed:
            self._current.used = end
            self._current.outstanding += len(batches)
        self.queue.put(batches)

    def submit_own(self, draft: UnstampedBatch) -> None:
        """Queue a draft with memory of its own; any thread may, and nothing bounds it here."""
        self.queue.put([draft])

    def release(self, slab: Slab | None, count: int) -> None:
        """`count` batches of the slab are written (or given up)."""
        if slab is None:
            return
        assert isinstance(slab, BufferSlab)
        with self._freed:
            slab.outstanding -= count
            if slab.outstanding == 0 and slab is not self._current:
                self._retire(slab)
                self._freed.notify()

    def wait_written(self) -> None:
        """Return once everything submitted before the call is written or given up."""
        done = threading.Event()
        self.queue.put(done)
        done.wait()

    def fill(self) -> dict[str, int]:
        """Bytes that wait for the disk, whole slabs, and how many may."""
        with self._freed:
            idle = sum(len(slab.view) for slab in self._free)
            if self._current.outstanding == 0:
                idle += len(self._current.view)
            return {
                "waiting_bytes": max(self.counts.allocated_bytes - idle, 0),
                "limit_bytes": self._bytes_max,
            }

    def _retire(self, slab: BufferSlab) -> None:
        if len(slab.view) == SLAB_BYTES and len(self._free) < FREE_SLABS_MAX:
            slab.used = 0
            self._free.append(slab)
        else:
            self.counts.allocated_bytes -= len(slab.view)

    def _next(self, size: int) -> BufferSlab:
        """Make another slab current, waiting for room where there is none. The lock is held."""
        previous = self._current
        self._current = BufferSlab(0)
        if previous.outstanding == 0:
            self._retire(previous)
        if size <= SLAB_BYTES and self._free:
            self._current = self._free.popleft()
            return self._current
        wanted = max(size, SLAB_BYTES)
        if not self._fits(wanted):
            self._wait_for_room(wanted)
            if size <= SLAB_BYTES and self._free:
                self._current = self._free.popleft()
                return self._current
        self.counts.allocated_bytes += wanted
        self.counts.allocated_bytes_max = max(
            self.counts.allocated_bytes_max, self.counts.allocated_bytes
        )
        self._current = BufferSlab(wanted)
        return self._current

    def _fits(self, wanted: int) -> bool:
        allocated = self.counts.allocated_bytes
        return allocated == 0 or allocated + wanted <= self._bytes_max

    def _wait_for_room(self, wanted: int) -> None:
        self.counts.stalls += 1
        began = self._clock.monotonic_ns()
        if began - self._stall_logged_ns > STALL_LOG_NS:
            self._stall_logged_ns = began
            log.warning(
                "ingest stalled: the disk is slower than the wire",
                extra={"waiting_bytes": self.counts.allocated_bytes, "stalls": self.counts.stalls},
            )
        while not self._fits(wanted):
            if wanted <= SLAB_BYTES and self._free:
                break
            if self._free:
                self._free.popleft()
                self.counts.allocated_bytes -= SLAB_BYTES
                continue
            self._freed.wait()
        self.counts.stalled_ns += self._clock.monotonic_ns() - began
