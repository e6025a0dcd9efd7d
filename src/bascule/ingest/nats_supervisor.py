"""Restarts the embedded NATS server when it ends, with a bound."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from bascule.errors import Broken, ConfigError
from bascule.host.api import Clock
from bascule.ingest.embedded_nats import EmbeddedNats

log = logging.getLogger("bascule.nats")

BACKOFF_SECONDS: Final = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Wait before the restart after each of the failures in a row; after one more the node stops."""
STABLE_NS: Final = 60_000_000_000
"""A server that ran for so long begins a new row of failures when it ends."""


@dataclass(slots=True)
class SupervisorCounts:
    """For metrics. Counts only grow."""

    ends: int = 0
    """Times the server ended although it was not stopped."""
    restarts: int = 0


class NatsSupervisor:
    """Keeps one embedded server running. All methods belong to the event loop."""

    def __init__(
        self,
        server: EmbeddedNats,
        *,
        subscribed: Callable[[], Awaitable[None]],
        clock: Clock,
    ) -> None:
        """`subscribed` returns once the node has all subscriptions on a restarted server; it raises
        Broken after a time-out. The server is opened for other clients then, once it is connected
        to those of other nodes."""
        self._server = server
        self._subscribed = subscribed
        self._clock = clock
        self.counts = SupervisorCounts()
        self.failure = ""
        """Why the server is away; empty while it runs."""
        self.has_given_up = False

    async def run(self) -> None:
        """Restart the server, which is running, whenever it ends, until cancelled.

        Raises: Broken after too many failures in a row; it names the log file of the server.
        """
        failures = 0
        while True:
            began_ns = self._clock.monotonic_ns()
            self.failure = await self._server.wait_ended()
            self.counts.ends += 1
            if self._clock.monotonic_ns() - began_ns >= STABLE_NS:
                failures = 0
            log.error(
                "nats-server ended; what is published meanwhile is not stored",
                extra={"reason": self.failure, "log_file": str(self._server.log_file)},
            )
            failures = await self._restart(failures + 1)

    async def _restart(self, failures: int) -> int:
        """Start the server after `failures` in a row; return their number then."""
        while failures <= len(BACKOFF_SECONDS):
            await asyncio.sleep(BACKOFF_SECONDS[failures - 1])
            try:
                await self._server.start()
                await self._subscribed()
                await self._server.rejoin()
                await self._server.open()
            except (ConfigError, Broken, OSError) as error:
                await self._server.stop()
                self.failure = str(error)
                failures += 1
                log.error(
                    "nats-server not started", extra={"error": str(error), "failures": failures}
                )
                continue
            self.failure = ""
            self.counts.restarts += 1
            return failures
        self.has_given_up = True
        raise Broken(
            f"the embedded nats-server failed {failures} times in a row, the last time with "
            f"{self.failure!r}: see {self._server.log_file}"
        )
