"""Pages of what has changed in a table since a position. The package's docstring has the reasons.

A reader pages like this, and a page is applied before the next one is asked for::

    page = changes(position, epoch=epoch, after=after, seen=seen)
    if page.is_full:
        remove the keys above page.after, up to page.next_after (None: all), that it does not have
    for row in page.rows:
        set row.key, or remove it if row.value is None
    remove the keys whose version is below page.oldest
    position, epoch, after = page.position, page.epoch, page.next_after
    if page.read_at.offset >= seen.offset, or page is the first full one:
        seen = page.read_at

It may stop anywhere, and go on with these four at any replica. An empty page that is not full says
that nothing is newer.
"""

from __future__ import annotations

import sqlite3
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from bascule.errors import CorruptData, Indeterminate
from bascule.tables.ageing.forgotten import row_count
from bascule.tables.oplog.file_header import Mark
from bascule.tables.oplog.oplog import Oplog
from bascule.tables.rows import Row, TablePosition

KEYS_AT_FIRST: Final = 16
KEYS_AT_ONCE: Final = 500
"""Keys of one statement. SQLite takes at least 999 variables."""
PLAN_KEYS_MAX: Final = 1 << 16
"""Keys that are remembered for the pages to come, 1 MB."""
PLANS_MAX: Final = 8
ROW_BYTES: Final = 24
"""Of a row, beside its key and value."""
_EVERY: Final = (
    "select key, version, timestamp, value, content_type from entries "
    "where key > ? and value is not null and version >= ? order by key"
)
_ROWS: Final = "select id, key, version, timestamp, value, content_type from entries where id in "
_STATE: Final = "select position, epoch, forgotten, oplog_first, oplog_slots, oplog_crc from state"


@cache
def _rows_of(keys: int) -> str:
    return _ROWS + f"({','.join('?' * keys)})"


@dataclass(frozen=True, slots=True)
class Changes:
    """A page of changes, or of all rows."""

    rows: list[Row]
    """The last states of keys: those that have changed, in the order of their versions, removed
    ones with the value None; or, in a full page, all that have a value, by key."""
    position: int
    """Where to go on: `since` of the next page. In full pages that is the position at which the
    first of them began."""
    epoch: int
    """The leader epoch of the record before `position`, -1 if it is not known."""
    oldest: int
    """Rows with a lower version were purged: the table has them no more."""
    is_full: bool
    """Whether the page has all keys of a range, and what is not in it is not there."""
    after: bytes
    """The keys of a full page are above this one, b"" for all."""
    next_after: bytes | None
    """The last key of a full page that others have to follow; None if there is none."""
    read_at: TablePosition
    """What the table stood at when the rows were read, at `position` or behind it."""


class Page(NamedTuple):
    """`Changes` as the file of a table knows them."""

    rows: list[Row]
    position: int
    is_full: bool
    after: bytes
    next_after: bytes | None
    read_at: TablePosition
    """What the table stood at."""


class Bounds(NamedTuple):
    """How much of a page, and from which version on."""

    rows_max: int
    bytes_max: int
    """Of keys and values, and `ROW_BYTES` for each row. A page has one row at least."""
    oldest: int


class _Plan(NamedTuple):
    """The last operations of keys, as they were at some position of the table."""

    found: array[int]
    """Operation id and key id in turn, the newest first."""
    left: int
    """How many of these are not sent; the last ones."""
    end: int
    """The position behind all of them."""
    seen: int
    """The position of the table when they were read."""


class _Filling:
    """The rows of a page."""

    def __init__(self, bounds: Bounds) -> None:
        self.rows: list[Row] = []
        self.bytes = 0
        self._bounds = bounds

    def takes(self, row: Row) -> bool:
        """Add a row; False if there is no room for it. One that was purged takes none."""
        bounds, value = self._bounds, row.value
        if row.version < bounds.oldest:
            return True
        size = len(row.key) + ROW_BYTES + (0 if value is None else len(value))
        if self.rows and (
            len(self.rows) >= bounds.rows_max or self.bytes + size > bounds.bytes_max
        ):
            return False
        self.rows.append(row)
        self.bytes += size
        return True

    def keys_at_once(self) -> int:
        """How many rows to read next: about as many as there is room for."""
        if not self.rows:
            return KEYS_AT_FIRST
        by_bytes = (self._bounds.bytes_max - self.bytes) * len(self.rows) // self.bytes
        room = min(self._bounds.rows_max - len(self.rows), by_bytes)
        return min(max(room + 1, 1), KEYS_AT_ONCE)


class ChangesReader:
    """Reads pages with a connection of its own, one at a time, on any thread."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], oplog: Oplog | None) -> None:
        self._connect = connect
        self._oplog = oplog
        self._lock = threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._closed = False
        self._plans: OrderedDict[int, _Plan] = OrderedDict()
        """By the position at which the next page begins."""
        self.damage: str | None = None
        """What is wrong with the oplog. The writer begins it anew, and sets this to None."""

    def page(self, since: int, after: bytes | None, bounds: Bounds) -> Page:
        """A page of changes, of one snapshot of the table.

        It is full if `after` is given: the first one had the position `since` then. So it is if
        `since` is 0, or older than the oplog, or if that is damaged, which `damage` says then.

        Raises: sqlite3.Error; Indeterminate if the table is not at `since` yet.
        """
        with self._lock:
            if self._closed:
                raise sqlite3.ProgrammingError("the table is closed")
            if self._reader is None:
                self._reader = self._connect()
            self._reader.execute("begin")
            try:
                return self._page(self._reader, since, after, bounds)
            finally:
                self._reader.execute("commit")

    def forget(self) -> None:
        """The oplog has begun anew."""
        with self._lock:
            self._plans.clear()
            self.damage = None

    def close(self) -> None:
        with self._lock:
            if self._reader is not None:
                self._reader.close()
            self._reader, self._closed = None, True

    def _page(
        self, reader: sqlite3.Connection, since: int, after: bytes | None, bounds: Bounds
    ) -> Page:
        applied, epoch, forgotten, *ends = reader.execute(_STATE).fetchone()
        read_at = TablePosition(applied, epoch)
        if since > applied:
            raise Indeterminate(f"the table is at offset {applied}, not {since}")
        mark = None if ends[0] is None else Mark(*ends)
        filling = _Filling(bounds)
        if since and since >= forgotten and after is None:
            try:
                position = self._fill_changed(reader, filling, since, applied, mark)
            except (CorruptData, OSError) as error:
                self.damage = str(error)
                position, filling = None, _Filling(bounds)
            if position is not None:
                return Page(filling.rows, position, False, b"", None, read_at)
        next_after = _fill_every(reader, filling, after or b"", bounds.oldest)
        position = applied if after is None else since
        return Page(filling.rows, position, True, after or b"", next_after, read_at)

    def _fill_changed(
        self,
        reader: sqlite3.Connection,
        filling: _Filling,
        since: int,
        applied: int,
        mark: Mark | None,
    ) -> int | None:
        """Returns where the next page begins; None if the oplog does not have all since `since`.

        Raises: CorruptData, OSError.
        """
        position = since
        while position < applied and not filling.rows:
            plan = self._plans.get(position)
            if plan is None:
                # No row was forgotten whose key has changed since then: `since` would be too old.
                plan = self._make_plan(position, applied, mark, keys_max=row_count(reader))
            if plan is None:
                return None
            left = self._fill_planned(reader, filling, plan)
            position = plan.end if not left else plan.found[2 * left]
            if left:
                self._plans[position] = plan._replace(left=left)
                self._plans.move_to_end(position)
                if len(self._plans) > PLANS_MAX:
                    self._plans.popitem(last=False)
        return position

    def _make_plan(
        self, since: int, applied: int, mark: Mark | None, *, keys_max: int
    ) -> _Plan | None:
        if self._oplog is None or mark is None:
            return None
        last = self._oplog.last_operations(since, mark, keys_max=keys_max)
        if last is None:
            return None
        more = max(last.keys - PLAN_KEYS_MAX, 0)
        found = last.found[2 * more : 2 * last.keys]
        return _Plan(found, last.keys - more, found[0] if more else applied, applied)

    def _fill_planned(self, reader: sqlite3.Connection, filling: _Filling, plan: _Plan) -> int:
        """Returns how many operations of the plan are left, fewer than before.

        Raises: CorruptData.
        """
        left = plan.left
        while left:
            some = min(left, filling.keys_at_once())
            found = plan.found[2 * (left - some) : 2 * left]
            keys = found[1::2].tolist()
            rows = {row[0]: row for row in reader.execute(_rows_of(some), keys)}
            for at in range(2 * some - 2, -2, -2):
                operation = found[at]
                row = rows.get(found[at + 1])
                version = -1 if row is None else row[2]
                if version + 1 == operation:
                    assert row is not None
                    if not filling.takes(Row(*row[1:])):
                        return left
                elif version < plan.seen:
                    raise self._misfit(operation, found[at + 1], version)
                # Else a newer state, which belongs to a later page.
                left -= 1
        return 0

    def _misfit(self, operation: int, key: int, version: int) -> CorruptData:
        assert self._oplog is not None
        return CorruptData(
            self._oplog.directory,
            operation,
            f"row {key} of the table with the version {operation - 1}",
            str(version),
            place=f"operation {operation}",
        )


def _fill_every(
    reader: sqlite3.Connection, filling: _Filling, after: bytes, oldest: int
) -> bytes | None:
    """Returns the last key if there are more."""
    for row in reader.execute(_EVERY, (after, oldest)):
        if not filling.takes(Row(*row)):
            return filling.rows[-1].key
    return None
