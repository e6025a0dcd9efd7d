"""Finds a NATS server that takes us: at the start, after a loss, and before one goes."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bascule.errors import BasculeError, Broken, RemoteProtocolError
from bascule.host.api import Clock, Random
from bascule.ingest.nats_health import Complaints
from bascule.ingest.nats_transport import Transport, connect
from bascule.wire.nats import ConnectOptions, NatsRefused, ServerAddress, ServerInfo, ServerPool

log = logging.getLogger("bascule.ingest")

CONNECT_TIMEOUT_SECONDS: Final = 5.0
LAME_DUCK_RETRY_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Dialled:
    """A connection that is accepted and has no subscriptions yet."""

    address: ServerAddress
    transport: Transport
    info: ServerInfo
    rest: bytes
    """What came behind the handshake."""


class Dialer:
    """The servers known, and how to connect to one. Any thread may use it."""

    def __init__(
        self,
        servers: Sequence[ServerAddress],
        options: ConnectOptions,
        *,
        complaints: Complaints,
        clock: Clock,
        random: Random,
        version: str,
        tls_context: ssl.SSLContext | None,
        discover: bool,
        outgoing_bytes_max: int,
    ) -> None:
        self._pool = ServerPool(servers, random, discover=discover)
        self._lock = threading.Lock()
        """Guards the pool."""
        self._options = options
        self._complaints = complaints
        self._clock = clock
        self._version = version
        self._tls_context = tls_context
        self._outgoing_bytes_max = outgoing_bytes_max

    def __len__(self) -> int:
        """How many servers are known."""
        return len(self._pool)

    def on_info(self, address: ServerAddress, info: ServerInfo) -> None:
        """Take from `address` what it says of its cluster, and whether it is about to go."""
        with self._lock:
            self._pool.learn(address, info.connect_urls)
            if info.ldm:
                self._pool.leave(address)
            else:
                self._pool.stay(address)

    def first(self) -> Dialled:
        """Connect to the first server, in the order given, that takes us.

        Raises: NatsRefused where one refuses and none takes us, else Broken; each names every
        server tried. ConfigError for credentials that cannot be read.
        """
        failures: list[str] = []
        refused: NatsRefused | None = None
        for address in self._pool.in_order():
            try:
                return self._dial(address)
            except NatsRefused as error:
                refused = error
                failures.append(str(error))
            except (OSError, Broken, RemoteProtocolError) as error:
                failures.append(f"{address}: {error}")
        if refused is not None:
            raise NatsRefused("; ".join(failures), refused.kind)
        raise Broken(f"no NATS server could be reached: {'; '.join(failures)}")

    def again(self, last: ServerAddress | None, stopping: threading.Event) -> Dialled | None:
        """Try every server, round after round, until one takes us; None once `stopping` is set."""
        began = self._clock.monotonic_ns()
        for pause in self._pool.pauses():
            with self._lock:
                candidates = self._pool.candidates(last)
            dialled = self._any_of(candidates, stopping)
            if dialled is not None:
                after_ms = (self._clock.monotonic_ns() - began) // 1_000_000
                log.info("nats back", extra={"after_ms": after_ms})
                return dialled
            if stopping.wait(pause):
                break
        return None

    def elsewhere(
        self, leaving: ServerAddress, stopping: threading.Event, *, wanted: Callable[[], bool]
    ) -> Dialled | None:
        """Connect to a server that stays, for as long as that is `wanted`."""
        while wanted() and not stopping.is_set():
            with self._lock:
                others = self._pool.others(leaving)
            dialled = self._any_of(others, stopping)
            if dialled is not None:
                return dialled
            stopping.wait(LAME_DUCK_RETRY_SECONDS)
        return None

    def _any_of(
        self, candidates: Sequence[ServerAddress], stopping: threading.Event
    ) -> Dialled | None:
        for address in candidates:
            if stopping.is_set():
                return None
            try:
                return self._dial(address)
            except (OSError, BasculeError) as error:
                self._complaints.on_connect_failed(str(address), error)
        return None

    def _dial(self, address: ServerAddress) -> Dialled:
        transport, info, rest = connect(
            address,
            self._options,
            tls_context=self._tls_context,
            version=self._version,
            clock=self._clock,
            timeout=CONNECT_TIMEOUT_SECONDS,
            outgoing_bytes_max=self._outgoing_bytes_max,
        )
        return Dialled(address, transport, info, rest)
