"""One socket of the data streaming protocol: frames in, frames and file ranges out."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from crc32c import crc32c

from bascule.datastream.transport.reactor import READ, WRITE, Reactor
from bascule.errors import BasculeError, Broken, RemoteProtocolError
from bascule.host.api import File
from bascule.wire.datastream.frames import (
    DATA,
    SMALL_FRAME_BYTES_MAX,
    DataHead,
    StreamFrameReader,
    decode_data_head,
)

PIECES_AT_ONCE: Final = 16
"""Reads of one connection before others have their turn."""
SENDFILE_BYTES: Final = 4 << 20
ENDING_SECONDS_MAX: Final = 2.0
SOCKET_BYTES: Final = 4 << 20
"""Of its buffers, as far as the system allows: fewer wake-ups for each packet."""


class Handler(Protocol):
    """What a connection calls, on the thread of the reactor.

    It may raise BasculeError or OSError: the connection ends then, and `on_closed` has the error.
    """

    def on_frame(self, kind: int, frame: bytearray) -> None:
        """A frame other than DATA."""
        ...

    def on_packet_begin(self, head: DataHead) -> PacketSink | None:
        """The head of a DATA frame: where its bytes go; None if the connection ends."""
        ...

    def on_malformed(self, error: RemoteProtocolError) -> None:
        """The other side does not keep to the protocol. It closes the connection."""
        ...

    def on_drained(self) -> None:
        """Everything that was to be sent has been given to the system."""
        ...

    def on_closed(self, error: Exception | None) -> None:
        """Called once; without an error if this side has closed it."""
        ...


class PacketSink(Protocol):
    """Takes the bytes of one packet."""

    def write(self, piece: memoryview) -> None: ...
    def end(self, crc: int) -> None:
        """All bytes have come; `crc` is their CRC-32C."""
        ...


class _FileRange:
    __slots__ = ("file", "left", "position")

    def __init__(self, file: File, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.left = length


class StreamConnection:
    """Belongs to the thread of the reactor."""

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        handler: Handler,
        *,
        awaits_hello: bool = False,
        on_large_frame: Callable[[int], None] | None = None,
    ) -> None:
        """`sock` is connected, or about to be. Nothing is read before `start`.

        `on_large_frame` is called with the size of a frame that is not small before more of it than
        its head is kept; it may end the connection.
        """
        self._reactor = reactor
        self._socket = sock
        self._handler = handler
        self._reader = StreamFrameReader(awaits_hello=awaits_hello)
        self._on_large_frame = on_large_frame
        self._out: deque[memoryview | _FileRange] = deque()
        self._head: DataHead | None = None
        """That of the packet whose bytes are read now."""
        self._sink: PacketSink | None = None
        self._left = 0
        self._crc = 0
        self._events = 0
        self._is_paused = False
        self._is_connecting = False
        self._is_ending = False
        """Whether the last frame is sent, and what comes is dropped."""
        self.is_closed = False
        self.bytes_in = 0
        self.bytes_out = 0
        sock.setblocking(False)

    def start(self, *, connecting: bool = False) -> None:
        """Begin to read; first to connect, if the socket is about to."""
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
        if not connecting:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._is_connecting = connecting
        self._set_events()

    def send(self, frame: bytes) -> None:
        """Send a frame after everything else."""
        if not self.is_closed and not self._is_ending:
            self._out.append(memoryview(frame))
            self._flush()

    def send_packet(self, head: bytes, file: File, position: int, length: int) -> None:
        """Send the head of a DATA frame and its bytes, from the file to the socket."""
        if self.is_closed or self._is_ending:
            return
        self._out.append(memoryview(head))
        if length:
            self._out.append(_FileRange(file, position, length))
        self._flush()

    @property
    def is_drained(self) -> bool:
        """Whether the system has taken everything that was to be sent."""
        return not self._out

    def pause(self) -> None:
        """Read nothing for now."""
        self._is_paused = True
        self._set_events()

    def resume(self) -> None:
        """Read again."""
        self._is_paused = False
        self._set_events()

    def close(self, error: Exception | None = None) -> None:
        """ClosePayload it now. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        self._reactor.modify(self._socket, 0, self._on_events)
        self._socket.close()
        self._out.clear()
        self._sink = None
        self._handler.on_closed(error)

    def close_when_sent(self) -> None:
        """ClosePayload it once everything has been sent and the other side has had time to read it.

        What still comes is dropped: closing a socket with unread bytes would reset the connection,
        and the last frame could be lost with it.
        """
        if self.is_closed or self._is_ending:
            return
        self._is_ending, self._sink, self._is_paused = True, None, False
        self._reactor.call_later(ENDING_SECONDS_MAX, self.close)
        self._end_sending()
        self._set_events()

    def _end_sending(self) -> None:
        if not self._out and not self.is_closed:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                self.close()

    # -- events ---------------------------------------------------------------------------------

    def _set_events(self) -> None:
        if self.is_closed:
            return
        events = 0 if self._is_paused or self._is_connecting else READ
        if self._out or self._is_connecting:
            events |= WRITE
        if events != self._events:
            self._events = events
            self._reactor.modify(self._socket, events, self._on_events)

    def _on_events(self, events: int) -> None:
        try:
            if self._is_connecting:
                self._on_connected()
            if events & WRITE:
                self._flush()
            if events & READ and not self.is_closed:
                self._read()
        except RemoteProtocolError as error:
            self._handler.on_malformed(error)
        except (BasculeError, OSError) as error:
            self.close(error)
        except Exception as error:  # boundary: a bug ends one connection
            self.close(Broken(f"internal error: {error!r}"))
            raise

    def _on_connected(self) -> None:
        number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise OSError(number, os.strerror(number))
        self._is_connecting = False
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._set_events()

    def _flush(self) -> None:
        if self._is_connecting or self.is_closed:
            self._set_events()
            return
        had_more = bool(self._out)
        try:
            while self._out:
                self._send_first()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self.close(error)
            return
        self._set_events()
        if had_more and not self._out:
            if self._is_ending:
                self._end_sending()
            else:
                self._handler.on_drained()

    def _send_first(self) -> None:
        """Send what is first. Raises: BlockingIOError once the socket takes no more; OSError."""
        first = self._out[0]
        if isinstance(first, _FileRange):
            sent = os.sendfile(
                self._socket.fileno(), first.file.fileno(), first.position,
                min(first.left, SENDFILE_BYTES),
            )  # fmt: skip
            if not sent:
                raise OSError(errno.EIO, "a payload's file is too short", first.file.path)
            first.position += sent
            first.left -= sent
            if not first.left:
                self._out.popleft()
        else:
            flags = socket.MSG_MORE if len(self._out) > 1 else 0
            sent = self._socket.send(first, flags) if first else 0
            if sent == len(first):
                self._out.popleft()
            else:
                self._out[0] = first[sent:]
        self.bytes_out += sent

    def _read(self) -> None:
        for _ in range(PIECES_AT_ONCE):
            if self._is_paused or self.is_closed:
                return
            if self._is_ending:
                more = self._receive(self._reactor.buffer) > 0
            elif self._sink is not None:
                more = self._read_piece()
            else:
                more = self._read_frame()
            if not more:
                return

    def _receive(self, room: memoryview) -> int:
        """Bytes received; 0 if there are none now. Raises: Broken at the end."""
        try:
            count = self._socket.recv_into(room)
        except (BlockingIOError, InterruptedError):
            return 0
        if not count:
            raise Broken("the other side closed the connection")
        self.bytes_in += count
        return count

    def _read_frame(self) -> bool:
        """Read a frame, or the head of a packet; whether more may be there."""
        room = self._reactor.buffer[: self._reader.wanted]
        count = self._receive(room)
        if not count:
            return False
        found = self._reader.feed(room[:count])
        if found is None:
            size, told = self._reader.frame_bytes, self._on_large_frame
            if told is not None and size > SMALL_FRAME_BYTES_MAX:
                told(size)
            return True
        kind, frame = found
        if kind != DATA:
            self._handler.on_frame(kind, frame)
            return True
        head = decode_data_head(frame)
        self._head, self._left, self._crc = head, head.length, 0
        self._sink = self._handler.on_packet_begin(head)
        if not head.length and self._sink is not None:
            self._end_packet()
        return True

    def _read_piece(self) -> bool:
        """Read bytes of a packet; whether more may be there."""
        room = self._reactor.buffer[: self._left]
        count = self._receive(room)
        if not count:
            return False
        piece = room[:count]
        self._crc = crc32c(piece, self._crc)
        assert self._sink is not None
        self._left -= count
        self._sink.write(piece)
        if not self._left and self._sink is not None:
            self._end_packet()
        return True

    def _end_packet(self) -> None:
        sink, self._sink = self._sink, None
        assert sink is not None
        sink.end(self._crc)


def begin_connect(address: tuple[str, int]) -> socket.socket:
    """A socket that is about to be connected. Raises: OSError."""
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        result = sock.connect_ex((host, port))
        if result not in (0, errno.EINPROGRESS):
            raise OSError(result, os.strerror(result))
    except OSError:
        sock.close()
        raise
    return sock
