"""Frames of the data streaming protocol over one socket of asyncio."""

# ruff: noqa: ASYNC109
from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec

from bascule.config.addresses import format_address, parse_address
from bascule.errors import Broken, RemoteProtocolError
from bascule.errors.plain import from_plain
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import (
    DataHead,
    StreamFrameReader,
    decode_data_head,
    decode_message,
    encode_message,
)
from bascule.wire.datastream.messages import (
    PayloadFailed,
    ReplicasElsewhere,
    StreamHello,
    check_version,
)

SOCKET_BYTES: Final = 4 << 20
MessageT = TypeVar("MessageT", bound=msgspec.Struct)


class PayloadConnection:
    """One payload at a time. One task reads, one writes."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        """Use `connect`."""
        self.address = address
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._reader = StreamFrameReader()
        self._is_closed = False
        self._in_use = 0
        """Operations of the loop on the socket."""
        self._small = memoryview(bytearray(4096))

    @classmethod
    async def connect(cls, address: str, *, timeout: float) -> PayloadConnection:
        """Connect to a client listener, and say hello. Raises: Broken."""
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        sock: socket.socket | None = None
        try:
            async with asyncio.timeout(timeout):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                family, kind, proto, _, where = found[0]
                sock = socket.socket(family, kind, proto)
                sock.setblocking(False)
                for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                    sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
                await loop.sock_connect(sock, where)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection = cls(sock, format_address(host, port))
                await connection.send(encode_message(frames.HELLO, StreamHello()))
                hello = await connection.expect(frames.HELLO, StreamHello)
                if not isinstance(hello, StreamHello):
                    raise RemoteProtocolError("no hello")
                check_version(hello)
                return connection
        except (OSError, TimeoutError, RemoteProtocolError) as error:
            # Another node may speak this version while releases are changed.
            if sock is not None:
                sock.close()
            raise Broken(f"{address}: {str(error) or 'no answer in time'}") from error
        except BaseException:
            if sock is not None:
                sock.close()
            raise

    def close(self) -> None:
        """ClosePayload it. Who reads or writes gets an error.

        The descriptor is closed after them: the loop must not watch a number that is used again.
        """
        if not self._is_closed:
            self._is_closed = True
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._is_closed and not self._in_use:
            self._socket.close()

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        """Raises: Broken for what the socket raises."""
        if self._is_closed:
            raise Broken(f"{self.address}: the connection is closed")
        self._in_use += 1
        try:
            yield
        except OSError as error:
            raise Broken(f"{self.address}: {error}") from error
        finally:
            self._in_use -= 1
            self._close_if_unused()

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Raises: Broken."""
        with self._using():
            await self._loop.sock_sendall(self._socket, data)

    async def _receive(self, room: memoryview) -> int:
        with self._using():
            count = await self._loop.sock_recv_into(self._socket, room)
        if not count:
            raise Broken(f"{self.address} closed the connection")
        return count

    async def next_frame(self) -> tuple[int, bytearray]:
        """The next frame; of a DATA frame the head. Raises: Broken, RemoteProtocolError; what the
        node answers instead."""
        while True:
            room = self._small[: min(self._reader.wanted, len(self._small))]
            count = await self._receive(room)
            found = self._reader.feed(room[:count])
            if found is None:
                continue
            kind, frame = found
            if kind == frames.FAILED:
                failed = decode_message(frame, PayloadFailed)
                raise from_plain(failed.name, failed.text, failed.fields)
            return kind, frame

    async def expect(self, kind: int, type: type[MessageT]) -> MessageT | ReplicasElsewhere:
        """A message, or where to ask. Raises: as `next_frame`."""
        found, frame = await self.next_frame()
        if found == frames.ELSEWHERE:
            return decode_message(frame, ReplicasElsewhere)
        if found != kind:
            raise RemoteProtocolError(f"{self.address}: a frame of kind {found:#04x}")
        return decode_message(frame, type)

    async def receive_packet(self, frame: bytearray) -> tuple[DataHead, bytearray]:
        """The bytes of a DATA frame. Raises: Broken, RemoteProtocolError."""
        head = decode_data_head(frame)
        packet = bytearray(head.length)
        view, at = memoryview(packet), 0
        while at < head.length:
            at += await self._receive(view[at:])
        return head, packet
