"""The requests of the members of classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Joins and syncs wait for other members, up to the rebalance time-out. A connection that closes ends
the waiting.
"""
