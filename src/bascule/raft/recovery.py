"""Recovery: the state that a node starts from, checked, from the contents of its store.

A store checks that each record is as it was written. Whether the records make a consistent log is
checked here, with the same rules for all stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

import msgspec

from bascule.errors import CorruptData
from bascule.raft.membership import NOBODY, Members, decode_members
from bascule.raft.messages import Chunk, Entry, EntryKind, RaftSnapshot
from bascule.raft.store import PersistentState

KINDS = frozenset(int(kind) for kind in EntryKind)


class StoreContents(msgspec.Struct, frozen=True, kw_only=True):
    """All records of one group in a store, unchecked.

    `entries` are in the order of their indices; `chunks` are in any order, one for each
    (index, number).
    """

    initial_members: Members | None = None
    term: int = 0
    voted_for: int = NOBODY
    chunks: Sequence[Chunk] = ()
    entries: Sequence[Entry] = ()


def recover(contents: StoreContents, *, file: str, group: str = "") -> PersistentState:
    """The part of `contents` that a node starts from. `file` and `group` name it in errors.

    The snapshot is the newest one with all of its chunks. Entries are kept where they continue it:
    where the log has the snapshot's last entry with its term, or begins right behind it. A log that
    ends before the snapshot, or has another term at its index, was left behind by an interrupted
    installation of the snapshot; it counts as removed.

    Raises: CorruptData where no sequence of calls to a store leads to `contents`.
    """
    checker = _ContentsChecker(file, group)
    checker.check_hard_state(contents)
    checker.check_entries(contents.entries, contents.term)
    snapshot = checker.newest_snapshot(contents.chunks, contents.term)
    return PersistentState(
        initial_members=contents.initial_members,
        term=contents.term,
        voted_for=contents.voted_for,
        snapshot=snapshot,
        entries=checker.kept_entries(contents.entries, snapshot),
    )


class _ContentsChecker:
    """The rules, and the error for contents that break one."""

    __slots__ = ("_file", "_group")

    def __init__(self, file: str, group: str) -> None:
        self._file = file
        self._group = f"{group}, " if group else ""

    def refuse(self, what: str, at: int, *, expected: str, found: str) -> NoReturn:
        raise CorruptData(self._file, at, expected, found, place=f"{self._group}{what} {at}")

    def check_hard_state(self, contents: StoreContents) -> None:
        anything = contents.term or contents.voted_for or contents.entries or contents.chunks
        if contents.initial_members is None and anything:
            self.refuse(
                "entry", 0,
                expected="the group's initial members, recorded before anything else",
                found=f"none, but term {contents.term}, {len(contents.entries)} entries and "
                f"{len(contents.chunks)} chunks",
            )  # fmt: skip
        if contents.term < 0 or contents.voted_for < NOBODY:
            self.refuse(
                "term", contents.term,
                expected="a term and a vote of 0 or more", found=f"a vote for {contents.voted_for}",
            )  # fmt: skip

    def check_entries(self, entries: Sequence[Entry], term_max: int) -> None:
        if not entries:
            return
        index, term = entries[0].index, 1
        if index < 1:
            self.refuse("entry", index, expected="index 1 or more", found=f"index {index}")
        for entry in entries:
            if entry.index != index:
                self.refuse("entry", index, expected=f"entry {index}", found=f"entry {entry.index}")
            if entry.term < term:
                self.refuse(
                    "entry", index, expected=f"term {term} or later", found=f"term {entry.term}"
                )
            term = entry.term
            if entry.kind:
                self._check_kind(entry)
            index += 1
        if term > term_max:
            self.refuse(
                "entry", index - 1,
                expected=f"no later term than the persisted one, {term_max}",
                found=f"term {term}",
            )  # fmt: skip

    def _check_kind(self, entry: Entry) -> None:
        if entry.kind not in KINDS:
            self.refuse(
                "entry", entry.index, expected=f"a kind of {sorted(KINDS)}", found=f"{entry.kind}"
            )
        if entry.kind == EntryKind.MEMBERS:
            try:
                decode_members(entry.payload)
            except msgspec.MsgspecError as error:
                self.refuse("entry", entry.index, expected="encoded members", found=str(error))

    def newest_snapshot(self, chunks: Iterable[Chunk], term_max: int) -> RaftSnapshot | None:
        """The snapshot of the highest index whose chunks are all there and belong together."""
        snapshots: dict[tuple[int, int, Members, int], dict[int, bytes]] = {}
        for chunk in chunks:
            if not 0 <= chunk.number < chunk.count or chunk.index < 1 or chunk.term < 1:
                self.refuse(
                    "chunk of the snapshot at", chunk.index,
                    expected="a number below the count, an index and a term of 1 or more",
                    found=f"number {chunk.number} of {chunk.count}, term {chunk.term}",
                )  # fmt: skip
            key = (chunk.index, chunk.term, chunk.members, chunk.count)
            snapshots.setdefault(key, {})[chunk.number] = chunk.data
        newest = None
        for (index, term, members, count), data in snapshots.items():
            if term > term_max:
                self.refuse(
                    "chunk of the snapshot at", index,
                    expected=f"no later term than the persisted one, {term_max}",
                    found=f"term {term}",
                )  # fmt: skip
            if len(data) == count and (newest is None or index > newest.index):
                parts = tuple(data[number] for number in range(count))
                newest = RaftSnapshot(index, term, members, parts)
        return newest

    def kept_entries(
        self, entries: Sequence[Entry], snapshot: RaftSnapshot | None
    ) -> tuple[Entry, ...]:
        if not entries:
            return ()
        first, last = entries[0].index, entries[-1].index
        below = snapshot.index if snapshot else 0
        if first > below + 1:
            start = f"the snapshot at {below}" if snapshot else "no snapshot"
            self.refuse(
                "entry", below + 1,
                expected=f"entry {below + 1}, since there is {start}",
                found=f"entries from {first} on",
            )  # fmt: skip
        if snapshot is None:
            return tuple(entries)
        if last < below:
            return ()
        if first == below + 1:
            if entries[0].term < snapshot.term:
                self.refuse(
                    "entry", first,
                    expected=f"term {snapshot.term} or later, as the snapshot before it has",
                    found=f"term {entries[0].term}",
                )  # fmt: skip
            return tuple(entries)
        return tuple(entries) if entries[below - first].term == snapshot.term else ()
