"""What a node may start from, judged from what a store found on its disk.

Stores check that each piece is the one that was written; whether the pieces make a log is decided
here, by the same rules for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

import msgspec

from bascule.errors import CorruptData
from bascule.raft.membership import NOBODY, Members, decode_members
from bascule.raft.messages import Chunk, Entry, Kind, Snapshot
from bascule.raft.store import Restored

KINDS = frozenset(int(kind) for kind in Kind)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a store holds of one group, as it lies there.

    `entries` are in the order of their indices; `chunks` are in any order, one for each
    (index, number).
    """

    founding: Members | None = None
    term: int = 0
    voted_for: int = NOBODY
    chunks: Sequence[Chunk] = ()
    entries: Sequence[Entry] = ()


def checked(found: Found, *, file: str, of: str = "") -> Restored:
    """The part of `found` that a node starts from. `file` and `of` (a group) go into errors.

    The snapshot is the newest with all of its chunks. With one, entries are kept where they
    continue it: where the log has its last entry with its term, or begins right behind it. A log
    that ends below it, or has another term there, is what an installation of the snapshot had not
    yet removed when it was interrupted; it counts as removed.

    Raises: CorruptData where no order of a store's calls leads to `found`.
    """
    judge = _Judge(file, of)
    judge.check_founding(found)
    judge.check_entries(found.entries, found.term)
    snapshot = judge.newest_snapshot(found.chunks, found.term)
    return Restored(
        founding=found.founding,
        term=found.term,
        voted_for=found.voted_for,
        snapshot=snapshot,
        entries=judge.kept_entries(found.entries, snapshot),
    )


class _Judge:
    """The rules, with the words for whoever broke one."""

    __slots__ = ("_file", "_of")

    def __init__(self, file: str, of: str) -> None:
        self._file = file
        self._of = f"{of}, " if of else ""

    def refuse(self, what: str, at: int, *, expected: str, found: str) -> NoReturn:
        raise CorruptData(self._file, at, expected, found, place=f"{self._of}{what} {at}")

    def check_founding(self, found: Found) -> None:
        anything = found.term or found.voted_for or found.entries or found.chunks
        if found.founding is None and anything:
            self.refuse(
                "entry", 0,
                expected="the members that the group began with, before anything else",
                found=f"none of them, but term {found.term}, {len(found.entries)} entries and "
                f"{len(found.chunks)} chunks",
            )  # fmt: skip
        if found.term < 0 or found.voted_for < NOBODY:
            self.refuse(
                "term", found.term,
                expected="a term and a vote of 0 or more", found=f"a vote for {found.voted_for}",
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
                expected=f"no later term than {term_max}, which the node is in",
                found=f"term {term}",
            )  # fmt: skip

    def _check_kind(self, entry: Entry) -> None:
        if entry.kind not in KINDS:
            self.refuse(
                "entry", entry.index, expected=f"a kind of {sorted(KINDS)}", found=f"{entry.kind}"
            )
        if entry.kind == Kind.MEMBERS:
            try:
                decode_members(entry.payload)
            except msgspec.MsgspecError as error:
                self.refuse("entry", entry.index, expected="encoded members", found=str(error))

    def newest_snapshot(self, chunks: Iterable[Chunk], term_max: int) -> Snapshot | None:
        """The snapshot of the highest index whose chunks are all there and agree on what it is."""
        shapes: dict[tuple[int, int, Members, int], dict[int, bytes]] = {}
        for chunk in chunks:
            if not 0 <= chunk.number < chunk.count or chunk.index < 1 or chunk.term < 1:
                self.refuse(
                    "chunk of the snapshot at", chunk.index,
                    expected="a number below the count, an index and a term of 1 or more",
                    found=f"number {chunk.number} of {chunk.count}, term {chunk.term}",
                )  # fmt: skip
            shape = (chunk.index, chunk.term, chunk.members, chunk.count)
            shapes.setdefault(shape, {})[chunk.number] = chunk.data
        newest = None
        for (index, term, members, count), data in shapes.items():
            if term > term_max:
                self.refuse(
                    "chunk of the snapshot at", index,
                    expected=f"no later term than {term_max}, which the node is in",
                    found=f"term {term}",
                )  # fmt: skip
            if len(data) == count and (newest is None or index > newest.index):
                parts = tuple(data[number] for number in range(count))
                newest = Snapshot(index, term, members, parts)
        return newest

    def kept_entries(
        self, entries: Sequence[Entry], snapshot: Snapshot | None
    ) -> tuple[Entry, ...]:
        if not entries:
            return ()
        first, last = entries[0].index, entries[-1].index
        below = snapshot.index if snapshot else 0
        if first > below + 1:
            had = f"a snapshot at {below}" if snapshot else "no snapshot"
            self.refuse(
                "entry", below + 1,
                expected=f"entry {below + 1}, since there is {had}",
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
