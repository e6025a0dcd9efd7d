"""On which nodes the replicas of partitions are. Pure.

placement      chooses the nodes of partitions
reassignment   how a partition moves to other replicas, and back
leadership     who leads by the will of operators, and the preferred leaders
balance        the moves that make nodes hold equally much
eligible       who may lead beside the replicas in sync
steps          decisions on very many partitions
drained        what a node that is drained or to be removed still leads or holds, and why
"""
