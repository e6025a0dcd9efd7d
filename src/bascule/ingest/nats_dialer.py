"""Connects to one of the known NATS servers: at the start, after a loss, in lame duck mode."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bascule.errors import BasculeError, Broken, RemoteProtocolError
from bascule.host.api import Clock, Random
from bascule.ingest.nats_health import NatsHealth
from bascule.ingest.nats_transport import Transport, connect
from bascule.wire.nats import ConnectOptions, NatsRefused, ServerAddress, ServerInfo, ServerPool

log = logging.getLogger("bascule.ingest")

CONNECT_TIMEOUT_SECONDS: Final = 5.0
LAME_DUCK_RETRY_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection that passed the handshake and has no subscriptions yet."""

    address: ServerAddress
    transport: Transport
    info: ServerInfo
    rest: bytes
    """Bytes received after the handshake."""


class Dialer:
    """The known servers, and how to connect to one. Any thread may use it."""

    def __init__(
        self,
        servers: Sequence[ServerAddress],
        options: ConnectOptions,
        *,
        health: NatsHealth,
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
        self._health = health
        self._clock = clock
        self._version = version
        self._tls_context = tls_context
        self._outgoing_bytes_max = outgoing_bytes_max

    def __len__(self) -> int:
        """The number of known servers."""
        return len(self._pool)

    def on_info(self, address: ServerAddress, info: ServerInfo) -> None:
        """Learn the cluster's servers from an INFO, and whether `address` is in lame duck mode."""
        with self._lock:
            self._pool.update_discovered(address, info.connect_urls)
            if info.ldm:
                self._pool.mark_lame_duck(address)
            else:
                self._pool.clear_lame_duck(address)

    def connect_first(self) -> Connection:
        """Connect to the first server, in the configured order, that accepts.

        Raises: NatsRefused where none accepts and at least one refuses, else Broken; the text names
        every server. ConfigError for credentials that cannot be read.
        """
        failures: list[str] = []
        refused: NatsRefused | None = None
        for address in self._pool.all_servers():
            try:
                return self._connect(address)
            except NatsRefused as error:
                refused = error
                failures.append(str(error))
            except (OSError, Broken, RemoteProtocolError) as error:
                failures.append(f"{address}: {error}")
        if refused is not None:
            raise NatsRefused("; ".join(failures), refused.kind)
        raise Broken(
            f"no NATS server could be reached: {'; '.join(failures)}; start one of them, or name "
            "others with --nats"
        )

    def reconnect(self, last: ServerAddress | None, stopping: threading.Event) -> Connection | None:
        """Try all servers repeatedly until one accepts; None once `stopping` is set."""
        for pause in self._pool.backoff_seconds():
            with self._lock:
                candidates = self._pool.candidates(last)
            connection = self._try_each(candidates, stopping)
            if connection is not None:
                return connection
            if stopping.wait(pause):
                break
        return None

    def connect_elsewhere(
        self, leaving: ServerAddress, stopping: threading.Event, *, wanted: Callable[[], bool]
    ) -> Connection | None:
        """Connect to a server that is not in lame duck mode; try while `wanted` returns True."""
        while wanted() and not stopping.is_set():
            with self._lock:
                others = self._pool.migration_candidates(leaving)
            connection = self._try_each(others, stopping)
            if connection is not None:
                return connection
            stopping.wait(LAME_DUCK_RETRY_SECONDS)
        return None

    def _try_each(
        self, candidates: Sequence[ServerAddress], stopping: threading.Event
    ) -> Connection | None:
        for address in candidates:
            if stopping.is_set():
                return None
            try:
                return self._connect(address)
            except (OSError, BasculeError) as error:
                self._health.on_connect_failed(str(address), error)
        return None

    def _connect(self, address: ServerAddress) -> Connection:
        transport, info, rest = connect(
            address,
            self._options,
            tls_context=self._tls_context,
            version=self._version,
            clock=self._clock,
            timeout=CONNECT_TIMEOUT_SECONDS,
            outgoing_bytes_max=self._outgoing_bytes_max,
        )
        return Connection(address, transport, info, rest)
