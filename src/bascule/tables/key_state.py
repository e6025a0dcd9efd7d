"""`KeyState`: the keys of a table at one moment, as 16 bytes each."""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from bascule.tables.rows import Row

LOOKED_AT_ONCE: Final = 1_000
"""Rows that are taken from SQLite at a time."""
_KEYS: Final = "select version, id, key from entries where "
_SIZES: Final = "select id, length(value) from entries where id in "
_ROWS: Final = "select id, key, version, timestamp, value, content_type from entries where id in "


class KeyState:
    """Versions and row ids, by version. Keys and values are read page by page.

    A row that was changed since has another version, and is left out then.
    """

    def __init__(self) -> None:
        self._versions = array("q")
        self._ids = array("q")
        self.last: tuple[bytes, int] | None = None
        """Key and version of the last row; None if there is none."""

    def __len__(self) -> int:
        return len(self._versions)

    def fill(
        self,
        reader: sqlite3.Connection,
        where: str,
        bounds: Sequence[object],
        matches: Callable[[bytes], bool],
    ) -> None:
        """Add the rows of a condition whose keys match. SQLite sorts them, on disk if they are
        many."""
        found = reader.execute(f"{_KEYS}{where} order by version", bounds)
        while some := found.fetchmany(LOOKED_AT_ONCE):
            for version, id, key in some:
                if matches(key):
                    self._versions.append(version)
                    self._ids.append(id)
                    self.last = key, version

    def pages(self, size: int) -> Iterator[KeyPart]:
        """The parts for one reading each."""
        for at in range(0, len(self), size):
            yield KeyPart(self._versions[at : at + size], self._ids[at : at + size])


class KeyPart:
    """A part of a state."""

    def __init__(self, versions: array[int], ids: array[int]) -> None:
        self._versions = versions
        self._ids = ids

    def read(
        self, reader: sqlite3.Connection, *, bytes_max: int
    ) -> tuple[list[Row], KeyPart | None]:
        """The rows that still have their version, in its order, and what is left of the part.

        They have about `bytes_max` of values at most, but for a single one.
        """
        places = f"({','.join('?' * len(self._ids))})"
        sizes = dict(reader.execute(_SIZES + places, self._ids.tolist()).fetchall())
        count = size = 0
        for id in self._ids:
            size += sizes.get(id) or 0
            if count and size > bytes_max:
                break
            count += 1
        ids, versions = self._ids[:count], self._versions[:count]
        select = f"{_ROWS}({','.join('?' * count)})"
        found = {row[0]: row for row in reader.execute(select, ids.tolist())}
        rows = [
            Row(*row[1:])
            for id, version in zip(ids, versions, strict=True)
            if (row := found.get(id)) is not None and row[2] == version
        ]
        if count == len(self._ids):
            return rows, None
        return rows, KeyPart(self._versions[count:], self._ids[count:])
