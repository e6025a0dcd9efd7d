"""Consumers over the wire: members of groups, and readers without one, and what must hold for them.

A member runs on a machine of its own, on a simulated thread, with the blocking connection of the
Python client. It does not read records: what it has "read" is a position that it makes up and
commits. So a run checks what groups promise, and not what fetches do. Readers do fetch.

```
consumer  one member: joins, is assigned partitions, commits, leaves, dies, comes back
newer     one that speaks the protocol of KIP-848
history   what all members of one group have seen, and whether it agrees
reader    one reader of a partition, which fetches from the leader or the closest replica
read_history  what all readers have read, and whether it agrees
deleter   tries to delete a group, again and again
traits    what a group has besides its members
```
"""

from bascule.sim.cluster.consumers.consumer import SimConsumer
from bascule.sim.cluster.consumers.history import GroupHistory
from bascule.sim.cluster.consumers.newer import SimNewerConsumer

__all__ = ["GroupHistory", "SimConsumer", "SimNewerConsumer"]
