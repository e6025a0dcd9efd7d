"""The bounded buffer between the reader of a NATS connection and the log writer.

Batches are written back to back into slabs. A slab is reused once the log writer is done with
every batch in it. Chunks share slabs, so the limit counts bytes and not chunks.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bascule.host.api import Clock
from bascule.ingest.sequencer import Slab
from bascule.publish.unstamped_batch import Append, Replica, UnstampedBatch

log = logging.getLogger("bascule.ingest")

SLAB_BYTES: Final = 2 << 20
"""The batches of a few receives of 256 KiB; small enough to be reused while it is cached."""
FREE_SLABS_MAX: Final = 32
"""Slabs kept for the next burst: new memory costs as much as the copy into it."""
STALL_LOG_NS: Final = 10_000_000_000
"""Least time between two log lines about stalls; the counters have every stall."""


class BufferSlab:
    """One slab and how much of it waits for the log writer."""

    __slots__ = ("_release", "outstanding", "used", "view")

    def __init__(self, size: int, release: Callable[[BufferSlab], None]) -> None:
        self._release = release
        self.view = memoryview(bytearray(size))
        self.used = 0
        """Bytes from the start that hold batches, including those already written."""
        self.outstanding = 0
        """Appends that the log writer is not done with."""

    def __call__(self) -> None:
        """The log writer is done with the batches of one append: its `on_done`."""
        self._release(self)


@dataclass(slots=True)
class BufferCounts:
    """For metrics; the first two only grow."""

    stalls: int = 0
    """Times the reader waited for free memory."""
    stalled_ns: int = 0
    allocated_bytes: int = 0
    allocated_bytes_max: int = 0


class IngestBuffer:
    """One reading thread calls `reserve` and `submit`; `on_done` of the log writer frees slabs."""

    def __init__(self, append: Append, *, bytes_max: int, clock: Clock) -> None:
        """`bytes_max` bounds the sum of all slabs."""
        self._append = append
        self._bytes_max = bytes_max
        self._clock = clock
        self._freed = threading.Condition()
        self._current = BufferSlab(SLAB_BYTES, self._release)
        self._stall_logged_ns = -STALL_LOG_NS
        self._free: deque[BufferSlab] = deque()
        self.counts = BufferCounts(allocated_bytes=SLAB_BYTES, allocated_bytes_max=SLAB_BYTES)

    def reserve(self, size: int) -> tuple[Slab, int]:
        """Wait for `size` free bytes; return a slab and the start of its free part.

        A message larger than a slab gets a slab of its own, even where it exceeds the limit: then
        it waits until no other slab is in use.
        """
        with self._freed:
            current = self._current
            if current.outstanding == 0:
                current.used = 0
            if len(current.view) - current.used < size:
                current = self._next_slab(size)
            return current, current.used

    def submit(
        self, slab: Slab, end: int, routed: list[tuple[Replica, list[UnstampedBatch]]]
    ) -> None:
        """Hand each replica's batches to the log writer; the slab is in use up to `end`."""
        if not routed:
            return
        assert slab is self._current
        with self._freed:
            self._current.used = end
            self._current.outstanding += len(routed)
        for replica, batches in routed:
            self._append(replica, batches, self._current)

    def _release(self, slab: BufferSlab) -> None:
        """The log writer is done with the batches of one append."""
        with self._freed:
            slab.outstanding -= 1
            if slab.outstanding == 0 and slab is not self._current:
                self._retire(slab)
                self._freed.notify()

    def usage(self) -> dict[str, int]:
        """Bytes that wait for the log writer, in whole slabs, and the limit."""
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

    def _next_slab(self, size: int) -> BufferSlab:
        """Make another slab current; wait while the limit is reached. The lock is held."""
        previous = self._current
        self._current = BufferSlab(0, self._release)
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
        self._current = BufferSlab(wanted, self._release)
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
