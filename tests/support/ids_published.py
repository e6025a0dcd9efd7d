"""Load of messages with ids, and what has to be stored of it."""

from __future__ import annotations

import asyncio

from bascule.client import Client
from bascule.errors import Broken, Indeterminate, NoResponders, PublishRejected
from support.processes import WAIT_SECONDS_MAX


class IdsPublished:
    """Publishes numbered messages with ids, 20 in flight, until it is told to stop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.offsets: list[int] = []
        """The acked offset of each message."""
        self.stopping = False

    async def run(self) -> None:
        number = 0
        while not self.stopping:
            batch = range(number, number + 20)
            acks = await asyncio.gather(*(self._publish(n) for n in batch))
            self.offsets += acks
            number = batch.stop

    async def _publish(self, number: int) -> int:
        headers = {"Nats-Msg-Id": f"m{number}"}
        while True:
            try:
                subject = f"flights.{number % 7}"
                ack = await self._client.publish(subject, b"%d" % number, headers=headers)
                return ack.offset
            except (Broken, Indeterminate, NoResponders, PublishRejected):
                await asyncio.sleep(0.02)

    async def wait_more(self, count: int) -> None:
        """Return after so many more acks."""
        wanted = len(self.offsets) + count
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while len(self.offsets) < wanted:
                await asyncio.sleep(0.01)


def check_published(offsets: list[int], stored: dict[int, bytes]) -> None:
    """Every acked message is stored where its ack says, and no message is stored twice."""
    assert all(stored.get(offset) == b"%d" % n for n, offset in enumerate(offsets))
    values = list(stored.values())
    assert len(values) == len(set(values)), "a message is stored twice"
