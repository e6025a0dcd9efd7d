"""A start that cannot go on ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bascule.config import ClientConfig, Config, HttpConfig, LimitsConfig, NatsConfig
from bascule.config.sections import PeerConfig
from bascule.errors import BasculeError, LogFailed
from bascule.node.node import Node
from bascule.raft_driver.sqlite_store import SqliteDatabase


def config(data: Path) -> Config:
    return Config(
        data=str(data),
        nats=NatsConfig(urls=("nats://127.0.0.1:1",), announce=False, key_value=False),
        client=ClientConfig(port=0),
        http=HttpConfig(port=0),
        peer=PeerConfig(port=0),
        limits=LimitsConfig(disk_reserve_bytes=0),
    )


@pytest.mark.parametrize("count", range(1, 6))
def test_a_start_ends_where_the_metadata_cannot_be_written(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever flush fails: the last one is that of the registration, which waits for a controller
    for however long there is none."""
    flush, calls = SqliteDatabase.flush, 0

    def failing(database: SqliteDatabase) -> None:
        nonlocal calls
        calls += 1
        if calls >= count:
            raise LogFailed(database.path, "input/output error")
        flush(database)

    monkeypatch.setattr(SqliteDatabase, "flush", failing)

    async def scene() -> None:
        node = Node(config(tmp_path), tmp_path)
        try:
            async with asyncio.timeout(60):
                with pytest.raises(BasculeError):
                    await node.start()
        finally:
            await node.close()

    asyncio.run(scene())
    assert calls >= count
