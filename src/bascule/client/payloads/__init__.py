"""Payloads: content of any size, which nodes keep in files beside the log.

connection    frames over one asyncio socket
places        which nodes have replicas of a partition
writer        sends one payload; goes on at another node where one fails
reader        reads a payload, or a range of it
"""

from __future__ import annotations

from bascule.client.payloads.mixin import PayloadMixin
from bascule.client.payloads.reader import PayloadReader
from bascule.client.payloads.writer import PayloadAck, PayloadWriter

__all__ = ["PayloadAck", "PayloadMixin", "PayloadReader", "PayloadWriter"]
