"""What must hold in a simulated cluster. All of it looks at the nodes directly, and asks none.

```
cluster_checkers  all checks of a run
log_contents      reads logs
committed         committed records: nothing that was read is undone, leaders have all of it
replica_states    leaders, high watermarks, in-sync replica sets
log_starts        retention and purges
requests          requests to the controller
losses            what unclean elections allow to be lost
growth            streams that get more partitions
contents          at the end: the logs
opened_again      at the end: the logs, opened again, and what is looked up in them
node_states       at the end: roles, directories, subscriptions
```
"""

from bascule.sim.cluster.checkers.cluster_checkers import ClusterCheckers
from bascule.sim.cluster.checkers.node_states import why_not_settled

__all__ = ["ClusterCheckers", "why_not_settled"]
