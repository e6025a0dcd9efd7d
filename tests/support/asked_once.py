"""A publisher that sees each error."""

from __future__ import annotations

import asyncio

from bascule.client import Client
from bascule.errors import BasculeError
from support.processes import WAIT_SECONDS_MAX


class AskedOnce:
    """Publishes numbered messages, each once, with as long a timeout as a publisher may have."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.acked: dict[int, int] = {}
        """Message -> its offset."""
        self.errors: list[str] = []
        self.stopping = False

    async def run(self) -> None:
        """Until `stopping`."""
        tasks: set[asyncio.Task[None]] = set()
        number = 0
        while not self.stopping:
            task = asyncio.create_task(self._publish(number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
            await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)

    async def _publish(self, number: int) -> None:
        try:
            ack = await self._client.publish("flights.x", b"%d" % number, timeout=60)
        except BasculeError as error:
            self.errors.append(f"{number}: {error}")
            return
        self.acked[number] = ack.offset

    async def wait_more(self, count: int) -> None:
        wanted = len(self.acked) + count
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while len(self.acked) < wanted:
                await asyncio.sleep(0.01)
