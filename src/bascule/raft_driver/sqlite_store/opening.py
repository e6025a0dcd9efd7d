"""Opening a database: creates it if there is none, and checks it otherwise."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from bascule.errors import BasculeError, ConfigError, CorruptData, LogFailed, UnsupportedFormat
from bascule.host.api import Files
from bascule.raft_driver.sqlite_store import schema
from bascule.raft_driver.sqlite_store.commit_mark import CommitMark, KnownCommits
from bascule.raft_driver.sqlite_store.schema import GroupRow, check_crc, refuse

MARK_SUFFIX: Final = "-synced"
REFUSED_SUFFIX: Final = "-refused"
_HEADER: Final = b"SQLite format 3\0"

_PRAGMAS: Final = (
    # Excludes other processes, and keeps the index of the write-ahead log in memory.
    "locking_mode=EXCLUSIVE",
    "journal_mode=WAL",
    "synchronous=FULL",
    # SqliteDatabase makes checkpoints and counts them.
    "wal_autocheckpoint=0",
    # Debian's SQLite overwrites deleted content by default, with a write for each page.
    "secure_delete=OFF",
    "temp_store=MEMORY",
    "cell_size_check=ON",
)


class Opened:
    """A checked database: its connection, and the contents of tables `node` and `groups`."""

    __slots__ = ("commits", "connection", "group_count", "groups", "groups_check")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.commits = 0
        self.groups: dict[int, GroupRow] = {}
        self.group_count = 0
        self.groups_check = 0


def open_checked(
    files: Files,
    path: str,
    *,
    node_id: int,
    factory: type[sqlite3.Connection],
    known: KnownCommits,
) -> Opened:
    """Open and check the database at `path`. One with fewer commits than are `known` is refused
    before anything is written to it.

    Raises: CorruptData, DataDirectoryInUse, UnsupportedFormat, LogFailed; ConfigError if the
    database is another node's.
    """
    mark_path = path + MARK_SUFFIX
    if not _has_header(files, path, has_mark=files.exists(mark_path)):
        known.check(path, 0)
    try:
        connection = sqlite3.connect(
            path, timeout=0, isolation_level=None, check_same_thread=False, factory=factory
        )
    except sqlite3.Error as error:
        raise schema.translated(path, error) from error
    try:
        return _checked(files, path, connection, node_id, known)
    except schema.ERRORS as error:
        found = schema.translated(path, error)
        _close(files, path, connection, keep_log=isinstance(found, CorruptData))
        raise (_why(files, path, found) if isinstance(found, CorruptData) else found) from error
    except CorruptData as error:
        _close(files, path, connection, keep_log=True)
        raise _why(files, path, error) from error
    except BaseException:
        _close(files, path, connection, keep_log=False)
        raise


def _why(files: Files, path: str, error: CorruptData) -> BasculeError:
    """`error`, or LogFailed if the file cannot be read, which SQLite may report as damage."""
    try:
        files.read_bytes(path)
    except OSError as unread:
        return LogFailed(path, str(unread))
    return error


def _close(files: Files, path: str, connection: sqlite3.Connection, *, keep_log: bool) -> None:
    """Close the connection; an error of the close is ignored.

    SQLite removes the write-ahead log when it closes, including parts that it could not read.
    `keep_log` makes a copy of it first, for diagnosis.
    """
    log, copy = f"{path}-wal", f"{path}-wal{REFUSED_SUFFIX}"
    if keep_log and files.exists(log) and not files.exists(copy):
        file = files.open(copy, create=True)
        file.append(files.read_bytes(log))
        file.close()
    try:
        connection.close()
    except sqlite3.Error:
        pass


def _checked(
    files: Files, path: str, connection: sqlite3.Connection, node_id: int, known: KnownCommits
) -> Opened:
    connection.text_factory = bytes
    mode = b""
    for pragma in _PRAGMAS:
        row = connection.execute(f"PRAGMA {pragma}").fetchone()
        mode = row[0] if pragma.startswith("journal_mode") else mode
    if mode != b"wal":
        refuse(path, "its header", 18, expected="write-ahead logging", found=repr(mode))
    mark_path = path + MARK_SUFFIX
    opened = Opened(connection)
    if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        if files.exists(mark_path):
            refuse(path, "its schema", 0, expected="the tables of a Raft log", found="no table")
        _create(connection, node_id)
    _check_schema(path, connection)
    _read_node(path, opened, node_id)
    _check_mark(files, mark_path, opened, node_id)
    known.check(path, opened.commits)
    _check_pages(path, connection)
    _check_groups(path, opened)
    # Parts of a failed commit may be in the kernel's cache only: write and sync them again.
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    files.sync_dir(path.rpartition("/")[0] or ".")
    connection.execute(schema.VIEW)
    connection.execute(schema.TRIGGER)
    return opened


def _has_header(files: Files, path: str, *, has_mark: bool) -> bool:
    """Check the file before SQLite opens it, since SQLite removes the log of an empty file. Returns
    whether there is a database."""
    size = files.size(path) if files.exists(path) else 0
    if size == 0:
        if has_mark:
            raise CorruptData(path, 0, "the database of the commit mark", "no database")
        return False
    file = files.open(path, write=False)
    found = file.read_at(0, len(_HEADER))
    file.close()
    if found != _HEADER:
        raise CorruptData(path, 0, f"{_HEADER!r}", f"{found!r}")
    return True


def _create(connection: sqlite3.Connection, node_id: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in schema.TABLES.values():
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id={schema.APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={schema.VERSION}")
    crc = schema.node_crc(node_id, 1, 0, 0)
    connection.execute("INSERT INTO node VALUES (1, ?, 1, 0, 0, ?)", (node_id, crc))
    connection.execute("COMMIT")


def _check_schema(path: str, connection: sqlite3.Connection) -> None:
    def number(pragma: str) -> int:
        return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])

    if (found := number("application_id")) != schema.APPLICATION_ID:
        refuse(
            path, "its header", 68,
            expected=f"application id {schema.APPLICATION_ID:#x}, a Raft log", found=f"{found:#x}",
        )  # fmt: skip
    if (version := number("user_version")) > schema.VERSION:
        raise UnsupportedFormat(path, version, schema.VERSION)
    if version != schema.VERSION:
        refuse(path, "its header", 60, expected=f"version {schema.VERSION}", found=f"{version}")
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    tables = dict(rows)
    for name, sql in schema.TABLES.items():
        if tables.get(name.encode()) != sql.encode():
            refuse(
                path, f"table {name}", 0,
                expected="the table as created",
                found=repr(tables[name.encode()]) if name.encode() in tables else "no such table",
            )  # fmt: skip


def _read_node(path: str, opened: Opened, node_id: int) -> None:
    place = "table node"
    rows = opened.connection.execute(
        "SELECT node_id, commits, groups, groups_check, crc FROM node"
    ).fetchall()
    if len(rows) != 1:
        refuse(path, place, 0, expected="one row", found=f"{len(rows)} rows")
    *values, crc = rows[0]
    check_crc(path, place, 1, crc=crc, compute=lambda: schema.node_crc(*values))
    owner, opened.commits, opened.group_count, opened.groups_check = values
    if owner != node_id:
        raise ConfigError(f"{path} is the Raft log of node {owner}, opened for node {node_id}")


def _check_mark(files: Files, mark_path: str, opened: Opened, node_id: int) -> None:
    marked = CommitMark.read(files, mark_path, node_id=node_id)
    if marked is None:
        if opened.commits > 1:
            raise CorruptData(mark_path, 0, f"a mark of {opened.commits} commits or less", "none")
        CommitMark.create(files, mark_path, node_id=node_id, commits=opened.commits)
    elif marked > opened.commits:
        database = mark_path.removesuffix(MARK_SUFFIX)
        refuse(
            database, "the end of its write-ahead log", opened.commits,
            expected=f"{marked} commits, which were acknowledged",
            found=f"{opened.commits}",
        )  # fmt: skip


def _check_pages(path: str, connection: sqlite3.Connection) -> None:
    """Check the trees of pages: a page that is both free and in use would be overwritten."""
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != b"ok":
        refuse(
            path, "some page", 0,
            expected="consistent pages", found=bytes(found).decode(errors="replace"),
        )  # fmt: skip


def _check_groups(path: str, opened: Opened) -> None:
    connection, count, check = opened.connection, opened.group_count, 0
    rows: list[tuple[Any, ...]] = connection.execute(
        "SELECT group_id, term, voted_for, first, last, tail, chunks, chunks_check, founding, crc"
        " FROM groups"
    ).fetchall()
    for *values, crc in rows:
        row = GroupRow.of(tuple(values))
        check_crc(path, f"table groups, group {row.group}", row.group, crc=crc, compute=row.crc)
        opened.groups[row.group] = row
        check ^= crc
    if len(opened.groups) != count or check != opened.groups_check:
        refuse(
            path, "table groups", 0,
            expected=f"{count} rows with checksum {opened.groups_check}",
            found=f"{len(opened.groups)} rows with checksum {check}",
        )  # fmt: skip
    for table in ("runs", "chunks"):
        for (group,) in connection.execute(f"SELECT DISTINCT group_id FROM {table}"):  # noqa: S608
            if group not in opened.groups:
                refuse(
                    path, f"table {table}", 0,
                    expected=f"rows of the {count} known groups", found=f"a row of group {group!r}",
                )  # fmt: skip


def restart_mark(files: Files, path: str, *, node_id: int) -> None:
    """Have the database at `path`, which is a copy for a tool, opened with the commits that are
    left, however many were acknowledged. Raises: OSError."""
    mark_path = path + MARK_SUFFIX
    if files.exists(mark_path):
        files.remove(mark_path)
    CommitMark.create(files, mark_path, node_id=node_id, commits=0)


def stored_node_id(path: str) -> int:
    """The node whose database is at `path`. Raises: CorruptData."""
    connection = sqlite3.connect(path)
    try:
        row = connection.execute("SELECT node_id FROM node").fetchone()
    except sqlite3.Error as error:
        raise CorruptData(path, 0, "the database of a node", str(error)) from error
    finally:
        connection.close()
    if row is None:
        raise CorruptData(path, 0, "one row in table node", "none")
    return int(row[0])
