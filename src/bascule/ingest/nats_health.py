"""What goes wrong with a NATS connection: counted every time, logged so that it can be read."""

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
"""The same complaint is logged this often; the counters have every one."""
STREAMS_NAMED_MAX: Final = 20


@dataclass(slots=True)
class SourceCounts:
    """For metrics. Counts only grow."""

    bytes_received: int = 0
    connects: int = 0
    disconnects: int = 0
    moves: int = 0
    """Left a server in lame duck mode before it cut us off."""
    connect_failures: int = 0
    refusals: int = 0
    """Of those, refused: credentials, limits, or a file that cannot be read."""
    slow_consumer_disconnects: int = 0
    """The connection ended while we were behind, or the server said so: messages were lost."""
    server_errors: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys((kind.value for kind in ErrorKind), 0)
    )
    """-ERR lines by `ErrorKind`."""
    acks_bytes_sent: int = 0
    acks_bytes_dropped: int = 0
    """Acks that could not be sent: no connection, or the server did not take them."""
    max_payload_bytes: int = 0
    """Of the connected server, or of our account there."""


class Complaints:
    """Counts and logs what a server complains about, and what it does to us without a word."""

    def __init__(self, counts: SourceCounts, clock: Clock) -> None:
        self._counts = counts
        self._clock = clock
        self._logged: dict[tuple[str, ...], int] = {}

    def on_error(self, error: ServerError, streams: Sequence[str]) -> None:
        """The server said -ERR; `streams` are those it is about, where that can be told."""
        self._counts.server_errors[error.kind.value] += 1
        if not self._is_due(error.kind.value, *streams):
            return
        extra: dict[str, object] = {"error": error.text, "kind": error.kind.value}
        if streams:
            extra["streams"] = _named(streams)
        if error.advice:
            extra["advice"] = error.advice
        log.error("nats server error", extra=extra)

    def on_lost(self, server: str, reason: str) -> None:
        """The connection ended, and not because we wanted it."""
        self._counts.disconnects += 1
        log.warning(
            "nats disconnected; what is published meanwhile without an ack is not stored",
            extra={"server": server, "reason": reason},
        )

    def on_slow_consumer(
        self, server: str, streams: Sequence[str], *, backlog_bytes: int, away_ms: int
    ) -> None:
        """The connection ended while messages waited to be read, or soon after the reader was
        away from it for so long."""
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
        """Acks of `size` bytes could not be sent; `connected`: the server does not take them."""
        self._counts.acks_bytes_dropped += size
        if self._is_due("acks", str(connected)):
            log.warning("acks dropped", extra={"bytes": size, "connected": connected})

    def on_connect_failed(self, server: str, error: Exception) -> None:
        """A server could not be reached, or refused us; it is tried again."""
        self._counts.connect_failures += 1
        is_refused = isinstance(error, NatsRefused | ConfigError)
        self._counts.refusals += is_refused
        if not self._is_due("connect", server, type(error).__name__):
            return
        extra = {"server": server, "error": str(error)}
        if is_refused:
            log.error("nats server cannot be used; it is tried again", extra=extra)
        else:
            log.info("nats server not reached; it is tried again", extra=extra)

    def _is_due(self, *what: str) -> bool:
        now = self._clock.monotonic_ns()
        if now - self._logged.get(what, -REPEAT_NS) < REPEAT_NS:
            return False
        self._logged[what] = now
        return True


def _named(streams: Sequence[str]) -> str:
    shown = ", ".join(streams[:STREAMS_NAMED_MAX])
    more = len(streams) - STREAMS_NAMED_MAX
    return f"{shown} and {more} more" if more > 0 else shown
