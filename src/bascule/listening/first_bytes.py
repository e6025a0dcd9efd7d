"""The first bytes of a connection: which protocol it speaks."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from bascule.wire.datastream.frames import FRAME_BYTES_MAX, KINDS, SIZE_BYTES

PEEK_BYTES: Final = 5
"""The size of the first frame, and the byte behind it."""


def is_datastream(head: bytes) -> bool:
    """Whether a connection begins as one of the data streaming protocol."""
    return len(head) == PEEK_BYTES and head[-1] in KINDS


def is_undecided(head: bytes) -> bool:
    """Whether more bytes are needed to know that: the size alone may be one of either protocol."""
    smallest = int.from_bytes(head[:SIZE_BYTES].ljust(SIZE_BYTES, b"\0"))
    return 0 < len(head) < PEEK_BYTES and smallest <= FRAME_BYTES_MAX


async def peek(sock: socket.socket) -> bytes:
    """The first bytes, which stay to be read; fewer where the peer closes. Raises: OSError."""
    loop = asyncio.get_running_loop()
    head = b""
    while len(head) < PEEK_BYTES:
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(sock.fileno(), _set_done, readable)
        try:
            await readable
        finally:
            loop.remove_reader(sock.fileno())
        found = sock.recv(PEEK_BYTES, socket.MSG_PEEK)
        if len(found) == len(head):
            if not found:
                return b""
            await asyncio.sleep(0.01)  # a part of the frame's size: the rest is on its way
        head = found
    return head


def _set_done(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
