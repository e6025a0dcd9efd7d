"""`MemoryStore`: a store in memory that crashes and fails on request; the simulator's disk.

It keeps durable contents apart from buffered calls. A crash keeps a random number of the oldest
buffered calls, and possibly some first entries of the next one: exactly what the contract allows.
Faults are requested with `fail_in` and `is_full`. After a fault every call raises until `crash`,
which decides at random which of the buffered calls are kept.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from copy import copy
from typing import Any, Final

import msgspec

from bascule.errors import Closed, LogFailed
from bascule.host.api import Random
from bascule.raft.membership import NOBODY, Members
from bascule.raft.messages import Chunk, Entry
from bascule.raft.recovery import StoreContents, recover
from bascule.raft.store import PersistentState

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
"""A call: one of the numbers above and its argument."""


class MemoryStatistics(msgspec.Struct, frozen=True):
    """What a store has done since it was made. A crash does not reset it."""

    calls: int
    """Calls that write; `fail_in` counts these."""
    syncs: int
    entries: int


class _Disk:
    """The contents that survive a power failure."""

    __slots__ = ("chunks", "commits", "entries", "initial_members", "term", "voted_for")

    def __init__(self) -> None:
        self.initial_members: Members | None = None
        self.term = 0
        self.voted_for = NOBODY
        self.commits = 0
        self.entries: list[Entry] = []
        self.chunks: dict[tuple[int, int], Chunk] = {}

    def apply(self, change: _Change) -> None:
        kind, argument = change
        if kind == _ENTRIES:
            self.entries.extend(argument)
        elif kind == _TERM:
            self.term, self.voted_for = argument
        elif kind == _CHUNK:
            self.chunks[argument.index, argument.number] = argument
        elif kind == _FOUND:
            self.initial_members = argument
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
    """A `RaftStore` in memory. Errors contain `name` in place of a file."""

    __slots__ = (
        "_buffered",
        "_calls",
        "_closed",
        "_disk",
        "_entries",
        "_fail_at",
        "_fail_errno",
        "_failure",
        "_full",
        "_has_fault",
        "_last",
        "_name",
        "_syncs",
    )  # fmt: skip

    def __init__(self, name: str = "memory") -> None:
        self._name = name
        self._disk = _Disk()
        self._buffered: list[_Change] = []
        self._last = 0
        """Index of the last entry, including buffered ones; 0 where any entry may come next."""
        self._calls = self._syncs = self._entries = 0
        self._fail_at = 0
        self._fail_errno = errno.EIO
        self._full = False
        self._failure: LogFailed | None = None
        self._closed = False
        self._has_fault = False
        """Whether a fault is set, has happened, or the store is closed; one test in each call."""

    # The contract.

    def load(self) -> PersistentState:
        if self._has_fault:
            self._refuse()
        assert not self._buffered, "a store is loaded before it is written to"
        disk = self._disk
        restored = recover(
            StoreContents(
                initial_members=disk.initial_members,
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

    def bootstrap(self, members: Members) -> None:
        assert self._disk.initial_members is None, "bootstrap is called once"
        self._buffered.append((_FOUND, members))
        self._sync(_FOUND)

    def persist_term(self, term: int, voted_for: int) -> None:
        self._buffered.append((_TERM, (term, voted_for)))
        self._sync(_TERM)

    def buffer_term(self, term: int, voted_for: int) -> None:
        self._buffer(_TERM, (term, voted_for))

    def persist_entries(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        assert self._last in (0, entries[0].index - 1), "entries follow the last one"
        self._buffered.append((_ENTRIES, entries))
        self._last = entries[-1].index
        self._calls += 1
        if self._has_fault:
            self._raise_fault(_ENTRIES)
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
        elif self._has_fault:
            self._refuse()

    def close(self) -> None:
        """Refuse all calls but `crash` from now on."""
        self._closed = self._has_fault = True

    # For tests and the simulator.

    def copied(self) -> MemoryStore:
        """A store with what is durable here now."""
        made, disk = MemoryStore(self._name), self._disk
        for name in _Disk.__slots__:
            setattr(made._disk, name, copy(getattr(disk, name)))
        return made

    @property
    def commits(self) -> int:
        """How many times changes became durable; a copy keeps it."""
        return self._disk.commits

    def crash(self, prng: Random) -> None:
        """Crash as by a power failure, and open again. Buffered calls are lost or kept at random;
        faults are cleared. The next call is `load`, by a new owner.
        """
        buffered, disk = self._buffered, self._disk
        if buffered:
            kept = _below(prng, len(buffered) + 1)
            for change in buffered[:kept]:
                disk.apply(change)
            if kept < len(buffered):
                kind, argument = buffered[kept]
                if kind == _ENTRIES:
                    disk.apply((kind, argument[: _below(prng, len(argument))]))
            buffered.clear()
        self._last = disk.entries[-1].index if disk.entries else 0
        self._fail_at = 0
        self._failure = None
        self._full = self._closed = self._has_fault = False

    def fail_in(self, calls: int, number: int = errno.EIO) -> None:
        """Make the `calls`-th call that writes (1: the next) fail with this errno."""
        self._fail_at = self._calls + calls
        self._fail_errno = number
        self._has_fault = True

    @property
    def is_full(self) -> bool:
        """Whether calls that need space fail with ENOSPC."""
        return self._full

    @is_full.setter
    def is_full(self, value: bool) -> None:
        self._full = value
        self._has_fault = self._has_fault or value

    def statistics(self) -> MemoryStatistics:
        return MemoryStatistics(self._calls, self._syncs, self._entries)

    # Internals.

    def _buffer(self, kind: int, argument: object) -> None:
        self._buffered.append((kind, argument))
        self._calls += 1
        if self._has_fault:
            self._raise_fault(kind)

    def _sync(self, kind: int) -> None:
        self._calls += 1
        if self._has_fault:
            self._raise_fault(kind)
        disk = self._disk
        for change in self._buffered:
            disk.apply(change)
        self._buffered.clear()
        disk.commits += 1
        self._syncs += 1

    def _raise_fault(self, kind: int) -> None:
        """Raise if a fault is due. The call stays buffered: `crash` decides whether it was done.

        Raises: LogFailed, Closed.
        """
        if self._failure is not None or self._closed:
            if kind != _FLUSH:
                self._buffered.pop()  # the call is refused and has no effect
            self._refuse()
        no_space = self._full and kind in _NEEDS_ROOM
        if no_space or self._calls == self._fail_at:
            number = errno.ENOSPC if no_space else self._fail_errno
            cause = OSError(number, _WHY.get(number, f"errno {number}"), self._name)
            self._failure = LogFailed(self._name, str(cause))
            raise self._failure from cause

    def _refuse(self) -> None:
        """Raises: LogFailed after a failure, Closed after `close`."""
        if self._failure is not None:
            raise LogFailed(self._name, self._failure.cause)
        if self._closed:
            raise Closed(f"store {self._name} is closed")


def _below(prng: Random, count: int) -> int:
    """A number in [0, count)."""
    return min(int(prng.uniform(0, count)), count - 1)
