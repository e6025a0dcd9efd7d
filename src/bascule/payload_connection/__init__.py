"""The sending and reading side of data streaming, for clients and for the HTTP listener of a node.

ack           what a sender is told at the end
connection    frames over one asyncio socket
packet        a packet that is kept until it is acknowledged
places        which nodes have replicas of a partition
writer        sends one payload; goes on at another node where one fails
reader        reads a payload, or a range of it
"""

from __future__ import annotations

from bascule.payload_connection.ack import PayloadAck
from bascule.payload_connection.reader import PayloadReader
from bascule.payload_connection.writer import PayloadWriter

__all__ = ["PayloadAck", "PayloadReader", "PayloadWriter"]
