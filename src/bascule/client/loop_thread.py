"""An event loop on a thread of its own, for blocking clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
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
        self.is_stopped = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop's thread; an interrupt of the caller cancels it.

        Raises: Closed.
        """
        if self.is_stopped:
            work.close()
            raise Closed("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        self.is_stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=STOP_SECONDS)
        if not self._loop.is_running():
            self._loop.close()


def iterate(
    run: Callable[[Coroutine[Any, Any, Any]], Any],
    found: AsyncGenerator[T, None],
    at_once: int = 1,
) -> Generator[T, None, None]:
    """Each item, of which the loop is asked for so many together."""
    try:
        while items := run(_next(found, at_once)):
            yield from items
    finally:
        run(found.aclose())


async def _next(found: AsyncGenerator[T, None], count: int) -> list[T]:
    """At most so many items, without any at the end."""
    items: list[T] = []
    async for item in found:
        items.append(item)
        if len(items) == count:
            break
    return items
