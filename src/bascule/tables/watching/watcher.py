"""`Watcher`: one watcher of a table, with a bounded queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from bascule.tables.watching.steps import Change
from bascule.wire.tables.patterns import KeyPattern

Sink: TypeAlias = Callable[[Change], bool]
"""Takes a change at once; false: it cannot, so that the watcher lags."""

CHANGES_MAX: Final = 1_000
BYTES_MAX: Final = 1 << 20
ALL_BYTES_MAX: Final = 64 << 20


class QueuedBytes:
    """The bytes in the queues of all watchers of a table."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Watcher:
    """Belongs to the event loop. It is told of changes, in their order, until its queue is full:
    then it lags, and has to read the table.
    """

    __slots__ = (
        "_all",
        "_bytes",
        "_queue",
        "_sink",
        "_waiting",
        "first",
        "is_lagging",
        "is_live",
        "pattern",
    )

    def __init__(
        self, pattern: KeyPattern, all_bytes: QueuedBytes, sink: Sink | None = None
    ) -> None:
        """With a `sink` the queue is used only until `is_live` is set."""
        self.pattern = pattern
        self.is_live = False
        """Whether the sink takes the changes."""
        self._sink = sink
        self.first = 0
        """All changes of lower versions were taken."""
        self.is_lagging = False
        self._queue: list[Change] = []
        self._bytes = 0
        self._all = all_bytes
        self._waiting: asyncio.Future[None] | None = None

    @property
    def has_changes(self) -> bool:
        return bool(self._queue) or self.is_lagging

    def begin(self, first: int) -> None:
        """Take changes from version `first` on."""
        self._drop()
        self.first = first
        self.is_lagging = self.is_live = False

    def put(self, change: Change) -> None:
        if change.version < self.first or self.is_lagging:
            return
        if self.is_live and self._sink is not None:
            if self._sink(change):
                self.first = change.version + 1
            else:
                self.lag()
            return
        size = change.size
        self._queue.append(change)
        self._bytes += size
        self._all.bytes += size
        if (
            len(self._queue) > CHANGES_MAX
            or self._bytes > BYTES_MAX
            or (self._all.bytes > ALL_BYTES_MAX and len(self._queue) > 1)
        ):
            self.lag()
        else:
            self.wake()

    def lag(self) -> None:
        """Drop the queue: all that is not taken has to be read from the table."""
        self._drop()
        self.is_lagging, self.is_live = True, False
        self.wake()

    def skip(self, first: int) -> None:
        """Drop changes of versions below `first`: they were read from the table."""
        kept = [change for change in self._queue if change.version >= first]
        self.begin(max(first, self.first))
        for change in kept:
            self.put(change)

    def take(self) -> list[Change]:
        """What was put since the last call."""
        found = self._queue
        if found:
            self.first = found[-1].version + 1
            self._drop()
        return found

    async def wait(self) -> None:
        """Return once `wake` is called; something was put meanwhile, perhaps."""
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _drop(self) -> None:
        self._all.bytes -= self._bytes
        self._queue, self._bytes = [], 0
