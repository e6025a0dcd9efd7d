"""The client listener: serves the streams of this node over the Kafka wire protocol.

    listener      binds, accepts connections, expires them, closes them
    connection    one client: bytes -> wire.ServerConnection -> handler -> Sender -> bytes
    sending       responses into the socket: memory by send, slices of segment files by sendfile
    limits        bounds on connections, memory and time, and the counters of the listener
    handlers      one module per request: Fetch, Metadata, ListOffsets, OffsetCommit, ...

Promises:

* Responses of one connection leave in the order of its requests.
* A fetch returns only records below the high watermark.
* One connection's bytes, requests and failures end at most that connection. All connections
  together hold no more than `ListenerLimits.memory_bytes_max` beyond their base buffers.
* `close` answers the requests in flight within `ListenerLimits.drain_ms_max`.

It never stores records: Produce is refused with the NATS subject to publish to. It never runs
consumer groups: it stores committed offsets only. It never waits for a disk on the event loop: a
few threads read what is not in the page cache.

Everything else runs on one event loop on raw non-blocking sockets. Of the variants that were
measured, this one costs the least per fetch.
"""

from __future__ import annotations

from bascule.kafka.handlers.context import NodeIdentity
from bascule.kafka.limits import ListenerLimits, ListenerStatistics
from bascule.kafka.listener import ClientListener

__all__ = ["ClientListener", "ListenerLimits", "ListenerStatistics", "NodeIdentity"]
