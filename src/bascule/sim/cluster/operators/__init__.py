"""What operators do to a cluster while it runs.

```
operator  moves, elections, drains, purges, streams that come and go, wiped disks
rolling   restarts of all nodes, one after another
nodes     nodes that join, and are removed as planned, or not after all
settings  other numbers of replicas, other promises
```
"""

from bascule.sim.cluster.operators.nodes import NodeChanges
from bascule.sim.cluster.operators.operator import ClusterOperator
from bascule.sim.cluster.operators.rolling import RollingRestart
from bascule.sim.cluster.operators.settings import SettingChanges

__all__ = ["ClusterOperator", "NodeChanges", "RollingRestart", "SettingChanges"]
