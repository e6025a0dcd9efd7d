"""Values that are larger than the NATS server's `max_payload`.

A value may come by another way than through this NATS server: over HTTP, or by a server that takes
more. The server closes a connection that sends it more than it takes, of all clients on it.
"""

from __future__ import annotations

import logging
from typing import Final

from bascule.host.api import Clock

log = logging.getLogger("bascule.keyvalue")

REPORT_NS: Final = 60_000_000_000
"""The event comes once in so long for each bucket."""


class OversizeReports:
    """Logs what is not sent. Belongs to the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reported: dict[str, int] = {}
        """Bucket -> when it was reported last; those that are due again are removed."""

    def report(self, bucket: str, what: str, *, found: int, limit: int) -> None:
        """`what` is not sent, because it has `found` bytes."""
        now = self._clock.monotonic_ns()
        self._reported = {b: at for b, at in self._reported.items() if now - at < REPORT_NS}
        if bucket in self._reported:
            return
        self._reported[bucket] = now
        log.warning(
            "value larger than the NATS server takes",
            extra={"bucket": bucket, "what": what, "bytes": found, "max_payload": limit},
        )
