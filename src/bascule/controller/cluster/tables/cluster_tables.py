"""`ClusterTables`: what a node does for clients that read and write tables."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bascule.controller.cluster.confirmation import LeaderConfirmation
from bascule.controller.cluster.metadata_group import Peers
from bascule.controller.cluster.tables.cluster_followers import ClusterFollowers
from bascule.controller.cluster.tables.cluster_watches import ClusterWatches
from bascule.controller.cluster.tables.operations import TABLE_WRITES, TABLES
from bascule.controller.cluster.tables.read_batches import TableReadBatches
from bascule.controller.cluster.tables.reads import TableReads
from bascule.controller.cluster.tables.writes import TableWrites
from bascule.controller.cluster.views import ClusterViews
from bascule.host.api import Clock, Random
from bascule.replica.internal_publisher import InternalPublisher
from bascule.replica.partitions import Partitions
from bascule.tables import Tables


class ClusterTables(TableReads):
    """Belongs to the event loop."""

    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        tables: Tables,
        views: ClusterViews,
        confirmation: LeaderConfirmation,
        peers: Peers,
        publisher: InternalPublisher,
        random: Random,
        clock: Clock,
    ) -> None:
        super().__init__(node_id, partitions, tables, views, peers, confirmation)
        self.writes = TableWrites(node_id, partitions, views, peers, publisher, self, random)
        tables.start_expiry(publisher)
        self.batches = TableReadBatches(self, tables)
        self.watches = ClusterWatches(tables, partitions, views)
        self.followers = ClusterFollowers(tables, partitions, views, clock)
        self.controls: dict[str, Callable[[bytes], Awaitable[bytes]]] = {
            TABLES: self.answer,
            TABLE_WRITES: self.writes.answer,
        }
        """Kind -> the handler of a control request of another node."""
