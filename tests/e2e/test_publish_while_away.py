"""Publishers wait for a stream whose node is away, as long as their timeout says."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

import bascule
from bascule.client import Client
from bascule.errors import NoResponders
from support.processes import running_nats, running_node

pytestmark = pytest.mark.tier3


@pytest.mark.parametrize("many", [False, True])
def test_a_stream_whose_node_is_away_is_waited_for(tmp_path: Path, many: bool) -> None:
    """Longer than the wait of a subject that no stream has, and no longer than the timeout."""
    with running_nats(tmp_path / "nats") as server, running_node(tmp_path, nats=server.url) as node:
        node.create("rows", "rows.>")

        async def publish(client: Client, timeout: float) -> list[int]:
            if many:
                return list((await client.publish_many([("rows.x", b"")], timeout=timeout)).offsets)
            return [(await client.publish("rows.x", b"", timeout=timeout)).offset]

        async def scene() -> None:
            async with bascule.connect(node.addresses["http"]) as client:
                await client.flush()
                await asyncio.to_thread(node.stop, signal.SIGKILL)
                run = asyncio.create_task(publish(client, 30.0))
                await asyncio.sleep(1.5)
                await asyncio.to_thread(node.start)
                assert await run == [0]
                await asyncio.to_thread(node.stop, signal.SIGKILL)
                with pytest.raises(NoResponders):
                    await publish(client, 1.0)
            await asyncio.to_thread(node.start)

        asyncio.run(scene())
