"""Reads the databases and the oplogs of replicas, with a decoder of its own for the latter."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from struct import Struct
from typing import Final, NamedTuple

from bascule.sim.cluster.tables.databases import TableDatabases
from bascule.sim.cluster.world.disk import MachineFiles

HEADER: Final = Struct("<8sIQQQII")
"""Magic, version, table, first id; first id, records and CRC of the file before."""
RECORD: Final = Struct("<QQQB")
HEADER_BYTES: Final = HEADER.size + 4
CHECK: Final = 0x80


class StoredRow(NamedTuple):
    """A row of a table."""

    id: int
    """The key id of the oplog."""
    key: bytes
    version: int
    value: bytes | None
    """None: the key was removed."""


class StoredTable(NamedTuple):
    """What the database of a replica has."""

    position: int
    """The first offset that is not in it."""
    mark: tuple[int, int] | None
    """First id and number of records of the oplog's last file; None: there is no oplog."""
    rows: list[StoredRow]
    forgotten: int
    """The highest operation id of a row that was deleted; 0: none was."""
    forgotten_rows: int


class StoredOperation(NamedTuple):
    """A record of an oplog."""

    id: int
    key: int
    operation: int


def read_table(databases: TableDatabases, path: str) -> StoredTable | None:
    """What was committed last; None if there is no database, or one without anything."""
    opened = databases.read(path)
    if opened is None:
        return None
    with closing(opened) as reader:
        reader.execute("begin")
        try:
            state = (
                "select position, oplog_first, oplog_slots, forgotten, forgotten_rows from state"
            )
            position, first, slots, *forgotten = reader.execute(state).fetchone()
        except sqlite3.OperationalError:
            return None
        rows = reader.execute("select id, key, version, value from entries order by key")
        mark = None if first is None else (first, slots)
        return StoredTable(position, mark, [StoredRow(*row) for row in rows], *forgotten)


def read_oplog(
    files: MachineFiles, directory: str, mark: tuple[int, int], table: int
) -> tuple[int, list[StoredOperation]]:
    """The first id, and the operations up to a mark. Raises: ValueError for another format."""
    firsts = sorted(int(name.removesuffix(".oplog")) for name in files.list_dir(directory))
    firsts = [first for first in firsts if first <= mark[0]]
    heads = []
    for first in firsts:
        data = files.read_bytes(f"{directory}/{first:020d}.oplog")
        magic, version, of, begins, *before = HEADER.unpack_from(data)
        if (magic, version, of, begins) != (b"BscOplog", 1, table, first):
            raise ValueError(f"{directory}: the header of {first} is {data[:HEADER_BYTES]!r}")
        heads.append((first, data, before))
    found: list[StoredOperation] = []
    start = 0
    for number, (first, data, before) in enumerate(heads):
        if number == 0 or not before[0]:
            found, start = [], first
        slots = mark[1] if number + 1 == len(heads) else heads[number + 1][2][1]
        found += _operations(data, slots, table)
    return start, found


def _operations(data: bytes, slots: int, table: int) -> Iterator[StoredOperation]:
    end = HEADER_BYTES + slots * RECORD.size
    if len(data) < end:
        raise ValueError(f"{len(data)} bytes, expected {slots} records")
    for id, key, of, operation in RECORD.iter_unpack(data[HEADER_BYTES:end]):
        if operation >= CHECK:
            continue
        if of != table:
            raise ValueError(f"operation {id} is of table {of:x}, expected {table:x}")
        yield StoredOperation(id, key, operation)
