"""Watching tables at any node: at this one, if it has a replica, else at one that has."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

from bascule.controller.cluster.tables.replica_address import replica_address
from bascule.controller.cluster.views import ClusterViews
from bascule.errors import PartitionFailed
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.tables import Tables
from bascule.tables.table_replica import TableReplica
from bascule.tables.watching import Begin, Start, WatchPosition, WatchStep
from bascule.wire.tables.patterns import KeyPattern

REACH_SECONDS_MAX: Final = 5.0
"""For a replica to reach the position of a watcher. One that is behind for longer shows its state:
the position may be one that the log never had."""


class TableWatch(NamedTuple):
    """One watcher of a table."""

    table: bytes
    """The id of the table: a position of this one is none of another that has its name."""
    steps: AsyncGenerator[WatchStep, None]


class ClusterWatches:
    """Belongs to the event loop."""

    def __init__(self, tables: Tables, partitions: Partitions, views: ClusterViews) -> None:
        self._tables = tables
        self._partitions = partitions
        self._views = views

    def where(self, table: str) -> str:
        """See `replica_address`."""
        return replica_address(self._views, self._partitions, self._tables, table)

    def watch(
        self, table: str, pattern: KeyPattern, start: Start, *, of: bytes | None = None
    ) -> TableWatch:
        """What changes, without end, as this node's replica applies it.

        `of` is the id of the table that a position is of; None: of this one, with whatever records
        the log has before it. A position of another table that had the name, or one beyond the end
        of the log, is none of this table: the watcher is shown the state. What begins with the
        state has at least what is committed now, as far as it is known here.

        Raises: UnknownStream, NotATable, PartitionFailed; the steps PartitionFailed, Indeterminate.
        """
        replica = self._tables.replica(table, 0)
        found = self._partitions.stream(table)
        if not found:
            raise PartitionFailed(table, 0, "the table was removed meanwhile")
        id = found[0].definition.id
        if isinstance(start, WatchPosition):
            if of is None:
                start = WatchPosition(start.offset, replica.epoch_of(start.offset - 1))
            elif of != id:
                start = Begin.STATE
        return TableWatch(id, _steps(replica, found[0], pattern, start))


async def _steps(
    replica: TableReplica, partition: Partition, pattern: KeyPattern, start: Start
) -> AsyncGenerator[WatchStep, None]:
    if isinstance(start, WatchPosition) and not await replica.reaches(start, REACH_SECONDS_MAX):
        start = Begin.STATE
    if isinstance(start, Begin):
        # What is committed by now is none of what is to come.
        await replica.wait_position(partition.high_watermark.offset)
    async for step in replica.watches.watch(pattern, start):
        yield step
