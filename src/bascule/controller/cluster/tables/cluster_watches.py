"""Watching tables at any node: at this one, if it has a replica, else at one that has."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from bascule.controller.cluster.tables.replica_address import replica_address
from bascule.controller.cluster.views import ClusterViews
from bascule.replica.partitions import Partitions
from bascule.tables import Tables
from bascule.tables.watching import Begin, Start, WatchStep
from bascule.wire.tables.patterns import KeyPattern


class ClusterWatches:
    """Belongs to the event loop."""

    def __init__(self, tables: Tables, partitions: Partitions, views: ClusterViews) -> None:
        self._tables = tables
        self._partitions = partitions
        self._views = views

    def where(self, table: str) -> str:
        """See `replica_address`."""
        return replica_address(self._views, self._partitions, table)

    async def watch(
        self, table: str, pattern: KeyPattern, start: Start
    ) -> AsyncGenerator[WatchStep, None]:
        """What changes, without end, as this node's replica applies it.

        What begins with the state has at least what is committed now, as far as it is known here.

        Raises: UnknownStream, NotATable, PartitionFailed, Indeterminate.
        """
        replica = self._tables.replica(table, 0)
        found = self._partitions.stream(table)
        if start is Begin.STATE and found:
            await replica.wait_position(found[0].high_watermark.offset)
        async for step in replica.watches.watch(pattern, start):
            yield step
