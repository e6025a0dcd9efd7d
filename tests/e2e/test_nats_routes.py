"""The embedded NATS servers of a cluster: what is published at one reaches those at all others."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import nats
import pytest

from bascule.ingest.embedded_nats import EmbeddedNats, ReloadRefused
from support.clusters import running_cluster
from support.processes import RawNats

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
                    message_bytes_max=0, token="t", name=f"server-{attempt}-{number}", cluster="c",
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


@pytest.mark.parametrize(
    "cluster", ["two words", "müller", 'a"b\\c', "$HOME", "line\nbreak", "\x7f"]
)
def test_servers_of_a_cluster_of_any_name_connect(tmp_path: Path, cluster: str) -> None:
    """With a space or a letter that is not of ASCII in the name the server ended at once."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            servers = [make_server(tmp_path, name, cluster) for name in "ab"]
            for server in servers:
                await server.start()
                stack.push_async_callback(server.stop)
                await server.open()
            first, second = servers
            await second.join(lambda: [first.route], lambda: [first.route, second.route])
            assert len((await second._announced()).connect_urls) == 2

    asyncio.run(test())


def test_servers_of_a_cluster_without_a_name_connect(tmp_path: Path) -> None:
    """They took no routes: what was published at one node did not reach the leader at another."""
    with running_cluster(tmp_path, count=2, options=["--cluster", ""]) as cluster:
        for node in cluster.nodes.values():
            nats_server = RawNats(int(node.addresses["nats"].rpartition(":")[2]))
            info = json.loads(nats_server.info.removeprefix(b"INFO "))
            assert len(info["connect_urls"]) == 2


def test_routes_that_a_server_refuses_are_an_error_and_are_not_kept(tmp_path: Path) -> None:
    """The node took them for set. The server took no later change, and did not start again."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            server = make_server(tmp_path, "a", "c")
            await server.start()
            stack.push_async_callback(server.stop)
            await server.set_routes(["127.0.0.1:1"])
            with pytest.raises(ReloadRefused, match=r"to connect to no host:1: .*error parsing"):
                await server.set_routes(["no host:1"])
            await server.open()
            await server.set_routes(["[fe80::1%lo]:1"])

    asyncio.run(test())


def make_server(directory: Path, name: str, cluster: str) -> EmbeddedNats:
    return EmbeddedNats(
        directory / name, host="127.0.0.1", port=0, message_bytes_max=0, token="t", name=name,
        cluster=cluster,
    )  # fmt: skip
