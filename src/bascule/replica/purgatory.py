"""Requests that wait for partitions to move, without polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol


class Watched(Protocol):
    """Something whose watchers are called, on the event loop, after it changed."""

    @property
    def watchers(self) -> set[Callable[[], None]]: ...


class Purgatory:
    """All requests that wait at one door, so that closing it can let them go."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
        """Wake everybody; whoever comes later does not wait."""
        self._closed = True
        for waiting in tuple(self._waiting):
            _wake(waiting)

    async def wait(
        self,
        watched: Iterable[Watched],
        *,
        unless: Callable[[], bool],
        deadline: float,
    ) -> bool:
        """Wait until one of `watched` moves; False when the loop's clock has reached `deadline`.

        Watchers are registered only meanwhile. `unless` is asked after they are: True means that
        something had moved already, so that no move is missed.
        """
        loop = asyncio.get_running_loop()
        if self._is_over(loop.time(), deadline):
            return False
        waiting: asyncio.Future[None] = loop.create_future()
        objects = tuple(watched)

        def wake() -> None:
            _wake(waiting)

        for each in objects:
            each.watchers.add(wake)
        self._waiting.add(waiting)
        timer = loop.call_at(deadline, wake)
        try:
            if not unless():
                await waiting
        finally:
            timer.cancel()
            self._waiting.discard(waiting)
            for each in objects:
                each.watchers.discard(wake)
        return not self._is_over(loop.time(), deadline)

    def _is_over(self, now: float, deadline: float) -> bool:
        return self._closed or now >= deadline


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
