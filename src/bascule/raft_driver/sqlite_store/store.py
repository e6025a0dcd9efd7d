"""`SqliteStore`: the part of a database that is one group's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from bascule.raft.membership import Members
from bascule.raft.messages import Chunk, Entry
from bascule.raft.recovery import StoreContents, recover
from bascule.raft.store import PersistentState
from bascule.raft_driver.sqlite_store import schema
from bascule.raft_driver.sqlite_store.schema import GroupRow, check_crc, refuse

if TYPE_CHECKING:
    from bascule.raft_driver.sqlite_store.database import SqliteDatabase

RUN_BYTES_MAX: Final = 1 << 20
"""Payload of one row of entries, unless a single entry has more. A truncation rewrites a row."""

_APPEND: Final = 0
_TRUNCATE_FROM: Final = 1
_TRUNCATE_UNTIL: Final = 2
_CHUNK: Final = 3
_DELETE_CHUNKS: Final = 4
_ROW: Final = 5

Run: TypeAlias = tuple[int, int, int, int, int, bytes]
"""A row of table `runs`."""

_members: Final = msgspec.msgpack.Decoder(Members).decode


class SqliteStore:
    """A `RaftStore`; made by `SqliteDatabase.store`."""

    __slots__ = ("_bytes", "_changes", "_closed", "_database", "_last", "group", "row")

    def __init__(self, database: SqliteDatabase, row: GroupRow) -> None:
        self._database = database
        self.group = row.group
        self.row = row
        """As the database has it, or will have it with the commit that is being made; term, vote
        and founding members as soon as they are set."""
        self._changes: list[tuple[int, Any]] = []
        """What waits for a flush, in order; never two appends in a row."""
        self._bytes = 0
        """Payload of the entries among them."""
        self._last = row.last
        """The last entry's index with all of `_changes` made; 0: any may come next."""
        self._closed = False

    # The contract.

    def load(self) -> PersistentState:
        self._database.check_usable()
        assert not self._changes, "a store is loaded before it is written to"
        found = StoreContents(
            initial_members=self._initial_members(),
            term=self.row.term,
            voted_for=self.row.voted_for,
            chunks=self._load_chunks(),
            entries=self._load_entries(),
        )
        restored = recover(found, file=self._database.path, group=f"group {self.group}")
        self._remove_leftovers(found, restored)
        return restored

    def bootstrap(self, members: Members) -> None:
        assert self.row.founding is None, "bootstrap is called once"
        self.row.founding = schema.encode(members)
        self._change(_ROW, None, 0)
        self._database.flush()

    def persist_term(self, term: int, voted_for: int) -> None:
        self.buffer_term(term, voted_for)
        self._database.flush()

    def buffer_term(self, term: int, voted_for: int) -> None:
        """As `persist_term`, but durable with the next flush only: the votes of many groups then
        cost one."""
        self.row.term, self.row.voted_for = term, voted_for
        self._change(_ROW, None, 0)

    def persist_entries(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        assert self._last in (0, entries[0].index - 1), "entries follow the last one"
        self._last = entries[-1].index
        changes = self._changes
        if changes and changes[-1][0] == _APPEND:
            changes[-1][1].extend(entries)
        else:
            changes.append((_APPEND, list(entries)))
        size = sum([len(entry.payload) for entry in entries])
        self._bytes += size
        self._database.buffered(self, size)

    def truncate_from(self, index: int) -> None:
        self._change(_TRUNCATE_FROM, index, 0)
        self._last = min(self._last, index - 1)

    def persist_chunk(self, chunk: Chunk) -> None:
        self._change(_CHUNK, chunk, len(chunk.data))

    def truncate_until(self, index: int) -> None:
        self._change(_TRUNCATE_UNTIL, index, 0)
        if index >= self._last:
            self._last = 0

    def delete_chunks(self, index: int, count: int) -> None:
        self._change(_DELETE_CHUNKS, (index, range(count)), 0)

    def flush(self) -> None:
        self._database.flush()

    def close(self) -> None:
        """Let go of the group; the database stays open."""
        if not self._closed:
            self._closed = True
            self._changes.clear()
            self._database.let_go(self)

    # What the database calls within a flush.

    @property
    def only_appends(self) -> bool:
        """Whether one run of entries is all that is buffered, of a group that has its row."""
        changes = self._changes
        return (
            len(changes) == 1
            and changes[0][0] == _APPEND
            and self._bytes <= RUN_BYTES_MAX
            and self._database.has_row(self.group)
        )

    def next_run(self) -> Run:
        """The row for the entries that are all there is; `row` becomes that of after it."""
        return self._run_of(self._changes[0][1])

    def take_appended(self) -> int:
        """They are on their way: the number of entries."""
        count = len(self._changes[0][1])
        self._changes.clear()
        self._bytes = 0
        return count

    def write_out(self) -> tuple[int, int]:
        """Make all changes within the transaction; (entries, bytes) written."""
        entries = size = 0
        for kind, argument in self._changes:
            if kind == _APPEND:
                for part in _parts(argument):
                    run = self._run_of(part)
                    self._insert(run)
                    entries += len(part)
                    size += len(run[5])
            elif kind == _TRUNCATE_FROM:
                self._truncate_from(argument)
            elif kind == _TRUNCATE_UNTIL:
                self._truncate_until(argument)
            elif kind == _CHUNK:
                size += self._put_chunk(argument)
            elif kind == _DELETE_CHUNKS:
                index, numbers = argument
                for number in numbers:
                    self._drop_chunk(index, number)
        self._changes.clear()
        self._bytes = 0
        return entries, size

    # Writing.

    def _change(self, kind: int, argument: object, size: int) -> None:
        self._changes.append((kind, argument))
        self._database.buffered(self, size)

    def _run_of(self, entries: list[Entry]) -> Run:
        row = self.row
        first, last = entries[0].index, entries[-1].index
        blob = schema.encode(entries)
        crc = schema.run_crc(self.group, first, last, row.tail, blob)
        run = (self.group, first, last, row.tail, crc, blob)
        row.first = row.first or first
        row.last = last
        row.tail = crc
        return run

    def _insert(self, run: Run) -> None:
        self._database.connection.execute(
            "INSERT INTO runs (group_id, first, last, previous, crc, entries) VALUES (?,?,?,?,?,?)",
            run,
        )

    def _truncate_from(self, index: int) -> None:
        row, execute = self.row, self._database.connection.execute
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
                self._database.path, self._place("runs", index), index,
                expected=f"the run of entry {index}", found="none",
            )  # fmt: skip
        entries = self._entries_of(found)
        first = found[1]
        execute("DELETE FROM runs WHERE group_id = ? AND first >= ?", (self.group, first))
        row.tail = found[3]
        row.last = index - 1
        if first < index:
            self._insert(self._run_of(list(entries[: index - first])))

    def _truncate_until(self, index: int) -> None:
        row, execute = self.row, self._database.connection.execute
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

    def _put_chunk(self, chunk: Chunk) -> int:
        self._drop_chunk(chunk.index, chunk.number)
        blob = schema.encode(chunk)
        crc = schema.chunk_crc(self.group, chunk.index, chunk.number, blob)
        self._database.connection.execute(
            "INSERT INTO chunks (group_id, snapshot, number, crc, chunk) VALUES (?,?,?,?,?)",
            (self.group, chunk.index, chunk.number, crc, blob),
        )
        self.row.chunks += 1
        self.row.chunks_check ^= crc
        return len(blob)

    def _drop_chunk(self, index: int, number: int) -> None:
        at = (self.group, index, number)
        where = "WHERE group_id = ? AND snapshot = ? AND number = ?"
        execute = self._database.connection.execute
        found = execute(f"SELECT crc FROM chunks {where}", at).fetchone()  # noqa: S608
        if found is not None:
            execute(f"DELETE FROM chunks {where}", at)  # noqa: S608
            self.row.chunks -= 1
            self.row.chunks_check ^= found[0]

    # Reading.

    def _place(self, table: str, at: int) -> str:
        return f"table {table}, group {self.group}, row {at}"

    def _initial_members(self) -> Members | None:
        return None if self.row.founding is None else _members(self.row.founding)

    def _load_entries(self) -> list[Entry]:
        row, path = self.row, self._database.path
        entries: list[Entry] = []
        end = tail = 0
        for run in self._database.select(
            "SELECT group_id, first, last, previous, crc, entries FROM runs"
            " WHERE group_id = ? ORDER BY first",
            (self.group,),
        ):
            first, last, previous = run[1:4]
            found = self._entries_of(run)
            if entries and (first != end + 1 or previous != tail):
                refuse(
                    path, self._place("runs", first), first,
                    expected=f"the run of entry {end + 1} behind the one of CRC {tail}",
                    found=f"that of entry {first} behind the one of CRC {previous}",
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

    def _entries_of(self, run: Run) -> tuple[Entry, ...]:
        """Raises: CorruptData where a row of `runs` is not as it was written."""
        group, first, last, previous, crc, blob = run
        path, place = self._database.path, self._place("runs", first)
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

    def _load_chunks(self) -> list[Chunk]:
        chunks, check = [], 0
        for snapshot, number, crc, blob in self._database.select(
            "SELECT snapshot, number, crc, chunk FROM chunks WHERE group_id = ?", (self.group,)
        ):
            chunks.append(self._chunk_of(snapshot, number, crc, blob))
            check ^= crc
        if len(chunks) != self.row.chunks or check != self.row.chunks_check:
            refuse(
                self._database.path, f"table chunks, group {self.group}", 0,
                expected=f"{self.row.chunks} rows that add up to {self.row.chunks_check}",
                found=f"{len(chunks)} rows that add up to {check}",
            )  # fmt: skip
        return chunks

    def _chunk_of(self, snapshot: int, number: int, crc: int, blob: bytes) -> Chunk:
        path, place = self._database.path, self._place("chunks", number)
        check_crc(
            path, place, number, crc=crc,
            compute=lambda: schema.chunk_crc(self.group, snapshot, number, blob),
        )  # fmt: skip
        try:
            return schema.decode_chunk(blob)
        except msgspec.MsgspecError as error:
            refuse(path, place, number, expected="an encoded chunk", found=str(error))

    def _remove_leftovers(self, found: StoreContents, restored: PersistentState) -> None:
        """Remove what was found and is not part of what is restored."""
        kept = restored.snapshot.as_chunks() if restored.snapshot else ()
        places = {(chunk.index, chunk.number) for chunk in kept}
        for chunk in found.chunks:
            if (chunk.index, chunk.number) not in places:
                self._change(_DELETE_CHUNKS, (chunk.index, (chunk.number,)), 0)
        if found.entries and not restored.entries:
            self.truncate_until(found.entries[-1].index)
        if self._changes:
            self._database.flush()


def _parts(entries: list[Entry]) -> list[list[Entry]]:
    """`entries` in parts of `RUN_BYTES_MAX` or one entry."""
    parts, part, size = [], list[Entry](), 0
    for entry in entries:
        if part and size + len(entry.payload) > RUN_BYTES_MAX:
            parts.append(part)
            part, size = [], 0
        part.append(entry)
        size += len(entry.payload)
    parts.append(part)
    return parts
