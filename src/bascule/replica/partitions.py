"""All partitions of this node, and the notification of their watchers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from bascule.errors import CorruptData
from bascule.model import Overlap, StreamDefinition
from bascule.publish.stream_subjects import StreamSubjects
from bascule.record.payload_links import PayloadLink
from bascule.replica.partition import Partition


class Partitions:
    """All partitions by stream. Only the event loop changes it; readers see complete states."""

    def __init__(
        self,
        subjects: StreamSubjects | None = None,
        *,
        on_added: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_added` is called with the number of partitions that were not there before."""
        self.subjects = subjects
        """Of all streams that are present; None: streams know nothing of each other."""
        self.changes = 0
        """One more whenever streams or partitions are added or removed."""
        self._on_added = on_added
        self.on_changed: set[Callable[[StreamDefinition], None]] = set()
        """Called on the event loop when a stream or one of its partitions was added, altered or
        removed. Those who are called may change nothing here."""
        self._by_name: dict[str, tuple[Partition, ...]] = {}
        self._by_id: dict[bytes, tuple[Partition, ...]] = {}
        self._changed: deque[Partition] = deque()
        self._appended: deque[Partition] = deque()
        self._created_ms = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False
        self.on_failed: Callable[[Partition], None] = lambda _: None
        """Called on the event loop soon after a partition has failed, once or more often."""
        self.on_damaged: Callable[[Partition, CorruptData], None] = lambda _, __: None
        """Called on the event loop when somebody has read damaged bytes of a log."""
        self.on_payload_damaged: Callable[[Partition, PayloadLink], None] = lambda _, __: None
        """Called on the scrubber's thread when the payload of a record is damaged or lost."""
        self.remove_unlinked: Callable[[Partition], None] = lambda _: None
        """Called on a thread of maintenance for a partition with payloads that no record names: it
        removes those that nobody has gone on with for long. Raises: OSError."""

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watchers are called on this loop."""
        self._loop = loop

    def note_creations(self, definitions: Iterable[StreamDefinition]) -> None:
        """There are streams, here or on other nodes only."""
        for each in definitions:
            self._created_ms = max(self._created_ms, each.created_ms)

    def latest_creation_ms(self) -> int:
        """When a stream was created last, by the clock of the node that was asked for it. Any
        thread may ask."""
        return self._created_ms

    def add(self, partitions: tuple[Partition, ...]) -> None:
        """Add a stream's partitions, or replace them by all of its partitions.

        Each one is in the place of its index: readers take them by number.
        Who watches a partition that is replaced watches the new one from now on, and is told.
        """
        assert [each.index for each in partitions] == list(range(len(partitions)))
        definition = partitions[0].definition
        self.changes += 1
        present = {partition.index: partition for partition in self._by_id.get(definition.id, ())}
        for partition in partitions:
            partition.failed_reads.on_damage = partial(self.notify_damage, partition)
            replaced = present.get(partition.index, partition)
            if replaced is not partition:
                # One set for both: who stops watching the one that it knows watches neither.
                replaced.watchers |= partition.watchers
                replaced.replica_watchers |= partition.replica_watchers
                partition.watchers = replaced.watchers
                partition.replica_watchers = replaced.replica_watchers
                self.notify_watchers(partition)
        self._by_name[definition.name] = partitions
        self._by_id[definition.id] = partitions
        if self.subjects is not None:
            self.subjects.add(definition)
        self._on_added(len(partitions) - len(present))
        self.notify_changed(definition)

    def remove(self, definition: StreamDefinition) -> tuple[Partition, ...]:
        """Remove a stream, if it is present, and notify its watchers."""
        partitions = self._by_id.pop(definition.id, ())
        if partitions:
            self.changes += 1
            del self._by_name[definition.name]
            if self.subjects is not None:
                self.subjects.remove(definition)
        for partition in partitions:
            partition.deleted = True
            self.notify_watchers(partition)
        if partitions:
            self.notify_changed(definition)
        return partitions

    def notify_changed(self, definition: StreamDefinition) -> None:
        """Tell those in `on_changed`."""
        for call in tuple(self.on_changed):
            call(definition)

    def overlaps(self, definition: StreamDefinition) -> tuple[Overlap, ...]:
        """The other streams that receive some of the messages of this one."""
        others = () if self.subjects is None else self.subjects.overlapping(definition)
        present = [self._by_name[each.name][0].definition for each in others]
        return tuple(Overlap(d.name, d.config.subject, d.config.acks_usually) for d in present)

    def stream(self, name: str) -> tuple[Partition, ...] | None:
        return self._by_name.get(name)

    def stream_by_id(self, id: bytes) -> tuple[Partition, ...] | None:
        return self._by_id.get(id)

    def streams(self) -> Mapping[str, tuple[Partition, ...]]:
        return MappingProxyType(self._by_name)

    def notify_watchers(self, partition: Partition) -> None:
        """Call the partition's watchers soon, on the event loop. Any thread may call it.

        Cheap without watchers. A watcher must register before it checks the state.
        """
        if self._loop is None:
            return
        if partition.failure is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.on_failed, partition)
        if not (partition.watchers or partition.replica_watchers):
            return
        self._changed.append(partition)
        self._schedule(self._loop)

    def notify_damage(self, partition: Partition, error: CorruptData) -> None:
        """Somebody has read damaged bytes of the partition's log. Any thread may call it."""
        if self._loop is not None and partition.failure is None and not partition.deleted:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.on_damaged, partition, error)

    def notify_replicas(self, partition: Partition) -> None:
        """Call the partition's `replica_watchers` soon, as `notify_watchers` does."""
        if self._loop is None or not partition.replica_watchers:
            return
        self._appended.append(partition)
        self._schedule(self._loop)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._scheduled:
            self._scheduled = True
            # On the loop itself nobody has to be woken, which is a system call.
            schedule = loop.call_soon if _runs_here(loop) else loop.call_soon_threadsafe
            try:
                schedule(self._call_watchers)
            except RuntimeError:
                pass  # The loop is closed, so no watcher waits.

    def _call_watchers(self) -> None:
        self._scheduled = False
        seen: set[int] = set()
        while self._changed:
            partition = self._changed.popleft()
            if id(partition) not in seen:
                seen.add(id(partition))
                for watcher in (*partition.watchers, *partition.replica_watchers):
                    watcher()
        while self._appended:
            partition = self._appended.popleft()
            if id(partition) not in seen:
                seen.add(id(partition))
                for watcher in tuple(partition.replica_watchers):
                    watcher()


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this thread runs the loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
