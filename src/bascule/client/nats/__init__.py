"""The client's NATS connection: asyncio, one inbox for all acks, moving between servers by itself.

    link         one socket, from handshake to loss
    connection   what outlives sockets: the servers known, reconnecting, the inbox

Writes are collected and leave once per turn of the event loop, so that a thousand small publishes
cost one system call. What arrives is handed on chunk by chunk: the bytes, and the positions that
the compiled parser found in them.
"""

from __future__ import annotations

from bascule.client.nats.connection import NatsConnection
from bascule.client.nats.link import MESSAGES_PER_PARSE, Chunk

__all__ = ["MESSAGES_PER_PARSE", "Chunk", "NatsConnection"]
