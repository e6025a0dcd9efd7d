"""The thread that writes payloads to the disk, step by step, at the rate that `pacing` gives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from bascule.datastream.disk.pacing import QUIET_NS, Pacing
from bascule.host.api import Clock


class PacedThread:
    """Any thread may call it."""

    def __init__(self, clock: Clock, pacing: Pacing) -> None:
        self._clock = clock
        self._pacing = pacing
        self._changed = threading.Condition()
        """Holds `pacing`."""
        self._is_closing = False
        self._thread = ThreadPoolExecutor(1, "datastream-write-back")
        self.step_bytes = pacing.step_bytes
        """How many bytes the next step is to have."""
        self.unwritten_max = pacing.unwritten_max
        """What all payloads may have in memory only, bytes."""
        self.waited_ns = 0
        """How long steps have waited."""

    def submit(
        self, step: Callable[[], None], size: int, *, is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Run a step of so many bytes when it is its turn. One that is not wanted by then is left
        out: it does not wait, and those behind it do not wait for it. Raises: RuntimeError after
        `close`."""

        def run() -> None:
            if is_wanted():
                self._wait(size)
                step()

        self._thread.submit(run)

    def _wait(self, size: int) -> None:
        clock, pacing = self._clock, self._pacing
        began_ns = now_ns = clock.monotonic_ns()
        with self._changed:
            while (wait_ns := pacing.wait_ns(now_ns)) > 0 and not self._is_closing:
                # The limit may end meanwhile.
                self._changed.wait(min(wait_ns, QUIET_NS) / 1e9)
                now_ns = clock.monotonic_ns()
            pacing.on_step(now_ns, size)
            self._take_over()
        self.waited_ns += now_ns - began_ns

    def on_log_synced(self, began_ns: int, ended_ns: int) -> None:
        """A sync of a log has ended, and had something to write."""
        with self._changed:
            self._pacing.on_sync(ended_ns, ended_ns - began_ns)
            self._take_over()

    def on_payload(self) -> None:
        """A payload has ended: a sync is that of its record."""
        with self._changed:
            self._pacing.on_payload()

    def limit(self) -> int:
        """Bytes a second now; 0: none."""
        with self._changed:
            self._pacing.on_time(self._clock.monotonic_ns())
            self._take_over()
            return self._pacing.limit

    def _take_over(self) -> None:
        pacing = self._pacing
        self.step_bytes, self.unwritten_max = pacing.step_bytes, pacing.unwritten_max

    def close(self) -> None:
        """Return once the steps have ended; they wait no longer."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.shutdown()
