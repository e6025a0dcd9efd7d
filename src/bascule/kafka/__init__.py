"""The client listener: serves the streams of this node over the Kafka wire protocol.

    listener      the listener, with what its connections share
    handlers      one module per request: Fetch, Metadata, ListOffsets, OffsetCommit, ...
    settings      the settings of streams and nodes under Kafka's names
    repeated_...  requests of groups' members that repeat earlier ones: answered without decoding

Sockets, limits and counters are those of `listening`. A fetch returns only records below the high
watermark. It never stores records: Produce is refused with the NATS subject to publish to. Groups
of consumers are those of the classic and of the consumer protocol; `groups` coordinates them.
Changes of streams, as topics, go to the controller; `client.administration` says whether they are
taken.
"""

from __future__ import annotations

from bascule.kafka.handlers.context import NodeIdentity
from bascule.kafka.listener import ClientListener
from bascule.listening.limits import ListenerLimits, ListenerStatistics

__all__ = ["ClientListener", "ListenerLimits", "ListenerStatistics", "NodeIdentity"]
