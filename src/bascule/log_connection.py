"""A blocking connection with Kafka's framing, optimised for receiving record batches.

Bytes are received into the caller's reusable memory: mostly one system call, no copy, and the
interpreter lock is released. Timeouts are the kernel's (SO_RCVTIMEO), because Python's own timeouts
make the socket non-blocking and split every receive. The Python client and followers use it.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from struct import Struct
from typing import Any, Final, TypeVar, cast

from bascule.config.addresses import format_address
from bascule.errors import Broken, LocalProtocolError, RemoteProtocolError
from bascule.wire.codec import decode, encode
from bascule.wire.connection import ClientConnection
from bascule.wire.frame import SIZE_BYTES, frame_bytes
from bascule.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from bascule.wire.primitives import Piece, read_tags, write_nullable_string
from bascule.wire.schema import Message, Request

CLIENT_ID: Final = "bascule-python"
FRAME_BYTES_MAX: Final = 1 << 30
"""Larger responses are never requested: fetches are far smaller."""
API_VERSIONS_VERSION: Final = 2
"""The highest version of ApiVersions that is not flexible. Every server supports it."""

_SIZE: Final = Struct(">i")
_REQUEST_HEAD: Final = Struct(">hhi")
_CORRELATION: Final = Struct(">i")
_TIMEVAL: Final = Struct("@ll")

ResponseT = TypeVar("ResponseT", bound=Message)


class LogConnection:
    """A connection with pipelined requests; responses come in request order. Not thread-safe except
    `abort`; one thread may send while another one receives.

    Every method raises Broken if the connection fails or is silent for the timeout, and
    RemoteProtocolError if the peer uses another protocol.
    """

    def __init__(self, host: str, port: int, *, timeout: float, negotiates: bool = True) -> None:
        """With `negotiates` false each request needs a version."""
        self.address = format_address(host, port)
        self._pending: deque[tuple[int, type[Message], int]] = deque()
        self._correlation_id = 0
        self._versions = ClientConnection(client_id=CLIENT_ID, frame_bytes_max=0)
        self._timeout = timeout
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout)
        except OSError as error:
            raise Broken(f"cannot connect to {self.address}: {error}") from error
        try:
            self._socket.settimeout(None)
            self._readable = select.poll()
            self._readable.register(self._socket, select.POLLIN)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.set_timeout(timeout)
            if negotiates:
                self._negotiate()
        except BaseException:
            self._socket.close()
            raise

    def set_timeout(self, timeout: float) -> None:
        """Set the timeout. A receive or send without progress for `timeout` seconds raises
        Broken."""
        self._timeout = timeout
        whole = int(timeout)
        value = _TIMEVAL.pack(whole, int((timeout - whole) * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def serves(self, request: type[Request[Any]]) -> bool:
        """Whether the server answers such requests; older ones do not know all of them."""
        try:
            self._versions.version_of(request)
        except LocalProtocolError:
            return False
        return True

    def send(self, request: Request[Any], *, version: int | None = None) -> None:
        """Send a request. `receive` returns its response in turn."""
        if version is None:
            version = self._versions.version_of(type(request))
        parts: list[Piece] = [_REQUEST_HEAD.pack(request.API_KEY, version, self._correlation_id)]
        write_nullable_string(parts.append, CLIENT_ID, "client id")
        if version in request.FLEXIBLE:
            parts.append(b"\0")
        encode(request, version, parts)
        # Before it is sent: another thread may receive the response.
        self._pending.append((self._correlation_id, request.RESPONSE, version))
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        try:
            self._socket.sendall(frame_bytes(parts))
        except OSError as error:
            raise self._broken(error) from error

    def wait_readable(self, seconds: float) -> bool:
        """Whether bytes arrive, or the connection ends, within `seconds`."""
        return bool(self._readable.poll(1000 * seconds))

    def receive_size(self) -> tuple[int, int]:
        """Start reading the response to the oldest request. Return its version and its size in
        bytes.

        The caller then reads exactly that many bytes with `receive_into`.
        """
        head = memoryview(bytearray(SIZE_BYTES))
        self.receive_into(head)
        (size,) = _SIZE.unpack(head)
        if not _CORRELATION.size <= size <= FRAME_BYTES_MAX:
            raise RemoteProtocolError(
                f"{self.address} sent a frame size of {size} bytes, expected {_CORRELATION.size} "
                f"to {FRAME_BYTES_MAX}; is it a client listener?"
            )
        return self._pending[0][2], size

    def check_head(self, frame: memoryview) -> int:
        """Check that `frame` starts the oldest response. Return the position of its body."""
        correlation_id, kind, version = self._pending.popleft()
        (found,) = _CORRELATION.unpack_from(frame)
        if found != correlation_id:
            raise RemoteProtocolError(
                f"{self.address} answered request {found}, expected {correlation_id}"
            )
        position = _CORRELATION.size
        if version in kind.FLEXIBLE and kind is not ApiVersionsResponse:
            _, position = read_tags(frame, position, len(frame), "response header")
        return position

    def receive(self) -> Message:
        """Receive the whole response to the oldest request."""
        kind = self._pending[0][1]
        version, size = self.receive_size()
        frame = memoryview(bytearray(size))
        self.receive_into(frame)
        return decode(kind, version, frame, self.check_head(frame))

    def receive_into(self, view: memoryview) -> None:
        """Fill `view`, mostly with one system call."""
        at, size = 0, len(view)
        while at < size:
            try:
                count = self._socket.recv_into(view[at:], size - at, socket.MSG_WAITALL)
            except OSError as error:
                raise self._broken(error) from error
            if count == 0:
                raise Broken(f"{self.address} closed the connection")
            at += count

    def request(self, request: Request[ResponseT], *, version: int | None = None) -> ResponseT:
        """Send a request and wait for its response."""
        assert not self._pending, "a response is still under way"
        self.send(request, version=version)
        return cast(ResponseT, self.receive())

    def abort(self) -> None:
        """End the connection from any thread. A receive in progress fails at once."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        self._socket.close()

    def _negotiate(self) -> None:
        self.send(ApiVersionsRequest(), version=API_VERSIONS_VERSION)
        response = self.receive()
        assert isinstance(response, ApiVersionsResponse)
        if response.error_code:
            raise RemoteProtocolError(
                f"{self.address} refused ApiVersions with code {response.error_code}"
            )
        self._versions.negotiate(response)

    def _broken(self, error: OSError) -> Broken:
        if isinstance(error, BlockingIOError):
            return Broken(f"{self.address} was silent for {self._timeout} s")
        return Broken(f"the connection to {self.address} failed: {error}")
