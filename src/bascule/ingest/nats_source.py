"""The NATS connection of a node: its reading thread, reconnects and lame duck mode."""

from __future__ import annotations

import logging
import ssl
import threading
from array import array
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

from bascule.errors import BasculeError, Broken, Closed, RemoteProtocolError
from bascule.host.api import Clock, Random
from bascule.ingest.chunk_reader import BatchSink, ChunkReader
from bascule.ingest.nats_dialer import Connection, Dialer
from bascule.ingest.nats_health import NatsHealth, SourceCounts
from bascule.ingest.nats_transport import Transport
from bascule.ingest.sequencer import Sequencer
from bascule.ingest.subscriptions import PING, Subscription, Subscriptions, fail_refused
from bascule.wire.nats import (
    ConnectOptions,
    ErrorKind,
    ServerAddress,
    ServerError,
    ServerInfo,
    decode_info,
)

log = logging.getLogger("bascule.ingest")

BODY_BYTES_MAX: Final = 64 << 20
"""The largest max_payload of NATS; it includes the headers of a message."""
ACKS_SENT_SECONDS_MAX: Final = 2.0
"""How long closing a connection waits for queued acks."""
IDLE_PINGS_MAX: Final = 2
"""Unanswered PINGs after which the connection is closed."""


class NatsSource:
    """Owns the connection and its reading thread. Any thread may call the public methods."""

    def __init__(
        self,
        servers: Sequence[ServerAddress],
        options: ConnectOptions,
        *,
        sink: BatchSink,
        sequencer: Sequencer,
        clock: Clock,
        random: Random,
        version: str,
        tls_context: ssl.SSLContext | None = None,
        discover: bool = True,
        outgoing_bytes_max: int = 64 << 20,
    ) -> None:
        self.counts = SourceCounts()
        self._health = NatsHealth(self.counts, clock)
        self._dialer = Dialer(
            servers,
            options,
            health=self._health,
            clock=clock,
            random=random,
            version=version,
            tls_context=tls_context,
            discover=discover,
            outgoing_bytes_max=outgoing_bytes_max,
        )
        self._sink = sink
        self._sequencer = sequencer
        self._lock = threading.Lock()
        self._transport: Transport | None = None
        self._subscriptions = Subscriptions()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._next_connection: Connection | None = None
        """A connection to another server, used once this one has delivered everything."""
        self._lame_duck_thread: threading.Thread | None = None
        self._idle_pings = 0
        self._clock = clock
        self._unsubscribed_since_ns: int | None = None
        """Since when nobody is subscribed; None while the subscriptions stand."""
        self._subscribed_since_ns = clock.monotonic_ns()
        """Since when they stand, or stood before that."""
        self._publish_refusals: dict[str, str] = {}
        """Subject of a subscription of the node itself -> why it may not publish there."""
        self.address: ServerAddress | None = None

    @property
    def connected(self) -> bool:
        return self._transport is not None

    def standing_ns(self) -> tuple[int | None, int]:
        """Since when nobody is subscribed, None while the subscriptions stand; and since when they
        stand or stood before. Times of the monotonic clock."""
        return self._unsubscribed_since_ns, self._subscribed_since_ns

    def refusals(self) -> dict[str, str]:
        """Stream -> why the server refused its subscription."""
        with self._lock:
            return self._subscriptions.refusals()

    def streams(self) -> list[str]:
        """The streams with a subscription."""
        with self._lock:
            return self._subscriptions.streams()

    def start(self) -> None:
        """Connect to the first server that accepts and begin to read.

        Raises: NatsRefused, Broken, ConfigError (credentials that cannot be read).
        """
        connection = self._dialer.connect_first()
        self._adopt(connection)
        self._thread = threading.Thread(
            target=self._run, args=(connection.rest,), name="nats-reader", daemon=True
        )
        self._thread.start()

    def reserve_sid(self) -> int:
        """A subscription id for `subscribe`, so that its route can be set first."""
        with self._lock:
            return self._subscriptions.reserve_sid()

    def release_sid(self, sid: int) -> None:
        """Allow the reuse of an id, once the future of `unsubscribe` is done."""
        with self._lock:
            self._subscriptions.release_sid(sid)

    def refusals_of_own(self, sid: int) -> tuple[str | None, str | None]:
        """Why the node may not subscribe to, and not publish on, the subject of a subscription
        without stream, as far as this connection has shown."""
        with self._lock:
            found = self._subscriptions.get(sid)
            if found is None:
                return None, None
            return found.refusal, self._publish_refusals.get(found.subject)

    def subscribe(
        self, sid: int, subject: str, *, group: str | None, stream: str | None
    ) -> Future[None]:
        """Subscribe for `stream`; the future is done once the server has the subscription.

        Without `stream` it is the node's own: its refusal is only told by `refusals_of_own`.

        The future fails with NatsRefused where the server does not permit it. The subscription is
        kept; `retry_refused` and every new connection send it again.
        """
        with self._lock:
            operation = self._subscriptions.add(sid, Subscription(subject, group, stream))
            return self._send_and_confirm(operation, sid)

    def unsubscribe(self, sid: int) -> Future[None]:
        """End a subscription; nothing more is delivered for it once the future is done."""
        with self._lock:
            return self._send_and_confirm(self._subscriptions.remove(sid))

    def retry_own(self, sid: int) -> None:
        """Send a subscription without stream again if it was refused, and allow publishing."""
        with self._lock:
            found = self._subscriptions.get(sid)
            if found is None or self._transport is None:
                return
            self._publish_refusals.pop(found.subject, None)
            if found.refusal is not None:
                self._send_and_confirm(self._subscriptions.add(sid, found), sid)

    def retry_refused(self) -> None:
        """Send the refused subscriptions of streams again."""
        with self._lock:
            for sid in self._subscriptions.refused_sids():
                found = self._subscriptions.get(sid)
                if found is not None and self._transport is not None:
                    self._send_and_confirm(self._subscriptions.add(sid, found), sid)

    def drain(self) -> Future[None]:
        """End all subscriptions; once the future is done, everything delivered is submitted."""
        with self._lock:
            return self._send_and_confirm(self._subscriptions.clear())

    def flush(self) -> Future[None]:
        """A future that is done once the server has received everything sent so far."""
        with self._lock:
            return self._send_and_confirm(b"")

    def publish(self, operations: bytes) -> None:
        """Send PUB operations (acks). Acks that cannot be sent are dropped, counted and logged: a
        publisher without an ack publishes again."""
        transport = self._transport
        try:
            if transport is not None and transport.send(operations):
                self.counts.acks_bytes_sent += len(operations)
                return
        except OSError:
            pass
        self._health.on_acks_dropped(len(operations), connected=transport is not None)

    def publish_own(self, operations: bytes) -> bool:
        """Send PUB operations of the node itself. False without a connection: they are dropped."""
        with self._lock:
            transport = self._transport
            if transport is not None:
                self._send_or_close(transport, operations)
            return transport is not None

    def close(self) -> None:
        """Send what is queued, within a time limit, then end the connection and the threads."""
        self._stopping.set()
        transport = self._transport
        if transport is not None:
            transport.wait_sent(ACKS_SENT_SECONDS_MAX)
            transport.close()
        for thread in (self._lame_duck_thread, self._thread):
            if thread is not None:
                thread.join()
        if self._next_connection is not None:
            self._next_connection.transport.close()
        with self._lock:
            self._subscriptions.fail_all(Closed("the NATS connection was closed"))

    # Connecting

    def _send_and_confirm(self, operations: bytes, sid: int | None = None) -> Future[None]:
        """Send `operations` and a PING; its PONG completes the future. The lock is held."""
        confirmed: Future[None] = Future()
        # A caller that stops waiting must not cancel what the reading thread completes.
        confirmed.set_running_or_notify_cancel()
        transport = self._transport
        if transport is None:
            # The next connection subscribes to everything and confirms it.
            self._subscriptions.confirm_on_next_connection(confirmed, sid)
            return confirmed
        self._subscriptions.await_pong(confirmed, sid)
        self._send_or_close(transport, operations + PING)
        return confirmed

    def _send_or_close(self, transport: Transport, operations: bytes) -> None:
        """Send, or close the connection: the next one makes all subscriptions again."""
        try:
            if not transport.send(operations):
                raise BrokenPipeError("the NATS server takes no data")
        except OSError:
            transport.close()

    def _adopt(self, connection: Connection) -> None:
        """Use `connection` from now on, and make all subscriptions on it."""
        info = connection.info
        self._idle_pings = 0
        with self._lock:
            self.address = connection.address
            self._transport = connection.transport
            self.counts.connects += 1
            self._publish_refusals.clear()
            self._send_or_close(connection.transport, self._subscriptions.resubscribe_all())
            self._send_and_confirm(b"").add_done_callback(self._on_subscribed)
        self._on_info(info)
        log.info(
            "nats connected",
            extra={
                "server": str(connection.address),
                "version": info.version,
                "server_name": info.server_name,
                "cluster": info.cluster,
                "servers": len(self._dialer),
                "max_payload": info.max_payload,
            },
        )

    def _run(self, rest: bytes) -> None:
        """The reading thread: read until the connection ends, reconnect, until closed."""
        while True:
            reason, by_server = self._read_until_end(rest)
            with self._lock:
                if self._unsubscribed_since_ns is None:
                    self._unsubscribed_since_ns = self._clock.monotonic_ns()
                ended, connection = self._transport, self._next_connection
                self._next_connection = None
                # Unconfirmed operations may be lost: the next connection confirms them.
                self._subscriptions.on_disconnected()
                if connection is None or self._stopping.is_set():
                    self._transport = None
            assert ended is not None
            if self._stopping.is_set():
                ended.close()
                if connection is not None:
                    connection.transport.close()
                return
            if connection is None:
                ended.close()
                self._on_disconnected(ended, reason, by_server=by_server)
                connection = self._dialer.reconnect(self.address, self._stopping)
                if connection is None:
                    return
                self._adopt(connection)
            else:
                self._adopt(connection)
                self.counts.moves += 1
                # Queued acks are still sent on the old connection.
                ended.wait_sent(ACKS_SENT_SECONDS_MAX)
                ended.close()
            if self._stopping.is_set():
                # `close` may have looked for a connection before this one was adopted.
                connection.transport.close()
            rest = connection.rest

    def _on_subscribed(self, confirmed: Future[None]) -> None:
        """The server has confirmed the subscriptions of a new connection, unless it was lost."""
        since_ns = self._unsubscribed_since_ns
        if since_ns is None or confirmed.exception() is not None:
            return
        now_ns = self._subscribed_since_ns = self._clock.monotonic_ns()
        self._unsubscribed_since_ns = None
        gap_ns = now_ns - since_ns
        self._health.on_subscribed_again(str(self.address), self.streams(), gap_ns=gap_ns)

    def _on_disconnected(self, transport: Transport, reason: str, *, by_server: bool) -> None:
        server = str(self.address)
        self._health.on_disconnected(server, reason)
        is_behind = by_server and (transport.backlog_bytes or transport.away_ns)
        if is_behind or "slow consumer" in reason.lower():
            self._health.on_slow_consumer(
                server,
                self.streams(),
                backlog_bytes=transport.backlog_bytes,
                away_ms=transport.away_ns // 1_000_000,
            )

    def _read_until_end(self, rest: bytes) -> tuple[str, bool]:
        """Why the connection ended, and whether the server closed it without an -ERR."""
        transport = self._transport
        assert transport is not None
        try:
            reader = ChunkReader(self, transport, rest)
            while reader.read_once():
                pass
            return "the server closed the connection", True
        except (OSError, Broken) as error:
            return str(error), True
        except BasculeError as error:
            return str(error), False

    # Control lines

    def on_control_line(self, line: bytes) -> None:
        """Handle PING, PONG, INFO, +OK or -ERR.

        Raises: RemoteProtocolError for anything else, Broken to end the connection.
        """
        word = line[:4].upper()
        if word == b"PING":
            transport = self._transport
            if transport is not None:
                transport.send(b"PONG\r\n")
        elif word == b"PONG":
            self._on_pong()
        elif word == b"INFO":
            self._on_info(decode_info(line))
        elif word == b"-ERR":
            self._on_server_error(ServerError.decode(line))
        elif not line.startswith(b"+OK"):
            raise RemoteProtocolError(f"the NATS server sent {line[:40]!r}, expected an operation")

    def on_idle(self) -> None:
        """Nothing came for a ping interval. Raises: Broken after IDLE_PINGS_MAX of them."""
        if self._idle_pings >= IDLE_PINGS_MAX:
            raise Broken(f"the NATS server left {IDLE_PINGS_MAX} PINGs without a PONG")
        self._idle_pings += 1
        with self._lock:
            self._send_and_confirm(b"")

    def _on_pong(self) -> None:
        with self._lock:
            confirmed, back = self._subscriptions.on_pong()
        if back is not None and back.stream is not None:
            log.info(
                "nats subscription works again",
                extra={"stream": back.stream, "subject": back.subject},
            )
        if confirmed is not None and not confirmed.done():
            confirmed.set_result(None)

    def _on_info(self, info: ServerInfo) -> None:
        assert self.address is not None
        self.counts.max_payload_bytes = info.max_payload
        self._dialer.on_info(self.address, info)
        if info.ldm:
            self._on_lame_duck(self.address)

    def _on_server_error(self, error: ServerError) -> None:
        """Raises: Broken for a fatal error."""
        with self._lock:
            about, refused = self._subscriptions.on_refused(error)
            is_own = bool(about) and all(found.stream is None for found in about)
            if (
                error.kind is ErrorKind.PUBLISH_PERMISSION
                and error.subject in self._subscriptions.own_subjects()
            ):
                self._publish_refusals[error.subject] = error.text
                is_own = True
        streams = [found.stream for found in about if found.stream is not None]
        self._health.on_server_error(error, streams, is_own=is_own)
        # The PONG comes later and finds the future done.
        fail_refused(refused, error)
        if error.is_fatal:
            raise Broken(error.text)

    # Lame duck mode

    def _on_lame_duck(self, leaving: ServerAddress) -> None:
        """Connect to another server while this one still delivers."""
        log.warning(
            "nats server is in lame duck mode; moving to another", extra={"server": str(leaving)}
        )
        if self._lame_duck_thread is None or not self._lame_duck_thread.is_alive():
            self._lame_duck_thread = threading.Thread(
                target=self._move_to_another_server,
                args=(leaving,),
                name="nats-lame-duck",
                daemon=True,
            )
            self._lame_duck_thread.start()

    def _move_to_another_server(self, leaving: ServerAddress) -> None:
        """Connect to another server, then unsubscribe here; the PONG ends the reading.

        In this order nothing is delivered twice. Messages without ack that are published between
        the UNSUB here and the SUB there, one round trip, may be lost.
        """
        connection = self._dialer.connect_elsewhere(
            leaving, self._stopping, wanted=lambda: self.connected and self.address == leaving
        )
        if connection is None:
            return
        with self._lock:
            transport = self._transport
            if transport is not None and self.address == leaving:
                self._next_connection = connection
                self._send_and_confirm(self._subscriptions.unsubscribe_all()).add_done_callback(
                    # In the reading thread, after everything delivered has been submitted.
                    lambda _: transport.end_reading()
                )
                return
        # The connection ended meanwhile, and the reading thread reconnects by itself.
        connection.transport.close()

    # ChunkHandler

    def deliver(self, buf: bytearray, messages: array[int], count: int, wire_bytes: int) -> bool:
        """Turn parsed messages into batches in the sink; waits while the sink is full.

        Returns whether a publisher waits for an ack of one of them.
        """
        slab, start = self._sink.reserve(self._sequencer.bytes_needed(messages, count, wire_bytes))
        routed, end = self._sequencer.sequence(
            buf, messages, count, wire_bytes=wire_bytes, slab=slab, start=start
        )
        # Before the submit: the log writer takes entries out of the batches.
        is_awaited = False
        for _, batches in routed:
            for batch in batches:
                is_awaited = is_awaited or bool(batch.ack_entries)
        self._sink.submit(slab, end, routed)
        return is_awaited

    def on_received(self, count: int) -> None:
        self.counts.bytes_received += count
        self._idle_pings = 0

    def pause(self, seconds: float) -> None:
        """Sleep, unless the connection is being closed."""
        self._stopping.wait(seconds)

    @property
    def body_bytes_max(self) -> int:
        # Not the max_payload of INFO: it may be raised while the connection is open.
        return BODY_BYTES_MAX
