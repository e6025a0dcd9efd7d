"""Watchers of a copy: what has changed in its file, whichever process follows the table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, NamedTuple

from bascule.client.tables.replica.recent_changes import WatchedCopy
from bascule.client.tables.replica.replica_file import ReplicaFile
from bascule.errors import ConfigError
from bascule.table_results import TableChange
from bascule.wire.tables.keys import prefix_end
from bascule.wire.tables.patterns import KeyPattern

STARTS: Final = ("now", "state")
ROWS_AT_ONCE: Final = 1_000
"""Keys that are looked at in one transaction."""
BYTES_AT_ONCE: Final = 1 << 20
"""Of values; one that is larger comes alone."""


class WatchPlace(NamedTuple):
    """What a watcher has seen."""

    number: int
    """Of the last row of the log of changes."""
    skipped: int = 0
    """Changes of the next row that it has seen, too."""
    shown_below: bytes | None = None
    """While the state is shown: it has seen that of the keys below; None: of all."""


class SeenNext(NamedTuple):
    """What a watcher sees next."""

    changes: list[TableChange]
    is_restart: bool = False
    """Whether the state follows, as it is not known what has changed."""
    caught_up: int | None = None
    """Everything below this position was seen; None: there is more."""


class CopyWatcher:
    """Reads what one watcher has not seen. Keeps no changes: a watcher that is slow finds them in
    the file, where those of keys that have changed again are left out."""

    def __init__(self, pattern: KeyPattern, *, has_state: bool) -> None:
        self._pattern = pattern
        self._end = prefix_end(pattern.prefix)
        if pattern.literal is not None:
            self._end = pattern.literal + b"\0"
        self._has_state = has_state
        self._place: WatchPlace | None = None
        """None: it waits until the copy has all keys."""

    def read(self, file: ReplicaFile) -> SeenNext | None:
        """None: nothing can be shown before the copy has all keys.

        Raises: CopyDamaged; LogFailed, also if the copy was begun anew.
        """
        with file.watched() as copy:
            if not copy.state.is_whole:
                return None
            if self._place is None:
                self._begin(copy, has_state=self._has_state)
            found = _Batch()
            if not self._add_changes(copy, found):
                self._begin(copy, has_state=True)
                return SeenNext([], is_restart=True)
            assert self._place is not None
            if not found.is_full and self._place.shown_below is not None:
                self._add_state(copy, self._place.shown_below, found)
            has_more = found.is_full or self._place.shown_below is not None
            return SeenNext(found.changes, caught_up=None if has_more else copy.state.position)

    def _begin(self, copy: WatchedCopy, *, has_state: bool) -> None:
        self._place = WatchPlace(copy.last, shown_below=self._pattern.prefix if has_state else None)

    def _add_changes(self, copy: WatchedCopy, found: _Batch) -> bool:
        """What the log has behind the place; false where it does not say all of it."""
        assert self._place is not None
        number, skipped, below = self._place
        if copy.last < number:
            return False
        for row in copy.rows_behind(number):
            if row.changes is None or row.before != number:
                return False
            changes = row.decoded()
            for each in changes[skipped:]:
                if found.is_full:
                    break
                skipped += 1
                is_shown = below is None or each.key < below  # else it comes with the state
                matches = is_shown and self._pattern.matches(each.key)
                found.add(copy.now(each) if matches else None)
            if skipped == len(changes):
                number, skipped = row.number, 0
            if found.is_full:
                break
        self._place = WatchPlace(number, skipped, below)
        return True

    def _add_state(self, copy: WatchedCopy, first: bytes, found: _Batch) -> None:
        assert self._place is not None
        below: bytes | None = None
        for entry in copy.entries(first, self._end):
            found.add(entry if self._pattern.matches(entry.key) else None)
            if found.is_full:
                below = entry.key + b"\0"
                break
        self._place = self._place._replace(shown_below=below)


class _Batch:
    """Changes that are read together."""

    def __init__(self) -> None:
        self.changes: list[TableChange] = []
        self._looked_at = self._bytes = 0

    def add(self, change: TableChange | None) -> None:
        """None: a key was looked at that is not shown."""
        self._looked_at += 1
        if change is not None:
            self.changes.append(change)
            self._bytes += len(change.value or b"")

    @property
    def is_full(self) -> bool:
        return self._looked_at >= ROWS_AT_ONCE or self._bytes >= BYTES_AT_ONCE


async def watch_copy(
    opened: Callable[[], ReplicaFile],
    wait: Callable[[], Awaitable[None]],
    pattern: KeyPattern,
    *,
    start: str,
    on_current: Callable[[int], None] | None,
    on_restart: Callable[[], None] | None,
) -> AsyncGenerator[TableChange, None]:
    """See `LocalReplica.watch`. `wait` returns when something may have changed since it did."""
    if start not in STARTS:
        raise ConfigError(f"start is {' or '.join(STARTS)} of a copy, got {start!r}")
    watcher, said = CopyWatcher(pattern, has_state=start == "state"), -1
    while True:
        found = await asyncio.to_thread(watcher.read, opened())
        if found is None:
            await wait()
            continue
        if found.is_restart:
            said = -1
            if on_restart is not None:
                on_restart()
        for change in found.changes:
            yield change
        if found.caught_up is not None:
            if on_current is not None and found.caught_up != said:
                on_current(found.caught_up)
            said = found.caught_up
            await wait()
