"""The socket of a NATS connection: blocking reads by one thread, writes by any thread, TLS."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from collections import deque
from typing import Final

from bascule.errors import Broken
from bascule.host.api import Clock
from bascule.host.credential_files import explain_tls, read_secret
from bascule.wire.nats import ConnectOptions, NatsHandshake, ServerAddress, ServerInfo, Step

_TLS_CHUNK_BYTES: Final = 256 << 10
_RECEIVE_BUFFER_BYTES: Final = 4 << 20
"""Requested size of the kernel's receive buffer: some 20 ms at the speed of a NATS server."""
_SO_RCVBUFFORCE: Final = 33
"""From asm-generic/socket.h; Python's socket module has no name for it."""
BACKLOG_BYTES_MIN: Final = 1 << 20
"""With so much unread in the kernel the server has to buffer messages, and may drop this node as a
slow consumer. A reader that keeps up leaves some 100 KiB unread."""
AWAY_NS_MIN: Final = 1_000_000_000
"""After so long without a read, most likely because of a disk, the same may happen."""
CAUGHT_UP_NS: Final = 1_000_000_000
"""A reader that has waited so long for the server has caught up."""
_IOV_MAX: Final = 512
"""Buffers per sendmsg; the kernel takes 1024."""


class Transport:
    """One connected, accepted NATS connection.

    `receive_into` belongs to one thread. `send` never blocks: what the kernel does not take is
    queued, up to a limit, and sent by a thread of the transport.
    """

    def __init__(
        self,
        sock: socket.socket,
        tls: _TlsLayer | None,
        *,
        clock: Clock,
        outgoing_bytes_max: int,
    ) -> None:
        self._clock = clock
        self._sock = sock
        self._tls = tls
        self._lock = threading.Lock()
        self._queued = threading.Condition(self._lock)
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._outgoing_bytes_max = outgoing_bytes_max
        self._closed = False
        self._writer: threading.Thread | None = None
        self._backlog_bytes = 0
        """Bytes received since the kernel's buffer was last found empty."""
        self._returned_ns = clock.monotonic_ns()
        self._waited_ns = 0
        """Time spent waiting for the server since the reader was last behind."""
        self.backlog_bytes = 0
        """The last backlog of BACKLOG_BYTES_MIN or more, until CAUGHT_UP_NS of waiting; else 0."""
        self.away_ns = 0
        """The last AWAY_NS_MIN or more without a read, until CAUGHT_UP_NS of waiting; else 0."""
        self._reading_ended = False

    def receive_into(self, view: memoryview) -> int:
        """Wait for bytes; 0 at the end of the connection.

        Raises: OSError; BlockingIOError where nothing came for `ping_interval_ms`.
        """
        if self._reading_ended:
            return 0
        try:
            return self._receive_plain(view) if self._tls is None else self._receive_tls(view)
        except BlockingIOError:
            self.backlog_bytes = self.away_ns = 0
            self._returned_ns = self._clock.monotonic_ns()
            raise

    def end_reading(self) -> None:
        """Make `receive_into` return 0 from now on, while the connection stays open for writes."""
        self._reading_ended = True

    def _note_backlog(self, count: int, room: int, began_ns: int) -> None:
        """`count` of at most `room` bytes were received, after waiting since `began_ns`."""
        away_ns, self._returned_ns = began_ns - self._returned_ns, self._clock.monotonic_ns()
        self._waited_ns += self._returned_ns - began_ns
        if self._waited_ns >= CAUGHT_UP_NS:
            self.backlog_bytes = self.away_ns = 0
        if away_ns >= AWAY_NS_MIN:
            self.away_ns, self._waited_ns = away_ns, 0
        self._backlog_bytes += count
        if self._backlog_bytes >= BACKLOG_BYTES_MIN:
            self.backlog_bytes, self._waited_ns = self._backlog_bytes, 0
        if count < room:
            self._backlog_bytes = 0

    def send(self, data: bytes) -> bool:
        """Send or queue; False where the queue is full, and nothing is sent. Raises: OSError."""
        with self._lock:
            if self._closed:
                raise BrokenPipeError("the NATS connection is closed")
            if self._queued_bytes + len(data) > self._outgoing_bytes_max:
                return False
            self._send_in_order(data if self._tls is None else self._tls.encrypt(data))
        return True

    def wait_sent(self, timeout: float) -> bool:
        """Wait until the queue is empty; False after `timeout` seconds."""
        with self._queued:
            return self._queued.wait_for(lambda: not self._queue or self._closed, timeout)

    def close(self) -> None:
        """End the connection; a blocked `receive_into` returns."""
        with self._queued:
            self._closed = True
            self._queue.clear()
            self._queued.notify_all()
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._sock.close()

    def _send_in_order(self, data: bytes) -> None:
        """Send behind what is queued. The lock is held. Raises: OSError."""
        rest = memoryview(data)
        if not self._queue:
            rest = rest[self._send_now(rest) :]
        if rest:
            self._enqueue(rest)

    def _send_now(self, data: memoryview) -> int:
        try:
            return self._sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def _enqueue(self, rest: memoryview) -> None:
        self._queue.append(rest)
        self._queued_bytes += len(rest)
        self._queued.notify_all()
        if self._writer is None:
            self._writer = threading.Thread(
                target=self._write_queued, name="nats-writer", daemon=True
            )
            self._writer.start()

    def _write_queued(self) -> None:
        writable = select.poll()
        writable.register(self._sock.fileno(), select.POLLOUT)
        while True:
            with self._queued:
                self._queued.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
            writable.poll(1000)
            with self._queued:
                try:
                    self._drain_once()
                except OSError:
                    return  # The reading thread gets the same error and reconnects.

    def _drain_once(self) -> None:
        buffers = [self._queue[n] for n in range(min(len(self._queue), _IOV_MAX))]
        if not buffers:
            return
        try:
            sent = self._sock.sendmsg(buffers, (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        self._queued_bytes -= sent
        while sent:
            first = self._queue[0]
            if sent < len(first):
                self._queue[0] = first[sent:]
                break
            sent -= len(self._queue.popleft())
        if not self._queue:
            self._queued.notify_all()

    def _receive_plain(self, view: memoryview) -> int:
        began = self._clock.monotonic_ns()
        count = self._sock.recv_into(view)
        self._note_backlog(count, len(view), began)
        return count

    def _receive_tls(self, view: memoryview) -> int:
        assert self._tls is not None
        while True:
            with self._lock:
                read, answer = self._tls.decrypt_into(view)
                if answer:
                    # TLS numbers its records: none may overtake another one, or cut it in two.
                    self._send_in_order(answer)
            if read is not None:
                return read
            began = self._clock.monotonic_ns()
            data = self._sock.recv(_TLS_CHUNK_BYTES)
            self._note_backlog(len(data), _TLS_CHUNK_BYTES, began)
            with self._lock:
                self._tls.feed(data)


class _TlsLayer:
    """TLS over memory buffers, so that a blocked read holds no lock that a write needs."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def handshake(self, sock: socket.socket) -> None:
        while True:
            try:
                self._object.do_handshake()
                sock.sendall(self._outgoing.read())
                return
            except ssl.SSLWantReadError:
                sock.sendall(self._outgoing.read())
                self.feed(sock.recv(_TLS_CHUNK_BYTES))

    def feed(self, data: bytes) -> None:
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def encrypt(self, data: bytes) -> bytes:
        self._object.write(data)
        return self._outgoing.read()

    def decrypt_into(self, view: memoryview) -> tuple[int | None, bytes]:
        """(Bytes read, or None where more must be received first; bytes that must be sent)."""
        try:
            # SSLObject.read takes the buffer second; typeshed knows bytearray only.
            read = self._object.read(len(view), view)
            return int(read), self._outgoing.read()
        except ssl.SSLWantReadError:
            return None, self._outgoing.read()
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return 0, b""


def connect(
    address: ServerAddress,
    options: ConnectOptions,
    *,
    tls_context: ssl.SSLContext | None,
    version: str,
    clock: Clock,
    timeout: float,
    outgoing_bytes_max: int,
) -> tuple[Transport, ServerInfo, bytes]:
    """Connect, upgrade to TLS where configured, authenticate, wait for the first PONG.

    Returns the transport, the server's INFO, and the bytes received after the PONG.

    Raises: OSError (network), NatsRefused (credentials, limits), ConfigError (files with
    credentials), RemoteProtocolError, Broken.
    """
    handshake = NatsHandshake(
        options, address, version=version, read=read_secret, now_s=lambda: clock.now_ms() // 1000
    )
    sock = _connected_socket(address, timeout)
    try:
        transport = _perform_handshake(
            sock, handshake, address, tls_context, clock, outgoing_bytes_max
        )
        sock.settimeout(None)
        # The kernel's own time-out costs no call per receive, as Python's would.
        seconds, milliseconds = divmod(options.ping_interval_ms, 1000)
        timeval = struct.pack("ll", seconds, milliseconds * 1000)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
    except ssl.SSLError as error:
        sock.close()
        raise Broken(explain_tls(error)) from error
    except BaseException:
        sock.close()
        raise
    assert handshake.info is not None
    return transport, handshake.info, handshake.trailing_bytes


def _perform_handshake(
    sock: socket.socket,
    handshake: NatsHandshake,
    address: ServerAddress,
    tls_context: ssl.SSLContext | None,
    clock: Clock,
    outgoing_bytes_max: int,
) -> Transport:
    """Perform the handshake; return the transport."""
    chunk = memoryview(bytearray(_TLS_CHUNK_BYTES))
    transport = Transport(sock, None, clock=clock, outgoing_bytes_max=outgoing_bytes_max)
    step, data = Step.NEED_DATA, b""
    while step is not Step.READY:
        step = handshake.receive(data)
        if step is Step.START_TLS:
            context = tls_context or ssl.create_default_context()
            tls = _TlsLayer(context, address.tls_name or address.host)
            tls.handshake(sock)
            transport = Transport(sock, tls, clock=clock, outgoing_bytes_max=outgoing_bytes_max)
            handshake.tls_started()
            data = b""
        outgoing = handshake.to_send()
        if outgoing:
            try:
                transport.send(outgoing)
            except OSError:
                # The server has closed; its last -ERR may still be readable.
                pass
        if step is Step.NEED_DATA:
            count = transport.receive_into(chunk)
            if count == 0:
                raise Broken(f"{address} closed the connection during the handshake")
            data = bytes(chunk[:count])
    return transport


def _connected_socket(address: ServerAddress, timeout: float) -> socket.socket:
    """A socket connected to the first address of the host that answers. Raises: OSError."""
    refused: OSError | None = None
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, target in found:
        sock = socket.socket(family, kind, protocol)
        try:
            # The window is negotiated by connect, so the buffer must be set before.
            _set_socket_options(sock)
            sock.settimeout(timeout)
            sock.connect(target)
        except OSError as error:
            sock.close()
            refused = error
        else:
            return sock
    raise refused or OSError(f"{address.host} has no address")


def _set_socket_options(sock: socket.socket) -> None:
    """No Nagle, a large receive buffer, and a dead peer is noticed in about 20 s."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _enlarge_receive_buffer(sock)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2)):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000)


def _enlarge_receive_buffer(sock: socket.socket) -> None:
    """Let the server go on sending while a chunk is processed.

    By default the kernel's window stays near 64 KiB on fast networks: it grows by what is read in a
    round trip, and a round trip is short there. A buffer whose size is set no longer grows, so the
    size is set only where the kernel grants it: with privilege, or within net.core.rmem_max.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
    except OSError:
        # Another socket shows which size the kernel grants.
        with socket.socket(sock.family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            given = trial.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        if given >= _RECEIVE_BUFFER_BYTES // 2:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
