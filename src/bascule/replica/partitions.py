"""All partitions of this node, and the notification of their watchers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType

from bascule.model import StreamDefinition
from bascule.replica.partition import Partition


class Partitions:
    """All partitions by stream. Only the event loop changes it; readers see complete states."""

    def __init__(self) -> None:
        self._by_name: dict[str, tuple[Partition, ...]] = {}
        self._by_id: dict[bytes, tuple[Partition, ...]] = {}
        self._changed: deque[Partition] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watchers are called on this loop."""
        self._loop = loop

    def add(self, partitions: tuple[Partition, ...]) -> None:
        """Add a stream's partitions, or replace them by all of its partitions."""
        definition = partitions[0].definition
        self._by_name[definition.name] = partitions
        self._by_id[definition.id] = partitions

    def remove(self, definition: StreamDefinition) -> tuple[Partition, ...]:
        """Remove a stream, if it is present, and notify its watchers."""
        partitions = self._by_id.pop(definition.id, ())
        if partitions:
            del self._by_name[definition.name]
        for partition in partitions:
            partition.deleted = True
            self.notify_watchers(partition)
        return partitions

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
        if not partition.watchers or self._loop is None:
            return
        self._changed.append(partition)
        if not self._scheduled:
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._call_watchers)
            except RuntimeError:
                pass  # The loop is closed, so no watcher waits.

    def _call_watchers(self) -> None:
        self._scheduled = False
        seen: set[int] = set()
        while self._changed:
            partition = self._changed.popleft()
            if id(partition) not in seen:
                seen.add(id(partition))
                for watcher in list(partition.watchers):
                    watcher()
