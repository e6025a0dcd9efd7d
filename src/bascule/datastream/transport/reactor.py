"""One thread that serves the sockets of all payloads."""

from __future__ import annotations

import contextlib
import heapq
import logging
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

from bascule.host.api import Clock

log = logging.getLogger(__name__)

BUFFER_BYTES: Final = 1 << 20
READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE
OnEvents = Callable[[int], None]


class ReactorTimer:
    """A call at a time to come."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """It is not called any more."""
        self._call = None

    def run(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()


class Reactor:
    """The thread begins with the first call. All methods but `call` and `close` are its own."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._clock = clock
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._selector: selectors.DefaultSelector | None = None
        self._wake: socket.socket | None = None
        self._reading: socket.socket | None = None
        """The other end of `_wake`."""
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[int, int, ReactorTimer]] = []
        self._numbers = count()
        self._is_closing = False
        self._buffer: memoryview | None = None

    @property
    def buffer(self) -> memoryview:
        """Memory that one callback may use until it returns."""
        if self._buffer is None:
            self._buffer = memoryview(bytearray(BUFFER_BYTES))
        return self._buffer

    def call(self, function: Callable[[], None]) -> bool:
        """Have the thread call it. Any thread may ask; False after `close`: it is not called."""
        with self._lock:
            if self._is_closing:
                return False
            self._calls.append(function)
            if self._thread is None:
                self._begin()
            wake = self._wake
        assert wake is not None
        try:
            wake.send(b"\0")
        except (BlockingIOError, OSError):
            pass  # it is awake, or ends
        return True

    def _begin(self) -> None:
        self._selector = selectors.DefaultSelector()
        reading, self._wake = socket.socketpair()
        self._reading = reading
        reading.setblocking(False)
        self._wake.setblocking(False)
        self._selector.register(reading, READ, lambda _: _drain(reading))
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def close(self, last: Callable[[], None]) -> None:
        """Call `last` on the thread and end it; return once it has ended."""
        with self._lock:
            thread = self._thread
            if thread is not None:
                self._calls.append(last)  # before the thread may see that it is to end
            self._is_closing = True
        if thread is None:
            return
        assert self._wake is not None
        with contextlib.suppress(OSError):  # it is awake, or has seen that it is to end
            self._wake.send(b"\0")
        thread.join()
        self._wake.close()

    # -- on the thread --------------------------------------------------------------------------

    def now_ns(self) -> int:
        """Of the monotonic clock."""
        return self._clock.monotonic_ns()

    def call_later(self, seconds: float, function: Callable[[], None]) -> ReactorTimer:
        """Call it after a time."""
        timer = ReactorTimer(function)
        due_ns = self._clock.monotonic_ns() + int(seconds * 1e9)
        heapq.heappush(self._timers, (due_ns, next(self._numbers), timer))
        return timer

    def register(self, sock: socket.socket, events: int, on_events: OnEvents) -> None:
        """Call `on_events` with the events that a socket has."""
        assert self._selector is not None
        self._selector.register(sock, events, on_events)

    def modify(self, sock: socket.socket, events: int, on_events: OnEvents) -> None:
        """Wait for other events; 0: for none."""
        assert self._selector is not None
        is_known = sock.fileno() in self._selector.get_map()
        if not events:
            if is_known:
                self._selector.unregister(sock)
        elif is_known:
            self._selector.modify(sock, events, on_events)
        else:
            self._selector.register(sock, events, on_events)

    def _run(self) -> None:
        selector = self._selector
        assert selector is not None
        while True:
            try:
                ready = selector.select(self._seconds_to_next())
            except OSError:
                log.exception("data streaming: waiting failed")
                continue
            for key, events in ready:
                self._guarded(partial(key.data, events))
            self._run_due()
            for _ in range(len(self._calls)):  # later ones wait until sockets were looked at
                self._guarded(self._calls.popleft())
            if self._is_closing and not self._calls:
                selector.close()
                assert self._reading is not None
                self._reading.close()
                return

    def _guarded(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception:  # boundary: a bug ends one payload, not the thread of all
            log.exception("data streaming failed")

    def _seconds_to_next(self) -> float | None:
        if self._calls:
            return 0
        if not self._timers:
            return None
        return max(0, self._timers[0][0] - self._clock.monotonic_ns()) / 1e9

    def _run_due(self) -> None:
        now_ns = self._clock.monotonic_ns()
        while self._timers and self._timers[0][0] <= now_ns:
            self._guarded(heapq.heappop(self._timers)[2].run)


def _drain(reading: socket.socket) -> None:
    try:
        while reading.recv(4096):
            pass
    except BlockingIOError:
        return
