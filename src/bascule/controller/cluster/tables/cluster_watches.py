"""Watching tables at any node: at this one, if it has a replica, else at one that has."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from bascule.controller.cluster.views import ClusterViews
from bascule.errors import NotATable, PartitionFailed
from bascule.model import NO_LEADER
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
        """The HTTP address of a node that has a replica of a table; empty: this node has one.

        Raises: UnknownStream, NotATable, PartitionFailed if none of those is alive.
        """
        definition = self._views.definition(table)
        if not definition.config.table:
            raise NotATable(table, "open it with `bascule stream alter --table`")
        found = self._partitions.stream_by_id(definition.id)
        if found and found[0].log is not None:
            return ""
        state = self._views.states(definition.id)[0]
        nodes = {node.node_id: node for node in self._views.nodes() if node.alive}
        for number in (state.leader, *state.isr):
            if number != NO_LEADER and number in nodes:
                return nodes[number].http
        raise PartitionFailed(table, 0, "no node with a replica of it is alive")

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
