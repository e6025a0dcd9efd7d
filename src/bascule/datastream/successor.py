"""The connection to one node that a session forwards to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from bascule.datastream.protocol.progress import Reached, TreeProgress
from bascule.datastream.protocol.received import ReceivedPayload
from bascule.datastream.transport.connection import PacketSink, StreamConnection, begin_connect
from bascule.datastream.transport.reactor import Reactor, ReactorTimer
from bascule.errors import Broken, RemoteProtocolError
from bascule.errors.plain import from_plain
from bascule.host.api import File
from bascule.record.payload_links import Payload
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import (
    DataHead,
    decode_ack,
    decode_message,
    encode_data_head,
    encode_message,
)
from bascule.wire.datastream.messages import (
    ClosePayload,
    OpenPayload,
    PayloadFailed,
    PayloadOpened,
    StreamHello,
    check_version,
)

LOOK_SECONDS: Final = 1.0
MEASURED_PART: Final = 0.5
"""Of the time between two looks, in which the socket took no more: then what it took is what the
way, or the node at its end, can take."""
SILENT_LOOKS_MAX: Final = 3
"""A node that says nothing between so many looks, though it should each second, is left out of the
tree. Looks are counted, not time: this node may have stood still in between."""
STALLED_LOOKS_MAX: Final = 30
"""So is one that says that it is there, and has made no progress for so long: its disk hangs."""
STALLED_LOOKS_PER_LEVEL: Final = 5
"""More for each level of the tree below it, so that the node whose disk it is goes first."""


class ForwardedSession(Protocol):
    """What is forwarded; implemented by `session`."""

    received: ReceivedPayload
    progress: TreeProgress
    file: File | None
    sync_asked: int
    closing: Payload | None

    def packet_at(self, position: int) -> DataHead | None: ...
    def prepare_packet(
        self, position: int, length: int, ready: Callable[[DataHead | None, Exception | None], None]
    ) -> None: ...
    def on_forwarded(self, count: int) -> None: ...
    def on_rate(self, node: int, bytes_per_s: int) -> None: ...
    def on_successor(self, successor: Successor, reached: Reached) -> None: ...
    def on_successor_closed(self, successor: Successor, frame: bytearray) -> list[int]: ...


class Successor:
    """Sends what the session has, from the position that the node says on."""

    def __init__(
        self,
        session: ForwardedSession,
        node: int,
        address: tuple[str, int],
        *,
        hello: StreamHello,
        opening: OpenPayload,
        reactor: Reactor,
        on_lost: Callable[[Successor, Exception], None],
    ) -> None:
        """Begin to connect. Raises: OSError."""
        self.node = node
        self.route = opening.route
        """The part of the tree that begins at this node."""
        self.is_closed = False
        """Whether the node, and all below it, have the payload whole."""
        self.nodes: list[int] = []
        """Those, once it is closed."""
        self._session = session
        self._reactor = reactor
        self._on_lost = on_lost
        self._sent = -1
        """The position up to which bytes were sent; -1 before the node has said where to begin."""
        self._window = 0
        self._has_sent_close = False
        self._is_preparing = False
        self._silent_looks = 0
        self._stalled_looks = 0
        self._sync_sent = -1
        self._full_since_ns = -1
        """Since when the socket takes no more; -1: it has taken all."""
        self._full_ns = 0
        """How long it has taken no more since the last look."""
        self._bytes_looked = 0
        self._connection = StreamConnection(reactor, begin_connect(address), self)
        self._connection.start(connecting=True)
        self._connection.send(encode_message(frames.HELLO, hello))
        self._connection.send(encode_message(frames.OPEN, opening))
        self._timer: ReactorTimer = reactor.call_later(LOOK_SECONDS, self._check)

    def forward(self) -> None:
        """Send what the session has and the window allows, one packet at a time."""
        connection = self._connection
        if self._sent < 0 or connection.is_closed or self._is_preparing:
            return
        session = self._session
        while connection.is_drained and not connection.is_closed:
            end = session.received.position
            room = session.progress.of(self.node).written + self._window - self._sent
            if self._sent >= end or room <= 0:
                break
            packet = session.packet_at(self._sent)
            if packet is None:
                self._is_preparing = True
                length = min(end - self._sent, room, frames.PACKET_BYTES)
                session.prepare_packet(self._sent, length, self._send_prepared)
                return
            self._send(packet, session.file)
        self._close_if_all_sent()

    def _send(self, packet: DataHead, file: File | None) -> None:
        assert file is not None
        head = encode_data_head(packet.position, packet.length, packet.crc, packet.flags)
        self._sent = packet.position + packet.length
        if packet.flags & frames.SYNC:
            self._sync_sent = self._sent
        self._connection.send_packet(head, file, packet.position, packet.length)
        if self._full_since_ns < 0 and not self._connection.is_drained:
            self._full_since_ns = self._reactor.now_ns()
        self._session.on_forwarded(packet.length)

    def _send_prepared(self, packet: DataHead | None, error: Exception | None) -> None:
        self._is_preparing = False
        if self._connection.is_closed:
            return
        if packet is None:
            self._connection.close(error)
            return
        self._send(packet, self._session.file)
        self.forward()

    def _close_if_all_sent(self) -> None:
        asked = self._session.sync_asked
        if self._sync_sent < asked <= self._sent:
            self._sync_sent = asked
            self._connection.send(encode_data_head(asked, 0, 0, frames.SYNC))
        payload: Payload | None = self._session.closing
        if payload is not None and not self._has_sent_close and self._sent >= payload.size:
            self._has_sent_close = True
            self._connection.send(
                encode_message(frames.CLOSE, ClosePayload(payload.size, payload.crc))
            )

    def close(self) -> None:
        """The session has ended, or does without this node."""
        self._timer.cancel()
        self._connection.close()

    def _measure(self) -> None:
        """Tell the rate of the last second, if the socket took no more in most of it."""
        now_ns, bytes_out = self._reactor.now_ns(), self._connection.bytes_out
        if self._full_since_ns >= 0:
            self._full_ns += now_ns - self._full_since_ns
            self._full_since_ns = now_ns
        if self._full_ns >= MEASURED_PART * LOOK_SECONDS * 1e9:
            sent = bytes_out - self._bytes_looked
            self._session.on_rate(self.node, sent * 1_000_000_000 // self._full_ns)
        self._full_ns, self._bytes_looked = 0, bytes_out

    def _check(self) -> None:
        """Leave the node out if it has been silent while something was to be done there."""
        self._measure()
        waits = self._sent < 0 or self._has_sent_close or self._is_behind
        self._silent_looks += 1
        self._stalled_looks = self._stalled_looks + 1 if waits else 0
        if waits and self._silent_looks > SILENT_LOOKS_MAX:
            self._connection.close(Broken(f"node {self.node} is silent"))
            return
        if self._stalled_looks > STALLED_LOOKS_MAX + STALLED_LOOKS_PER_LEVEL * len(self.route):
            self._connection.close(Broken(f"node {self.node} makes no progress"))
            return
        self._timer = self._reactor.call_later(LOOK_SECONDS, self._check)

    @property
    def _is_behind(self) -> bool:
        return self._session.progress.of(self.node).written < self._sent

    # -- Handler --------------------------------------------------------------------------------

    def on_frame(self, kind: int, frame: bytearray) -> None:
        """An answer of the node."""
        self._silent_looks = 0
        if kind == frames.ACK:
            reached = Reached(*decode_ack(frame))
            if reached != self._session.progress.of(self.node):
                self._stalled_looks = 0
            self._session.on_successor(self, reached)
        elif kind == frames.OPENED:
            self._stalled_looks = 0
            opened = decode_message(frame, PayloadOpened)
            self._sent, self._window = opened.position, opened.window
            self._session.on_successor(self, Reached(opened.position, 0))
        elif kind == frames.CLOSED:
            self.is_closed = True
            self.nodes = self._session.on_successor_closed(self, frame)
            self.close()
        elif kind == frames.FAILED:
            failed = decode_message(frame, PayloadFailed)
            raise from_plain(failed.name, failed.text, failed.fields)
        elif kind == frames.ELSEWHERE:
            raise Broken(f"node {self.node} has not opened its replica")
        elif kind == frames.HELLO:
            check_version(decode_message(frame, StreamHello))
        else:
            raise RemoteProtocolError(f"a frame of kind {kind:#04x} from node {self.node}")

    def on_packet_begin(self, head: DataHead) -> PacketSink:
        raise RemoteProtocolError(f"a packet at {head.position} from node {self.node}")

    def on_malformed(self, error: RemoteProtocolError) -> None:
        self._connection.close(error)

    def on_drained(self) -> None:
        self._silent_looks = 0
        if self._full_since_ns >= 0:
            self._full_ns += self._reactor.now_ns() - self._full_since_ns
            self._full_since_ns = -1
        self.forward()

    def on_closed(self, error: Exception | None) -> None:
        self._timer.cancel()
        if error is not None and not self.is_closed:
            self._on_lost(self, error)
