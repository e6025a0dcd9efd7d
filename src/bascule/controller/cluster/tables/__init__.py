"""Tables at any node of the cluster.

cluster_tables      `ClusterTables`: reads, at a replica here or on another node
cluster_watches     `ClusterWatches`: who is watched, here or elsewhere
"""

from bascule.controller.cluster.tables.cluster_tables import TABLES, ClusterTables, submit
from bascule.controller.cluster.tables.cluster_watches import ClusterWatches

__all__ = ["TABLES", "ClusterTables", "ClusterWatches", "submit"]
