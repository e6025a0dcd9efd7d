"""A partition that is followed by hand: its attempts, and what they report."""

from __future__ import annotations

from bascule.replica.follower.followed_partition import FollowedPartition
from bascule.replica.roles.commitment import LogFlags
from bascule.wire.messages.peer.replica_fetch import ReplicaFetchPartition
from support.replica_group import ReplicaGroup

NO_FLAGS = LogFlags(may_have_ids=False, may_have_gaps=False)


def followed(group: ReplicaGroup, node: int = 2) -> FollowedPartition:
    found = FollowedPartition(group.replicas[node].partition, group.state.leader_epoch)
    assert found.begin()
    return found


def reported(follower: FollowedPartition) -> ReplicaFetchPartition:
    found = follower.report()
    assert found is not None
    return found
