"""Responses into a non-blocking socket: bytes from memory, slices of files by sendfile.

`sendfile` on a non-blocking socket still waits for the disk where the file's pages are not in
memory, and would stop the event loop with it. So each stretch is looked up in the page cache
first; a cold one is read by a thread, then sent.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from os import sendfile
from typing import Final

from bascule.errors import Broken
from bascule.host.api import File
from bascule.kafka.handlers.context import OnThread
from bascule.kafka.limits import ListenerStatistics
from bascule.storage.partition_log import FileSlice
from bascule.wire.primitives import Piece

STRETCH_BYTES: Final = 1 << 20
"""Looked up, warmed and sent at a time: some 0.2 ms of sendfile, and what one thread reads."""
WARM_SECONDS: Final = 0.2
"""A stretch is looked up again when its reader paused for longer."""
TURN_BYTES: Final = 4 << 20
"""Sent to one client without pause before others get their turn."""


class Sender:
    """The writing half of one connection; one `send` at a time."""

    __slots__ = ("_on_thread", "_progress", "_socket", "_statistics", "_writable")

    def __init__(
        self,
        sock: socket.socket,
        *,
        statistics: ListenerStatistics,
        on_thread: OnThread,
        writable: Callable[[], Awaitable[None]],
        progress: Callable[[], None],
    ) -> None:
        """`writable` waits until the socket takes bytes; `progress` hears when some were taken."""
        self._socket = sock
        self._statistics = statistics
        self._on_thread = on_thread
        self._writable = writable
        self._progress = progress

    async def send(self, pieces: Sequence[Piece]) -> None:
        """Return when the kernel has all of it. Raises: OSError, Broken."""
        last = len(pieces) - 1
        for number, piece in enumerate(pieces):
            if isinstance(piece, FileSlice):
                await self._send_file(piece.file, piece.position, piece.position + piece.length)
            else:
                assert isinstance(piece, (bytes, bytearray, memoryview))
                await self._send_bytes(piece, socket.MSG_MORE if number < last else 0)

    async def _send_bytes(self, data: bytes | bytearray | memoryview, flags: int) -> None:
        sent = 0
        try:
            sent = self._socket.send(data, flags)
        except BlockingIOError:
            pass
        self._statistics.bytes_out += sent
        if sent == len(data):
            return
        view = memoryview(data)[sent:]
        while view:
            await self._writable()
            try:
                sent = self._socket.send(view, flags)
            except BlockingIOError:
                continue
            self._progress()
            self._statistics.bytes_out += sent
            view = view[sent:]

    async def _send_file(self, file: File, position: int, end: int) -> None:
        turn = position + TURN_BYTES
        while position < end:
            stop = min(end, position + STRETCH_BYTES)
            if not file.is_cached(position, stop):
                self._statistics.cold_reads += 1
                await self._on_thread(partial(_warm, file, position, stop))
            position = await self._send_stretch(file, position, stop)
            if position >= turn:
                turn = position + TURN_BYTES
                await asyncio.sleep(0)

    async def _send_stretch(self, file: File, position: int, stop: int) -> int:
        """Send up to `stop`; return earlier where the pages may have gone cold meanwhile."""
        out, source = self._socket.fileno(), file.fileno()
        while position < stop:
            try:
                sent = sendfile(out, source, position, stop - position)
            except BlockingIOError:
                loop = asyncio.get_running_loop()
                began = loop.time()
                await self._writable()
                if loop.time() - began > WARM_SECONDS:
                    return position
                continue
            if sent == 0:
                raise Broken(f"{file.path} ends at byte {position}, before the {stop} promised")
            self._progress()
            self._statistics.bytes_out += sent
            self._statistics.bytes_sendfile += sent
            position += sent
        return position


def _warm(file: File, start: int, end: int) -> None:
    file.read_at(start, end - start)
