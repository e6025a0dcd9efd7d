"""A copy begun anew in the place of one that is damaged: what was written on it is kept."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from bascule.client.tables.replica.conflicts import LocalWrite
from bascule.client.tables.replica.replica_file import (
    PendingWrite,
    RefusedWrite,
    ReplicaFile,
    row_crc,
)
from bascule.errors import BasculeError, ConfigError

log = logging.getLogger(__name__)

DAMAGED: Final = ".damaged"
"""The end of the names that the files of before get; those of an earlier time are replaced."""
_SUFFIXES: Final = ("", "-wal", "-shm")
_PENDING: Final = (
    "select number, key, base, timestamp, value, content_type, sent, crc from pending where "
    "number > ? order by number limit 1"
)
_REFUSED: Final = (
    "select number, key, base, timestamp, value, content_type, reason, crc from refused where "
    "number > ? order by number limit 1"
)


def begin_anew(path: Path, table: str, new_id: str) -> None:
    """Have an empty copy in `path`, with the writes that are to be offered and those refused.

    What was there is kept beside it, with `.damaged` at the end. Blocks on the disk.

    Raises: ConfigError if it is a copy of another table; LogFailed.
    """
    pending: list[PendingWrite] = []
    refused: list[RefusedWrite] = []
    if path.exists():
        # Waits for a process that writes to it.
        with closing(sqlite3.connect(path, isolation_level=None, timeout=30.0)) as damaged:
            new_id = _identity(damaged, path, table) or new_id
            pending = [PendingWrite(n, w, *more) for n, w, *more in _writes(damaged, _PENDING)]
            refused = [RefusedWrite(n, w, *more) for n, w, *more in _writes(damaged, _REFUSED)]
        for suffix in _SUFFIXES:
            old = Path(f"{path}{suffix}")
            if old.exists():
                old.replace(Path(f"{path}{DAMAGED}{suffix}"))
    try:
        file = ReplicaFile(path, table, new_id)
        try:
            file.restore(pending, refused)
        finally:
            file.close()
    except BasculeError:
        log.error("the copy of %s cannot be begun anew; %s%s has what it was", table, path, DAMAGED)
        raise
    log.warning(
        "the copy of %s begins anew, with %d writes to offer and %d refused ones; %s%s has what it "
        "was", table, len(pending), len(refused), path, DAMAGED,
    )  # fmt: skip


def _identity(damaged: sqlite3.Connection, path: Path, table: str) -> str | None:
    """The id of the copy, if it can be read. Raises: ConfigError."""
    try:
        found = damaged.execute("select name, replica_id from state").fetchone()
    except (sqlite3.Error, UnicodeDecodeError):
        return None
    if found is not None and found[0] != table and isinstance(found[0], str):
        raise ConfigError(
            f"{path} is a copy of the table {found[0]!r}, not of {table!r}: take another directory"
        )
    return found[1] if found is not None and isinstance(found[1], str) else None


def _writes(damaged: sqlite3.Connection, select: str) -> list[tuple[Any, ...]]:
    """Those that can be read and have the right checksum, one by one; others are logged."""
    found: list[tuple[Any, ...]] = []
    after = 0
    while True:
        try:
            row = damaged.execute(select, (after,)).fetchone()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            log.error("writes behind number %d cannot be read: %s", after, error)
            return found
        if row is None:
            return found
        after = row[0]
        _, key, base, timestamp, value, content_type, more, crc = row
        if row_crc(*row[1:-1]) != crc:
            log.error("write %d is damaged, and lost", after)
            continue
        found.append((after, LocalWrite(key, value, timestamp, content_type), base, more))
