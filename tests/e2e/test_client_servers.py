"""The Python client and NATS servers that do not answer."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

import bascule
from bascule.nats_connection import connection as connection_module
from support.processes import running_nats, running_node


def test_a_server_that_hangs_keeps_no_other_from_being_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first connection, and at later ones. The system accepts for a process that hangs."""
    monkeypatch.setattr(connection_module, "ANSWER_S_MAX", 0.3)
    with (
        running_nats(tmp_path / "nats") as server,
        running_node(tmp_path / "node", nats=server.url) as node,
        socket.create_server(("127.0.0.1", 0)) as hanging,
    ):
        urls = f"nats://127.0.0.1:{hanging.getsockname()[1]},{server.url}"

        async def scene() -> None:
            async with bascule.connect(node.addresses["http"], nats=urls, timeout=2) as client:
                await client.create_stream("s", "s")
                assert (await client.publish("s", b"before")).offset == 0
                for _ in range(4):  # of two servers in random order
                    await asyncio.to_thread(server.stop)
                    await asyncio.to_thread(server.start)
                assert (await client.publish("s", b"after", timeout=30)).offset == 1

        asyncio.run(asyncio.wait_for(scene(), 60))
