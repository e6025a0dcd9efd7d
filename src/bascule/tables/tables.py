"""`Tables`: the tables of this node, those of the streams that are opened as one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bascule.config.sections import TablesConfig
from bascule.errors import NotATable, PartitionFailed, UnknownStream
from bascule.host.api import Files
from bascule.model import StreamDefinition
from bascule.replica.internal_publisher import InternalPublisher
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.tables.ageing.expiry import ExpiryCounts, TableExpiry
from bascule.tables.ageing.forgetting import ForgettingCounts, TableForgetting
from bascule.tables.oplog.oplog import Oplog
from bascule.tables.table_replica import TableReplica
from bascule.tables.watching import WatchCounts
from bascule.wire.tables.keys import why_not_opened

log = logging.getLogger("bascule.tables")

DIRECTORY: Final = "tables"


@dataclass(frozen=True, slots=True)
class TableCounts:
    """Of a node, now."""

    held: int
    stopped: int
    """Tables that have not followed their logs for a while."""


class Tables:
    """Belongs to the event loop."""

    def __init__(
        self,
        partitions: Partitions,
        data: Path,
        files: Files,
        config: TablesConfig | None = None,
    ) -> None:
        self._partitions = partitions
        self._directory = (data / DIRECTORY).absolute()
        self._config = config or TablesConfig()
        self._files = files
        self._replicas: dict[bytes, tuple[TableReplica, ...]] = {}
        """By stream id, one for each partition."""
        self._removals: dict[bytes, asyncio.Task[None]] = {}
        """Of the tables that are none any more; by stream id, the last of each."""
        self.watch_counts = WatchCounts()
        self.expiry_counts = ExpiryCounts()
        self._expiry: TableExpiry | None = None
        self.forgetting_counts = ForgettingCounts()
        self._forgetting: TableForgetting | None = None

    async def start(self) -> None:
        """Follow the streams that are tables, from now on also those that are opened later."""
        self._partitions.on_changed.add(self._on_changed)
        present = {found[0].definition.id for found in self._partitions.streams().values()}
        await asyncio.to_thread(self._remove_others, present)
        for found in self._partitions.streams().values():
            self._on_changed(found[0].definition)
        self._forgetting = TableForgetting(self.held, self.forgetting_counts)

    def start_expiry(self, publisher: InternalPublisher) -> None:
        """Remove the keys whose time to live is over from now on, where this node leads."""
        self._expiry = TableExpiry(self.leading, publisher, self.expiry_counts)

    async def close(self) -> None:
        if self._expiry is not None:
            await self._expiry.close()
        if self._forgetting is not None:
            await self._forgetting.close()
        self._partitions.on_changed.discard(self._on_changed)
        if self._removals:
            await asyncio.wait(self._removals.values())
        for replicas in self._replicas.values():
            await asyncio.gather(*(each.close() for each in replicas))
        self._replicas.clear()

    async def end_watches(self) -> None:
        """No watcher or copy waits for changes any more."""
        for replicas in [*self._replicas.values()]:
            for each in replicas:
                await each.end_watches()

    def replica(self, stream: str, partition: int) -> TableReplica:
        """Raises: UnknownStream, NotATable; PartitionFailed if it is not held here."""
        found = self._partitions.stream(stream)
        if found is None:
            raise UnknownStream(stream)
        if not found[0].definition.config.table:
            raise NotATable(stream, why_not_opened(found[0].definition.config))
        replicas = self._replicas.get(found[0].definition.id, ())
        if not 0 <= partition < len(replicas):
            raise PartitionFailed(stream, partition, "its table is not opened yet")
        return replicas[partition]

    def held(self) -> Iterator[tuple[Partition, TableReplica]]:
        """The partitions of tables that this node knows, mostly as it has replicas of them."""
        for id, replicas in self._replicas.items():
            for index, replica in enumerate(replicas):
                found = self._find(id, index)
                if found is not None:
                    yield found, replica

    @property
    def counts(self) -> TableCounts:
        found = [replica for _, replica in self.held()]
        return TableCounts(len(found), sum(each.failure.lasting is not None for each in found))

    def failures(self) -> list[PartitionFailed]:
        """Of the tables that have not followed their logs for a while."""
        found = (replica.failure.lasting for _, replica in self.held())
        return [each for each in found if each is not None]

    def leading(self) -> Iterator[tuple[Partition, TableReplica]]:
        """The partitions of tables that this node leads."""
        return (each for each in self.held() if each[0].is_leader)

    def _on_changed(self, definition: StreamDefinition) -> None:
        """A stream was added, altered or removed."""
        found = self._partitions.stream_by_id(definition.id) or ()
        wanted = len(found) if definition.config.table else 0
        present = self._replicas.get(definition.id, ())
        for each in present:
            each.look_for_deadlines()
        added = [self._start(found[n]) for n in range(len(present), wanted)]
        if kept := (*present[:wanted], *added):
            self._replicas[definition.id] = kept
            for partition, replica in zip(found, kept, strict=True):
                partition.preconditions.key_versions = replica.key_versions
                partition.commitment.tombstone_reader = replica
        else:
            self._replicas.pop(definition.id, None)
            for partition in found:
                partition.commitment.tombstone_reader = None
        if len(present) > wanted:
            self._begin_removal(definition.id, present[wanted:])

    def _begin_removal(self, id: bytes, replicas: Iterable[TableReplica]) -> None:
        task = asyncio.create_task(self._remove(id, replicas, after=self._removals.get(id)))
        self._removals[id] = task

        def forget(task: asyncio.Task[None]) -> None:
            if self._removals.get(id) is task:
                del self._removals[id]

        task.add_done_callback(forget)

    def _start(self, partition: Partition) -> TableReplica:
        definition, index = partition.definition, partition.index
        path = self._directory / definition.id.hex() / f"{index}.db"
        find = partial(self._find, definition.id, index)
        oplog = Oplog(
            self._files,
            str(path.with_suffix(".oplog")),
            table=int.from_bytes(definition.id[:8], "little"),
            bytes_max=self._config.oplog_bytes_max,
        )
        replica = TableReplica(
            definition.name, index, path, find, self._files, oplog, self.watch_counts
        )
        replica.start(after=self._removals.get(definition.id))
        return replica

    def _find(self, id: bytes, index: int) -> Partition | None:
        found = self._partitions.stream_by_id(id) or ()
        return found[index] if index < len(found) else None

    async def _remove(
        self, id: bytes, replicas: Iterable[TableReplica], *, after: asyncio.Task[None] | None
    ) -> None:
        for each in replicas:
            await each.close()
        if after is not None:
            await asyncio.wait([after])
        await asyncio.to_thread(self._remove_directory, id.hex())

    def _remove_others(self, present: set[bytes]) -> None:
        """Remove the files of streams that are gone: those deleted while the node was down."""
        if not self._files.exists(str(self._directory)):
            return
        for name in self._files.list_dir(str(self._directory)):
            if name not in {id.hex() for id in present}:
                self._remove_directory(name)

    def _remove_directory(self, name: str) -> None:
        directory = str(self._directory / name)
        try:
            if self._files.exists(directory):
                self._files.remove_tree(directory)
        except OSError as error:
            # What is left is removed when the node starts again.
            log.warning(
                "files of a table not removed", extra={"path": directory, "error": str(error)}
            )
