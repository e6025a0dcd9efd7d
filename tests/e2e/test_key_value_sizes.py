"""Values that are larger than what the NATS server of key-value clients takes in one message."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import ConsumerConfig, KeyValueConfig
from nats.js.errors import APIError

from support.nats_servers import metric
from support.ports import reserve_ports
from support.processes import Node, running_nats, running_node

OVERSIZE = "value larger than the NATS server takes"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with a NATS server of its own configuration, which takes 1 MiB."""
    directory, leaf = tmp_path_factory.mktemp("sizes"), reserve_ports(1)[0]
    config = directory / "leaf.conf"
    config.write_text(f"leafnodes {{ host: 127.0.0.1, port: {leaf} }}")
    environment = {"BASCULE_NATS_LEAF_URL": f"nats://127.0.0.1:{leaf}"}
    with (
        running_nats(directory / "nats", "--config", str(config)) as server,
        running_node(directory / "node", nats=server.url, environment=environment) as node,
    ):
        yield node


def put(node: Node, table: str, key: str, value: bytes) -> None:
    url = f"{node.addresses['http']}/v1/tables/{table}/keys/{key}"
    urllib.request.urlopen(urllib.request.Request(url, value, method="PUT"), timeout=60).close()


async def updates(watcher: Any, count: int) -> list[tuple[str, int] | None]:
    """Keys and the sizes of their values; None is the end of the state."""
    found: list[tuple[str, int] | None] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            try:
                each = await watcher.updates(timeout=5)
            except nats.errors.TimeoutError:
                continue
            found.append(None if each is None else (each.key, len(each.value or b"")))
    return found


def test_a_value_that_the_server_does_not_take_disturbs_nobody(node: Node) -> None:
    """It closed the connections of the node, again and again: of all requests and watchers."""

    async def test() -> None:
        client = await nats.connect(node.nats)
        js = client.jetstream()
        bucket = await js.create_key_value(KeyValueConfig(bucket="big"))
        other = await js.create_key_value(KeyValueConfig(bucket="other"))
        beside = await other.watchall()
        assert await updates(beside, 1) == [None]
        await bucket.put("a", b"1")
        await asyncio.to_thread(put, node, "big", "huge", b"x" * 2_000_000)
        await bucket.put("z", b"26")

        with pytest.raises(APIError) as direct:
            await bucket.get("huge")
        assert direct.value.code == 413
        assert "max_payload of the NATS server is 1048576" in (direct.value.description or "")
        with pytest.raises(APIError) as request:
            await js.get_last_msg("KV_big", "$KV.big.huge")
        assert (request.value.code, request.value.err_code) == (413, 20020)
        assert (await bucket.get("a")).value == b"1"
        assert sorted(await bucket.keys()) == ["a", "huge", "z"]

        watcher = await bucket.watchall()
        assert await updates(watcher, 4) == [("a", 1), ("huge", 0), ("z", 2), None]
        await asyncio.to_thread(put, node, "big", "huge", b"y" * 3_000_000)
        await bucket.put("z", b"27!")
        assert await updates(watcher, 2) == [("huge", 0), ("z", 3)]
        await other.put("seen", b"1")
        assert await updates(beside, 1) == [("seen", 1)]

        config = ConsumerConfig(filter_subject="$KV.big.huge")
        subscription = await js.subscribe(
            "$KV.big.huge", stream="KV_big", ordered_consumer=True, config=config
        )
        message = await subscription.next_msg(20)
        assert (message.data, message.headers["Nats-Msg-Size"]) == (b"", "3000000")
        await client.close()

    asyncio.run(test())
    lines = node.log.read_text().splitlines()
    assert not [line for line in lines if "leafnode connection ended" in line]
    assert not [line for line in lines if "Maximum Payload" in line]
    assert len([line for line in lines if OVERSIZE in line]) == 1
    assert metric(node, "bascule_key_value_oversize_values_total") == 5


def test_what_a_table_takes_is_read_at_the_embedded_server(tmp_path: Path) -> None:
    """Requests for a message are answered in base64, and reads with headers."""

    async def test(node: Node) -> None:
        client = await nats.connect(node.addresses["nats"])
        js = client.jetstream()
        bucket = await js.create_key_value(KeyValueConfig(bucket="full"))
        largest = b"x" * ((8 << 20) - 100)  # the largest message has the subject, too
        await bucket.put("k", largest)
        assert (await bucket.get("k")).value == largest
        assert (await js.get_last_msg("KV_full", "$KV.full.k")).data == largest
        assert await updates(await bucket.watchall(), 2) == [("k", len(largest)), None]
        with pytest.raises(APIError) as refused:
            await bucket.put("k", largest + b"x" * 101)
        assert refused.value.err_code == 10054
        await client.close()

    with running_node(tmp_path) as node:
        asyncio.run(test(node))


def test_watchers_get_larger_values_once_the_embedded_server_takes_them(tmp_path: Path) -> None:
    """A leafnode keeps the limit with which it was connected."""

    async def test(node: Node) -> None:
        client = await nats.connect(node.addresses["nats"])
        first = await client.jetstream().create_key_value(KeyValueConfig(bucket="first"))
        beside = await first.watchall()
        assert await updates(beside, 1) == [None]
        table = {"cleanup": ["compact"], "key_from": "subject", "table": True}
        node.create("larger", "$KV.larger.>", message_bytes_max=12 << 20, **table)
        value = b"x" * ((12 << 20) - 100)
        later = await nats.connect(node.addresses["nats"])
        bucket = await later.jetstream().key_value("larger")
        await bucket.put("k", value)
        assert (await bucket.get("k")).value == value
        watcher = await bucket.watchall()
        assert await updates(watcher, 2) == [("k", len(value)), None]
        await later.close()
        await first.put("a", b"1")
        assert await updates(beside, 1) == [("a", 1)]
        await client.close()

    with running_node(tmp_path) as node:
        asyncio.run(test(node))
        assert OVERSIZE not in node.log.read_text()
