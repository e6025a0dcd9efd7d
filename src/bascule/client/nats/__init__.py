"""The client's NATS connection: asyncio, one inbox for all acks, automatic moves between servers.

    link         one socket, from handshake to loss
    connection   state beyond a socket: known servers, reconnecting, the inbox

Writes are collected and sent once per iteration of the event loop, so that a thousand small
publishes cost one system call. Received bytes are passed on in chunks, with the positions that the
compiled parser found.
"""

from __future__ import annotations

from bascule.client.nats.connection import NatsConnection
from bascule.client.nats.link import MESSAGES_PER_PARSE, Chunk

__all__ = ["MESSAGES_PER_PARSE", "Chunk", "NatsConnection"]
