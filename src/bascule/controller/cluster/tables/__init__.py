"""Tables at any node of the cluster.

`reads` asks a replica, or the leader for a linearizable read; `writes` sends messages to the leader
of the partition, which appends them as those from NATS. Each request to another node is a control
request with one of `operations`.
`cluster_tables` has all of these. `cluster_watches` and `cluster_followers` serve those who watch a
table and those who keep a copy of it, at a node that has a replica (`replica_address`).
"""

from __future__ import annotations

from bascule.controller.cluster.tables.cluster_followers import ClusterFollowers
from bascule.controller.cluster.tables.cluster_tables import ClusterTables
from bascule.controller.cluster.tables.reads import submit

__all__ = ["ClusterFollowers", "ClusterTables", "submit"]
