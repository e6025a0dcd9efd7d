"""Times to live: keys are removed by their leader, and every door sets and sees that."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import time
from collections.abc import Callable, Iterator

import httpx
import nats
import nats.js.errors
import pytest
from nats.js.api import KeyValueConfig

import bascule
from bascule.cli.main import main
from bascule.client import SyncClient
from bascule.errors import CannotAlter, ConfigError, PublishRejected
from support.clusters import RunningCluster
from support.processes import Node, running_node

WAIT_SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("expiry")) as node:
        yield node


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[SyncClient]:
    with bascule.connect_sync(node.addresses["http"]) as client:
        yield client


def wait_until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not look():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


def test_a_key_is_removed_when_its_time_is_over(client: SyncClient) -> None:
    client.create_table("short")
    table = client.table("short")
    began = time.monotonic()
    table.set("a", b"1", ttl=1.5)
    table.set("kept", b"1")
    table.set("again", b"1", ttl=1)
    table.set("again", b"2", ttl=math.inf)
    version = table.set("last", b"1", ttl=2)
    wait_until(lambda: table.get("a") is None)
    assert time.monotonic() - began >= 1.5
    wait_until(lambda: table.get("last") is None)
    found = table.get("again")
    assert found is not None
    assert found.value == b"2"
    assert [key for key, _ in table.keys(b"")] == [b"again", b"kept"]
    with pytest.raises(bascule.errors.WrongVersion) as refused:
        table.set("last", b"2", if_version=version)
    assert (refused.value.found or 0) > version
    records = list(client.read("short", start="earliest", end="latest"))
    removal = records[-1]
    assert removal.value is None
    assert dict(removal.headers)["Nats-Marker-Reason"] == b"MaxAge"


def test_a_table_has_a_time_to_live_that_can_be_altered(client: SyncClient) -> None:
    client.create_table("brief", table_ttl_ms=1_000)
    table = client.table("brief")
    table.set("a", b"1")
    table.set("own", b"1", ttl=3_600)
    wait_until(lambda: table.get("a") is None)
    client.alter_stream("brief", table_ttl_ms=0)
    table.set("b", b"1")
    time.sleep(2.5)
    assert table.get("b") is not None
    client.alter_stream("brief", table_ttl_ms=1_000)  # b is older by now
    wait_until(lambda: table.get("b") is None)
    assert table.get("own") is not None


def test_what_is_no_time_to_live_is_refused(node: Node, client: SyncClient) -> None:
    client.create_table("strict")
    table = client.table("strict")
    with pytest.raises(ConfigError, match="1 s to 100 years"):
        table.set("a", b"1", ttl=0.5)
    with pytest.raises(ConfigError, match="at least 1000"):
        client.create_table("stricter", table_ttl_ms=10)
    for ttl_ms in (-1, 3_155_760_000_000):
        with pytest.raises(ConfigError, match=f"between 0 and .*, got {ttl_ms}"):
            client.create_table("stricter", table_ttl_ms=ttl_ms)
        with pytest.raises(ConfigError, match=f"between 0 and .*, got {ttl_ms}"):
            client.alter_stream("strict", table_ttl_ms=ttl_ms)
    client.create_stream("plain", "plain")
    with pytest.raises(ConfigError, match="only a table"):
        client.alter_stream("plain", table_ttl_ms=5_000)
    with pytest.raises(PublishRejected) as refused:
        client.publish("$KV.strict.a", b"1", headers={"Nats-TTL": "soon"}, stream="strict")
    assert refused.value.err_code == 10165
    with pytest.raises(PublishRejected) as refused:
        client.publish("plain", b"1", headers={"Nats-TTL": "5s"}, stream="plain")
    assert refused.value.err_code == 20004
    url = f"{node.addresses['http']}/v1/tables/strict/keys/a"
    answer = httpx.put(url, content=b"1", headers={"Nats-TTL": "1d"})
    assert answer.status_code == 400
    assert answer.json()["error"]["field"] == "Nats-TTL"
    assert table.get("a") is None


def test_http_and_the_command_line(
    node: Node, client: SyncClient, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> str:
        capfd.readouterr()
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("BASCULE_SERVER", node.addresses["http"])
            assert main(list(arguments)) == 0
        return capfd.readouterr().out

    run("table", "create", "doors", "--ttl", "1h")
    shown = json.loads(run("stream", "info", "doors", "--json"))
    assert shown["config"]["table_ttl_ms"] == 3_600_000
    run("table", "set", "doors", "a", "1", "--ttl", "1s")
    run("table", "set", "doors", "b", "1", "--ttl", "0")
    url = f"{node.addresses['http']}/v1/tables/doors/keys/c"
    assert httpx.put(url, content=b"1", headers={"Nats-TTL": "1s"}).status_code == 200
    table = client.table("doors")
    wait_until(lambda: [key for key, _ in table.keys(b"")] == [b"b"])
    counted = httpx.get(f"{node.addresses['http']}/metrics").text
    assert "bascule_table_keys_expired_total" in counted


def test_nats_clients_have_buckets_with_a_time_to_live(node: Node) -> None:
    async def work() -> None:
        connection = await nats.connect(node.addresses["nats"])
        stream = connection.jetstream()
        bucket = await stream.create_key_value(config=KeyValueConfig(bucket="aged", ttl=1.0))
        assert (await bucket.status()).ttl == 1.0
        watcher = await bucket.watch("*")
        assert await watcher.updates() is None  # the present state is empty
        await bucket.put("a", b"1")
        await connection.publish("$KV.aged.b", b"1", headers={"Nats-TTL": "1h"})
        seen = []
        while len(seen) < 3:
            update = await watcher.updates(timeout=WAIT_SECONDS_MAX)
            seen.append((update.key, update.operation))
        assert seen == [("a", None), ("b", None), ("a", "PURGE")]
        with pytest.raises(nats.js.errors.KeyNotFoundError):
            await bucket.get("a")
        assert (await bucket.get("b")).value == b"1"
        await connection.close()

    asyncio.run(work())


def test_keys_of_a_table_with_keys_in_headers_expire(client: SyncClient) -> None:
    client.create_stream("tagged", "tagged.*", cleanup=("compact",), table=True)
    client.publish("tagged.x", b"1", key=b"k", headers={"Nats-TTL": "1s"}, stream="tagged")
    table = client.table("tagged", consistency="linearizable")
    assert table.get("k") is not None
    wait_until(lambda: table.get("k") is None)


def test_keys_expire_after_a_kill_and_at_the_next_leader(cluster: RunningCluster) -> None:
    """The removals of a failover are neither lost nor repeated."""
    with bascule.connect_sync(cluster.nodes[1].addresses["http"]) as client:
        client.create_table("sessions", replicas=3)
        cluster.wait_in_sync("sessions")
        table = client.table("sessions")
        for number in range(500):
            table.set(f"short.{number}", b"1", ttl=4)
        table.set("long", b"1", ttl=3_600)
    leader = cluster.leader("sessions")
    cluster.nodes[leader].stop(signal.SIGKILL)
    cluster.leader("sessions")
    with bascule.connect_sync(cluster.alive()[0].addresses["http"]) as client:
        table = client.table("sessions", consistency="linearizable")
        wait_until(lambda: [key for key, _ in table.keys(b"")] == [b"long"])
        records = list(client.read("sessions", start="earliest", end="latest"))
    removed = [record.key for record in records if record.value is None]
    assert len(removed) == len(set(removed)) == 500


def test_the_setting_needs_a_table(client: SyncClient) -> None:
    client.create_table("ends", table_ttl_ms=60_000)
    with pytest.raises((ConfigError, CannotAlter), match="only a table"):
        client.alter_stream("ends", table=False)
    client.alter_stream("ends", table=False, table_ttl_ms=0)
