"""NATS's key-value clients: the requests to JetStream's API that they make, for tables.

A table on ``$KV.NAME.>`` is the bucket NAME. Its clients write with ordinary messages; all else
they ask of ``$JS.API``, which this package answers, on a NATS server without JetStream::

    service     `KeyValueService`: the NATS connection, the subscriptions, who answers a request
    api         the requests about buckets and their entries
    buckets     the settings of a bucket as those of a table, and back
    consumers   `PushConsumers`: watchers, which are push consumers to their clients
    consumer_start  where a watcher begins, and what it is shown first
    leaf        `LeafLink`: the connection that delivers to them
    requests    the requests, from their subjects and bodies
    messages    the answers and messages on the wire
    oversize    what is larger than the NATS server takes
    starting    the service with the parts of a node
    held_tables the buckets of the cluster, and those held here
"""

from bascule.keyvalue.service import KeyValueService
from bascule.keyvalue.starting import start_key_value

__all__ = ["KeyValueService", "start_key_value"]
