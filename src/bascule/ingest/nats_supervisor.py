"""Restarts the embedded NATS server when it ends, with a bound, or hangs; watches its routes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from bascule.errors import Broken, ConfigError
from bascule.host.api import Clock
from bascule.host.lasting_tasks import start_lasting
from bascule.ingest.embedded_nats import EmbeddedNats, Silent

log = logging.getLogger("bascule.nats")

BACKOFF_SECONDS: Final = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Wait before the restart after each of the failures in a row; after one more the node stops."""
STABLE_NS: Final = 60_000_000_000
"""A server that ran for so long begins a new row of failures when it ends."""
LOOK_SECONDS: Final = 5.0
"""Between looks at a running server."""
LOOKS_SILENT_MAX: Final = 3
"""A server that says nothing at so many looks in a row, each of 5 s, hangs and is ended."""
LOOKS_MISSING: Final = 2
"""In a row, at which the server must lack routes before that is told: a node that has just started
or ended may count as alive for a moment."""


@dataclass(slots=True)
class SupervisorCounts:
    """For metrics. Counts only grow, but for the gauge."""

    ends: int = 0
    """Times the server ended although it was not stopped."""
    restarts: int = 0
    routes_missing: int = 0
    """Servers of other nodes that are alive to which it is not connected. Not a count."""


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
        self.trouble = ""
        """What is wrong with a server that runs: it hangs, or is not connected to all others."""
        self._silent_looks = self._missing_looks = 0
        self.has_given_up = False

    async def run(self) -> None:
        """Restart the server, which is running, whenever it ends, until cancelled.

        Raises: Broken after too many failures in a row; it names the log file of the server.
        """
        watch = start_lasting("watch of nats-server", self._watch)
        try:
            await self._run()
        finally:
            watch.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self.failure:
                await self._look()

    async def _look(self) -> None:
        """Look once at a server that runs: whether it answers, and knows the others."""
        try:
            found, wanted = await self._server.count_routes()
        except Silent as error:
            self._silent_looks += 1
            self.trouble = str(error)
            if self._silent_looks == LOOKS_SILENT_MAX:
                log.error(
                    "nats-server hangs and is ended",
                    extra={"error": str(error), "log_file": str(self._server.log_file)},
                )
                self._server.kill()
        except Broken:
            pass  # it ends, which `wait_ended` tells
        else:
            self._silent_looks = 0
            self._on_routes(found, wanted)

    def _on_routes(self, found: int, wanted: int | None) -> None:
        missing = max(0, (wanted or 0) - found)
        self._missing_looks = self._missing_looks + 1 if missing else 0
        is_told = bool(self.counts.routes_missing)
        if self._missing_looks >= LOOKS_MISSING:
            self.trouble = self._server.missing_text(found, wanted)
            self.counts.routes_missing = missing
            if not is_told:
                log.warning("nats-server lost others", extra={"error": self.trouble})
        elif not missing:
            self.trouble, self.counts.routes_missing = "", 0
            if is_told:
                log.info("nats-server connected to all others again", extra={"others": found})

    async def _run(self) -> None:
        failures = 0
        while True:
            began_ns = self._clock.monotonic_ns()
            self.failure = await self._server.wait_ended()
            self.trouble, self._silent_looks, self._missing_looks = "", 0, 0
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
