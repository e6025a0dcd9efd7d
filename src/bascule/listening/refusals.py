"""What the log says about refused clients: the first refusal of each, not every retry."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

REPEAT_SECONDS: Final = 3_600.0
"""After this time without a line, a client that is still refused is logged again."""
REMEMBERED_MAX: Final = 1_000
"""Refusals remembered. Beyond it the oldest is forgotten, and logged again if it recurs."""
TEXT_LENGTH_MAX: Final = 400
"""Characters of a client id or a reason: clients can send long ones."""


class RefusalLog:
    """Decides which refusals are logged; used on one event loop."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` gives seconds of a clock that never goes back."""
        self._now = now
        self._logged: dict[tuple[str, str | None, str], float] = {}
        """Host, client id and reason -> when the line was written, oldest first."""

    def is_first(self, peer: str, client_id: str | None, reason: str) -> bool:
        """Whether this refusal of a client is to be logged; it then counts as logged.

        A client is known by its host and client id: each of its connections has another port.
        """
        client = None if client_id is None else client_id[:TEXT_LENGTH_MAX]
        key = (peer.rpartition(":")[0], client, reason[:TEXT_LENGTH_MAX])
        now = self._now()
        last = self._logged.get(key)
        if last is not None and now - last < REPEAT_SECONDS:
            return False
        self._logged.pop(key, None)
        if len(self._logged) >= REMEMBERED_MAX:
            del self._logged[next(iter(self._logged))]
        self._logged[key] = now
        return True

    def note(self, peer: str, client_id: str | None, *, api: str, reason: str) -> None:
        """Log that a request is refused, once for each client and reason."""
        if self.is_first(peer, client_id, f"{api}: {reason}"):
            log.warning(
                "request refused",
                extra={
                    "peer": peer,
                    "client": (client_id or "")[:TEXT_LENGTH_MAX],
                    "api": api,
                    "reason": reason[:TEXT_LENGTH_MAX],
                },
            )
