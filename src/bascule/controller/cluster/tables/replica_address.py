"""Which node has a replica of a table."""

from __future__ import annotations

from bascule.controller.cluster.views import ClusterViews, other_replicas
from bascule.errors import NotATable, PartitionFailed
from bascule.replica.partitions import Partitions
from bascule.wire.tables.keys import why_not_opened


def replica_address(views: ClusterViews, partitions: Partitions, table: str) -> str:
    """The HTTP address of a node that has a replica of a table; empty: this node has one.

    A replica that has stopped is none. Raises: UnknownStream, NotATable, PartitionFailed if none
    of those is alive.
    """
    definition = views.definition(table)
    if not definition.config.table:
        raise NotATable(table, why_not_opened(definition.config))
    found = partitions.stream_by_id(definition.id)
    if found and found[0].log is not None and found[0].failure is None:
        return ""
    state = views.states(definition.id)[0]
    nodes = {node.node_id: node for node in views.nodes()}
    for number in other_replicas(state, views.node_id):
        if number in nodes:
            return nodes[number].http
    raise PartitionFailed(table, 0, "no other node with a replica of it is alive")
