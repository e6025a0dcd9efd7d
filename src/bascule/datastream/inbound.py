"""A connection that a client or another node has opened."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Final, Protocol

import msgspec
from crc32c import crc32c

from bascule.datastream.disk.whole_reads import WholeReads
from bascule.datastream.left_sessions import LeftSessions
from bascule.datastream.limits import DataStreamCounts
from bascule.datastream.ports import PayloadPlace
from bascule.datastream.protocol.progress import NOTHING, Reached
from bascule.datastream.protocol.routes import PlannedRoute
from bascule.datastream.session import Session
from bascule.datastream.transport.connection import StreamConnection
from bascule.datastream.transport.reactor import Reactor, ReactorTimer
from bascule.datastream.transport.sending import KEEPALIVE_SECONDS, PayloadSender
from bascule.errors import BasculeError, Broken, PayloadMissing, RemoteProtocolError
from bascule.errors.plain import to_plain
from bascule.record.payload_links import Payload
from bascule.storage.payloads.block_steps import WaitingSteps
from bascule.storage.payloads.verified_file import VerifiedFile
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import (
    DataHead,
    decode_ack,
    decode_message,
    encode_ack,
    encode_message,
)
from bascule.wire.datastream.messages import (
    ClosePayload,
    FetchPayload,
    OpenPayload,
    PayloadClosed,
    PayloadFailed,
    PayloadFetched,
    PayloadOpened,
    ReplicaAddress,
    ReplicasElsewhere,
    StreamHello,
)

log = logging.getLogger(__name__)

HELLO_SECONDS_MAX: Final = 10.0
IDLE_SECONDS_MAX: Final = 600.0
HEADER_OVERHEAD_BYTES: Final = 160
"""What each header of a message counts for beside its bytes: measured 115 to 150, for headers of a
few bytes."""
LEFT_MAX: Final = 8
"""Payloads that a connection may leave unfinished for others. Bascule's clients leave none."""


OnSession = Callable[[Session | None, Exception | None], None]


class PayloadReceiver(Protocol):
    """Plans the way of a payload, takes it and links it; implemented by `service`."""

    @property
    def counts(self) -> DataStreamCounts: ...
    def plan(
        self, place: PayloadPlace, opening: OpenPayload, *, is_node: bool
    ) -> PlannedRoute | ReplicaAddress: ...
    def prepare_session(
        self,
        place: PayloadPlace,
        opening: OpenPayload,
        ready: OnSession,
        *,
        is_wanted: Callable[[], bool],
        request_bytes: int = 0,
        is_node: bool = False,
    ) -> None: ...
    def link(
        self, place: PayloadPlace, opening: OpenPayload, payload: Payload, nodes: list[int]
    ) -> Future[dict[str, Any]]: ...


class InboundOwner(PayloadReceiver, Protocol):
    """What a connection needs of the node's data streaming; implemented by `service`, which has
    the documentation."""

    @property
    def node_id(self) -> int: ...
    @property
    def pool(self) -> Executor: ...
    @property
    def whole_reads(self) -> WholeReads: ...
    @property
    def window(self) -> int: ...
    def hello(self, node: int) -> StreamHello: ...
    def check_hello(self, hello: StreamHello) -> StreamHello: ...
    def place(self, opening: OpenPayload, *, is_node: bool) -> PayloadPlace: ...
    def place_of(self, fetch: FetchPayload, *, is_node: bool) -> PayloadPlace: ...
    def confirm_leads(self, place: PayloadPlace) -> Future[int]: ...
    def find(
        self, place: PayloadPlace, fetch: FetchPayload, *, is_node: bool
    ) -> WaitingSteps[VerifiedFile]: ...
    def on_damage(
        self, place: PayloadPlace, id: str, error: Exception, offset: int = -1
    ) -> None: ...
    def catch_up_wait(self, place: PayloadPlace, node: int, count: int) -> float: ...
    def on_connection_closed(
        self, connection: InboundConnection, error: Exception | None
    ) -> None: ...
    def hold_request(self, connection: InboundConnection, count: int) -> None: ...
    def on_moved(self, connection: InboundConnection, count: int) -> None: ...
    def on_refused(self, connection: InboundConnection, error: Exception) -> None: ...


class InboundConnection:
    """Answers one payload after the other. Belongs to the thread of the reactor."""

    def __init__(
        self, service: InboundOwner, reactor: Reactor, sock: socket.socket, peer: str
    ) -> None:
        self.peer = peer
        self._service = service
        self._reactor = reactor
        self._connection = StreamConnection(
            reactor, sock, self, awaits_hello=True, on_large_frame=self._on_large_frame
        )
        self._hello: StreamHello | None = None
        self._session: Session | None = None
        self._sink: _Sink | None = None
        self._sender: PayloadSender | None = None
        self._bytes_out = 0
        """What the connection had sent when that was last counted."""
        self._fetches = 0
        self._is_linking = False
        self._timer = reactor.call_later(HELLO_SECONDS_MAX, self._expire)
        self._used = False
        self._keepalive: ReactorTimer | None = None
        self._left = LeftSessions(service.counts)
        self._is_opening = False
        self._reached = NOTHING
        self._has_acknowledged = False
        self._owes_ack = False
        """Whether `_reached` is to be sent once there is room: a client that reads nothing costs no
        memory for each of its packets."""

    def start(self) -> None:
        """Begin to read."""
        self._connection.start()

    def close(self) -> None:
        """End it now."""
        self._connection.close()

    @property
    def may_yield(self) -> bool:
        """Whether only the other side can bring it forward."""
        if self._is_opening or self._is_linking:
            return False
        return self._session is None or self._session.waits_for_sender

    def give_way(self) -> None:
        """Another connection takes its place, at once. What was received stays in its file."""
        self._fail(Broken("the node has too many connections, and this one moved too little"))
        self.close()

    def _expire(self) -> None:
        """ClosePayload a connection that has done nothing for long."""
        if self._connection.is_closed:
            return
        if not self._used and not self._is_linking:
            self._fail(Broken("the connection has been idle for too long"))
            return
        self._used = False
        self._timer = self._reactor.call_later(IDLE_SECONDS_MAX, self._expire)

    def _keep_alive(self) -> None:
        """Acknowledge again, if nothing else has been said."""
        self._keepalive = None
        if self._connection.is_closed or not (
            self._is_opening or self._session or self._is_linking
        ):
            return
        if not self._has_acknowledged and self._connection.is_drained:
            reached = self._reached if self._session is not None else NOTHING
            self._connection.send(encode_ack(*reached))
        self._has_acknowledged = False
        self._keepalive = self._reactor.call_later(KEEPALIVE_SECONDS, self._keep_alive)

    @property
    def _is_node(self) -> bool:
        return self._hello is not None and self._hello.node > 0

    # -- Handler --------------------------------------------------------------------------------

    def _on_large_frame(self, size: int) -> None:
        """A part of a request: memory is kept for all of it."""
        try:
            self._service.hold_request(self, size)
        except BasculeError as error:
            self._fail(error)

    def on_frame(self, kind: int, frame: bytearray) -> None:
        """A request. Whatever is wrong with it is answered, and ends this connection."""
        self._used = True
        try:
            self._service.hold_request(self, 0)
            self._answer(kind, frame)
        except (BasculeError, OSError) as error:
            self._fail(error)

    def _answer(self, kind: int, frame: bytearray) -> None:
        if self._hello is None:  # the first frame is HELLO
            self._hello = self._service.check_hello(decode_message(frame, StreamHello))
            self._say_hello()
        elif kind == frames.OPEN:
            self._open(decode_message(frame, OpenPayload), len(frame))
        elif kind == frames.CLOSE and self._session is not None:
            close = decode_message(frame, ClosePayload)
            self._session.on_close(close.size, close.crc)
        elif kind == frames.FETCH:
            self._fetch(decode_message(frame, FetchPayload))
        elif kind == frames.ACK:
            decode_ack(frame)  # of a reader: what it has; the socket throttles it
        else:
            raise RemoteProtocolError(f"an unexpected frame of kind {kind:#04x}")

    def _say_hello(self) -> None:
        """Also while packets have to wait: whoever hears it knows that this node is there."""
        self._connection.send(encode_message(frames.HELLO, self._service.hello(0)))

    def on_packet_begin(self, head: DataHead) -> _Sink | None:
        """Bytes of the payload at hand."""
        self._used = True
        session = self._session
        try:
            if session is None or session.has_ended or session.closing is not None:
                raise RemoteProtocolError(f"a packet at {head.position} without an open payload")
            if self._sink is None:
                self._sink = _Sink(session, self._fail)
            self._sink.begin(head)
        except (BasculeError, OSError) as error:
            self._fail(error)
            return None
        return self._sink

    def on_malformed(self, error: RemoteProtocolError) -> None:
        self._fail(error)

    def on_drained(self) -> None:
        self._send_ack()
        if self._sender is not None:
            self._service.on_moved(self, self._connection.bytes_out - self._bytes_out)
            self._bytes_out = self._connection.bytes_out
            self._sender.on_drained()

    def on_closed(self, error: Exception | None) -> None:
        self._timer.cancel()
        if self._keepalive is not None:
            self._keepalive.cancel()
        if self._sender is not None:
            self._sender.close()
        if self._session is not None and not self._is_linking:
            self._session.detach(self)
        self._service.on_connection_closed(self, error)

    # -- receiving ------------------------------------------------------------------------------

    def _open(self, opening: OpenPayload, frame_bytes: int) -> None:
        if self._session is not None:
            self._leave(self._session)
        place = self._service.place(opening, is_node=self._is_node)
        if place.store is None:
            elsewhere = ReplicasElsewhere(place.partition, list(place.replicas))
            self._connection.send(encode_message(frames.ELSEWHERE, elsewhere))
            return
        planned = self._service.plan(place, opening, is_node=self._is_node)
        if isinstance(planned, ReplicaAddress):
            begins = ReplicasElsewhere(place.partition, [planned])
            self._connection.send(encode_message(frames.ELSEWHERE, begins))
            return
        self._connection.pause()  # until the file of an earlier part has been read
        self._is_opening, self._reached = True, NOTHING
        if self._keepalive is None:
            self._keepalive = self._reactor.call_later(KEEPALIVE_SECONDS, self._keep_alive)

        def ready(session: Session | None, error: Exception | None) -> None:
            self._is_opening = False
            if self._connection.is_closed:
                return
            self._connection.resume()
            try:
                if session is None:
                    assert error is not None
                    raise error
                self._begin(session, place, opening, planned)
            except (BasculeError, OSError) as caught:
                self._fail(caught)

        entries = len(opening.headers) + len(opening.route)
        request_bytes = frame_bytes + HEADER_OVERHEAD_BYTES * entries
        self._service.prepare_session(
            place, opening, ready,
            is_wanted=lambda: not self._connection.is_closed,
            request_bytes=request_bytes, is_node=self._is_node,
        )  # fmt: skip

    def _leave(self, session: Session) -> None:
        """Another one is opened without the end of this one. The oldest of many is removed."""
        session.detach(self)
        self._session = self._sink = None
        self._left.add(session, count_max=LEFT_MAX)

    def _begin(
        self, session: Session, place: PayloadPlace, opening: OpenPayload, planned: PlannedRoute
    ) -> None:
        """Receive a payload from now on. Raises: Broken, DiskFull, OSError."""
        self._session = session
        session.attach(self, place, opening, planned.route)
        opened = PayloadOpened(
            position=session.received.position,
            crc=session.received.crc,
            window=self._service.window,
            partition=place.partition,
            route=[(node, list(successors)) for node, successors in planned.route],
            why=planned.why,
            replicas=list(place.replicas),
            is_whole=session.is_whole,
        )
        self._connection.send(encode_message(frames.OPENED, opened))
        session.report()

    def acknowledge(self, reached: Reached) -> None:
        """Of the session: the tree has what is below."""
        self._used = self._has_acknowledged = True
        if reached.written > self._reached.written:
            self._service.on_moved(self, reached.written - self._reached.written)
        self._reached = reached
        self._owes_ack = True
        if self._connection.is_drained:
            self._send_ack()

    def _send_ack(self) -> None:
        if self._owes_ack:
            self._owes_ack = False
            self._connection.send(encode_ack(*self._reached))

    def set_paused(self, paused: bool) -> None:
        """Of the session: the sender is, or is not any more, too far ahead of the tree."""
        if paused:
            self._connection.pause()
        else:
            self._connection.resume()

    def closed(self, nodes: list[int]) -> None:
        """Of the session: `nodes` have the payload whole."""
        session = self._session
        assert session is not None
        assert session.closing is not None
        if self._is_node:
            self._send_closed(PayloadClosed(nodes=nodes))
            session.end()
            return
        try:
            linking = self._service.link(session.place, session.opening, session.closing, nodes)
        except BasculeError as error:  # as of a stream that is deleted
            self._session = self._sink = None
            session.end()
            self._fail(error)
            return
        self._is_linking = True
        linking.add_done_callback(
            lambda done: self._reactor.call(lambda: self._on_linked(session, done, nodes))
        )

    def _on_linked(
        self, session: Session, linking: Future[dict[str, Any]], nodes: list[int]
    ) -> None:
        self._is_linking = False
        if self._session is session:
            self._session = self._sink = None
        session.end()
        try:
            ack = linking.result()
        except Exception as error:  # boundary: what the leader says goes to the client
            self._fail(error)
            return
        self._send_closed(PayloadClosed(ack, nodes))

    def _send_closed(self, closed: PayloadClosed) -> None:
        if self._session is not None and self._session.has_ended:
            self._session = None
        self._send_ack()
        self._connection.send(encode_message(frames.CLOSED, closed))
        self._session = self._sink = None

    def failed(self, error: Exception) -> None:
        """Of the session: it has ended."""
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Say why, and close."""
        if isinstance(error, BasculeError):
            failed = PayloadFailed(*to_plain(error))
        else:
            text = str(error) if isinstance(error, OSError) else f"internal error: {error!r}"
            failed = PayloadFailed("Broken", text)
        try:
            frame = encode_message(frames.FAILED, failed)
        except (TypeError, msgspec.MsgspecError):  # a field that MessagePack does not have
            frame = encode_message(frames.FAILED, PayloadFailed(failed.name, failed.text))
        session, self._session, self._sink = self._session, None, None
        self._service.on_refused(self, error)
        if session is not None:
            session.detach(self)
        self._connection.send(frame)
        self._connection.close_when_sent()

    # -- sending --------------------------------------------------------------------------------

    def _fetch(self, fetch: FetchPayload) -> None:
        place: PayloadPlace = self._service.place_of(fetch, is_node=self._is_node)
        if place.store is None:
            elsewhere = ReplicasElsewhere(place.partition, list(place.replicas))
            self._connection.send(encode_message(frames.ELSEWHERE, elsewhere))
            return
        if self._sender is not None:
            self._sender.close()
            self._sender = None
        self._fetches += 1
        self._find(place, fetch, self._fetches)

    def _find(self, place: PayloadPlace, fetch: FetchPayload, number: int) -> None:
        may_ask = not place.is_confirmed and place.leader == self._service.node_id

        def is_wanted() -> bool:
            return not self._connection.is_closed and number == self._fetches

        def begin(source: VerifiedFile | None, error: Exception | None) -> None:
            if not is_wanted():
                return
            if source is not None:
                self._send_payload(place, fetch, source)
            elif isinstance(error, PayloadMissing) and may_ask:
                asked = self._service.confirm_leads(place)
                asked.add_done_callback(lambda _: self._reactor.call(lambda: again(asked, error)))
            else:
                assert error is not None
                self._fail(error)

        def again(asked: Future[int], missing: PayloadMissing) -> None:
            if not is_wanted():
                return
            if asked.exception() is None:
                self._find(place.confirmed(asked.result()), fetch, number)
            else:
                self._fail(missing)

        found = self._service.find(place, fetch, is_node=self._is_node)
        self._service.whole_reads.run(
            found,
            lambda source, error: self._reactor.call(lambda: begin(source, error)),
            is_wanted=is_wanted,
        )

    def _send_payload(self, place: PayloadPlace, fetch: FetchPayload, source: VerifiedFile) -> None:
        payload = source.payload
        end = payload.size if fetch.end < 0 else min(fetch.end, payload.size)
        start = min(fetch.start, end)
        self._service.counts.bytes_read += end - start
        fetched = PayloadFetched(
            payload.id, payload.size, payload.crc, start, end, source.is_compared
        )
        self._connection.send(encode_message(frames.FETCHED, fetched))

        def fail(error: Exception) -> None:
            self._service.on_damage(place, payload.id, error, fetch.offset)
            self._fail(error)

        hello = self._hello
        assert hello is not None

        def wait_seconds(count: int) -> float:
            return self._service.catch_up_wait(place, hello.node, count) if hello.node else 0.0

        self._sender = PayloadSender(
            self._connection, self._reactor, self._service.pool, source, start, end,
            on_sent=lambda: self._on_all_sent(payload), on_failed=fail,
            wait_seconds=wait_seconds, keep_alive=self._say_hello,
        )  # fmt: skip
        self._sender.on_drained()

    def _on_all_sent(self, payload: Payload) -> None:
        self._sender = None
        self._connection.send(encode_message(frames.CLOSE, ClosePayload(payload.size, payload.crc)))


class _Sink:
    """Writes the bytes of a packet, but those that are here already."""

    def __init__(self, session: Session, fail: Callable[[Exception], None]) -> None:
        self._session = session
        self._fail = fail
        self._head = DataHead(0, 0, 0, 0)
        self._skip = 0
        self._position = 0
        self._new_crc = 0

    def begin(self, head: DataHead) -> None:
        """Raises: PayloadGap, PayloadDamaged."""
        self._skip = self._session.skip(head)
        self._head, self._position, self._new_crc = head, head.position, 0
        self._is_partial = self._skip > 0

    def write(self, piece: memoryview) -> None:
        skipped = min(self._skip, len(piece))
        self._skip -= skipped
        self._position += skipped
        if skipped == len(piece):
            return
        new = piece[skipped:]
        try:
            self._session.write(self._position, new)
        except OSError as error:
            self._session.fail(error)
            return
        except BasculeError as error:
            self._fail(error)
            return
        self._position += len(new)
        if self._is_partial:
            self._new_crc = crc32c(new, self._new_crc)

    def end(self, crc: int) -> None:
        new_crc = self._new_crc if self._is_partial else crc
        try:
            self._session.on_packet(self._head, crc=crc, new_crc=new_crc)
        except BasculeError as error:
            self._fail(error)
