"""`TableWatches`: hands the applied rows of a replica to its watchers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from bascule.errors import Indeterminate, PartitionFailed
from bascule.tables import _hot
from bascule.tables._hot import AppliedRow
from bascule.tables.rows import Row, TablePosition
from bascule.tables.watching.steps import (
    Begin,
    Caught,
    Change,
    Restarted,
    Start,
    WatchPosition,
    WatchStep,
)
from bascule.tables.watching.watcher import QueuedBytes, Sink, Watcher
from bascule.wire.tables.keys import prefix_end
from bascule.wire.tables.patterns import KeyPattern

PAGE_ROWS: Final = 1_000
PAGE_BYTES: Final = 1 << 20
IDLE_SECONDS: Final = 15.0
"""A watcher without changes is told the position so often."""

_Rows: TypeAlias = list[AppliedRow]


class ChangesPage(NamedTuple):
    """The last states of keys that were changed, removals included, in the order of versions."""

    rows: list[Row]
    position: int
    """What was changed below it, and not again later, has been read."""
    read_at: TablePosition
    """What the table stood at when the rows were read."""

    @property
    def is_last(self) -> bool:
        """Whether it has all that the table had then."""
        return self.position >= self.read_at.offset


class WatchedTable(Protocol):
    """The replica whose rows are watched."""

    @property
    def position(self) -> int:
        """The first offset that is not in the table."""
        ...

    @property
    def ended(self) -> PartitionFailed | None:
        """Why nothing more comes to this replica. Watchers end with it, once `wake` is called."""
        ...

    async def scan(
        self, first: bytes, end: bytes | None, limit: int, *, bytes_max: int
    ) -> list[Row]:
        """Rows with a value, by key; fewer than `limit` where the values have `bytes_max` or more.

        Raises: PartitionFailed, CorruptData.
        """
        ...

    async def changed_since(
        self, since: int, *, rows_max: int, bytes_max: int
    ) -> ChangesPage | None:
        """A page of the keys that were changed at or after offset `since`.

        None if it is not known which these are, as `since` is too old. Raises: PartitionFailed,
        CorruptData.
        """
        ...

    def epoch_of(self, offset: int) -> int:
        """The leader epoch of a record; -1 if it is not known."""
        ...

    def may_have_applied(self, position: WatchPosition) -> bool:
        """False if the log has other records below the position, or what it had `seen`, or lost
        some of them."""
        ...


@dataclass(slots=True)
class WatchCounts:
    """Of all tables of a node, for metrics. Counts only grow, but for `watchers`."""

    watchers: int = 0
    """Watchers now."""
    changes: int = 0
    """Changes that were handed to watchers, one for each of them."""
    lagged: int = 0
    """How often a watcher was too slow, and had to read the table."""
    restarted: int = 0
    """How often a watcher was shown the whole state."""


class TableWatches:
    """Belongs to the event loop."""

    def __init__(self, table: WatchedTable, counts: WatchCounts | None = None) -> None:
        self._table = table
        self._literal: dict[bytes, set[Watcher]] = {}
        """Watchers of one key, by that."""
        self._patterns: dict[bytes, tuple[KeyPattern, set[Watcher]]] = {}
        self._losses = 0
        """How often the log has lost records."""
        self._told = 0
        """The position behind the rows that watchers were told."""
        self._queued = QueuedBytes()
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self.watchers = 0
        self.counts = counts or WatchCounts()

    def on_applied(self, rows: _Rows) -> None:
        """The replica has applied these rows; its position is behind them."""
        self._told = self._table.position
        if not self.watchers:
            return
        patterns = [(pattern.matches, watchers) for pattern, watchers in self._patterns.values()]
        epoch_of = self._table.epoch_of
        for row, watching in _hot.match_rows(rows, self._literal, patterns):
            change = Change(*row[:5], epoch_of(row[1]))
            for watchers in watching:
                for watcher in watchers:
                    watcher.put(change)

    def close(self) -> None:
        """All watchers end."""
        self._is_closed = True
        self.wake()

    def wake(self) -> None:
        """Have all watchers look whether they go on; see `WatchedTable.ended`."""
        for watcher in list(self._all()):
            watcher.wake()

    def _check_held(self) -> None:
        if (ended := self._table.ended) is not None:
            raise ended

    def _check_open(self) -> None:
        """A table that is closed has nothing to read: a watcher may have missed something."""
        if self._is_closed:
            raise Indeterminate("the table is closed: watch it at another node")

    def on_lost(self) -> None:
        """The table begins anew: it is damaged, or the log has lost records that were in it."""
        self._losses += 1
        self._told = 0
        for watcher in self._all():
            watcher.lag()

    async def watch(
        self, pattern: KeyPattern, start: Start = Begin.NOW, sink: Sink | None = None
    ) -> AsyncGenerator[WatchStep, None]:
        """What changes from `start` on, without end. Close the generator to stop.

        A `sink` is called with the changes that come once the watcher has caught up, in the place
        of yielding them: it costs a tenth. After it has returned false, they are yielded again
        until the watcher has caught up once more.

        Each key's newest state is seen at last, in the order of its versions, and no version of a
        key twice. A watcher that is slow sees the newest states only.

        Raises: PartitionFailed, CorruptData, Indeterminate: watch another replica, from the last
        position on.
        """
        watcher = Watcher(pattern, self._queued, sink)
        self.watchers += 1
        self.counts.watchers += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._on_idle)
        try:
            first: int | None = self._table.position
            seen: TablePosition | None = None
            if start is Begin.STATE:
                first = None
            elif isinstance(start, WatchPosition):
                first = start.offset if self._table.may_have_applied(start) else None
                seen = start.seen
            while True:
                losses = self._losses
                async for step in self._catch_up(watcher, first, seen):
                    yield step
                self._check_open()
                yield self._caught(watcher)
                while not watcher.is_lagging:
                    if found := watcher.take():
                        self.counts.changes += len(found)
                        yield found
                        continue
                    if self._is_closed:
                        return
                    self._check_held()
                    told, watcher.is_live = watcher.first, sink is not None
                    await watcher.wait()
                    if told == watcher.first and not watcher.has_changes:
                        yield self._caught(watcher)
                self.counts.lagged += 1
                first, seen = watcher.first if losses == self._losses else None, None
        finally:
            self._remove(watcher)
            self.watchers -= 1
            self.counts.watchers -= 1

    def _caught(self, watcher: Watcher) -> Caught:
        """Raises: PartitionFailed."""
        self._check_held()
        offset = watcher.first if watcher.has_changes else max(watcher.first, self._told)
        return Caught(WatchPosition(offset, self._table.epoch_of(offset - 1)))

    async def _catch_up(
        self, watcher: Watcher, first: int | None, seen: TablePosition | None
    ) -> AsyncGenerator[WatchStep, None]:
        """What the table has from version `first` on, or its state; the watcher has the rest.
        `seen` is that of the position."""
        shown: dict[bytes, int] = {}
        losses = self._losses
        while True:
            if first is None or losses != self._losses:
                losses = self._losses
                self.counts.restarted += 1
                yield Restarted()
                first = self._table.position
                async for found in self._state(watcher.pattern):
                    shown |= {each.key: each.version for each in found if each.version >= first}
                    yield found
                if losses != self._losses:
                    continue  # a part of it is of a table that is no more
                position = self._table.position
                seen = TablePosition(position, self._table.epoch_of(position - 1))
            # From here on it is told what is applied while the table is read.
            watcher.begin(first)
            self._add(watcher)
            page = await self._table.changed_since(first, rows_max=PAGE_ROWS, bytes_max=PAGE_BYTES)
            if page is None or losses != self._losses:
                first = None
                continue
            if seen is None or seen.offset < page.read_at.offset:
                seen = page.read_at
            matching = (row for row in page.rows if watcher.pattern.matches(row.key))
            new = (row for row in matching if shown.get(row.key) != row.version)
            if changes := list(self._changes(new, seen)):
                yield changes
            first = max(first, page.position)
            if page.is_last and not watcher.is_lagging:
                watcher.skip(first)
                return

    async def _state(self, pattern: KeyPattern) -> AsyncGenerator[list[Change], None]:
        """The rows that match, a page of the table at a time."""
        at, end = pattern.prefix, prefix_end(pattern.prefix)
        if pattern.literal is not None:
            end = pattern.literal + b"\0"
        while True:
            rows = await self._table.scan(at, end, PAGE_ROWS, bytes_max=PAGE_BYTES)
            matching = (row for row in rows if pattern.matches(row.key))
            if found := [Change(*row, -1, is_ordered=False) for row in matching]:
                yield found
            size = sum(len(row.value or b"") for row in rows)
            if len(rows) < PAGE_ROWS and size < PAGE_BYTES:
                return
            at = rows[-1].key + b"\0"

    def _changes(self, rows: Iterable[Row], seen: TablePosition) -> Iterator[Change]:
        epoch_of = self._table.epoch_of
        for row in rows:
            behind = seen if seen.offset > row.version + 1 else None
            yield Change(*row, epoch_of(row.version), seen=behind)

    def _add(self, watcher: Watcher) -> None:
        pattern = watcher.pattern
        if pattern.literal is not None:
            self._literal.setdefault(pattern.literal, set()).add(watcher)
        else:
            self._patterns.setdefault(pattern.expression, (pattern, set()))[1].add(watcher)

    def _remove(self, watcher: Watcher) -> None:
        watcher.begin(0)  # it gives back what it holds
        pattern = watcher.pattern
        if pattern.literal is not None:
            watchers = self._literal.get(pattern.literal, set())
            watchers.discard(watcher)
            if not watchers:
                self._literal.pop(pattern.literal, None)
            return
        _, watchers = self._patterns.get(pattern.expression, (pattern, set()))
        watchers.discard(watcher)
        if not watchers:
            self._patterns.pop(pattern.expression, None)

    def _all(self) -> Iterator[Watcher]:
        for watchers in (*self._literal.values(), *(found for _, found in self._patterns.values())):
            yield from watchers

    def _on_idle(self) -> None:
        self._timer = None
        if self.watchers:
            self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._on_idle)
            self.wake()
