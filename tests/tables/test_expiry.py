"""The removal of expired keys, with a log that may never commit."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from bascule.model import Cleanup, StreamConfig
from bascule.tables.ageing.deadlines import ExpiredKey
from bascule.tables.ageing.expiry import ExpiryCounts, TableExpiry
from support.virtual_time import elapse, run_virtually


class Replica:
    """A table with one key that has expired."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.left = [ExpiredKey(b"k", 3)]

    def may_expire(self, now_ms: int) -> bool:
        return bool(self.left)

    async def expired(self, now_ms: int, limit: int) -> list[ExpiredKey]:
        return list(self.left)

    async def wait_position(self, offset: int) -> None:
        self.left.clear()

    def look_for_deadlines(self) -> None:
        raise AssertionError("nothing has failed")


class Publisher:
    """Stores what is published to one table, and waits for ever for the replicas of others."""

    def __init__(self, commits: str) -> None:
        self._commits = commits
        self.asked: list[str] = []

    async def publish_messages(self, partition: Any, messages: list[Any]) -> tuple[int, int]:
        self.asked.append(partition.stream)
        if partition.stream != self._commits:
            await asyncio.Event().wait()
        return 4, len(messages)


def test_a_table_that_cannot_commit_does_not_stop_the_others() -> None:
    async def test() -> None:
        definition = SimpleNamespace(config=StreamConfig("t", cleanup=(Cleanup.COMPACT,)))
        tables = [
            (SimpleNamespace(stream=name, now_ms=lambda: 0, definition=definition), Replica(name))
            for name in ("a", "b")
        ]
        counts, publisher = ExpiryCounts(), Publisher("b")
        expiry = TableExpiry(lambda: cast("Any", tables), cast("Any", publisher), counts)
        await elapse(2)
        assert publisher.asked == ["a", "b"]  # each once, while it waits
        assert (counts.expired, counts.failed) == (1, 0)
        await expiry.close()

    run_virtually(test())
