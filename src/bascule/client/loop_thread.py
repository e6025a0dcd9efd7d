"""An event loop on a thread of its own, for blocking clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError
from typing import Any, Final, TypeVar

from bascule.errors import Closed

T = TypeVar("T")

STOP_SECONDS: Final = 5.0


class LoopThread:
    """Runs coroutines for threads that block. Thread-safe."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        """Nothing is handed to the loop behind what stops it: nobody would run that."""
        self.is_stopped = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop's thread; an interrupt of the caller cancels it.

        Raises: Closed, also where another thread stops the loop meanwhile.
        """
        with self._lock:
            if self.is_stopped:
                work.close()
                raise Closed("the client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            if self.is_stopped:
                raise Closed("the client was closed") from None
            raise
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Cancel what still runs, and end the thread. Idempotent."""
        with self._lock:
            if self.is_stopped:
                return
            self.is_stopped = True
            ended = asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop)
        ended.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
        self._thread.join(timeout=2 * STOP_SECONDS)
        if not self._loop.is_running():
            self._loop.close()

    async def _cancel_all(self) -> None:
        """Otherwise the threads that wait for it would wait for ever."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)


def iterate(
    run: Callable[[Coroutine[Any, Any, Any]], Any],
    found: AsyncGenerator[T, None],
    at_once: int = 1,
) -> Generator[T, None, None]:
    """Each item, of which the loop is asked for so many together."""
    # Who is interrupted while it waits closes a generator that is still being cancelled.
    is_used = asyncio.Lock()
    try:
        while items := run(_next(found, at_once, is_used)):
            yield from items
    finally:
        run(_close(found, is_used))


async def _next(found: AsyncGenerator[T, None], count: int, is_used: asyncio.Lock) -> list[T]:
    """At most so many items, without any at the end."""
    items: list[T] = []
    async with is_used:
        async for item in found:
            items.append(item)
            if len(items) == count:
                break
    return items


async def _close(found: AsyncGenerator[T, None], is_used: asyncio.Lock) -> None:
    async with is_used:
        await found.aclose()
