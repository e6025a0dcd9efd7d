"""Writes responses into a non-blocking socket: bytes by send, slices of files by sendfile.

Small slices are read, and sent together with the bytes around them: two system calls instead of
three, and each of them gives up the interpreter lock, which a busy node gets back late.

`sendfile` on a non-blocking socket still waits for the disk if the file's pages are not in the
page cache. That would block the event loop. So the sender checks for each chunk whether it is in
the page cache. If it is not, a thread loads it first.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from os import sendfile
from typing import Final, Protocol, TypeVar

from bascule.errors import Broken, CorruptData
from bascule.host.api import File
from bascule.listening.limits import ListenerStatistics
from bascule.storage.partition_log import FileSlice
from bascule.storage.segment import FileSlices
from bascule.wire.primitives import Piece

T = TypeVar("T")


class RunOnThread(Protocol):
    """Runs a function that may wait for the disk on a bounded pool of threads."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


SMALL_BYTES: Final = 16 << 10
"""Slices of files of so many bytes in one response are read and not sent by sendfile."""
SENDFILE_CHUNK_BYTES: Final = 1 << 20
"""Bytes looked for in the page cache, and sent, at a time: about 0.2 ms of sendfile."""
LOAD_BYTES: Final = 4 << 20
"""Bytes that a thread reads, and checks, at a time. All that is left of a slice would be read once
for each chunk where the page cache keeps it no longer than the client takes."""
CACHE_RECHECK_SECONDS: Final = 0.2
"""A chunk is checked again when the socket was not writable for longer than this."""
YIELD_BYTES: Final = 4 << 20
"""Bytes sent to one client before the event loop may run other connections."""


class Sender:
    """The writing half of one connection; one `send` at a time."""

    __slots__ = ("_progress", "_run_on_thread", "_socket", "_statistics", "_writable")

    def __init__(
        self,
        sock: socket.socket,
        *,
        statistics: ListenerStatistics,
        run_on_thread: RunOnThread,
        writable: Callable[[], Awaitable[None]],
        progress: Callable[[], None],
    ) -> None:
        """`writable` waits until the socket is writable; `progress` is called after each send."""
        self._socket = sock
        self._statistics = statistics
        self._run_on_thread = run_on_thread
        self._writable = writable
        self._progress = progress

    def send_now(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Send what the socket buffer takes of a small response, and return the rest.

        Nothing is sent of another one. Raises: OSError.
        """
        data = pieces[0]
        if len(pieces) != 1 or not isinstance(data, bytes) or len(data) > SMALL_BYTES:
            return pieces
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            return pieces
        self._statistics.bytes_out += sent
        return () if sent == len(data) else (memoryview(data)[sent:],)

    async def send(self, pieces: Sequence[Piece]) -> None:
        """Return when all bytes are in the socket buffer. Raises: OSError, Broken."""
        pieces = _with_small_slices_read(_one_by_one(pieces))
        last = len(pieces) - 1
        for number, piece in enumerate(pieces):
            if isinstance(piece, FileSlice):
                await self._send_slice(piece)
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

    async def _send_slice(self, piece: FileSlice) -> None:
        file, position = piece.file, piece.position
        end, next_yield = position + piece.length, position + YIELD_BYTES
        while position < end:
            stop = min(end, position + SENDFILE_CHUNK_BYTES)
            if not file.is_cached(position, stop):
                self._statistics.cold_reads += 1
                try:
                    load = partial(piece.load, position, min(end, position + LOAD_BYTES))
                    await self._run_on_thread(load)
                except CorruptData as error:
                    raise Broken(str(error)) from error
            position = await self._send_chunk(file, position, stop)
            if position >= next_yield:
                next_yield = position + YIELD_BYTES
                await asyncio.sleep(0)

    async def _send_chunk(self, file: File, position: int, stop: int) -> int:
        """Send up to `stop`, or less if the pages may have left the page cache meanwhile."""
        out, source = self._socket.fileno(), file.fileno()
        while position < stop:
            try:
                sent = sendfile(out, source, position, stop - position)
            except BlockingIOError:
                loop = asyncio.get_running_loop()
                began = loop.time()
                await self._writable()
                if loop.time() - began > CACHE_RECHECK_SECONDS:
                    return position
                continue
            if sent == 0:
                raise Broken(f"{file.path} ends at byte {position}, expected at least {stop}")
            self._progress()
            self._statistics.bytes_out += sent
            self._statistics.bytes_sendfile += sent
            position += sent
        return position


def _one_by_one(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """`pieces` with the slices of each `FileSlices` in its place."""
    if not any(isinstance(piece, FileSlices) for piece in pieces):
        return pieces
    return [
        each
        for piece in pieces
        for each in (piece.slices if isinstance(piece, FileSlices) else (piece,))
    ]


def _with_small_slices_read(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """One piece of bytes if all slices together are small and in the page cache."""
    length = sum(piece.length for piece in pieces if isinstance(piece, FileSlice))
    if not 0 < length <= SMALL_BYTES:
        return pieces
    parts: list[bytes | bytearray | memoryview] = []
    for piece in pieces:
        if isinstance(piece, FileSlice):
            data = piece.file.read_at_nowait(piece.position, piece.length)
            if data is None or len(data) < piece.length:
                return pieces
            parts.append(data)
        else:
            assert isinstance(piece, (bytes, bytearray, memoryview))
            parts.append(piece)
    return [b"".join(parts)]
