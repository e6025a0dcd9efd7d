"""`watch_table`: the changes of a table, across failovers."""

# These timeouts bound retries; they are not cancel scopes.
# ruff: noqa: ASYNC109

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, TypeAlias

import httpx

from bascule.client.admin import Admin
from bascule.errors import Broken, ConfigError, Indeterminate, RequestFailed
from bascule.table_results import TableChange
from bascule.wire.tables.patterns import KeyPattern

log = logging.getLogger(__name__)

WATCH_TIMEOUT_S: Final = 60.0
OFFSET_MAX: Final = (1 << 63) - 1
RETRY_SECONDS: Final = (0.05, 0.2, 0.5, 1.0)
STARTS: Final = ("now", "state")
PASSING: Final = {"partition_failed", "not_leader", "cannot_replicate", "busy", "internal"}
"""Codes of refusals of a node, where another one may do it."""
_POSITION: Final = re.compile(r"\d{1,19}--?\d{1,10}-[0-9a-f]{32}(-\d{1,19}--?\d{1,10})?", re.ASCII)

WatchStart: TypeAlias = str | int
"""`now`, `state`, a `TableChange.position` or an offset."""


async def watch_table(
    admin: Callable[[], Admin],
    table: str,
    pattern: KeyPattern,
    *,
    start: WatchStart,
    timeout: float,
    on_current: Callable[[int], None] | None,
    on_restart: Callable[[], None] | None,
) -> AsyncGenerator[TableChange, None]:
    """See `TableClient.watch`."""
    asked = _start_text(start)
    loop = asyncio.get_running_loop()
    last_id, restarts, failures = "", 0, 0
    broken_at: float | None = loop.time()
    """When it was without a connection first, or began; None while events come."""
    while True:
        why: Exception | str
        asked_server = admin().asked_server
        try:
            events = admin().table_events(table, pattern=pattern, start=asked, last_id=last_id)
            async with aclosing(events):
                async for event in events:
                    failures, broken_at = 0, None
                    if event.kind in ("set", "remove"):
                        yield event.change()
                    elif event.kind == "restart":
                        restarts += 1
                        # All of the state, or none: what is not among it was removed.
                        asked, last_id = "state", ""
                        if on_restart is not None and (restarts > 1 or start != "state"):
                            on_restart()
                    elif event.kind == "position" and on_current is not None:
                        on_current(int(event.data["position"]))
                    last_id = event.id or last_id
            why = "the node closed the connection"
        except (httpx.HTTPError, Broken, Indeterminate) as error:
            why = error
        except RequestFailed as error:
            if error.code not in PASSING:
                raise
            why = error
        broken_at = loop.time() if broken_at is None else broken_at
        if loop.time() - broken_at > timeout:
            raise Broken(f"no node could be watched for {timeout} s: {why}")
        log.debug("watching %s again: %s", table, why)
        admin().turn_from(asked_server)
        await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
        failures += 1


def watched_keys(pattern: bytes | str, key: bytes | str | None) -> KeyPattern:
    """What a watcher is asked to see: the keys that match, or one key.

    Raises: InvalidPattern, InvalidKey, ConfigError.
    """
    text = pattern.encode() if isinstance(pattern, str) else pattern
    if key is None:
        return KeyPattern(text)
    if text != b">":
        raise ConfigError("give one of a pattern and `key`")
    return KeyPattern.of_key(key.encode() if isinstance(key, str) else key)


def _start_text(start: WatchStart) -> str:
    """Raises: ConfigError."""
    if isinstance(start, int):
        if 0 <= start <= OFFSET_MAX:
            return str(start)
    elif start in STARTS or _POSITION.fullmatch(start):
        return start
    raise ConfigError(
        f"start is {', '.join(STARTS)}, the position of a change or an offset from 0 on, got "
        f"{start!r}"
    )
