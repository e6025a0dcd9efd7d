"""The requests of the members of groups.

JoinGroup, SyncGroup, Heartbeat and LeaveGroup are those of the classic protocol. Joins and syncs
wait for other members, up to the rebalance time-out. A connection that closes ends the waiting.
ConsumerGroupHeartbeat is the one of the consumer protocol; nobody waits for other members.
"""
