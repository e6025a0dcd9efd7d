"""What a sender sends, and another socket receives."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from bascule.listening.limits import ListenerStatistics
from bascule.listening.sending import Sender
from bascule.wire.primitives import Piece


async def never() -> None:
    raise AssertionError("the socket has room for all")


def sent(pieces: Sequence[Piece]) -> tuple[bytes, ListenerStatistics]:
    """What the other side receives, and what is counted."""
    statistics = ListenerStatistics()

    async def scene() -> bytes:
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            sender = Sender(
                here,
                statistics=statistics,
                run_on_thread=lambda function: asyncio.get_running_loop().run_in_executor(
                    None, function
                ),
                writable=never,
                progress=lambda: None,
            )
            await sender.send(pieces)
            here.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: there.recv(1 << 16), b""))

    return asyncio.run(scene()), statistics
