"""`Pace`: when a table applies what is committed.

A transaction of one row costs some 0.5 ms of a processor on every replica, most of it by the
transaction. While nobody waits for the rows, the next one begins a little later and has those of
all messages that are committed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Final

UNAWAITED_SECONDS_MIN: Final = 0.02
"""From the beginning of one transaction to that of the next one, while nobody waits: some ten sets
that come one at a time."""


class Pace:
    """Belongs to the event loop."""

    def __init__(self, is_watched: Callable[[], bool]) -> None:
        """`is_watched` says whether somebody wants each change at once."""
        self._is_watched = is_watched
        self._due = asyncio.Event()
        self._began_at = -inf
        """Loop time."""
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = 0
        self._watchers: set[Callable[[], None]] = set()

    def follow(self, watchers: set[Callable[[], None]]) -> None:
        """Be told of what is committed from now on by `watchers`, those of the partition.

        Not while a time is set at which to apply: most commits would wake the event loop in vain.
        So `follow` has to be called again after each `wait`.
        """
        self._watchers = watchers
        watchers.add(self.on_committed)

    def on_committed(self) -> None:
        """There is more to apply, or something else has changed in the partition."""
        if self._waiting or self._is_watched():
            self._due.set()
        elif self._timer is None and not self._due.is_set():
            loop = asyncio.get_running_loop()
            at = self._began_at + UNAWAITED_SECONDS_MIN
            if loop.time() >= at:
                self._due.set()
            else:
                self._timer = loop.call_at(at, self.hurry)
                self._watchers.discard(self.on_committed)

    def hurry(self) -> None:
        """Apply now what there is."""
        self._due.set()

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Apply now, and at once what is committed while the caller waits."""
        self._waiting += 1
        self._due.set()
        try:
            yield
        finally:
            self._waiting -= 1

    async def wait(self) -> None:
        """Return once there is something to apply, and it is time to."""
        await self._due.wait()
        self._due.clear()
        self._drop_timer()
        self._began_at = asyncio.get_running_loop().time()

    def close(self) -> None:
        self._drop_timer()
        self._watchers.discard(self.on_committed)

    def _drop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
