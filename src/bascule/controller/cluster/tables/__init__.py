"""Tables at any node of the cluster.

`reads` asks a replica, or the leader for a linearizable read; `writes` sends messages to the leader
of the partition, which appends them as those from NATS; `confirmation` is how a leader knows that
it still leads. Each request to another node is a control request with one of `operations`.
`cluster_tables` has all of these, and `cluster_watches` who is watched, here or elsewhere.
"""

from __future__ import annotations

from bascule.controller.cluster.tables.cluster_tables import ClusterTables
from bascule.controller.cluster.tables.cluster_watches import ClusterWatches
from bascule.controller.cluster.tables.reads import submit

__all__ = ["ClusterTables", "ClusterWatches", "submit"]
