"""Payloads in a simulated cluster: clients that send and read them, and what must hold for them.

The clients are the production ones (`payload_connection`), on machines of their own. What a payload
has is a function of its id: so bytes of another one are seen wherever they come.

```
drawn      which streams of a run have payloads, and how many clients send them
history    what was sent, and what is acknowledged
client     sends payloads through any node, dies, goes on and reads
checkers   what must hold on the disks of the nodes
```
"""

from bascule.sim.cluster.payloads.checkers import PayloadCheckers
from bascule.sim.cluster.payloads.client import SimPayloadClient
from bascule.sim.cluster.payloads.history import PayloadHistory

__all__ = ["PayloadCheckers", "PayloadHistory", "SimPayloadClient"]
