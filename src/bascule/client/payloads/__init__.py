"""Payloads: content of any size, which nodes keep in files beside the log.

blocking      the same for clients that block
mixin         what the client adds to `payload_connection`
"""

from __future__ import annotations

from bascule.client.payloads.blocking import (
    SyncPayloadMixin,
    SyncPayloadReader,
    SyncPayloadWriter,
)
from bascule.client.payloads.mixin import PayloadMixin
from bascule.payload_connection.ack import PayloadAck
from bascule.payload_connection.reader import PayloadReader
from bascule.payload_connection.writer import PayloadWriter

__all__ = [
    "PayloadAck",
    "PayloadMixin",
    "PayloadReader",
    "PayloadWriter",
    "SyncPayloadMixin",
    "SyncPayloadReader",
    "SyncPayloadWriter",
]
