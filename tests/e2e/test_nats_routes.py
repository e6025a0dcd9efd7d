"""The embedded NATS servers of a cluster: what is published at one reaches those at all others."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import nats
import pytest

from bascule.ingest.embedded_nats import EmbeddedNats

SERVERS = 3


@pytest.mark.parametrize(
    ("host", "others_use", "attempt"),
    [("127.0.0.1", "127.0.0.1", 0), ("127.0.0.1", "127.0.0.1", 1), ("0.0.0.0", "127.0.0.2", 2)],
)
def test_a_message_reaches_all_servers_once_they_have_joined(
    tmp_path: Path, host: str, others_use: str, attempt: int
) -> None:
    """All join at once. Where two connected to each other they closed both connections, and
    forwarded nothing for a second; where a pool of connections lacked one, too. Those that listen
    on all addresses name one of these to others."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            servers = []
            for number in range(SERVERS):
                server = EmbeddedNats(
                    tmp_path / str(number), host=host, advertised="127.0.0.2", port=0,
                    payload_bytes_max=0, token="t", name=f"server-{attempt}-{number}", cluster="c",
                )  # fmt: skip
                await server.start()
                stack.push_async_callback(server.stop)
                await server.open()
                assert server.route.startswith(f"{others_use}:")
                servers.append(server)
            clients = [await nats.connect(server._url, allow_reconnect=False) for server in servers]
            for client in clients:
                stack.push_async_callback(client.close)
            heard = [await client.subscribe("x.*") for client in clients]
            for client in clients:
                await client.flush()

            routes = [server.route for server in servers]
            await asyncio.gather(
                *(
                    server.join(lambda number=number: routes[:number], lambda: routes)  # type: ignore[misc]
                    for number, server in enumerate(servers)
                )
            )
            urls = {f"{others_use}:{server._port}" for server in servers}
            for server in servers:
                assert {*(await server._announced()).connect_urls} == urls
            for number, client in enumerate(clients):
                await client.publish(f"x.{number}", b"")
            for subscription in heard:
                found = {(await subscription.next_msg(timeout=0.5)).subject for _ in servers}
                assert found == {f"x.{number}" for number in range(SERVERS)}

    asyncio.run(test())
