"""`Disks`: what each node's disk is certain to contain, and whether a restart finds it."""

from __future__ import annotations

from collections import deque

from bascule.raft.effects import Write
from bascule.raft.store import PersistentState
from bascule.sim.checkers.base import Checker, InvariantBroken, NodeView


class Disk:
    """The state of one node that survives any crash."""

    __slots__ = ("_chunks", "last", "snapshot_index", "term", "terms", "unsynced", "vote")

    def __init__(self) -> None:
        self.term = 0
        self.vote = 0
        self.last = 0
        """The last entry, or the snapshot's index where that is later."""
        self.terms: dict[int, int] = {}
        """Index -> term; entries behind `last` have no meaning."""
        self.snapshot_index = 0
        self._chunks: dict[int, set[int]] = {}
        self.unsynced: deque[Write] = deque()
        """Writes that may not be durable: a crash may keep any number of the oldest."""

    def has(self, index: int, term: int) -> bool:
        """Whether the entry (`index`, `term`), or a snapshot that covers it, is there."""
        if index <= self.snapshot_index:
            return True
        return index <= self.last and self.terms.get(index) == term

    def last_with(self, index: int, term: int) -> int:
        """The last entry once there is a snapshot at `index`. A log with another term at that index
        no longer counts."""
        return self.last if self.has(index, term) else index

    def synced(self, number: int) -> None:
        """The writes up to `number` are durable."""
        while self.unsynced and self.unsynced[0].number <= number:
            self._make(self.unsynced.popleft())

    def _make(self, write: Write) -> None:
        if write.vote is not None:
            self.term, self.vote = write.vote
        if write.truncate_from:
            self.last = max(min(self.last, write.truncate_from - 1), self.snapshot_index)
        if write.entries:
            terms = self.terms
            for entry in write.entries:
                terms[entry.index] = entry.term
            # A write may have been handed over before a snapshot with a higher index was installed.
            self.last = max(write.entries[-1].index, self.snapshot_index)
        for chunk in write.chunks:
            numbers = self._chunks.setdefault(chunk.index, set())
            numbers.add(chunk.number)
            if len(numbers) == chunk.count and chunk.index > self.snapshot_index:
                self.last = self.last_with(chunk.index, chunk.term)
                self.snapshot_index = chunk.index
                self.terms[chunk.index] = chunk.term
        for index, _ in write.delete_chunks:
            self._chunks.pop(index, None)

    def cut(self) -> int:
        """The first entry that an unsynced truncation may have removed."""
        cuts = [write.truncate_from for write in self.unsynced if write.truncate_from]
        return min(cuts, default=self.last + 1)

    def reset(self, restored: PersistentState) -> None:
        """Start again with what the store restored."""
        self.term, self.vote = restored.term, restored.voted_for
        snapshot = restored.snapshot
        self.snapshot_index = self.last = 0 if snapshot is None else snapshot.index
        self.terms = {} if snapshot is None else {snapshot.index: snapshot.term}
        self.terms |= {entry.index: entry.term for entry in restored.entries}
        if restored.entries:
            self.last = max(self.last, restored.entries[-1].index)
        self._chunks.clear()
        self.unsynced.clear()


class Disks(Checker):
    """Synced data survives a crash: term, vote, entries and snapshot.

    Other checkers use its record of the disks, so it is called before them.
    """

    name = "what was synced survives"

    def __init__(self) -> None:
        self.by_node: dict[int, Disk] = {}

    def of(self, node_id: int) -> Disk:
        disk = self.by_node.get(node_id)
        if disk is None:
            disk = self.by_node[node_id] = Disk()
        return disk

    def on_start(self, node: NodeView, restored: PersistentState) -> None:
        disk = self.of(node.id)
        self._check(node.id, disk, restored)
        disk.reset(restored)

    def on_write(self, node: NodeView, write: Write) -> None:
        self.of(node.id).unsynced.append(write)

    def on_written(self, node_id: int, write: Write) -> None:
        if write.sync:
            self.of(node_id).synced(write.number)

    def _check(self, node_id: int, disk: Disk, restored: PersistentState) -> None:
        if restored.term < disk.term or (
            restored.term == disk.term and disk.vote not in (0, restored.voted_for)
        ):
            raise InvariantBroken(
                self.name,
                f"node {node_id} restarts in term {restored.term} with a vote for "
                f"{restored.voted_for}; on its disk were term {disk.term}, vote {disk.vote}",
            )
        start = 0 if restored.snapshot is None else restored.snapshot.index
        if start < disk.snapshot_index:
            raise InvariantBroken(
                self.name,
                f"node {node_id} restarts with the snapshot at {start}; on its disk was that at "
                f"{disk.snapshot_index}",
            )
        found = {entry.index: entry.term for entry in restored.entries}
        # The chunks of this snapshot may have been unsynced, and kept by the crash.
        last = disk.last
        if restored.snapshot is not None:
            last = disk.last_with(start, restored.snapshot.term)
        for index in range(start + 1, min(last + 1, disk.cut())):
            if found.get(index) != disk.terms[index]:
                raise InvariantBroken(
                    self.name,
                    f"node {node_id} restarts with an entry {index} of term {found.get(index)}; "
                    f"on its disk was one of term {disk.terms[index]}",
                )
