"""A copy begun anew in the place of one that is damaged: what was written on it is kept."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from bascule.client.tables.replica import statements as sql
from bascule.client.tables.replica.conflicts import LocalWrite
from bascule.client.tables.replica.copy_rows import PendingWrite, RefusedWrite, row_crc
from bascule.client.tables.replica.replica_file import BUSY_SECONDS, ReplicaFile
from bascule.errors import BasculeError, ConfigError, LogFailed
from bascule.host.real import RealFiles

log = logging.getLogger(__name__)

DAMAGED: Final = ".damaged"
"""The end of the names that the files of before get; those of an earlier time are replaced."""
ANEW: Final = ".anew"
"""The end of the name of the new file until it is complete, and the damaged one is away."""
_SUFFIXES: Final = ("", "-wal", "-shm")
_NEXT: Final = "where number > ? order by number limit 1"
_OF_EARLIER_FORMATS: Final = sql.PENDING.replace(" since,", "")


def begin_anew(path: Path, table: str, new_id: str) -> None:
    """Have an empty copy in `path`, with the writes that are to be offered and those refused.

    What was there is kept beside it, with `.damaged` at the end. Where this fails, or ends in the
    middle, the writes are in `path` or in the new file, for the next call or `finish_begun`. Blocks
    on the disk.

    Raises: ConfigError if it is a copy of another table; LogFailed, also if a process does not stop
    to write to it.
    """
    finish_begun(path)
    if not path.exists():
        return  # a new file is made where the copy is opened
    with closing(sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS)) as damaged:
        _keep_others_from_writing(damaged, path)
        new_id = _identity(damaged, path, table) or new_id
        kept = _writes(damaged, sql.PENDING if _has_since(damaged) else _OF_EARLIER_FORMATS)
        pending = [PendingWrite(n, w, base, sent, None) for n, w, base, sent, *_ in kept]
        refused = [RefusedWrite(*write) for write in _writes(damaged, sql.REFUSED)]
        try:
            _make(_named(path, ANEW), table, new_id, pending, refused)
        except BasculeError:
            log.error("the copy of %s cannot be begun anew; %s is as it was", table, path)
            raise
        _remove(_named(path, DAMAGED), _SUFFIXES[1:])
        _take_place(path)
    log.warning(
        "the copy of %s begins anew, with %d writes to offer and %d refused ones; %s%s has what it "
        "was", table, len(pending), len(refused), path, DAMAGED,
    )  # fmt: skip


def _keep_others_from_writing(damaged: sqlite3.Connection, path: Path) -> None:
    """Until the connection is closed, if the damage allows it: what a process writes between the
    read and the renames would be lost. One that writes later finds another file in the place.

    Raises: LogFailed if a process writes to it for longer than `BUSY_SECONDS`.
    """
    try:
        damaged.execute("begin immediate")
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            raise LogFailed(str(path), f"a process writes to it: {error}") from error
        log.warning("%s is begun anew without a lock: %s", path, error)


def _make(
    new: Path,
    table: str,
    id: str,
    pending: Sequence[PendingWrite],
    refused: Sequence[RefusedWrite],
) -> None:
    """Make an empty copy with these writes, in one file. Raises: BasculeError."""
    _remove(new, _SUFFIXES)
    file = ReplicaFile(new, table, id)
    try:
        file.restore(pending, refused)
    finally:
        file.close()
    if _named(new, "-wal").exists():
        raise LogFailed(str(new), "its write-ahead log is still there")


def is_begun(path: Path) -> bool:
    """Whether a process has ended while it put a new file, which is complete, in its place."""
    return _named(path, ANEW).exists() and not path.exists()


def finish_begun(path: Path) -> None:
    """Put the new file in its place, if `is_begun`. Blocks on the disk."""
    if is_begun(path):
        _take_place(path)


def _take_place(path: Path) -> None:
    """`path` goes first: `is_begun` from then on."""
    files, directory = RealFiles(), str(path.parent)
    files.sync_dir(directory)
    for suffix in _SUFFIXES:
        if (old := _named(path, suffix)).exists():
            old.replace(_named(path, DAMAGED + suffix))
    files.sync_dir(directory)
    _named(path, ANEW).replace(path)
    files.sync_dir(directory)


def _named(path: Path, suffix: str) -> Path:
    return Path(f"{path}{suffix}")


def _remove(path: Path, suffixes: Sequence[str]) -> None:
    for suffix in suffixes:
        _named(path, suffix).unlink(missing_ok=True)


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


def _has_since(damaged: sqlite3.Connection) -> bool:
    """Whether its writes have the column that format 5 has brought."""
    try:
        damaged.execute("select since from pending limit 0")
    except (sqlite3.Error, UnicodeDecodeError):
        return False
    return True


def _writes(damaged: sqlite3.Connection, select: str) -> list[tuple[Any, ...]]:
    """Those that can be read and have the right checksum, one by one; others are logged."""
    found: list[tuple[Any, ...]] = []
    after = 0
    while True:
        try:
            row = damaged.execute(select + _NEXT, (after,)).fetchone()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            log.error("writes behind number %d cannot be read: %s", after, error)
            return found
        if row is None:
            return found
        after = row[0]
        _, key, base, timestamp, value, content_type, *more, crc = row
        if row_crc(*row[1:-1]) != crc:
            log.error("write %d is damaged, and lost", after)
            continue
        found.append((after, LocalWrite(key, value, timestamp, content_type), base, *more))
