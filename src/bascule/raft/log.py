"""The log in memory: MicroRaft's ring of three sections.

```
 first                snapshot_index              commit                    last
   | kept for laggards  |  committed, not in the    |  in progress            |
   |    snapshotted     |        snapshot           |                         |
```

The snapshotted section is what is kept behind a snapshot although the snapshot has it, so that
members that lag a little need no snapshot; a new snapshot is taken when the committed section is
full, at each multiple of `commit_count_to_take_snapshot`; proposals are refused while the
section in progress is full. The ring takes as many entries as the three sections at their largest;
its slots are made as they are first needed, so that a group with little to say stays small.

One thing may exceed the ring: a new leader's no-op. Without it the leader could not commit what
older terms left, and with nothing committed no room would come free. The ring then grows by the
entry; its next snapshot takes it back below its capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bascule.raft.messages import Entry, Snapshot, size_of, sizes_of

SLOTS_AT_FIRST: Final = 16


class RaftLog:
    """Entries `first`..`last` and the newest snapshot. Indices and terms only grow along the log.

    `first - 1 <= snapshot_index <= commit <= last` always.
    """

    __slots__ = (
        "_ring", "before_term", "capacity", "commit", "first", "last", "last_term",
        "pending_bytes", "snapshot",
    )  # fmt: skip

    def __init__(
        self, capacity: int, snapshot: Snapshot | None = None, entries: Sequence[Entry] = ()
    ) -> None:
        self.capacity = capacity
        self.snapshot = snapshot
        base = entries[0].index - 1 if entries else self.snapshot_index
        self._ring: list[Entry | None] = [None] * max(min(capacity, SLOTS_AT_FIRST), len(entries))
        self.first = base + 1
        self.last = base
        self.before_term = self.snapshot_term if base == self.snapshot_index else 0
        """Term of the entry before `first`; 0 also where a restored log does not know it."""
        self.last_term = self.before_term
        self.commit = self.snapshot_index
        self.pending_bytes = 0
        """Size of the section in progress, as `size_of` counts."""
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
        """Entries that may still be appended; negative where a no-op went beyond."""
        return self.capacity - (self.last - self.first + 1)

    def entry(self, index: int) -> Entry:
        """The entry at `index`, which is one of `first`..`last`."""
        assert self.first <= index <= self.last, (self.first, index, self.last)
        ring = self._ring
        entry = ring[(index - 1) % len(ring)]
        assert entry is not None
        return entry

    def term_at(self, index: int) -> int | None:
        """The term of the entry at `index`, also of the one before `first`; None where the log does
        not say, and 0 at index 0."""
        if self.first <= index <= self.last:
            return self.entry(index).term
        if index == self.snapshot_index:
            return self.snapshot_term
        if index == self.first - 1 and (self.before_term or index == 0):
            return self.before_term
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
        """Entries from `start` on, as many as both limits allow, but at least one where there is
        one; and their size."""
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
        """Add an entry behind the last one. The caller has looked for room."""
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
        """Add entries behind the last one, which follow each other. The caller has looked for
        room."""
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
        """Forget the entry at `index` and every one behind it. None of them is committed."""
        assert self.commit < index <= self.last, (self.commit, index, self.last)
        self.pending_bytes -= sizes_of(self.slice(index, self.last + 1))
        self._clear(index, self.last + 1)
        self.last = index - 1
        term = self.term_at(self.last)
        assert term is not None
        self.last_term = term

    def truncate_until(self, index: int) -> None:
        """Forget the entry at `index` and every one before it; the snapshot has them."""
        assert index <= self.snapshot_index, (index, self.snapshot_index)
        if index < self.first:
            return
        term = self.term_at(index)
        assert term is not None
        self._clear(self.first, index + 1)
        self.first = index + 1
        self.before_term = term

    def reset(self, snapshot: Snapshot) -> None:
        """Forget every entry and begin after `snapshot`."""
        assert snapshot.index >= self.commit, (snapshot.index, self.commit)
        self._clear(self.first, self.last + 1)
        self.snapshot = snapshot
        self.first, self.last = snapshot.index + 1, snapshot.index
        self.before_term = self.last_term = snapshot.term
        self.commit = snapshot.index
        self.pending_bytes = 0

    def _clear(self, start: int, end: int) -> None:
        ring = self._ring
        for index in range(start, end):
            ring[(index - 1) % len(ring)] = None

    def last_index_with_term_up_to(self, index: int, term: int) -> tuple[int, int]:
        """The last position at or below `index` whose entry has `term` or less, and its term;
        where the log does not reach back so far, the position before its first entry, term 0.

        It is where a log with an entry of `term` at `index` may still agree with this one
        (thesis 5.3, the leader skips whole terms).
        """
        index = min(index, self.last)
        while index >= self.first:
            found = self.entry(index).term
            if found <= term:
                return index, found
            index -= 1
        return index, self.term_at(index) or 0
