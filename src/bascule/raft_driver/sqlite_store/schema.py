"""The tables, the values of their rows, and their CRCs."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

import msgspec
from crc32c import crc32c

from bascule.errors import BasculeError, CorruptData, DataDirectoryInUse, LogFailed
from bascule.raft.messages import Chunk, Entry

T = TypeVar("T")

APPLICATION_ID: Final = 0x42736352  # "BscR"
VERSION: Final = 1

TABLES: Final = {
    "node": """CREATE TABLE node (
    id INTEGER PRIMARY KEY,
    node_id INTEGER NOT NULL,
    commits INTEGER NOT NULL,
    groups INTEGER NOT NULL,
    groups_check INTEGER NOT NULL,
    crc INTEGER NOT NULL
)""",
    "groups": """CREATE TABLE groups (
    group_id INTEGER PRIMARY KEY,
    term INTEGER NOT NULL,
    voted_for INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    tail INTEGER NOT NULL,
    chunks INTEGER NOT NULL,
    chunks_check INTEGER NOT NULL,
    founding BLOB,
    crc INTEGER NOT NULL
)""",
    "runs": """CREATE TABLE runs (
    group_id INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    previous INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    entries BLOB NOT NULL,
    PRIMARY KEY (group_id, first)
) WITHOUT ROWID""",
    "chunks": """CREATE TABLE chunks (
    group_id INTEGER NOT NULL,
    snapshot INTEGER NOT NULL,
    number INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    chunk BLOB NOT NULL,
    PRIMARY KEY (group_id, snapshot, number)
) WITHOUT ROWID""",
}

# The usual flush as one statement, which is a transaction by itself. A call of SQLite releases the
# interpreter lock, and a busy event loop does not return it at once, so each statement of a flush
# costs a wait.
VIEW: Final = """CREATE TEMP VIEW appended AS SELECT 1 AS group_id, 1 AS first, 1 AS last,
    1 AS previous, 1 AS crc, 1 AS entries, 1 AS log_first, 1 AS group_crc, 1 AS commits,
    1 AS groups_check, 1 AS node_crc"""
TRIGGER: Final = """CREATE TEMP TRIGGER append_run INSTEAD OF INSERT ON appended BEGIN
    INSERT INTO runs VALUES
        (NEW.group_id, NEW.first, NEW.last, NEW.previous, NEW.crc, NEW.entries);
    UPDATE groups SET first = NEW.log_first, last = NEW.last, tail = NEW.crc,
        crc = NEW.group_crc WHERE group_id = NEW.group_id;
    UPDATE node SET commits = NEW.commits, groups_check = NEW.groups_check,
        crc = NEW.node_crc WHERE id = 1;
END"""
APPENDED_AT_ONCE: Final = 32
"""Runs, of different groups, in one statement."""
_PLACES: Final = "(?,?,?,?,?,?,?,?,?,?,?)"
APPEND: Final = tuple(
    "INSERT INTO appended VALUES " + ",".join([_PLACES] * count)  # noqa: S608
    for count in range(APPENDED_AT_ONCE + 1)
)

_NODE: Final = struct.Struct(">4sqqqq")
_GROUP: Final = struct.Struct(">4sqqqqqqqq?")
_RUN: Final = struct.Struct(">4sqqqq")
_CHUNK: Final = struct.Struct(">4sqqq")

encode: Final = msgspec.msgpack.Encoder().encode
decode_entries: Final = msgspec.msgpack.Decoder(tuple[Entry, ...]).decode
decode_chunk: Final = msgspec.msgpack.Decoder(Chunk).decode


def checksum(data: bytes, seed: int = 0) -> int:
    """CRC-32C. It keeps the interpreter lock, since taking it again may cost more than the CRC."""
    return crc32c(data, seed, gil_release_mode=0)


def node_crc(node_id: int, commits: int, groups: int, groups_check: int) -> int:
    return checksum(_NODE.pack(b"node", node_id, commits, groups, groups_check))


def run_crc(group: int, first: int, last: int, previous: int, entries: bytes) -> int:
    return checksum(entries, checksum(_RUN.pack(b"run\0", group, first, last, previous)))


def chunk_crc(group: int, snapshot: int, number: int, chunk: bytes) -> int:
    return checksum(chunk, checksum(_CHUNK.pack(b"chnk", group, snapshot, number)))


class GroupRow:
    """A group's row of table `groups`.

    The log has the entries `first` to `last`, both included and 0 without entries; a run may begin
    before `first`. `tail` is the CRC of the last run. `chunks` counts the rows of table `chunks`,
    and `chunks_check` is the exclusive or of their CRCs.
    """

    __slots__ = (
        "chunks", "chunks_check", "first", "founding", "group", "last", "tail", "term", "voted_for",
    )  # fmt: skip

    def __init__(self, group: int) -> None:
        self.group = group
        self.term = self.voted_for = 0
        self.first = self.last = self.tail = 0
        self.chunks = self.chunks_check = 0
        self.founding: bytes | None = None

    @classmethod
    def of(cls, values: tuple[Any, ...]) -> GroupRow:
        """The row of all columns but `crc`, in their order."""
        row = cls(values[0])
        row.term, row.voted_for, row.first, row.last, row.tail = values[1:6]
        row.chunks, row.chunks_check, row.founding = values[6:]
        return row

    def crc(self) -> int:
        """Raises: struct.error, TypeError where a value is not of its type."""
        founding = self.founding
        fixed = _GROUP.pack(
            b"grup", self.group, self.term, self.voted_for, self.first, self.last, self.tail,
            self.chunks, self.chunks_check, founding is not None,
        )  # fmt: skip
        return checksum(founding or b"", checksum(fixed))

    def values(self, crc: int) -> tuple[object, ...]:
        return (
            self.group, self.term, self.voted_for, self.first, self.last, self.tail,
            self.chunks, self.chunks_check, self.founding, crc,
        )  # fmt: skip


def check_crc(path: str, place: str, at: int, *, crc: object, compute: Callable[[], int]) -> None:
    """Raises: CorruptData if a row does not have the CRC that it was written with."""
    try:
        found = compute()
    except (struct.error, TypeError) as error:
        refuse(path, place, at, expected="a row as it was written", found=str(error))
    if found != crc:
        refuse(path, place, at, expected=f"CRC {crc}", found=f"{found}")


def refuse(path: str, place: str, at: int, *, expected: str, found: str) -> NoReturn:
    raise CorruptData(path, at, expected, found, place=place)


_CORRUPT: Final = (
    "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT", "SQLITE_SCHEMA", "SQLITE_MISMATCH",
    "SQLITE_TOOBIG", "SQLITE_IOERR_SHORT_READ", "SQLITE_CONSTRAINT", "SQLITE_ERROR",
)  # fmt: skip
"""SQLite's names of errors that only a damaged file can cause, since the statements are right."""


ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""Errors that `translated` takes; Python may fail to decode one that quotes a damaged schema."""


def translated(path: str, error: sqlite3.Error | UnicodeDecodeError) -> BasculeError:
    """The error of the database at `path` that an error of SQLite means."""
    name = getattr(error, "sqlite_errorname", "SQLITE_ERROR")
    if name.startswith(_CORRUPT):
        return CorruptData(
            path, 0, "a database as it was written", f"{error} ({name})", place="some page"
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return DataDirectoryInUse(path, None)
    return LogFailed(path, f"{error} ({name})")
