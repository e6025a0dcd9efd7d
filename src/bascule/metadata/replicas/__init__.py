"""On which nodes the replicas of partitions are. Pure.

placement      chooses the nodes of partitions
reassignment   how a partition moves to other replicas, and its leadership back
"""
