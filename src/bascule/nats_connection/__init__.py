"""A NATS connection on asyncio: one inbox for all answers, automatic moves between servers.

    link         one socket, from handshake to loss
    connection   state beyond a socket: known servers, reconnecting, the inbox

Writes are collected and sent once per iteration of the event loop, so that a thousand small
publishes cost one system call. Received bytes are passed on in chunks, with the positions that the
compiled parser found.
"""

from __future__ import annotations

from bascule.nats_connection.connection import NatsConnection
from bascule.nats_connection.link import MESSAGES_PER_PARSE, Chunk

__all__ = ["MESSAGES_PER_PARSE", "Chunk", "NatsConnection"]
