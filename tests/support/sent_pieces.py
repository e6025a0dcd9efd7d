"""What a sender sends, and another socket receives."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from functools import partial

from bascule.listening.limits import ListenerStatistics
from bascule.listening.sending import Sender
from bascule.wire.primitives import Piece


def sent(pieces: Sequence[Piece]) -> tuple[bytes, ListenerStatistics]:
    """What the other side receives, and what is counted."""
    statistics = ListenerStatistics()

    async def scene() -> bytes:
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            loop = asyncio.get_running_loop()
            on_thread = partial(loop.run_in_executor, None)

            async def writable() -> None:
                ready = asyncio.Event()
                loop.add_writer(here, ready.set)
                await ready.wait()
                loop.remove_writer(here)

            received = on_thread(lambda: b"".join(iter(lambda: there.recv(1 << 16), b"")))
            sender = Sender(
                here,
                statistics=statistics,
                run_on_thread=on_thread,
                writable=writable,
                progress=lambda: None,
            )
            try:
                await sender.send(pieces)
            finally:
                here.shutdown(socket.SHUT_WR)
                found = await received
            return found

    return asyncio.run(scene()), statistics
