"""Counts and logs what goes wrong with a NATS connection; repeated lines are suppressed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from bascule.errors import ConfigError
from bascule.host.api import Clock
from bascule.wire.nats import ErrorKind, NatsRefused, ServerError

log = logging.getLogger("bascule.ingest")

REPEAT_NS: Final = 10_000_000_000
"""Least time between two equal log lines; the counters have every occurrence."""
STREAMS_NAMED_MAX: Final = 20


@dataclass(slots=True)
class SourceCounts:
    """For metrics. Counts only grow."""

    bytes_received: int = 0
    connects: int = 0
    disconnects: int = 0
    moves: int = 0
    """Moves to another server before one in lame duck mode closed the connection."""
    unsubscribed_ns: int = 0
    """Time from the loss of a connection until the next one had all subscriptions."""
    connect_failures: int = 0
    refusals: int = 0
    """Failures because of credentials, limits, or a file that cannot be read."""
    slow_consumer_disconnects: int = 0
    """Connections that ended while the reader was behind, or as the server said: messages lost."""
    server_errors: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys((kind.value for kind in ErrorKind), 0)
    )
    """-ERR lines by `ErrorKind`."""
    acks_bytes_sent: int = 0
    acks_bytes_dropped: int = 0
    """Acks that could not be sent: no connection, or the send queue was full."""
    max_payload_bytes: int = 0
    """Of the connected server, or of this account there."""


class NatsHealth:
    """Counts and logs errors, disconnects and dropped acks of a connection."""

    def __init__(self, counts: SourceCounts, clock: Clock) -> None:
        self._counts = counts
        self._clock = clock
        self._logged: dict[tuple[str, ...], int] = {}

    def on_server_error(
        self, error: ServerError, streams: Sequence[str], *, is_own: bool = False
    ) -> None:
        """The server sent -ERR; `streams` are the streams concerned, where they are known.

        `is_own`: it concerns a subject of the node itself, whose user logs it.
        """
        self._counts.server_errors[error.kind.value] += 1
        if is_own or not self._should_log(error.kind.value, *streams):
            return
        extra: dict[str, object] = {"error": error.text, "kind": error.kind.value}
        if streams:
            extra["streams"] = _named(streams)
        if error.advice:
            extra["advice"] = error.advice
        log.error("nats server error", extra=extra)

    def on_disconnected(self, server: str, reason: str) -> None:
        """The connection ended unexpectedly."""
        self._counts.disconnects += 1
        log.warning(
            "nats disconnected; what is published meanwhile without an ack is not stored",
            extra={"server": server, "reason": reason},
        )

    def on_subscribed_again(self, server: str, streams: Sequence[str], *, gap_ns: int) -> None:
        """All subscriptions stand again; for `gap_ns` nobody was subscribed."""
        self._counts.unsubscribed_ns += gap_ns
        log.warning(
            "nats subscriptions restored",
            extra={"server": server, "streams": len(streams), "seconds": round(gap_ns / 1e9, 3)},
        )

    def on_slow_consumer(
        self, server: str, streams: Sequence[str], *, backlog_bytes: int, away_ms: int
    ) -> None:
        """The connection ended while messages waited to be read, or soon after the reader had not
        read for `away_ms`."""
        self._counts.slow_consumer_disconnects += 1
        log.error(
            "nats connection ended while this node was behind: the server drops a slow consumer; "
            "messages published without an ack may be lost",
            extra={
                "server": server,
                "streams": _named(streams),
                "backlog_bytes": backlog_bytes,
                "away_ms": away_ms,
                "advice": "publish with acks, raise max_pending and write_deadline of the server, "
                "or give the node a faster disk or processor",
            },
        )

    def on_acks_dropped(self, size: int, *, connected: bool) -> None:
        """Acks of `size` bytes could not be sent. `connected`: the send queue is full."""
        self._counts.acks_bytes_dropped += size
        if self._should_log("acks", str(connected)):
            log.warning("acks dropped", extra={"bytes": size, "connected": connected})

    def on_connect_failed(self, server: str, error: Exception) -> None:
        """A server could not be reached or refused the connection; it is tried again."""
        self._counts.connect_failures += 1
        is_refused = isinstance(error, NatsRefused | ConfigError)
        self._counts.refusals += is_refused
        if not self._should_log("connect", server, type(error).__name__):
            return
        extra = {"server": server, "error": str(error)}
        if is_refused:
            log.error("nats server cannot be used; it is tried again", extra=extra)
        else:
            log.info("nats server not reached; it is tried again", extra=extra)

    def _should_log(self, *what: str) -> bool:
        now = self._clock.monotonic_ns()
        if now - self._logged.get(what, -REPEAT_NS) < REPEAT_NS:
            return False
        self._logged[what] = now
        return True


def _named(streams: Sequence[str]) -> str:
    shown = ", ".join(streams[:STREAMS_NAMED_MAX])
    more = len(streams) - STREAMS_NAMED_MAX
    return f"{shown} and {more} more" if more > 0 else shown
