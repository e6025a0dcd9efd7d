"""A store in memory that crashes and fails on request: the disk of the simulator.

It keeps what is durable apart from the calls that only wait for a flush, in their order. A crash
keeps a random beginning of those, and of the next one, if it adds entries, perhaps some first ones:
all that the contract allows, and nothing else. Faults are asked for with `fail_in` and `full`.
After a fault every call refuses, until `crash` says by dice what became of what was not flushed.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from bascule.errors import Closed, LogFailed
from bascule.host.api import Random
from bascule.raft.membership import NOBODY, Members
from bascule.raft.messages import Chunk, Entry
from bascule.raft.recovery import Found, checked
from bascule.raft.store import Restored

_ENTRIES: Final = 0
_TRUNCATE_FROM: Final = 1
_TRUNCATE_UNTIL: Final = 2
_CHUNK: Final = 3
_DELETE_CHUNKS: Final = 4
_TERM: Final = 5
_FOUND: Final = 6
_FLUSH: Final = 7

_NEEDS_ROOM: Final = frozenset({_ENTRIES, _CHUNK, _TERM, _FOUND, _FLUSH})

_WHY: Final = {errno.EIO: "input/output error", errno.ENOSPC: "no space left on device"}

_Change = tuple[int, Any]
"""What a call does: one of the numbers above and its argument."""


class MemoryStatistics(msgspec.Struct, frozen=True):
    """What a store has done since it was made; a restart does not set it back."""

    calls: int
    """Calls that write: what `fail_in` counts."""
    syncs: int
    entries: int


class _Disk:
    """What would be there after a power cut."""

    __slots__ = ("chunks", "entries", "founding", "term", "voted_for")

    def __init__(self) -> None:
        self.founding: Members | None = None
        self.term = 0
        self.voted_for = NOBODY
        self.entries: list[Entry] = []
        self.chunks: dict[tuple[int, int], Chunk] = {}

    def make(self, change: _Change) -> None:
        kind, argument = change
        if kind == _ENTRIES:
            self.entries.extend(argument)
        elif kind == _TERM:
            self.term, self.voted_for = argument
        elif kind == _CHUNK:
            self.chunks[argument.index, argument.number] = argument
        elif kind == _FOUND:
            self.founding = argument
        elif kind == _DELETE_CHUNKS:
            index, count = argument
            for number in range(count):
                self.chunks.pop((index, number), None)
        elif self.entries:
            first = self.entries[0].index
            if kind == _TRUNCATE_FROM:
                del self.entries[max(argument - first, 0) :]
            else:
                del self.entries[: max(argument - first + 1, 0)]


class MemoryStore:
    """A `RaftStore` without a disk. `name` stands for the file in errors."""

    __slots__ = (
        "_buffered", "_calls", "_closed", "_disk", "_entries", "_fail_at",
        "_fail_errno", "_failure", "_full", "_last", "_name", "_syncs", "_trouble",
    )  # fmt: skip

    def __init__(self, name: str = "memory") -> None:
        self._name = name
        self._disk = _Disk()
        self._buffered: list[_Change] = []
        self._last = 0
        """The last entry's index with everything buffered done; 0 where any may come next."""
        self._calls = self._syncs = self._entries = 0
        self._fail_at = 0
        self._fail_errno = errno.EIO
        self._full = False
        self._failure: LogFailed | None = None
        self._closed = False
        self._trouble = False
        """Whether any of the above needs a look; one test for the usual call."""

    # What a node calls.

    def load(self) -> Restored:
        if self._trouble:
            self._refuse()
        assert not self._buffered, "a store is loaded before it is written to"
        disk = self._disk
        restored = checked(
            Found(
                founding=disk.founding,
                term=disk.term,
                voted_for=disk.voted_for,
                chunks=tuple(disk.chunks.values()),
                entries=disk.entries,
            ),
            file=self._name,
        )
        snapshot = restored.snapshot
        kept = snapshot.as_chunks() if snapshot else ()
        disk.chunks = {(chunk.index, chunk.number): chunk for chunk in kept}
        disk.entries = list(restored.entries)
        self._last = disk.entries[-1].index if disk.entries else 0
        return restored

    def found(self, members: Members) -> None:
        assert self._disk.founding is None, "a group is founded once"
        self._buffered.append((_FOUND, members))
        self._sync(_FOUND)

    def persist_term(self, term: int, voted_for: int) -> None:
        self._buffered.append((_TERM, (term, voted_for)))
        self._sync(_TERM)

    def persist_entries(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        assert self._last in (0, entries[0].index - 1), "entries follow the last one"
        self._buffered.append((_ENTRIES, entries))
        self._last = entries[-1].index
        self._calls += 1
        if self._trouble:
            self._meet_trouble(_ENTRIES)
        self._entries += len(entries)

    def truncate_from(self, index: int) -> None:
        self._buffer(_TRUNCATE_FROM, index)
        self._last = min(self._last, index - 1)

    def persist_chunk(self, chunk: Chunk) -> None:
        self._buffer(_CHUNK, chunk)

    def truncate_until(self, index: int) -> None:
        self._buffer(_TRUNCATE_UNTIL, index)
        if index >= self._last:
            self._last = 0

    def delete_chunks(self, index: int, count: int) -> None:
        self._buffer(_DELETE_CHUNKS, (index, count))

    def flush(self) -> None:
        if self._buffered:
            self._sync(_FLUSH)
        elif self._trouble:
            self._refuse()

    def close(self) -> None:
        """Refuse everything from now on, but for `crash`."""
        self._closed = self._trouble = True

    # What a test calls.

    def crash(self, dice: Random) -> None:
        """End as by a power cut and open again: what was buffered is lost by dice, faults are over.

        Whoever held the store before must not call it any more: `load` is the next call.
        """
        buffered, disk = self._buffered, self._disk
        if buffered:
            kept = _below(dice, len(buffered) + 1)
            for change in buffered[:kept]:
                disk.make(change)
            if kept < len(buffered):
                kind, argument = buffered[kept]
                if kind == _ENTRIES:
                    disk.make((kind, argument[: _below(dice, len(argument))]))
            buffered.clear()
        self._last = disk.entries[-1].index if disk.entries else 0
        self._fail_at = 0
        self._failure = None
        self._full = self._closed = self._trouble = False

    def fail_in(self, calls: int, number: int = errno.EIO) -> None:
        """Let the `calls`-th call that writes from now on (1: the next) fail with this errno."""
        self._fail_at = self._calls + calls
        self._fail_errno = number
        self._trouble = True

    @property
    def full(self) -> bool:
        """While true, what needs room on the disk fails with ENOSPC."""
        return self._full

    @full.setter
    def full(self, value: bool) -> None:
        self._full = value
        self._trouble = self._trouble or value

    def statistics(self) -> MemoryStatistics:
        return MemoryStatistics(self._calls, self._syncs, self._entries)

    # How.

    def _buffer(self, kind: int, argument: object) -> None:
        self._buffered.append((kind, argument))
        self._calls += 1
        if self._trouble:
            self._meet_trouble(kind)

    def _sync(self, kind: int) -> None:
        self._calls += 1
        if self._trouble:
            self._meet_trouble(kind)
        disk = self._disk
        for change in self._buffered:
            disk.make(change)
        self._buffered.clear()
        self._syncs += 1

    def _meet_trouble(self, kind: int) -> None:
        """Fail if that is due. The change stays among the buffered: dice decide what became of it.

        Raises: LogFailed, Closed.
        """
        if self._failure is not None or self._closed:
            if kind != _FLUSH:
                self._buffered.pop()  # the call is refused: it never was
            self._refuse()
        room = self._full and kind in _NEEDS_ROOM
        if room or self._calls == self._fail_at:
            number = errno.ENOSPC if room else self._fail_errno
            cause = OSError(number, _WHY.get(number, f"errno {number}"), self._name)
            self._failure = LogFailed(self._name, str(cause))
            raise self._failure from cause

    def _refuse(self) -> None:
        """Raises: LogFailed after a failure, Closed after `close`."""
        if self._failure is not None:
            raise LogFailed(self._name, self._failure.cause)
        if self._closed:
            raise Closed(f"store {self._name} is closed")


def _below(dice: Random, count: int) -> int:
    """One of 0 ... count - 1."""
    return min(int(dice.uniform(0, count)), count - 1)
