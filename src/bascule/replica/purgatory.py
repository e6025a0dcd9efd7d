"""Requests that wait for a change of a partition, without polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol


class Watched(Protocol):
    """Something whose watchers are called, on the event loop, after it changed."""

    @property
    def watchers(self) -> set[Callable[[], None]]: ...


class Purgatory:
    """All waiting requests of one listener, so that closing it wakes them."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
        """Wake all waiting requests; later ones do not wait."""
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
        """Wait until one of `watched` changes; False once the loop's clock reached `deadline`.

        `unless` is called after the watchers are registered, so that no change is missed; it
        returns True where there is no reason to wait.
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
