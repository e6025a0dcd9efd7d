"""The client door: a listener that serves streams over the Kafka wire protocol.

    start()            bind, listen
    accept task        one per address: socket -> DoorConnection
    DoorConnection     bytes -> wire.ServerConnection -> handlers -> Sender -> bytes
    sweep              every few seconds, closes what has lasted too long
    close()            no more connections, waiting requests answered, then closed

Everything runs on one event loop on raw non-blocking sockets, which was measured to cost the
least per fetch; only what may wait for the disk goes to a few threads.
"""

from __future__ import annotations

from bascule.broker.door.limits import DoorLimits, DoorStatistics
from bascule.broker.door.listener import ClientDoor
from bascule.broker.handlers.context import NodeIdentity

__all__ = ["ClientDoor", "DoorLimits", "DoorStatistics", "NodeIdentity"]
