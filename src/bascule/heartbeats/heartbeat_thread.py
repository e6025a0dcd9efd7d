"""The thread that sends pings, and answers those of other nodes."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Final

import msgspec

from bascule.cluster_identity import ClusterIdentity, ForeignPeer
from bascule.config.addresses import format_address
from bascule.heartbeats.round_trips import RoundTrips
from bascule.heartbeats.silence import PeerSilence, SilenceMeter
from bascule.host.api import Clock

log = logging.getLogger("bascule.heartbeats")

PING_NS: Final = 100_000_000
"""Between two pings of a peer."""
ANSWERED_MAX: Final = 256
"""Connections of other nodes; one more is closed."""
HELLO_BYTES_MAX: Final = 1_024
READ_BYTES: Final = 4_096
LENGTH: Final = Struct(">I")
_PING: Final = Struct(">Q")
_ANSWER: Final = Struct(">QQ")


class HeartbeatHello(msgspec.Struct, frozen=True):
    """Who connects to whom. A MessagePack map, unlike the hello of Raft."""

    cluster: str
    source: int
    target: int
    cluster_id: str = ""
    """Empty if the node does not know it, or has an earlier release."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HeartbeatHello).decode


def encode_hello(hello: HeartbeatHello) -> bytes:
    """The first frame of a connection."""
    body = _encode(hello)
    return LENGTH.pack(len(body)) + body


class _Watched:
    """A connection to a peer that is watched."""

    def __init__(self, peer: int, sock: socket.socket) -> None:
        self.peer = peer
        self.sock = sock
        self.data = b""
        self.is_answered = True
        """Whether the last ping was."""
        self.sent_ns = 0


class _Answered:
    """A connection of a peer that watches this node."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.source = 0
        """Known after its hello."""
        self.data = b""


class HeartbeatThread:
    """Any thread may call its methods. `meter` is the thread's own."""

    def __init__(
        self,
        node_id: int,
        cluster: ClusterIdentity,
        incarnation: int,
        clock: Clock,
        *,
        on_silent: Callable[[int], None],
        on_ended: Callable[[int], None],
    ) -> None:
        """`on_silent` is called with a peer whose process has become silent, `on_ended` when the
        connection to one has ended; both on the thread."""
        self._node_id = node_id
        self._cluster = cluster
        self._incarnation = incarnation
        self._clock = clock
        self._on_silent = on_silent
        self._on_ended = on_ended
        self._meter = SilenceMeter(clock.monotonic_ns())
        self._round_trips = RoundTrips()
        self._watched: dict[int, _Watched] = {}
        self._silent: set[int] = set()
        self._answered: dict[socket.socket, _Answered] = {}
        self._number = 0
        self._ping_at_ns = 0
        self._calls: deque[Callable[[], None]] = deque()
        self._stopping = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def watch(self, peer: int, sock: socket.socket) -> None:
        """Send pings on a connection that is past its hello. The thread owns the socket."""
        self._call(lambda: self._begin_watching(peer, sock))

    def forget(self, peer: int) -> None:
        """Watch the peer no longer."""
        self._call(lambda: self._forget(peer))

    def answer(self, sock: socket.socket) -> None:
        """Answer the pings of a connection, whose hello is unread. The thread owns the socket."""
        self._call(lambda: self._begin_answering(sock))

    def silence_of(self, peer: int) -> PeerSilence | None:
        """See `SilenceMeter.of`."""
        return self._meter.of(peer)

    def longest_ns(self) -> dict[int, int]:
        """See `SilenceMeter.longest_ns`."""
        return self._meter.longest_ns.copy()

    def round_trips_ns(self) -> dict[int, int]:
        """See `RoundTrips.of`."""
        return self._round_trips.of()

    def close(self) -> None:
        """End all connections; return once the thread has ended."""
        self._stopping.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        for sock in (
            *self._answered, *(each.sock for each in self._watched.values()),
            self._woken, self._waker,
        ):  # fmt: skip
            sock.close()
        self._selector.close()

    def _call(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self._wake()

    def _wake(self) -> None:
        try:
            self._waker.send(b"\0")
        except BlockingIOError:
            pass  # it is woken already

    # -- on the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._turn()
            except Exception:  # boundary: a bug ends one turn, not the thread
                log.exception("heartbeats failed")
                self._stopping.wait(PING_NS / 1e9)

    def _turn(self) -> None:
        left_ns = self._ping_at_ns - self._clock.monotonic_ns()
        ready = self._selector.select(max(left_ns, 0) / 1e9 if self._watched else None)
        now_ns = self._clock.monotonic_ns()
        self._meter.on_turn(now_ns)
        for key, _ in ready:
            connection = key.data
            if connection is None:
                self._woken.recv(READ_BYTES)
            elif isinstance(connection, _Watched):
                self._on_answers(connection)
            else:
                self._on_pings(connection)
        while self._calls:
            self._calls.popleft()()
        if now_ns >= self._ping_at_ns:
            self._ping_at_ns = now_ns + PING_NS
            for watched in list(self._watched.values()):
                self._ping(watched)
        self._report_silent()

    def _report_silent(self) -> None:
        for peer in self._watched:
            silence = self._meter.of(peer)
            if silence is None or not silence.is_silent:
                self._silent.discard(peer)
            elif peer not in self._silent:
                self._silent.add(peer)
                self._on_silent(peer)

    def _begin_watching(self, peer: int, sock: socket.socket) -> None:
        before = self._watched.pop(peer, None)
        if before is not None:
            self._end_watching(before)
        sock.setblocking(False)
        watched = self._watched[peer] = _Watched(peer, sock)
        self._selector.register(sock, selectors.EVENT_READ, watched)
        self._ping(watched)

    def _end_watching(self, watched: _Watched) -> None:
        self._selector.unregister(watched.sock)
        watched.sock.close()
        if self._watched.get(watched.peer) is watched:
            del self._watched[watched.peer]
            self._silent.discard(watched.peer)
            self._meter.on_ended(watched.peer)
            self._on_ended(watched.peer)

    def _forget(self, peer: int) -> None:
        watched = self._watched.get(peer)
        if watched is not None:
            self._end_watching(watched)
        self._meter.forget(peer)
        self._round_trips.forget(peer)

    def _ping(self, watched: _Watched) -> None:
        if not watched.is_answered:
            return
        self._number += 1
        watched.sent_ns = self._clock.monotonic_ns()
        try:
            watched.sock.send(_PING.pack(self._number))
        except OSError:
            self._end_watching(watched)
        else:
            watched.is_answered = False

    def _on_answers(self, watched: _Watched) -> None:
        data = _receive(watched.sock)
        if data is None:
            self._end_watching(watched)
            return
        watched.data += data
        while len(watched.data) >= _ANSWER.size:
            _, incarnation = _ANSWER.unpack_from(watched.data)
            watched.data = watched.data[_ANSWER.size :]
            watched.is_answered = True
            now_ns = self._clock.monotonic_ns()
            self._round_trips.on_answer(watched.peer, now_ns - watched.sent_ns)
            self._meter.on_answer(watched.peer, incarnation)

    def _begin_answering(self, sock: socket.socket) -> None:
        if len(self._answered) >= ANSWERED_MAX:
            sock.close()
            return
        sock.setblocking(False)
        answered = self._answered[sock] = _Answered(sock)
        self._selector.register(sock, selectors.EVENT_READ, answered)
        self._on_pings(answered)

    def _end_answering(self, answered: _Answered) -> None:
        if self._answered.pop(answered.sock, None) is not None:
            self._selector.unregister(answered.sock)
            answered.sock.close()

    def _on_pings(self, answered: _Answered) -> None:
        data = _receive(answered.sock)
        if data is None:
            self._end_answering(answered)
            return
        answered.data += data
        if not answered.source and not self._on_hello(answered):
            return
        whole = len(answered.data) - len(answered.data) % _PING.size
        answers = [
            _ANSWER.pack(number, self._incarnation)
            for (number,) in _PING.iter_unpack(answered.data[:whole])
        ]
        answered.data = answered.data[whole:]
        try:
            answered.sock.sendall(b"".join(answers))
        except OSError:
            self._end_answering(answered)

    def _on_hello(self, answered: _Answered) -> bool:
        """Take the hello. Whether it is there, and for this node."""
        data = answered.data
        if len(data) < LENGTH.size:
            return False
        (size,) = LENGTH.unpack_from(data)
        end = LENGTH.size + size
        if size <= HELLO_BYTES_MAX and len(data) < end:
            return False
        try:
            hello = _decode(data[LENGTH.size : end])
        except msgspec.MsgspecError:
            self._end_answering(answered)
            return False
        try:
            self._cluster.check(hello.cluster, hello.cluster_id)
        except ForeignPeer as error:
            peer = _peer_name(answered.sock)
            self._end_answering(answered)
            self._cluster.on_refused(error, node=hello.source, peer=peer)
            return False
        if hello.target != self._node_id:
            self._end_answering(answered)
            return False
        for other in list(self._answered.values()):
            if other.source == hello.source:
                self._end_answering(other)
        answered.source = hello.source
        answered.data = data[end:]
        return True


def _peer_name(sock: socket.socket) -> str:
    try:
        return format_address(*sock.getpeername()[:2])
    except (OSError, TypeError):
        return "?"  # it has gone, or it is no connection of TCP


def _receive(sock: socket.socket) -> bytes | None:
    """What has arrived; None if the connection has ended."""
    try:
        return sock.recv(READ_BYTES) or None
    except BlockingIOError:
        return b""
    except OSError:
        return None
