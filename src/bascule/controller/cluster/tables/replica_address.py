"""Which node has a replica of a table."""

from __future__ import annotations

from bascule.controller.cluster.views import ClusterViews, other_replicas
from bascule.errors import NotATable, PartitionFailed
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.tables import Tables
from bascule.wire.tables.keys import why_not_opened


def replica_address(views: ClusterViews, partitions: Partitions, tables: Tables, table: str) -> str:
    """The HTTP address of a node that has a replica of a table; empty: this node has one.

    A replica that has stopped is none, nor is one whose table does not follow its log. Raises:
    UnknownStream, NotATable, PartitionFailed if none of those is alive.
    """
    definition = views.definition(table)
    if not definition.config.table:
        raise NotATable(table, why_not_opened(definition.config))
    found = partitions.stream_by_id(definition.id)
    why: PartitionFailed | None = None
    if found and found[0].log is not None:
        why = _why_not(found[0], tables)
        if why is None:
            return ""
    others = other_replicas(views.states(definition.id)[0], views.node_id)
    if why is not None:
        # Another one that has stopped redirects, too. In a ring its client gets to all of them.
        others.sort(key=lambda node: (node < views.node_id, node))
    nodes = {node.node_id: node for node in views.nodes()}
    for number in others:
        if number in nodes:
            return nodes[number].http
    raise why or PartitionFailed(table, 0, "no other node with a replica of it is alive")


def _why_not(partition: Partition, tables: Tables) -> PartitionFailed | None:
    """Why the replica of this node is none to be read."""
    if partition.failure is not None:
        return partition.failure
    try:
        return tables.replica(partition.definition.name, partition.index).ended
    except PartitionFailed:
        return None  # it is opened soon
