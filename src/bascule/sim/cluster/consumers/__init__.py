"""Consumers that are members of groups, over the wire, and what must hold for their groups.

A member runs on a machine of its own, on a simulated thread, with the blocking connection of the
Python client. It does not read records: what it has "read" is a position that it makes up and
commits. So a run checks what groups promise, and not what fetches do.

```
consumer  one member: joins, is assigned partitions, commits, leaves, dies, comes back
newer     one that speaks the protocol of KIP-848
history   what all members of one group have seen, and whether it agrees
```
"""

from bascule.sim.cluster.consumers.consumer import SimConsumer
from bascule.sim.cluster.consumers.history import GroupHistory
from bascule.sim.cluster.consumers.newer import SimNewerConsumer

__all__ = ["GroupHistory", "SimConsumer", "SimNewerConsumer"]
