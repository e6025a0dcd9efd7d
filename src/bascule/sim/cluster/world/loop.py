"""`ClusterLoop`: one asyncio event loop with virtual time, on which whole nodes run.

Callbacks run ordered by time, then by number. Each belongs to a process by its context, so those of
a killed process are dropped, and those of a paused one wait. A callback runs on the greenlet of the
loop, the *hub*; simulated threads are the other greenlets.
"""

from __future__ import annotations

import asyncio
import contextvars
import socket
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from heapq import heappop, heappush
from typing import Any, Final, Protocol, TypeVar

from greenlet import getcurrent, greenlet

from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.prng import Prng

T = TypeVar("T")

NS: Final = 1_000_000_000
AT_ONCE_MAX: Final = 200_000
"""Callbacks at one instant, before the run is taken for a livelock."""
THREAD_DELAY_NS: Final = 30_000
"""A thread begins or goes on within this time."""
STACK_FRAMES: Final = 14
_DIGEST_MASK: Final = (1 << 64) - 1
_DIGEST_FACTOR: Final = 0x100000001B3


class RunOnThreads(Protocol):
    """A pool of simulated threads."""

    def execute(self, work: Callable[[], None]) -> None: ...


class LoopProcess(Protocol):
    """A process, as the loop and what runs on it know it; see `process`."""

    name: str
    is_dead: bool
    is_paused: bool
    parked: list[LoopHandle]
    context: contextvars.Context
    machine: Any
    """A `Machine`."""

    @property
    def loop(self) -> ClusterLoop: ...
    @property
    def executor(self) -> RunOnThreads: ...
    def keep(self, each: Any) -> None: ...
    def start_thread(self, function: Callable[[], object], name: str) -> greenlet: ...


class LoopSockets(Protocol):
    """The sockets of the loop; see `sockets`."""

    def add_reader(
        self, fd: Any, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None: ...
    def remove_reader(self, fd: Any) -> bool: ...
    async def create_connection(self, factory: Any, host: Any, port: Any) -> Any: ...
    def connect_accepted(self, factory: Any, sock: Any) -> Any: ...
    def connect_blocking(self, address: tuple[str, int], timeout: float | None) -> Any: ...


PROCESS: Final[contextvars.ContextVar[LoopProcess | None]] = contextvars.ContextVar(
    "process", default=None
)
"""The process that runs; None: the simulator."""


NOBODY: Final = contextvars.Context()
"""The context of what a kernel does."""


def process_now() -> LoopProcess:
    """The process that runs."""
    process = PROCESS.get()
    assert process is not None, "the simulator calls what only a process may call"
    return process


class LoopHandle(list[Any]):
    """A scheduled callback: when (ns), number, callback, arguments, context and process of the
    context. Without a callback it is cancelled.

    It is a list so that the heap compares it, and one is made and taken apart, without calls.
    """

    __slots__ = ()

    def cancel(self) -> None:
        self[2] = None

    def cancelled(self) -> bool:
        return self[2] is None

    def when(self) -> float:
        return float(self[0] / NS)


class ClusterLoop(asyncio.AbstractEventLoop):
    """Virtual time, and everything that is scheduled."""

    sockets: LoopSockets

    def __init__(self, prng: Prng) -> None:
        self._prng = prng
        self._heap: list[LoopHandle] = []
        """Of a later time when they were scheduled: each has a lower number than all in `_due`."""
        self._due: deque[LoopHandle] = deque()
        """What was scheduled for the present time, in order."""
        self._number = 0
        self._at_once = 0
        self.has_ended = False
        """Whether it is closed."""
        self.hub = getcurrent()
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]
        self.now_ns = 0
        self.events = 0
        self.digest = 0xCBF29CE484222325
        """Hash of the times and numbers of all callbacks so far. Equal runs have equal digests."""
        self.failure: InvariantBroken | None = None
        """The first invariant that was broken; the run ends at the next callback."""

    # -- the simulator ------------------------------------------------------------------------

    def run_for(self, duration_ns: int) -> None:
        """Run everything that is due in `duration_ns`. Raises: InvariantBroken."""
        now_ns = self.now_ns
        until = now_ns + duration_ns
        heap, due = self._heap, self._due
        at_once = self._at_once
        while True:
            if due and not (heap and heap[0][0] <= now_ns):
                handle = due.popleft()
            elif heap and heap[0][0] <= until:
                handle = heappop(heap)
            else:
                break
            when, number, callback, args, context, process = handle
            if callback is None:
                continue
            if process is not None:
                if process.is_dead:
                    continue
                if process.is_paused:
                    process.parked.append(handle)
                    continue
            if when > now_ns:
                self.now_ns = now_ns = when
                at_once = 0
            else:
                at_once += 1
                if at_once > AT_ONCE_MAX:
                    self.report("progress", f"no time passes: {callback!r}")
            self.events += 1
            self.digest = ((self.digest ^ when ^ number) * _DIGEST_FACTOR) & _DIGEST_MASK
            try:
                context.run(callback, *args)
            except InvariantBroken as broken:
                self.failure = self.failure or broken
            except Exception as error:  # boundary: the run reports it
                if process is None:
                    raise
                self.report_exception(process.name, error)
            if self.failure is not None:
                raise self.failure
        self.now_ns, self._at_once = until, at_once

    def report(self, invariant: str, text: str, *, with_stack: bool = False) -> None:
        """An invariant does not hold; the run ends with the first report."""
        if self.failure is None:
            if with_stack:
                text += "\n" + "".join(traceback.format_stack(limit=STACK_FRAMES))
            self.failure = InvariantBroken(invariant, text)

    def report_exception(self, who: str, error: BaseException) -> None:
        """Something was raised that nobody handles."""
        lines = traceback.format_exception(error, limit=-STACK_FRAMES)
        self.report("no exception", f"{who}: {type(error).__name__}: {error}\n{''.join(lines)}")

    def release(self, process: LoopProcess) -> None:
        """A process goes on after a pause: what was due meanwhile is late, in its order."""
        parked, process.parked = process.parked, []
        for handle in parked:
            self._number += 1
            handle[:2] = self.now_ns, self._number
            self._due.append(handle)

    def at_ns(
        self,
        when_ns: int,
        context: contextvars.Context,
        callback: Callable[..., object],
        *args: Any,
    ) -> LoopHandle:
        """Run a callback in a context at a time, or now if that has passed."""
        self._number = number = self._number + 1
        now_ns, process = self.now_ns, context.get(PROCESS)
        if when_ns > now_ns:
            handle = LoopHandle((when_ns, number, callback, args, context, process))
            heappush(self._heap, handle)
        else:
            handle = LoopHandle((now_ns, number, callback, args, context, process))
            self._due.append(handle)
        return handle

    def for_nobody(self, when_ns: int, callback: Callable[..., object], *args: Any) -> None:
        """As `at_ns`, for what kernels and the simulator do."""
        self._number = number = self._number + 1
        if when_ns > self.now_ns:
            handle = LoopHandle((when_ns, number, callback, args, NOBODY, None))
            heappush(self._heap, handle)
        else:
            handle = LoopHandle((self.now_ns, number, callback, args, NOBODY, None))
            self._due.append(handle)

    def after_ns(
        self, delay_ns: int, process: LoopProcess, callback: Callable[[], object]
    ) -> LoopHandle:
        """Have a process do something after some time, or as soon as it goes on."""
        self._number = number = self._number + 1
        when_ns = self.now_ns + delay_ns if delay_ns > 0 else self.now_ns
        handle = LoopHandle((when_ns, number, callback, (), process.context, process))
        if delay_ns > 0:
            heappush(self._heap, handle)
        else:
            self._due.append(handle)
        return handle

    def switch_soon(self, process: LoopProcess, thread: greenlet) -> None:
        """Have a thread of a process begin, or go on, soon."""
        self._number = number = self._number + 1
        when_ns = self.now_ns + self._prng.word() % THREAD_DELAY_NS
        handle = LoopHandle((when_ns, number, thread.switch, (), process.context, process))
        if when_ns > self.now_ns:
            heappush(self._heap, handle)
        else:
            self._due.append(handle)

    @property
    def is_in_thread(self) -> bool:
        """Whether a simulated thread runs, and not the loop."""
        return getcurrent() is not self.hub

    # -- asyncio ------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now_ns / NS

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> LoopHandle:
        self._number = number = self._number + 1
        if context is None:
            process = PROCESS.get()
            context = NOBODY if process is None else process.context
        else:
            process = context.get(PROCESS)
        handle = LoopHandle((self.now_ns, number, callback, args, context, process))
        self._due.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> LoopHandle:
        if self.has_ended:
            raise RuntimeError("the loop is closed")
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> LoopHandle:
        # One nanosecond more: no comparison of rounded times finds that it is too early.
        when_ns = self.now_ns + int(delay * NS) + 1
        if context is not None:
            return self.at_ns(when_ns, context, callback, *args)
        return self._at_ns_here(when_ns, callback, args)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> LoopHandle:
        when_ns = int(when * NS) + 1
        if context is not None:
            return self.at_ns(when_ns, context, callback, *args)
        return self._at_ns_here(when_ns, callback, args)

    def _at_ns_here(
        self, when_ns: int, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> LoopHandle:
        """Have the process that runs do something at a time. Nodes have no other variables of
        contexts, so the context of the process serves all."""
        self._number = number = self._number + 1
        process = PROCESS.get()
        context = NOBODY if process is None else process.context
        when_ns = max(when_ns, self.now_ns)
        handle = LoopHandle((when_ns, number, callback, args, context, process))
        if when_ns > self.now_ns:
            heappush(self._heap, handle)
        else:
            self._due.append(handle)
        return handle

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name, context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.keep(task)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run a function on a thread, of `executor` if that is given."""
        process = process_now()
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except BaseException as error:  # boundary: for whoever waits
                self.call_soon_threadsafe(_fail, future, error)
            else:
                self.call_soon_threadsafe(_resolve, future, result)

        (executor or process.executor).execute(work)
        return future

    get_debug = staticmethod(bool)
    """False. Each future and task asks for it, so it is no function of Python."""

    def is_running(self) -> bool:
        return not self.has_ended

    def is_closed(self) -> bool:
        return self.has_ended

    def close(self) -> None:
        self.has_ended = True
        self._heap.clear()
        self._due.clear()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Called for exceptions that nobody retrieves, when the collector finds them."""

    # -- sockets ------------------------------------------------------------------------------

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self.sockets.add_reader(fd, callback, args)

    def remove_reader(self, fd: Any) -> bool:
        return self.sockets.remove_reader(fd)

    def add_writer(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self.call_soon(callback, *args)

    def remove_writer(self, fd: Any) -> bool:
        return True

    async def create_connection(  # type: ignore[override]
        self, factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return await self.sockets.create_connection(factory, host, port)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        await sock.connect(address)

    async def sock_sendall(self, sock: Any, data: Any) -> None:
        await sock.send_all(data)

    async def sock_recv_into(self, sock: Any, buf: Any) -> int:
        return int(await sock.receive_into(buf))

    async def connect_accepted_socket(self, factory: Any, sock: Any, **_: Any) -> Any:  # type: ignore[override]
        return self.sockets.connect_accepted(factory, sock)


def _resolve(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
