"""Which rows of a table are read: those of a range of keys, of a page, of some keys."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from bascule.tables import _hot
from bascule.wire.tables.patterns import KeyPattern

SCANNED_KEYS: Final = 20_000
"""Keys that are compared with a pattern at a time, some 20 ms; other scans wait meanwhile."""
KEYS_AT_ONCE: Final = 500
"""Keys of one statement. SQLite takes at least 999 variables."""
HAS_VALUE: Final = "value is not null"
_KEY: Final = "select key from entries where "


class PageRange(NamedTuple):
    """Which keys are asked for."""

    first: bytes
    end: bytes | None = None
    """Keys are below it."""
    pattern: KeyPattern | None = None


def key_range(
    first: bytes, end: bytes | None, oldest: int, *, which: str = HAS_VALUE
) -> tuple[str, tuple[object, ...]]:
    """The condition for rows from `first` on and below `end`, and its variables; `which` is a
    condition without variables."""
    where = f"{which} and version >= ? and key >= ? "
    if end is None:
        return where, (oldest, first)
    return f"{where} and key < ? ", (oldest, first, end)


def shown_since(removed_since: int | None) -> str:
    """The condition for rows with a value, and for removals of that Unix time (ms) or later."""
    if removed_since is None:
        return HAS_VALUE
    return (
        f"({HAS_VALUE} or (timestamp >= {removed_since:d} "
        f"and content_type is not '{_hot.FORGOTTEN}'))"
    )


def is_one_key(patterns: Sequence[KeyPattern]) -> bool:
    """Whether only one key can match."""
    return len(patterns) == 1 and patterns[0].literal is not None


def key_parts(keys: Sequence[bytes]) -> Iterator[tuple[Sequence[bytes], str]]:
    """The keys in parts for a statement each, and the condition for a part."""
    for at in range(0, len(keys), KEYS_AT_ONCE):
        some = keys[at : at + KEYS_AT_ONCE]
        yield some, f"key in ({','.join('?' * len(some))})"


def page_keys(
    reader: sqlite3.Connection, asked: PageRange, limit: int, oldest: int
) -> tuple[list[bytes], bytes | None]:
    """The keys of a page, and the last one that was looked at if there may be more."""
    pattern = asked.pattern
    looked_max = limit if pattern is None else max(limit, SCANNED_KEYS)
    where, bounds = key_range(asked.first, asked.end, oldest)
    found = reader.execute(f"{_KEY}{where} order by key limit ?", (*bounds, looked_max))
    keys = [key for (key,) in found]
    after = keys[-1] if len(keys) == looked_max else None
    if pattern is not None:
        keys = list(islice(filter(pattern.matches, keys), limit + 1))
        if len(keys) > limit:
            keys.pop()
            after = keys[-1]
    return keys, after
