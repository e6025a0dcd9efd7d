"""`threading` and `queue` on a `ClusterLoop`: threads are greenlets, and waiting is virtual time.

`Threading` and `SimpleQueue` take the place of these names in the modules of the production code
that use them. The loop itself, which is no thread, must not wait: that is reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from queue import Empty
from types import TracebackType
from typing import Any, Generic, NoReturn, TypeVar
from weakref import WeakKeyDictionary

from greenlet import GreenletExit, getcurrent, greenlet

from bascule.sim.cluster.world.loop import NS, PROCESS, LoopProcess, process_now

T = TypeVar("T")


class Waiter:
    """A thread that waits, once."""

    __slots__ = ("_is_over", "_process", "_thread", "is_woken")

    def __init__(self) -> None:
        process = PROCESS.get()
        assert process is not None
        self._process = process
        self._thread: greenlet | None = None
        self._is_over = False
        self.is_woken = False

    def wait(self, timeout: float | None, what: str) -> bool:
        """Wait until `wake` is called; False after `timeout` seconds."""
        process = self._process
        loop = process.loop
        hub = loop.hub
        thread = getcurrent()
        if process.is_dead or loop.has_ended or thread is hub:
            _refuse_to_wait(process, thread, what)
        if not self._is_over:
            self._thread = thread
            if timeout is not None:
                # As `call_later`.
                timer = loop.after_ns(int(timeout * NS) + 1, process, self._expire)
                hub.switch()
                timer.cancel()
            else:
                hub.switch()
        return self.is_woken

    def wake(self) -> None:
        """Have the thread go on soon."""
        if self._is_over:
            return
        self._is_over = self.is_woken = True
        if self._thread is not None:
            process = self._process
            process.loop.switch_soon(process, self._thread)

    def _expire(self) -> None:
        if not self._is_over:
            self._is_over = True
            assert self._thread is not None
            self._thread.switch()


def wake_next(waiters: deque[Waiter]) -> None:
    """Wake the first one whose time is not over."""
    while waiters:
        waiter = waiters.popleft()
        waiter.wake()
        if waiter.is_woken:
            return


def _refuse_to_wait(process: LoopProcess, thread: greenlet, what: str) -> NoReturn:
    """The process has ended, or the thread is none."""
    loop = process.loop
    if process.is_dead or loop.has_ended:
        raise GreenletExit
    assert thread is loop.hub
    text = f"{process.name} waits for {what}"
    loop.report("the loop never waits", text, with_stack=True)
    raise RuntimeError(f"the event loop waits for {what}")


def sleep(seconds: float) -> None:
    """Let the calling thread wait."""
    process = process_now()
    loop, thread = process.loop, getcurrent()
    if process.is_dead or loop.has_ended or thread is loop.hub:
        _refuse_to_wait(process, thread, "time to pass")
    loop.after_ns(int(seconds * NS) + 1, process, thread.switch)
    loop.hub.switch()


class Lock:
    """As `threading.Lock`."""

    def __init__(self) -> None:
        self._is_held = False
        self._waiters: deque[Waiter] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        while self._is_held:
            if not blocking:
                return False
            waiter = Waiter()
            self._waiters.append(waiter)
            if not waiter.wait(None if timeout < 0 else timeout, "a lock"):
                return False
        self._is_held = True
        return True

    def release(self) -> None:
        if not self._is_held:
            raise RuntimeError("release unlocked lock")
        self._is_held = False
        if self._waiters:
            wake_next(self._waiters)

    def locked(self) -> bool:
        return self._is_held

    # `with` is most of what is done with locks, so it makes no further calls for a free one.

    def __enter__(self) -> bool:
        if self._is_held:
            return self.acquire()
        self._is_held = True
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_held:
            raise RuntimeError("release unlocked lock")
        self._is_held = False
        if self._waiters:
            wake_next(self._waiters)


class RLock(Lock):
    """As `threading.RLock`."""

    def __init__(self) -> None:
        super().__init__()
        self._owner: object = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = getcurrent()
        if self._owner is me:
            self._depth += 1
            return True
        if not self._is_held:
            self._is_held = True
        elif not super().acquire(blocking, timeout):
            return False
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        if self._owner is not getcurrent():
            raise RuntimeError("cannot release un-acquired lock")
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._is_held = False
            if self._waiters:
                wake_next(self._waiters)

    def __enter__(self) -> bool:
        if self._is_held:
            return self.acquire()
        self._is_held = True
        self._owner, self._depth = getcurrent(), 1
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class Condition:
    """As `threading.Condition`."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiters: deque[Waiter] = deque()

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.__exit__(kind, error, trace)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        waiter = Waiter()
        self._waiters.append(waiter)
        self._lock.release()
        try:
            return waiter.wait(timeout, "a condition")
        finally:
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        loop = process_now().loop
        deadline = None if timeout is None else loop.time() + timeout
        result = predicate()
        while not result:
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                break
            self.wait(left)
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        while n and self._waiters:
            waiter = self._waiters.popleft()
            was_woken = waiter.is_woken
            waiter.wake()
            n -= waiter.is_woken and not was_woken

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class Event:
    """As `threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: deque[Waiter] = deque()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            waiter.wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            waiter = Waiter()
            self._waiters.append(waiter)
            waiter.wait(timeout, "an event")
        return self._is_set


class Thread:
    """As `threading.Thread`."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str = "",
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self._args, self._kwargs = target, tuple(args), dict(kwargs or {})
        self.name = name
        self.daemon = daemon
        self._is_started = self._is_over = False
        self._over = Event()

    def start(self) -> None:
        self._is_started = True
        _THREADS[process_now().start_thread(self._run, self.name)] = self

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def _run(self) -> None:
        try:
            self.run()
        finally:
            self._is_over = True
            self._over.set()

    def join(self, timeout: float | None = None) -> None:
        self._over.wait(timeout)

    def is_alive(self) -> bool:
        return self._is_started and not self._is_over


class Timer(Thread):
    """As `threading.Timer`."""

    def __init__(self, interval: float, function: Callable[..., object]) -> None:
        super().__init__(target=function, name="timer")
        self._interval = interval
        self._cancelled = Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def run(self) -> None:
        if not self._cancelled.wait(self._interval):
            super().run()


_THREADS: WeakKeyDictionary[greenlet, Thread] = WeakKeyDictionary()


class Local:
    """As `threading.local`."""

    def __init__(self) -> None:
        self.__dict__["_values"] = WeakKeyDictionary()

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][getcurrent()][name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__["_values"].setdefault(getcurrent(), {})[name] = value


class SimpleQueue(Generic[T]):
    """As `queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._waiters: deque[Waiter] = deque()

    def put(self, item: T) -> None:
        self._items.append(item)
        if self._waiters:
            wake_next(self._waiters)

    def get(self) -> T:
        while not self._items:
            waiter = Waiter()
            self._waiters.append(waiter)
            waiter.wait(None, "a queue")
        return self._items.popleft()

    def get_nowait(self) -> T:
        if not self._items:
            raise Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class ThreadPool:
    """As `concurrent.futures.ThreadPoolExecutor`, as far as the nodes use it."""

    def __init__(self, max_workers: int, thread_name_prefix: str = "") -> None:
        self._free = max_workers
        self._name = thread_name_prefix
        self._work: deque[Callable[[], None]] = deque()
        self._is_shut_down = False
        self._busy = 0
        self._idle = Condition()

    def execute(self, work: Callable[[], None]) -> None:
        """Run it on one of the threads. Raises: RuntimeError after the shutdown."""
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self._work.append(work)
        if self._free:
            self._free -= 1
            self._busy += 1
            process_now().start_thread(self._serve, self._name)

    def submit(self, function: Callable[..., object], *args: Any) -> None:
        """Call it on one of the threads; nobody asks for the result."""

        def work() -> None:
            function(*args)

        self.execute(work)

    def _serve(self) -> None:
        while self._work:
            self._work.popleft()()
        self._free += 1
        self._busy -= 1
        with self._idle:
            self._idle.notify_all()

    def map(self, function: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
        """Call the function for each item; return when all calls have returned."""
        each = list(items)
        results: list[Any] = [None] * len(each)
        left, done = [len(each)], Event()

        def call(number: int) -> None:
            results[number] = function(each[number])
            left[0] -= 1
            if not left[0]:
                done.set()

        for number in range(len(each)):
            self.execute(lambda number=number: call(number))  # type: ignore[misc]
        if each:
            done.wait()
        return results

    def shutdown(self, wait: bool = True) -> None:
        self._is_shut_down = True
        with self._idle:
            while wait and self._busy:
                self._idle.wait()

    def __enter__(self) -> ThreadPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()


def _current_thread() -> Thread:
    return _THREADS[getcurrent()]


class Threading:
    """What modules find under the name `threading`."""

    Thread = Thread
    Timer = Timer
    Lock = Lock
    RLock = RLock
    Condition = Condition
    Event = Event
    local = Local

    current_thread = staticmethod(_current_thread)
