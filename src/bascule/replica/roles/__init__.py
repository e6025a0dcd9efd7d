"""What this node is for a partition, and the high watermark that each role keeps.

    role               LEADER, FOLLOWER or NONE
    commitment         what is committed, by the role, and who waits for it
    batch_positions    the byte position of an offset
    leader_watermark   the high watermark of a leader with followers
    follower_watermark the high watermark that a follower was told
    told_start         where the logs of other replicas start

A partition changes its role on the log writer thread, in order with its appends: what was queued
for the leader before it stepped down is appended, what was queued after it is dropped.
"""

from bascule.replica.roles.follower_watermark import FollowerWatermark
from bascule.replica.roles.leader_watermark import LeaderWatermark
from bascule.replica.roles.role import PartitionRole

__all__ = ["FollowerWatermark", "LeaderWatermark", "PartitionRole"]
