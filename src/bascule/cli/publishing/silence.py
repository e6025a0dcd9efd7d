"""Says that messages wait for their acks, where none comes for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from bascule.cli.output import print_warning
from bascule.cli.units import counted

LOOK_S: Final = 0.5
FIRST_S: Final = 3.0
"""A node that dies has a successor within this time."""
AGAIN_S: Final = 15.0


class SilenceNotice:
    """Counts what was sent and acknowledged."""

    def __init__(self, say: Callable[[str], None] = print_warning) -> None:
        self.sent = 0
        self.acked = 0
        self._say = say

    def on_progress(self, acked: int) -> None:
        """So many are acknowledged in all."""
        self.acked = acked

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Say it as long as the block runs."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        acked, since, due = -1, loop.time(), 0.0
        while True:
            await asyncio.sleep(LOOK_S)
            now = loop.time()
            if self.acked == acked != self.sent:
                if now >= due:
                    waiting = counted(self.sent - self.acked, "message")
                    self._say(
                        f"no ack for {now - since:.0f} s, {waiting} without one: trying again; "
                        "`bascule cluster status` says whether messages can be stored"
                    )
                    due = now + AGAIN_S
            else:
                acked, since, due = self.acked, now, now + FIRST_S
