"""Standard input of commands that run an event loop."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import threading
from collections.abc import AsyncIterator
from typing import Final

CHUNKS_AHEAD: Final = 16


async def stdin_chunks(bytes_max: int) -> AsyncIterator[bytes]:
    """What standard input has, as it arrives, at most `bytes_max` at a time.

    A daemon thread reads, because a terminal or pipe may never end and Ctrl-C must not wait for it.
    Raises: OSError.
    """
    if sys.stdin is None:  # its number may be that of a socket by now
        raise OSError(errno.EBADF, "standard input is closed")
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_AHEAD)

    def read() -> None:
        found: bytes | OSError = b"-"
        while found and not isinstance(found, OSError):
            room.acquire()
            try:
                found = os.read(0, bytes_max)
            except OSError as error:
                found = error
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, found)
            except RuntimeError:  # the loop has ended
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        room.release()
        yield chunk
