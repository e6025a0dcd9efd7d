"""The log in memory: MicroRaft's ring buffer of three sections.

```
 first                snapshot_index              commit                    last
   |    snapshotted     |  committed, not in the    |  in progress            |
   |                    |        snapshot           |                         |
```

The snapshotted section holds entries that the snapshot covers. They are kept for members that lag
a little, which then need no snapshot. A new snapshot is taken when the committed section is full,
at each multiple of `commit_count_to_take_snapshot`. Proposals are refused while the in-progress
section is full. The capacity is the sum of the three sections at their largest. Slots are allocated
when they are first needed, so that a group with few entries uses little memory.

Only a new leader's no-op may exceed the capacity. Without it the leader could not commit entries of
older terms, and without commits no slot would become free. The ring grows by that entry; the next
snapshot brings it below its capacity again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bascule.raft.messages import Entry, RaftSnapshot, size_of, sizes_of

INITIAL_SLOTS: Final = 16


class RaftLog:
    """Entries `first`..`last` and the newest snapshot. Indices and terms never fall along the log.

    Always: `first - 1 <= snapshot_index <= commit <= last` and `applied <= commit`.
    """

    __slots__ = (
        "_ring", "applied", "capacity", "commit", "first", "last", "last_term", "pending_bytes",
        "snapshot", "term_before_first",
    )  # fmt: skip

    def __init__(
        self, capacity: int, snapshot: RaftSnapshot | None = None, entries: Sequence[Entry] = ()
    ) -> None:
        self.capacity = capacity
        self.snapshot = snapshot
        base = entries[0].index - 1 if entries else self.snapshot_index
        self._ring: list[Entry | None] = [None] * max(min(capacity, INITIAL_SLOTS), len(entries))
        self.first = base + 1
        self.last = base
        self.term_before_first = self.snapshot_term if base == self.snapshot_index else 0
        """Term of the entry before `first`; 0 where a restored log does not know it."""
        self.last_term = self.term_before_first
        self.commit = self.snapshot_index
        self.applied = self.snapshot_index
        """The state machine has applied the entries up to here. Set by the owner of the log."""
        self.pending_bytes = 0
        """Size of the in-progress section, as `size_of` counts it."""
        for entry in entries:
            self.append(entry)
        self.pending_bytes = sum(
            size_of(entry) for entry in entries if entry.index > self.snapshot_index
        )

    def __len__(self) -> int:
        return self.last - self.first + 1

    @property
    def snapshot_index(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.index

    @property
    def snapshot_term(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.term

    @property
    def pending(self) -> int:
        """Entries in progress."""
        return self.last - self.commit

    @property
    def room(self) -> int:
        """Entries that can be appended; negative where a no-op exceeded the capacity."""
        return self.capacity - (self.last - self.first + 1)

    def entry(self, index: int) -> Entry:
        """The entry at `index`, which is one of `first`..`last`."""
        assert self.first <= index <= self.last, (self.first, index, self.last)
        ring = self._ring
        entry = ring[(index - 1) % len(ring)]
        assert entry is not None
        return entry

    def term_at(self, index: int) -> int | None:
        """The term of the entry at `index`, including the one before `first`; None where the log
        does not know it, and 0 at index 0."""
        if self.first <= index <= self.last:
            return self.entry(index).term
        if index == self.snapshot_index:
            return self.snapshot_term
        if index == self.first - 1 and (self.term_before_first or index == 0):
            return self.term_before_first
        return None

    def slice(self, start: int, end: int) -> tuple[Entry, ...]:
        """The entries [start, end)."""
        if start >= end:
            return ()
        assert self.first <= start, (self.first, start)
        assert end <= self.last + 1, (end, self.last)
        ring = self._ring
        head, tail = (start - 1) % len(ring), (end - 1) % len(ring)
        found = ring[head:tail] if head < tail else ring[head:] + ring[:tail]
        return tuple(found)  # type: ignore[arg-type]  # no slot between first and last is empty

    def slice_within(
        self, start: int, *, entries_max: int, bytes_max: int
    ) -> tuple[tuple[Entry, ...], int]:
        """(entries, their size): entries from `start` on, as many as both limits allow, but at
        least one if there is one."""
        found = self.slice(start, min(self.last + 1, start + entries_max))
        total = sizes_of(found)
        if total > bytes_max:
            total = keep = 0
            for entry in found:
                size = size_of(entry)
                if keep and total + size > bytes_max:
                    break
                total += size
                keep += 1
            found = found[:keep]
        return found, total

    def append(self, entry: Entry) -> None:
        """Append an entry that follows the last one. The caller has checked `room`."""
        assert entry.index == self.last + 1, (entry.index, self.last)
        assert entry.term >= self.last_term, (entry.term, self.last_term)
        if self.last - self.first + 1 >= len(self._ring):
            self._grow()
        ring = self._ring
        ring[(entry.index - 1) % len(ring)] = entry
        self.last = entry.index
        self.last_term = entry.term
        self.pending_bytes += size_of(entry)

    def extend(self, entries: Sequence[Entry]) -> None:
        """Append contiguous entries that follow the last one. The caller has checked `room`."""
        first, last = entries[0], entries[-1]
        assert first.index == self.last + 1, (first.index, self.last)
        assert last.index == self.last + len(entries), (last.index, self.last, len(entries))
        assert last.term >= first.term >= self.last_term, (first.term, last.term, self.last_term)
        while last.index - self.first + 1 > len(self._ring):
            self._grow()
        ring = self._ring
        head = (first.index - 1) % len(ring)
        fits = min(len(entries), len(ring) - head)
        ring[head : head + fits] = entries[:fits]
        ring[: len(entries) - fits] = entries[fits:]
        self.last = last.index
        self.last_term = last.term
        self.pending_bytes += sizes_of(entries)

    def _grow(self) -> None:
        held = self.slice(self.first, self.last + 1)
        size = len(self._ring)
        if size < self.capacity:
            size = min(2 * size, self.capacity)
        else:
            size += max(16, size // 8)
        self._ring = [None] * size
        for entry in held:
            self._ring[(entry.index - 1) % len(self._ring)] = entry

    def commit_to(self, index: int) -> None:
        """Move entries up to `index` into the committed section."""
        assert self.commit <= index <= self.last, (self.commit, index, self.last)
        self.pending_bytes -= sizes_of(self.slice(self.commit + 1, index + 1))
        self.commit = index

    def truncate_from(self, index: int) -> None:
        """Remove the entry at `index` and all later ones. None of them is committed."""
        assert self.commit < index <= self.last, (self.commit, index, self.last)
        self.pending_bytes -= sizes_of(self.slice(index, self.last + 1))
        self._clear(index, self.last + 1)
        self.last = index - 1
        term = self.term_at(self.last)
        assert term is not None
        self.last_term = term

    def truncate_until(self, index: int) -> None:
        """Remove the entry at `index` and all earlier ones; the snapshot covers them."""
        assert index <= self.snapshot_index, (index, self.snapshot_index)
        if index < self.first:
            return
        term = self.term_at(index)
        assert term is not None
        self._clear(self.first, index + 1)
        self.first = index + 1
        self.term_before_first = term

    def reset(self, snapshot: RaftSnapshot) -> None:
        """Remove all entries and begin after `snapshot`."""
        assert snapshot.index >= self.commit, (snapshot.index, self.commit)
        self._clear(self.first, self.last + 1)
        self.snapshot = snapshot
        self.first, self.last = snapshot.index + 1, snapshot.index
        self.term_before_first = self.last_term = snapshot.term
        self.commit = snapshot.index
        self.pending_bytes = 0

    def _clear(self, start: int, end: int) -> None:
        ring = self._ring
        for index in range(start, end):
            ring[(index - 1) % len(ring)] = None

    def last_index_with_term_up_to(self, index: int, term: int) -> tuple[int, int]:
        """(position, its term): the last position at or below `index` whose entry has `term` or
        less; where the log begins later, the position before its first entry, with term 0.

        A log that has an entry of `term` at `index` agrees with this one there at the latest
        (thesis 5.3, the optimization that skips whole terms).
        """
        index = min(index, self.last)
        while index >= self.first:
            found = self.entry(index).term
            if found <= term:
                return index, found
            index -= 1
        return index, self.term_at(index) or 0
