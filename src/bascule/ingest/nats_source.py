"""One NATS connection that feeds streams: reads at wire speed, reconnects, subscribes again."""

from __future__ import annotations

import logging
import ssl
import threading
from array import array
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Protocol

from bascule.errors import BasculeError, Broken, Closed, RemoteProtocolError
from bascule.host.api import Clock, Random
from bascule.ingest.chunk_reader import ChunkReader
from bascule.ingest.nats_transport import Transport, connect
from bascule.ingest.sequencer import Draft, Sequencer, Slab
from bascule.wire.nats import (
    LINE_BYTES_MAX,
    ConnectOptions,
    NatsRefused,
    ServerAddress,
    ServerInfo,
    decode_error,
    decode_info,
    encode_sub,
    encode_unsub,
)

log = logging.getLogger("bascule.ingest")

BACKOFF_SECONDS_MAX: Final = 2.0
CONNECT_TIMEOUT_SECONDS: Final = 5.0


class DraftSink(Protocol):
    """Where batches go: bounded room to write them into, and a queue behind it."""

    def reserve(self, size: int) -> tuple[Slab, int]:
        """Wait for `size` bytes of room: a slab and where its free part starts."""
        ...

    def submit(self, slab: Slab, end: int, drafts: list[Draft]) -> None:
        """Take the drafts, in order; the slab is used up to `end`."""
        ...


@dataclass(slots=True)
class SourceCounts:
    """For metrics. Counts only grow."""

    bytes_received: int = 0
    connects: int = 0
    disconnects: int = 0
    slow_consumer_disconnects: int = 0
    """The server dropped us for reading too slowly: messages were lost."""
    server_errors: int = 0
    acks_bytes_sent: int = 0
    acks_bytes_dropped: int = 0
    """Acks that could not be sent: no connection, or the server did not take them."""


@dataclass(frozen=True, slots=True)
class _Subscription:
    subject: str
    group: str | None


class NatsSource:
    """Owns the connection and its reading thread. Other methods may be called from any thread."""

    def __init__(
        self,
        servers: list[ServerAddress],
        options: ConnectOptions,
        *,
        sink: DraftSink,
        sequencer: Sequencer,
        clock: Clock,
        random: Random,
        version: str,
        tls_context: ssl.SSLContext | None = None,
        outgoing_bytes_max: int = 64 << 20,
    ) -> None:
        self._servers = servers
        self._options = options
        self._sink = sink
        self._sequencer = sequencer
        self._clock = clock
        self._random = random
        self._version = version
        self._tls_context = tls_context
        self._outgoing_bytes_max = outgoing_bytes_max
        self._lock = threading.Lock()
        self._transport: Transport | None = None
        self._subscriptions: dict[int, _Subscription] = {}
        self._free_sids: list[int] = []
        self._sid_last = 0
        self._pongs: deque[Future[None]] = deque()
        self._waiting: list[Future[None]] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._body_bytes_max = 64 << 20
        self.info: ServerInfo | None = None
        self.address: ServerAddress | None = None
        self.counts = SourceCounts()

    @property
    def connected(self) -> bool:
        return self._transport is not None

    def start(self) -> None:
        """Connect to the first server that answers and begin to read.

        Raises: Broken naming every server tried; NatsRefused where one refuses the credentials.
        """
        failures = []
        for address in self._servers:
            try:
                rest = self._connect(address)
            except NatsRefused:
                raise
            except (OSError, BasculeError) as error:
                failures.append(f"{address}: {error}")
                continue
            self._thread = threading.Thread(
                target=self._run, args=(rest,), name="nats-reader", daemon=True
            )
            self._thread.start()
            return
        raise Broken(f"no NATS server could be reached: {'; '.join(failures)}")

    def reserve_sid(self) -> int:
        """A subscription id for `subscribe`, so that its route can be laid first."""
        with self._lock:
            if self._free_sids:
                return self._free_sids.pop()
            self._sid_last += 1
            return self._sid_last

    def subscribe(
        self, sid: int, subject: str, *, group: str | None, message_bytes_max: int
    ) -> Future[None]:
        """Subscribe; the future is done once the server has the subscription.

        The future fails with NatsRefused where the server does not permit it.
        """
        with self._lock:
            self._subscriptions[sid] = _Subscription(subject, group)
            self._sequencer.add_route(sid, message_bytes_max=message_bytes_max)
            return self._send_and_confirm(encode_sub(subject, sid, group=group))

    def unsubscribe(self, sid: int) -> Future[None]:
        """End a subscription; once the future is done nothing more is delivered for it."""
        with self._lock:
            del self._subscriptions[sid]
            done = self._send_and_confirm(encode_unsub(sid))
        done.add_done_callback(lambda _: self._release_sid(sid))
        return done

    def drain(self) -> Future[None]:
        """End all subscriptions; once done, all that was delivered has been submitted."""
        with self._lock:
            operations = b"".join(encode_unsub(sid) for sid in self._subscriptions)
            self._subscriptions.clear()
            return self._send_and_confirm(operations)

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
        self.counts.acks_bytes_dropped += len(operations)
        log.warning(
            "acks dropped", extra={"bytes": len(operations), "connected": transport is not None}
        )

    def close(self) -> None:
        """Send what is queued (bounded), end the connection and the thread."""
        self._stopping.set()
        transport = self._transport
        if transport is not None:
            transport.wait_sent(2.0)
            transport.close()
        if self._thread is not None:
            self._thread.join()
        self._fail_confirmations(Closed("the NATS connection was closed"))

    def _release_sid(self, sid: int) -> None:
        with self._lock:
            self._sequencer.remove_route(sid)
            self._free_sids.append(sid)

    def _send_and_confirm(self, operations: bytes) -> Future[None]:
        """Send with a PING behind; the future is done at its PONG. The lock is held."""
        confirmed: Future[None] = Future()
        transport = self._transport
        if transport is None:
            # The reconnect subscribes to everything and confirms then.
            self._waiting.append(confirmed)
            return confirmed
        self._pongs.append(confirmed)
        try:
            if not transport.send(operations + b"PING\r\n"):
                raise BrokenPipeError("the NATS server takes no data")
        except OSError:
            self._pongs.remove(confirmed)
            self._waiting.append(confirmed)
            transport.close()
        return confirmed

    def _connect(self, address: ServerAddress) -> bytes:
        transport, info, rest = connect(
            address,
            self._options,
            tls_context=self._tls_context,
            version=self._version,
            timeout=CONNECT_TIMEOUT_SECONDS,
            outgoing_bytes_max=self._outgoing_bytes_max,
        )
        with self._lock:
            self.info = info
            self.address = address
            self._body_bytes_max = max(info.max_payload, 1 << 20) + LINE_BYTES_MAX
            self._transport = transport
            self.counts.connects += 1
            operations = b"".join(
                encode_sub(s.subject, sid, group=s.group) for sid, s in self._subscriptions.items()
            )
            waiting, self._waiting = self._waiting, []
            confirmed = self._send_and_confirm(operations)
        confirmed.add_done_callback(lambda done: _pass_on(done, waiting))
        log.info(
            "nats connected",
            extra={
                "server": str(address),
                "version": info.version,
                "server_name": info.server_name,
            },
        )
        return rest

    def _run(self, rest: bytes) -> None:
        """The reading thread: read until the connection ends, reconnect, until closed."""
        while True:
            reason = self._read_until_end(rest)
            with self._lock:
                transport, self._transport = self._transport, None
                # Their operations may have been lost: the reconnect confirms them.
                self._waiting.extend(self._pongs)
                self._pongs.clear()
            if transport is not None:
                transport.close()
            if self._stopping.is_set():
                return
            self.counts.disconnects += 1
            log.warning(
                "nats disconnected; what is published meanwhile without an ack is not stored",
                extra={"server": str(self.address), "reason": reason},
            )
            reconnected = self._reconnect()
            if reconnected is None:
                return
            rest = reconnected

    def _reconnect(self) -> bytes | None:
        began = self._clock.monotonic_ns()
        pause = 0.02
        while not self._stopping.is_set():
            for address in self._servers:
                try:
                    rest = self._connect(address)
                except (OSError, BasculeError) as error:
                    log.info(
                        "nats reconnect failed", extra={"server": str(address), "error": str(error)}
                    )
                    continue
                log.info(
                    "nats back",
                    extra={"after_ms": (self._clock.monotonic_ns() - began) // 1_000_000},
                )
                return rest
            # Jitter keeps a fleet from coming back in one instant.
            self._stopping.wait(pause * self._random.uniform(0.5, 1.0))
            pause = min(2 * pause, BACKOFF_SECONDS_MAX)
        return None

    def _read_until_end(self, rest: bytes) -> str:
        transport = self._transport
        assert transport is not None
        reader = ChunkReader(self, transport, rest)
        try:
            while reader.read_once():
                pass
            return "the server closed the connection"
        except (OSError, RemoteProtocolError) as error:
            return str(error)

    def on_control_line(self, line: bytes) -> None:
        """PING, PONG, INFO, +OK, -ERR. Raises: RemoteProtocolError for anything else."""
        word = line[:4].upper()
        if word == b"PING":
            transport = self._transport
            if transport is not None:
                transport.send(b"PONG\r\n")
        elif word == b"PONG":
            with self._lock:
                confirmed = self._pongs.popleft() if self._pongs else None
            if confirmed is not None and not confirmed.done():
                confirmed.set_result(None)
        elif word == b"INFO":
            self.info = decode_info(line)
        elif word == b"-ERR":
            self._on_server_error(decode_error(line))
        elif not line.startswith(b"+OK"):
            raise RemoteProtocolError(f"the NATS server sent {line[:40]!r}, expected an operation")

    def _on_server_error(self, text: str) -> None:
        self.counts.server_errors += 1
        if "slow consumer" in text.lower():
            self.counts.slow_consumer_disconnects += 1
        log.error("nats server error", extra={"error": text})
        if text.lower().startswith("permissions violation for subscription"):
            with self._lock:
                refused = self._pongs[0] if self._pongs else None
            # The PONG behind it is still to come and finds its future already done.
            if refused is not None and not refused.done():
                refused.set_exception(NatsRefused(text))

    def _fail_confirmations(self, error: BasculeError) -> None:
        with self._lock:
            waiting = [*self._pongs, *self._waiting]
            self._pongs.clear()
            self._waiting.clear()
        for confirmed in waiting:
            if not confirmed.done():
                confirmed.set_exception(error)

    def deliver(self, buf: bytearray, messages: array[int], count: int, wire_bytes: int) -> bool:
        """Sequence parsed messages into the sink; waits where its room is used up.

        Whether a publisher waits for an answer to one of them.
        """
        slab, start = self._sink.reserve(self._sequencer.room_bytes(wire_bytes, count))
        drafts, end = self._sequencer.sequence(
            buf, messages, count, wire_bytes=wire_bytes, slab=slab, start=start
        )
        self._sink.submit(slab, end, drafts)
        return any(draft.answers for draft in drafts)

    def on_received(self, count: int) -> None:
        self.counts.bytes_received += count

    def pause(self, seconds: float) -> None:
        """Sleep, unless the connection is being closed."""
        self._stopping.wait(seconds)

    @property
    def body_bytes_max(self) -> int:
        return self._body_bytes_max


def _pass_on(done: Future[None], waiting: list[Future[None]]) -> None:
    error = done.exception()
    for confirmed in waiting:
        if confirmed.done():
            continue
        if error is None:
            confirmed.set_result(None)
        else:
            confirmed.set_exception(error)
