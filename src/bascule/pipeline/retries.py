"""Retries while a node is away: pauses that grow, a limit, and what the log says meanwhile.

The log says when a node stops answering, every ten seconds that it stays away, and when it is back.
The limit is the option `retryTimeout` of the source and the sink, and the field `retry_timeout_ms`
of the jobs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import Final, TypeVar

from bascule.errors import Broken

RETRY_TIMEOUT_MS: Final = 120_000
"""Two minutes: a node restarts, or moves to another machine, in less. Spark in local mode does not
retry a failed task, and a cluster fails the query after four."""
PAUSE_S_MIN: Final = 0.1
PAUSE_S_MAX: Final = 5.0
"""A node that is back is noticed within this time."""
REPORT_S: Final = 10.0
LOG_PREFIX: Final = "bascule: "
"""Begins each message, so that it is found in the log of Spark."""

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class Retries:
    """Counts the time for which one thing has failed. Not thread-safe.

    `failed` waits before the next attempt. `succeeded` ends a failure: the next one has the whole
    time again.
    """

    timeout_ms: int = RETRY_TIMEOUT_MS
    clock: Callable[[], float] = monotonic
    wait: Callable[[float], object] = lambda seconds: Event().wait(seconds)

    def __post_init__(self) -> None:
        self._since_s: float | None = None
        self._reported_s = 0.0
        self._pause_s = PAUSE_S_MIN

    def failed(self, error: Broken) -> None:
        """Wait before the next attempt.

        Raises: `error`, once the attempts have failed for the whole time.
        """
        now = self.clock()
        if self._since_s is None:
            self._since_s = self._reported_s = now
            self._pause_s = PAUSE_S_MIN
            if self.timeout_ms:
                _tell("%s; retrying for up to %s", error, _text(self.timeout_ms / 1_000))
        left_s = self._since_s + self.timeout_ms / 1_000 - now
        if left_s <= 0:
            raise error
        if now - self._reported_s >= REPORT_S:
            self._reported_s = now
            away, limit = now - self._since_s, self.timeout_ms / 1_000
            _tell("retrying for %s of %s: %s", _text(away), _text(limit), error)
        self.wait(min(self._pause_s, left_s))
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    def succeeded(self) -> None:
        if self._since_s is not None:
            _tell("continuing after %s", _text(self.clock() - self._since_s))
            self._since_s = None


def with_retries(attempt: Callable[[], T], *, timeout_ms: int = RETRY_TIMEOUT_MS) -> T:
    """Call `attempt` and return its result. On Broken, retry for up to `timeout_ms`.

    Raises: what the last attempt raises.
    """
    retries = Retries(timeout_ms)
    while True:
        try:
            result = attempt()
        except Broken as error:
            retries.failed(error)
        else:
            retries.succeeded()
            return result


def _tell(text: str, *values: object) -> None:
    log.warning(LOG_PREFIX + text, *values)  # noqa: G003


def _text(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.3g} min"
