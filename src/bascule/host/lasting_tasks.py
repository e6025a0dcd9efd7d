"""Tasks that run for as long as a node does.

asyncio keeps the error of a task for whoever awaits it, and nobody awaits these before the node
stops: without help a bug would end one of them in silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

log = logging.getLogger("bascule.node")

RETRY_SECONDS_MIN: Final = 1.0
"""Before a task that has failed begins again; twice as long after each further failure."""
RETRY_SECONDS_MAX: Final = 60.0


def start_lasting(name: str, run: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    """Start a task that does `keep_running`. Cancel it to end it."""
    return asyncio.get_running_loop().create_task(keep_running(name, run), name=name)


async def keep_running(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Await `run()`; after an exception, report it and begin again. Returns where `run` does."""
    pause = RETRY_SECONDS_MIN
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        try:
            await run()
            return
        except Exception:  # boundary: a bug must not leave the node without the task
            log.exception("task failed; it begins again", extra={"task": name})
        if loop.time() - began > RETRY_SECONDS_MAX:
            pause = RETRY_SECONDS_MIN
        await asyncio.sleep(pause)
        pause = min(2 * pause, RETRY_SECONDS_MAX)
