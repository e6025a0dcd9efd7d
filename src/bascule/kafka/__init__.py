"""The client door: a listener that serves streams over the Kafka wire protocol.

    start()            bind, listen
    accept task        one per address: socket -> ClientConnection
    ClientConnection     bytes -> wire.ServerConnection -> handlers -> Sender -> bytes
    sweep              every few seconds, closes what has lasted too long
    close()            no more connections, waiting requests answered, then closed

Everything runs on one event loop on raw non-blocking sockets, which was measured to cost the
least per fetch; only what may wait for the disk goes to a few threads.
"""

from __future__ import annotations

from bascule.kafka.handlers.context import NodeIdentity
from bascule.kafka.limits import ListenerLimits, ListenerStatistics
from bascule.kafka.listener import ClientListener

__all__ = ["ClientListener", "ListenerLimits", "ListenerStatistics", "NodeIdentity"]
