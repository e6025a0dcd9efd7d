"""One NATS connection that feeds streams: reads at wire speed, moves, subscribes again."""

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
from bascule.ingest.nats_dialer import Dialer, Dialled
from bascule.ingest.nats_health import Complaints, SourceCounts
from bascule.ingest.nats_transport import Transport
from bascule.ingest.sequencer import Sequencer
from bascule.ingest.subscriptions import PING, Subscription, Subscriptions, refuse
from bascule.wire.nats import (
    ConnectOptions,
    ServerAddress,
    ServerError,
    ServerInfo,
    decode_info,
)

log = logging.getLogger("bascule.ingest")

BODY_BYTES_MAX: Final = 64 << 20
"""NATS's own largest max_payload, which a message with its headers does not exceed."""
ACKS_SENT_SECONDS_MAX: Final = 2.0
"""How long the end of a connection waits for acks that the server is slow to take."""
IDLE_PINGS_MAX: Final = 2
"""A server that leaves so many PINGs unanswered is taken for gone."""


class NatsSource:
    """Owns the connection and its reading thread. Other methods may be called from any thread."""

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
        self._complaints = Complaints(self.counts, clock)
        self._dialer = Dialer(
            servers,
            options,
            complaints=self._complaints,
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
        self._next: Dialled | None = None
        """A connection to another server, to go on with once this one has nothing left."""
        self._mover: threading.Thread | None = None
        self._idle_pings = 0
        self.address: ServerAddress | None = None

    @property
    def connected(self) -> bool:
        return self._transport is not None

    def refusals(self) -> dict[str, str]:
        """Stream -> why the server does not deliver its messages."""
        with self._lock:
            return self._subscriptions.refusals()

    def streams(self) -> list[str]:
        """The streams that are fed."""
        with self._lock:
            return self._subscriptions.streams()

    def start(self) -> None:
        """Connect to the first server that takes us and begin to read.

        Raises: NatsRefused, Broken, ConfigError (credentials that cannot be read).
        """
        dialled = self._dialer.first()
        self._adopt(dialled)
        self._thread = threading.Thread(
            target=self._run, args=(dialled.rest,), name="nats-reader", daemon=True
        )
        self._thread.start()

    def reserve_sid(self) -> int:
        """A subscription id for `subscribe`, so that its route can be laid first."""
        with self._lock:
            return self._subscriptions.reserve_sid()

    def release_sid(self, sid: int) -> None:
        """After `unsubscribe` is done: the id may serve another subscription."""
        with self._lock:
            self._subscriptions.release_sid(sid)

    def subscribe(self, sid: int, subject: str, *, group: str | None, stream: str) -> Future[None]:
        """Subscribe for `stream`; the future is done once the server has the subscription.

        The future fails with NatsRefused where the server does not permit it. The subscription is
        kept all the same, and asked for again by `retry_refused` and by every new connection.
        """
        with self._lock:
            operation = self._subscriptions.add(sid, Subscription(subject, group, stream))
            return self._send_and_confirm(operation, sid)

    def unsubscribe(self, sid: int) -> Future[None]:
        """End a subscription; once the future is done nothing more is delivered for it."""
        with self._lock:
            return self._send_and_confirm(self._subscriptions.remove(sid))

    def retry_refused(self) -> None:
        """Ask once more for the subscriptions that the server refused."""
        with self._lock:
            for sid in self._subscriptions.refused():
                found = self._subscriptions.get(sid)
                if found is not None and self._transport is not None:
                    self._send_and_confirm(self._subscriptions.add(sid, found), sid)

    def drain(self) -> Future[None]:
        """End all subscriptions; once done, all that was delivered has been submitted."""
        with self._lock:
            return self._send_and_confirm(self._subscriptions.clear())

    def flush(self) -> Future[None]:
        """Done once the server has seen everything sent so far."""
        with self._lock:
            return self._send_and_confirm(b"")

    def publish(self, operations: bytes) -> None:
        """Send ready PUB operations (acks). Dropped, counted and logged where that is impossible:
        a publisher that gets no ack asks again."""
        transport = self._transport
        try:
            if transport is not None and transport.send(operations):
                self.counts.acks_bytes_sent += len(operations)
                return
        except OSError:
            pass
        self._complaints.on_acks_dropped(len(operations), connected=transport is not None)

    def close(self) -> None:
        """Send what is queued (bounded), end the connection and the thread."""
        self._stopping.set()
        transport = self._transport
        if transport is not None:
            transport.wait_sent(ACKS_SENT_SECONDS_MAX)
            transport.close()
        for thread in (self._mover, self._thread):
            if thread is not None:
                thread.join()
        if self._next is not None:
            self._next.transport.close()
        with self._lock:
            self._subscriptions.fail_all(Closed("the NATS connection was closed"))

    # Connecting

    def _send_and_confirm(self, operations: bytes, sid: int | None = None) -> Future[None]:
        """Send with a PING behind; the future is done at its PONG. The lock is held."""
        confirmed: Future[None] = Future()
        # A caller that stops waiting must not cancel what the reading thread completes.
        confirmed.set_running_or_notify_cancel()
        transport = self._transport
        if transport is None:
            # The reconnect subscribes to everything and confirms then.
            self._subscriptions.keep_waiting(confirmed, sid)
            return confirmed
        self._subscriptions.await_pong(confirmed, sid)
        self._send_or_close(transport, operations + PING)
        return confirmed

    def _send_or_close(self, transport: Transport, operations: bytes) -> None:
        """Where nothing can be sent the connection ends, and the next one sends everything."""
        try:
            if not transport.send(operations):
                raise BrokenPipeError("the NATS server takes no data")
        except OSError:
            transport.close()

    def _adopt(self, dialled: Dialled) -> None:
        """Make it the connection of this source and subscribe to everything on it."""
        info = dialled.info
        self._idle_pings = 0
        with self._lock:
            self.address = dialled.address
            self._transport = dialled.transport
            self.counts.connects += 1
            self._send_or_close(dialled.transport, self._subscriptions.all_again())
        self._on_info(info)
        log.info(
            "nats connected",
            extra={
                "server": str(dialled.address),
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
                ended, dialled = self._transport, self._next
                self._next = None
                # Their operations may have been lost: the next connection confirms them.
                self._subscriptions.lost()
                if dialled is None or self._stopping.is_set():
                    self._transport = None
            assert ended is not None
            if self._stopping.is_set():
                ended.close()
                if dialled is not None:
                    dialled.transport.close()
                return
            if dialled is None:
                ended.close()
                self._on_lost(ended, reason, by_server=by_server)
                dialled = self._dialer.again(self.address, self._stopping)
                if dialled is None:
                    return
                self._adopt(dialled)
            else:
                self._adopt(dialled)
                self.counts.moves += 1
                # Acks on their way leave by the old connection.
                ended.wait_sent(ACKS_SENT_SECONDS_MAX)
                ended.close()
            if self._stopping.is_set():
                # `close` may have looked for a connection before this one was adopted.
                dialled.transport.close()
            rest = dialled.rest

    def _on_lost(self, transport: Transport, reason: str, *, by_server: bool) -> None:
        server = str(self.address)
        self._complaints.on_lost(server, reason)
        is_behind = by_server and (transport.backlog_bytes or transport.away_ns)
        if is_behind or "slow consumer" in reason.lower():
            self._complaints.on_slow_consumer(
                server,
                self.streams(),
                backlog_bytes=transport.backlog_bytes,
                away_ms=transport.away_ns // 1_000_000,
            )

    def _read_until_end(self, rest: bytes) -> tuple[str, bool]:
        """Why the connection ended, and whether the server ended it without a word."""
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

    # What the server says

    def on_control_line(self, line: bytes) -> None:
        """PING, PONG, INFO, +OK, -ERR.

        Raises: RemoteProtocolError for anything else, Broken where the connection is to end.
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
        """Nothing came for an interval. Raises: Broken where a server answers no PING."""
        if self._idle_pings >= IDLE_PINGS_MAX:
            raise Broken(f"the NATS server left {IDLE_PINGS_MAX} PINGs without a PONG")
        self._idle_pings += 1
        with self._lock:
            self._send_and_confirm(b"")

    def _on_pong(self) -> None:
        with self._lock:
            confirmed, back = self._subscriptions.on_pong()
        if back is not None:
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
        """Raises: Broken where the connection ends by it."""
        with self._lock:
            about, refused = self._subscriptions.on_refused(error)
        self._complaints.on_error(error, [found.stream for found in about])
        # The PONG behind it is still to come and finds its future already done.
        refuse(refused, error)
        if error.is_fatal:
            raise Broken(error.text)

    # Lame duck mode

    def _on_lame_duck(self, leaving: ServerAddress) -> None:
        """Look for another server while this one still serves."""
        log.warning(
            "nats server is in lame duck mode; moving to another", extra={"server": str(leaving)}
        )
        if self._mover is None or not self._mover.is_alive():
            self._mover = threading.Thread(
                target=self._move, args=(leaving,), name="nats-mover", daemon=True
            )
            self._mover.start()

    def _move(self, leaving: ServerAddress) -> None:
        """Connect elsewhere, then end what is subscribed here: its PONG is the end of reading.

        In this order nothing is delivered twice, and what is published between the end here and the
        beginning there is what a publisher without acks may lose: one round trip.
        """
        dialled = self._dialer.elsewhere(
            leaving, self._stopping, wanted=lambda: self.connected and self.address == leaving
        )
        if dialled is None:
            return
        with self._lock:
            transport = self._transport
            if transport is not None and self.address == leaving:
                self._next = dialled
                self._send_and_confirm(self._subscriptions.end_all()).add_done_callback(
                    # In the reading thread, once all that was delivered has been submitted.
                    lambda _: transport.end_reading()
                )
                return
        # It was cut off meanwhile, and the reading thread finds its own way.
        dialled.transport.close()

    # What the reader hands on

    def deliver(self, buf: bytearray, messages: array[int], count: int, wire_bytes: int) -> bool:
        """Sequence parsed messages into the sink; waits where its room is used up.

        Whether a publisher waits for an answer to one of them.
        """
        slab, start = self._sink.reserve(self._sequencer.room_bytes(wire_bytes, count))
        routed, end = self._sequencer.sequence(
            buf, messages, count, wire_bytes=wire_bytes, slab=slab, start=start
        )
        # Before the submit: the log writer takes entries out of the batches.
        is_awaited = any(batch.ack_entries for _, batches in routed for batch in batches)
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
        # Not what INFO said: a server may be told to take more while the connection lasts.
        return BODY_BYTES_MAX
