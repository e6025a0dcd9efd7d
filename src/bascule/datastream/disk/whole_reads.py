"""Reads whole payloads, which may take minutes, beside everything else that is done with the disk.

Each read begins on the threads of short work, with one block at most: most need no more. The rest
is read on threads of its own, a slice of each read in turn. So a long read delays neither short
work nor short reads, and it stops at the next block once nobody wants it. A read that waits for
another one takes no thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, Generic, TypeVar

from bascule.errors import Broken
from bascule.storage.payloads.block_steps import WaitingSteps

T = TypeVar("T")

READ_THREADS: Final = 2
SLICE_BLOCKS: Final = 8
"""Of one read before the next one has its turn: 8 MiB, so that a disk that has to seek for each
slice still reads most of the time."""
OnRead = Callable[[T | None, Exception | None], object]
"""Told of the result of a read, or of the error that it raised."""


class WholeReads:
    """Any thread may call it."""

    def __init__(self, pool: Executor) -> None:
        """`pool` has the threads of short work. It is shut down after this."""
        self._pool = pool
        self._threads = ThreadPoolExecutor(READ_THREADS, "datastream-read")
        self._lock = threading.Lock()
        """Held while something is submitted: nothing is after `close`."""
        self._is_closing = False

    def run(
        self,
        steps: WaitingSteps[T],
        on_read: OnRead[T] = lambda *_: None,
        *,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Take the steps, then call `on_read`, on the thread that reads: with Broken where the read
        is not wanted any more, or was not taken to its end before `close`. That thread also calls
        `is_wanted`, before each step; where the read waits for another one, any thread does."""
        self._submit(self._pool, steps, 1, on_read, is_wanted)

    def future(self, steps: WaitingSteps[T]) -> Future[T]:
        """What the steps return, or raise, as for `run`; they stop once it is cancelled."""
        found: Future[T] = Future()

        def on_read(result: T | None, error: Exception | None) -> None:
            with suppress(InvalidStateError):  # it was cancelled
                if error is None:
                    found.set_result(result)  # type: ignore[arg-type]
                else:
                    found.set_exception(error)

        self.run(steps, on_read, is_wanted=lambda: not found.cancelled())
        return found

    def _submit(
        self,
        threads: Executor,
        steps: WaitingSteps[T],
        count: int,
        on_read: OnRead[T],
        is_wanted: Callable[[], bool],
    ) -> None:
        with self._lock:
            if not self._is_closing:
                threads.submit(self._take, steps, count, on_read, is_wanted)
                return
        _stop(steps, on_read)

    def _take(
        self, steps: WaitingSteps[T], count: int, on_read: OnRead[T], is_wanted: Callable[[], bool]
    ) -> None:
        """Take so many steps, and have the others taken when it is their turn again."""
        try:
            for _ in range(count):
                if self._is_closing or not is_wanted():
                    _stop(steps, on_read)
                    return
                awaited = next(steps)
                if awaited is not None:
                    awaited.on_end(
                        lambda: self._submit(
                            self._threads, steps, SLICE_BLOCKS, on_read, is_wanted
                        ),
                        is_wanted,
                    )
                    return
        except StopIteration as stop:
            on_read(stop.value, None)
        except Exception as error:  # boundary: a bug ends one read, and whoever waits hears of it
            on_read(None, error)
        else:
            self._submit(self._threads, steps, SLICE_BLOCKS, on_read, is_wanted)

    def close(self) -> None:
        """Stop all reads, each after its step; return once the threads of long ones have ended."""
        with self._lock:
            self._is_closing = True
        self._threads.shutdown()


def _stop(steps: WaitingSteps[T], on_read: OnRead[T]) -> None:
    steps.close()
    on_read(None, Broken("nobody waits for what is read any more"))


class SharedRead(Generic[T]):
    """A read whose result several others wait for. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: Future[T] = Future()
        self._waiting: list[tuple[Callable[[], object], Callable[[], bool]]] = []

    def end(self, result: T | None, error: Exception | None) -> None:
        """It has ended; see `OnRead`."""
        with self._lock:
            if error is None:
                self._found.set_result(result)  # type: ignore[arg-type]
            else:
                self._found.set_exception(error)
            waiting, self._waiting = self._waiting, []
        for call, _ in waiting:
            call()

    def on_end(self, call: Callable[[], object], is_wanted: Callable[[], bool]) -> None:
        """As `Awaited.on_end`. Those who are gone go with the next one that waits, so that there
        are never more of them than there are connections."""
        with self._lock:
            before, self._waiting = self._waiting, []
            due: list[Callable[[], object]] = []
            for each in [*before, (call, is_wanted)]:
                if self._found.done() or not each[1]():
                    due.append(each[0])
                else:
                    self._waiting.append(each)
        for each_due in due:
            each_due()

    def wait(self) -> None:
        """As `Awaited.wait`."""
        self._found.exception()

    def result(self) -> T:
        """Once it has ended. Raises: the error of the read."""
        return self._found.result()


class Awaiting:
    """Those who wait for the end of a read. Belongs to the thread of the reactor, but for
    `is_wanted`."""

    def __init__(self, is_wanted: Callable[[], bool]) -> None:
        """Of who has begun it."""
        self._wanted = [is_wanted]
        self.calls: list[Callable[[], None]] = []
        """What is to be called at the end."""

    def add(self, call: Callable[[], None], is_wanted: Callable[[], bool]) -> None:
        """One more waits. `is_wanted` says whether the read goes on for it."""
        self.calls.append(call)
        self._wanted.append(is_wanted)

    def is_wanted(self) -> bool:
        """Whether any of them wants what is read. Any thread may ask."""
        return any(each() for each in tuple(self._wanted))
