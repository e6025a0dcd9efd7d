"""Consumer groups and their committed offsets, at any node of a cluster.

cluster_groups   lists, describes, resets and deletes; the leader of `_offsets` carries it out
commit_removal   removes the committed offsets of deleted streams
coordinator      a coordinator of groups, as the configuration says
partition_ends   where partitions begin and end, as their leaders say
group_lags       the lag of the groups that this node coordinates, for its metrics
"""

from bascule.controller.cluster.groups.cluster_groups import OFFSETS, ClusterGroups
from bascule.controller.cluster.groups.group_lags import GroupLags
from bascule.controller.cluster.groups.partition_ends import ENDS, PartitionEnds

__all__ = ["ENDS", "OFFSETS", "ClusterGroups", "GroupLags", "PartitionEnds"]
