"""`GroupTables`: the rows of one group in a database.

Its methods execute statements within the transaction of the caller and keep `row` as the table will
have it after the commit. The caller writes `row`.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from bascule.raft.membership import Members
from bascule.raft.messages import Chunk, Entry
from bascule.raft_driver.sqlite_store import schema
from bascule.raft_driver.sqlite_store.connection import GuardedConnection
from bascule.raft_driver.sqlite_store.schema import GroupRow, check_crc, refuse

RUN_BYTES_MAX: Final = 1 << 20
"""Payload of one row of entries, unless a single entry has more. A truncation rewrites a row."""

RunRow: TypeAlias = tuple[int, int, int, int, int, bytes]
"""A row of table `runs`."""

_members: Final = msgspec.msgpack.Decoder(Members).decode


class GroupTables:
    """The rows of one group."""

    __slots__ = ("_connection", "group", "row")

    def __init__(self, connection: GuardedConnection, row: GroupRow) -> None:
        self._connection = connection
        self.group = row.group
        self.row = row
        """The row in the table after the commit of the current transaction."""

    # Writing.

    def append(self, entries: list[Entry]) -> int:
        """Insert `entries`, which follow the last one, in rows of bounded size; their bytes."""
        size = 0
        for part in _parts(entries):
            run = self.next_run(part)
            self._insert(run)
            size += len(run[5])
        return size

    def next_run(self, entries: list[Entry]) -> RunRow:
        """The row for `entries`, which follow the last one. Updates `row`."""
        row = self.row
        first, last = entries[0].index, entries[-1].index
        blob = schema.encode(entries)
        crc = schema.run_crc(self.group, first, last, row.tail, blob)
        run = (self.group, first, last, row.tail, crc, blob)
        row.first = row.first or first
        row.last = last
        row.tail = crc
        return run

    def _insert(self, run: RunRow) -> None:
        self._connection.execute(
            "INSERT INTO runs (group_id, first, last, previous, crc, entries) VALUES (?,?,?,?,?,?)",
            run,
        )

    def truncate_from(self, index: int) -> None:
        """Remove the entry at `index` and all later ones. Raises: CorruptData."""
        row, execute = self.row, self._connection.execute
        if index > row.last:
            return
        if index <= row.first:
            execute("DELETE FROM runs WHERE group_id = ?", (self.group,))
            row.first = row.last = row.tail = 0
            return
        found = execute(
            "SELECT group_id, first, last, previous, crc, entries FROM runs"
            " WHERE group_id = ? AND first <= ? ORDER BY first DESC LIMIT 1",
            (self.group, index),
        ).fetchone()
        if found is None:
            refuse(
                self._connection.path, self._place("runs", index), index,
                expected=f"the run of entry {index}", found="none",
            )  # fmt: skip
        entries = self._entries_of(found)
        first = found[1]
        execute("DELETE FROM runs WHERE group_id = ? AND first >= ?", (self.group, first))
        row.tail = found[3]
        row.last = index - 1
        if first < index:
            self._insert(self.next_run(list(entries[: index - first])))

    def truncate_until(self, index: int) -> None:
        """Remove the entry at `index` and all earlier ones; a row that has later ones stays."""
        row, execute = self.row, self._connection.execute
        if index < row.first or not row.last:
            return
        if index >= row.last:
            execute("DELETE FROM runs WHERE group_id = ?", (self.group,))
            row.first = row.last = row.tail = 0
            return
        row.first = index + 1
        execute(
            "DELETE FROM runs WHERE group_id = ? AND first <"
            " (SELECT max(first) FROM runs WHERE group_id = ? AND first <= ?)",
            (self.group, self.group, row.first),
        )

    def put_chunk(self, chunk: Chunk) -> int:
        """Insert or replace a chunk; its bytes."""
        self.delete_chunk(chunk.index, chunk.number)
        blob = schema.encode(chunk)
        crc = schema.chunk_crc(self.group, chunk.index, chunk.number, blob)
        self._connection.execute(
            "INSERT INTO chunks (group_id, snapshot, number, crc, chunk) VALUES (?,?,?,?,?)",
            (self.group, chunk.index, chunk.number, crc, blob),
        )
        self.row.chunks += 1
        self.row.chunks_check ^= crc
        return len(blob)

    def delete_chunk(self, index: int, number: int) -> None:
        at = (self.group, index, number)
        where = "WHERE group_id = ? AND snapshot = ? AND number = ?"
        execute = self._connection.execute
        found = execute(f"SELECT crc FROM chunks {where}", at).fetchone()  # noqa: S608
        if found is not None:
            execute(f"DELETE FROM chunks {where}", at)  # noqa: S608
            self.row.chunks -= 1
            self.row.chunks_check ^= found[0]

    # Reading.

    def _place(self, table: str, at: int) -> str:
        return f"table {table}, group {self.group}, row {at}"

    def initial_members(self) -> Members | None:
        return None if self.row.founding is None else _members(self.row.founding)

    def load_entries(self) -> list[Entry]:
        """All entries of the group. Raises: CorruptData, LogFailed."""
        row, path = self.row, self._connection.path
        entries: list[Entry] = []
        end = tail = 0
        for run in self._connection.select(
            "SELECT group_id, first, last, previous, crc, entries FROM runs"
            " WHERE group_id = ? ORDER BY first",
            (self.group,),
        ):
            first, last, previous = run[1:4]
            found = self._entries_of(run)
            if entries and (first != end + 1 or previous != tail):
                refuse(
                    path, self._place("runs", first), first,
                    expected=f"the run of entry {end + 1} after the run with CRC {tail}",
                    found=f"the run of entry {first} after a run with CRC {previous}",
                )  # fmt: skip
            entries += found
            end, tail = last, run[4]
        begin = entries[0].index if entries else 0
        if end != row.last or tail != row.tail or not begin <= row.first <= max(end, 0):
            refuse(
                path, self._place("runs", end), end,
                expected=f"entries {row.first} to {row.last}, the last run's CRC {row.tail}",
                found=f"entries {begin} to {end}, the last run's CRC {tail}",
            )  # fmt: skip
        return entries[row.first - begin :]

    def _entries_of(self, run: RunRow) -> tuple[Entry, ...]:
        """Raises: CorruptData where a row of `runs` is not as it was written."""
        group, first, last, previous, crc, blob = run
        path, place = self._connection.path, self._place("runs", first)
        check_crc(
            path, place, first, crc=crc,
            compute=lambda: schema.run_crc(group, first, last, previous, blob),
        )  # fmt: skip
        try:
            entries = schema.decode_entries(blob)
        except msgspec.MsgspecError as error:
            refuse(path, place, first, expected="encoded entries", found=str(error))
        if len(entries) != last - first + 1:
            refuse(
                path, place, first,
                expected=f"entries {first} to {last}", found=f"{len(entries)} entries",
            )  # fmt: skip
        return entries

    def load_chunks(self) -> list[Chunk]:
        """All chunks of the group, in any order. Raises: CorruptData, LogFailed."""
        chunks, check = [], 0
        for snapshot, number, crc, blob in self._connection.select(
            "SELECT snapshot, number, crc, chunk FROM chunks WHERE group_id = ?", (self.group,)
        ):
            chunks.append(self._chunk_of(snapshot, number, crc, blob))
            check ^= crc
        if len(chunks) != self.row.chunks or check != self.row.chunks_check:
            refuse(
                self._connection.path, f"table chunks, group {self.group}", 0,
                expected=f"{self.row.chunks} rows with checksum {self.row.chunks_check}",
                found=f"{len(chunks)} rows with checksum {check}",
            )  # fmt: skip
        return chunks

    def _chunk_of(self, snapshot: int, number: int, crc: int, blob: bytes) -> Chunk:
        path, place = self._connection.path, self._place("chunks", number)
        check_crc(
            path, place, number, crc=crc,
            compute=lambda: schema.chunk_crc(self.group, snapshot, number, blob),
        )  # fmt: skip
        try:
            return schema.decode_chunk(blob)
        except msgspec.MsgspecError as error:
            refuse(path, place, number, expected="an encoded chunk", found=str(error))


def _parts(entries: list[Entry]) -> list[list[Entry]]:
    """`entries` in parts of up to `RUN_BYTES_MAX`, or of one larger entry."""
    parts, part, size = [], list[Entry](), 0
    for entry in entries:
        if part and size + len(entry.payload) > RUN_BYTES_MAX:
            parts.append(part)
            part, size = [], 0
        part.append(entry)
        size += len(entry.payload)
    parts.append(part)
    return parts
