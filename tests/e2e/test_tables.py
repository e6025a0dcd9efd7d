"""Tables of real nodes: the Python client, the command line, HTTP and NATS; kills and failovers."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest

import bascule
from bascule.cli.main import main
from bascule.client import SyncClient
from bascule.errors import (
    ConfigError,
    InvalidKey,
    NotATable,
    PublishRejected,
    UnknownStream,
    WrongVersion,
)
from support import http_calls
from support.clusters import RunningCluster
from support.processes import Node, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("tables")) as node:
        yield node


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[SyncClient]:
    with bascule.connect_sync(node.addresses["http"]) as client:
        yield client


def run(node: Node, capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run `bascule table ...`; return its exit code and what it printed."""
    capfd.readouterr()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("BASCULE_SERVER", node.addresses["http"])
        code = main(["table", *arguments])
    captured = capfd.readouterr()
    return code, captured.out + captured.err


def test_values_are_set_read_and_removed(client: SyncClient) -> None:
    _, created = client.create_table("sessions")
    assert created
    assert not client.create_table("sessions")[1]
    assert "sessions" in client.tables()
    table = client.table("sessions")
    first = table.set("user.7", b"one")
    second = table.set("user.7", b"two")
    assert second > first
    found = table.get("user.7")
    assert found is not None
    assert (found.key, found.version, found.value) == (b"user.7", second, b"two")
    table.remove("user.7")
    assert table.get("user.7") is None
    assert table.get("never") is None
    table.set("empty", b"")
    assert table.get("empty").value == b""  # type: ignore[union-attr]


def test_first_writes_at_once_ask_once_for_the_settings(node: Node) -> None:
    def asked() -> float:
        text = http_calls.get(node.addresses["http"] + "/metrics")
        lines = [line for line in text.splitlines() if line.startswith("bascule_http_requests")]
        return sum(float(line.split()[-1]) for line in lines if 'operation="stream"' in line)

    async def write() -> None:
        async with bascule.connect(node.addresses["http"]) as client:
            await client.create_table("many")
            before = await asyncio.to_thread(asked)
            table = client.table("many")
            one = asyncio.create_task(table.set("given up", b"0"))
            await asyncio.sleep(0)
            one.cancel()
            await asyncio.gather(*(table.set(f"k{n}", b"1") for n in range(2_000)))
            assert await asyncio.to_thread(asked) == before + 1
            with pytest.raises(UnknownStream):
                await client.table("nothing").set("k", b"1")

    asyncio.run(write())


def test_a_session_goes_on_with_a_table_that_is_made_anew(client: SyncClient) -> None:
    client.create_table("anew")
    table = client.table("anew")
    for number in range(5):
        table.set("a", b"%d" % number)
    client.delete_stream("anew")
    client.create_table("anew")
    assert table.get("a") is None
    table.set("b", b"new")
    for found in (table.get("b"), table.get_many(["b"]).entries[b"b"], *table.entries()):
        assert found is not None
        assert (found.value, found.version) == (b"new", 0)
    assert list(table.keys()) == [(b"b", 0)]


def test_any_bytes_are_a_key(client: SyncClient) -> None:
    client.create_table("bytes")
    table = client.table("bytes")
    many = b".".join([b"t"] * 100)
    keys = sorted(
        [
            b"\x00",
            b"\xff/ ?&",
            b"a b",
            b"a%20b",
            b"..",
            b".",
            many,
            b"\xff" * 1024,
            b"*",
            "ü/ß".encode(),
            b"k" * 1024,
        ]
    )
    for key in keys:
        table.set(key, key[::-1])
    for key in keys:
        assert table.get(key).value == key[::-1]  # type: ignore[union-attr]
    assert [key for key, _ in table.keys(b"")] == keys
    assert [key for key, _ in table.keys(b"a")] == [b"a b", b"a%20b"]
    with pytest.raises(InvalidKey, match="1025 bytes, expected 1 to 1024"):
        table.set(b"k" * 1025, b"")
    with pytest.raises(InvalidKey, match="1025 bytes, expected 1 to 1024"):
        table.get(b"k" * 1025)


def test_keys_come_in_pages(node: Node, client: SyncClient) -> None:
    client.create_table("pages")
    table = client.table("pages")
    keys = [f"key.{n:05}" for n in range(25)]
    acks = client.publish_many((f"$KV.pages.{key}", b"x") for key in keys)
    assert len(acks) == 25
    table.set("last", b"")
    assert [key.decode() for key, _ in table.keys("key.")] == keys
    url = node.addresses["http"] + "/v1/tables/pages/keys"
    found: list[str] = []
    while True:
        query = {"prefix": "key.", "limit": 10, **({"after": found[-1]} if found else {})}
        page = httpx.get(url, params=query).json()
        found += [item["key"] for item in page["keys"]]
        if page["is_last"]:
            break
    assert found == keys


def test_what_nats_clients_put_is_in_the_table(node: Node, client: SyncClient) -> None:
    client.create_table("bucket")

    async def put() -> dict[str, Any]:
        connection = await nats.connect(node.addresses["nats"])
        try:
            await connection.request("$KV.bucket.a", b"1", timeout=10)
            await connection.request("$KV.bucket.b", b"2", timeout=10)
            deleted = {"KV-Operation": "DEL"}
            await connection.request("$KV.bucket.a", b"", headers=deleted, timeout=10)
            answer = await connection.request("$KV.bucket.c", b"3", timeout=10)
            return json.loads(answer.data)  # type: ignore[no-any-return]
        finally:
            await connection.close()

    end = asyncio.run(put())["seq"]
    response = httpx.get(f"{node.addresses['http']}/v1/tables/bucket/keys?at_least={end}")
    assert [item["key"] for item in response.json()["keys"]] == ["b", "c"]


def test_messages_for_keys_that_no_table_has_are_refused(node: Node, client: SyncClient) -> None:
    client.create_table("strict")

    async def put() -> list[dict[str, Any]]:
        connection = await nats.connect(node.addresses["nats"])
        try:
            subjects = ["x" * 1025, "%zz", "%2f", "fine"]
            return [
                json.loads((await connection.request(f"$KV.strict.{part}", b"1", timeout=10)).data)
                for part in subjects
            ]
        finally:
            await connection.close()

    *refused, stored = asyncio.run(put())
    assert [answer["error"]["err_code"] for answer in refused] == [20009] * 3
    assert "it has 1025 bytes, expected 1 to 1024" in refused[0]["error"]["description"]
    assert "found %zz in the subject, expected %25zz" in refused[1]["error"]["description"]
    assert (stored["offset"], stored["synced"]) == (0, True)
    assert list(client.table("strict", consistency="linearizable").keys()) == [(b"fine", 0)]
    assert client.table("strict").info().skipped == 0


def test_a_stream_with_keys_in_headers_can_be_opened_as_a_table(client: SyncClient) -> None:
    client.create_stream("orders", "orders", cleanup=("compact",))
    client.publish("orders", b"new", key="order 1")
    with pytest.raises(NotATable, match="alter --table"):
        client.table("orders").get("order 1")
    client.alter_stream("orders", table=True)
    table = client.table("orders")
    version = table.set("order 1", b"paid")
    assert table.get("order 1").version == version  # type: ignore[union-attr]
    client.create_stream("plain", "plain.>")
    with pytest.raises(ConfigError, match="its cleanup is delete, expected compact"):
        client.alter_stream("plain", table=True)
    with pytest.raises(UnknownStream):
        client.table("nothing").get("a")
    with pytest.raises(ConfigError, match="eventual, session or linearizable, got 'strict'"):
        client.table("orders", consistency="strict")  # type: ignore[arg-type]


def test_a_key_that_no_header_can_have_is_written_over_http(
    node: Node, client: SyncClient, capfd: pytest.CaptureFixture[str]
) -> None:
    """The client and commands failed with a ValueError."""
    client.create_stream(
        "blanks", "blanks", cleanup=("compact",), table=True, message_bytes_max=1000
    )
    table = client.table("blanks")
    keys = [b" a", b"a ", b" ", b"\ta", b"x\ny", b"x\r\nKV-Operation: DEL", b"\n", b"\r", b"%0A"]
    for key in keys:
        first = table.set(key, b"1", if_absent=True, content_type="text/plain", ttl=3600)
        with pytest.raises(WrongVersion):
            table.set(key, b"2", if_absent=True)
        with pytest.raises(WrongVersion) as refused:
            table.set(key, b"2", if_version=first + 1)
        assert (refused.value.expected, refused.value.found) == (first + 1, first)
        second = table.set(key, b"2", if_version=first)
        assert table.increment(key, 3)[1] == 5
        found = table.get(key)
        assert found is not None
        assert (found.key, found.value) == (key, b"5")
        assert second > first
    assert [entry.key for entry in table.entries()] == sorted(keys)
    with pytest.raises(PublishRejected) as rejected:
        table.set(b" a", b"x" * 1001)
    assert rejected.value.err_code == 10054
    with pytest.raises(InvalidKey):
        table.set(b" " * 1025, b"x")
    with pytest.raises(ConfigError, match="time to live"):
        table.set(b" a", b"x", ttl=0)
    for key in keys:
        table.remove(key)
    assert list(table.keys()) == []
    for command in (["set", "blanks", " a", "x"], ["rm", "blanks", " a"], ["incr", "blanks", "\n"]):
        assert run(node, capfd, *command)[0] == 0


def test_http_has_versions_as_etags(node: Node, client: SyncClient) -> None:
    client.create_table("etags")
    version = client.table("etags").set("a/b", b"\x00\x01")
    url = f"{node.addresses['http']}/v1/tables/etags/keys/a/b"
    found = httpx.get(url, params={"at_least": version + 1})
    assert (found.status_code, found.content) == (200, b"\x00\x01")
    assert found.headers["etag"] == f'"{version}"'
    same = httpx.get(url, headers={"if-none-match": f'"{version}"'})
    assert (same.status_code, same.content) == (304, b"")
    for path, status, code in [
        ("etags/keys/none", 404, "unknown_key"),
        ("none/keys/a", 404, "unknown_stream"),
        ("etags/keys/" + "k" * 1025, 400, "invalid_key"),
        ("etags/keys/a?at_least=x", 400, "malformed_request"),
        ("etags/keys?limit=0", 400, "malformed_request"),
    ]:
        refused = httpx.get(f"{node.addresses['http']}/v1/tables/{path}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (status, code), path


def test_the_command_line(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(node, capfd, "create", "shop")[1] == "✓ table shop created, on $KV.shop.>\n"
    assert run(node, capfd, "set", "shop", "apples", "7")[1] == "version 0\n"
    assert run(node, capfd, "set", "shop", "pears", "9", "--json")[1] == '{\n  "version": 1\n}\n'
    assert run(node, capfd, "get", "shop", "apples", "--json")[0] == 0
    assert run(node, capfd, "keys", "shop")[1] == "apples\npears\n"
    assert run(node, capfd, "keys", "shop", "p")[1] == "pears\n"
    code, printed = run(node, capfd, "get", "shop", "plums")
    assert (code, printed) == (1, "table shop has no key 'plums'\n")
    run(node, capfd, "rm", "shop", "apples")
    assert json.loads(run(node, capfd, "info", "shop", "--json")[1])["name"] == "shop"
    assert "shop" in run(node, capfd, "list")[1]
    assert run(node, capfd, "delete", "shop", "--yes") == (0, "✓ table shop deleted\n")
    assert "shop" not in run(node, capfd, "list")[1]
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.create_stream("plain", "plain.>")
    code, printed = run(node, capfd, "delete", "plain", "--yes")
    assert (code, "stream 'plain' is not a table" in printed) == (4, True)
    code, printed = run(node, capfd, "get", "nope", "a")
    assert code != 0
    assert "no stream is named 'nope'" in printed


def test_a_session_begins_at_the_position_of_anothers_write(
    node: Node, client: SyncClient, capfd: pytest.CaptureFixture[str]
) -> None:
    client.create_table("handed")
    version = client.table("handed").set("a", b"1", content_type="text/plain")
    found = client.table("handed", at_least=version + 1).get("a")
    assert found is not None
    assert found.value == b"1"
    for command in (("get", "handed", "a"), ("keys", "handed"), ("range", "handed")):
        code, printed = run(node, capfd, *command, "--at-least", str(version + 1))
        assert (code, printed[:1] in "1a{") == (0, True), command
        code, printed = run(node, capfd, *command, "--at-least", str(version + 9))
        assert "offset 9 is outside [0, 1)" in printed, command
        assert code != 0
    code, printed = run(
        node, capfd, "get", "handed", "a", "--at-least", "1", "--consistency", "eventual"
    )
    assert (code, "at_least is for a session" in printed) == (2, True)
    for wrong in (-1, 1 << 63):
        with pytest.raises(ConfigError, match="a position from 0 on"):
            client.table("handed", at_least=wrong)


def test_a_session_goes_on_with_each_table_that_has_the_name(node: Node) -> None:
    """The position that it began with is of the first one only."""
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.create_table("again")
        versions = [client.table("again").set("a", b"%d" % n) for n in range(5)]
        table = client.table("again", at_least=versions[3] + 1)
        assert table.get("a") is not None
        for writes in (2, 1):
            client.delete_stream("again")
            client.create_table("again")
            for n in range(writes):
                client.table("again").set("b", b"%d" % n)
            found = table.get("b")
            assert found is not None
            assert found.value == b"%d" % (writes - 1)


def test_the_size_of_values_has_the_name_that_tables_give_it(
    node: Node, client: SyncClient, capfd: pytest.CaptureFixture[str]
) -> None:
    for flag, size in (("--value-bytes-max", 2_000), ("--message-bytes", 3_000)):
        name = f"sized{size}"
        assert run(node, capfd, "create", name, flag, str(size))[0] == 0
        assert client.stream(name).definition.config.message_bytes_max == size
    assert "--value-bytes-max" in run(node, capfd, "create", "--help")[1]


def test_a_killed_node_has_its_tables_again(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        with bascule.connect_sync(node.addresses["http"]) as client:
            client.create_table("t")
            table = client.table("t")
            client.publish_many((f"$KV.t.k{n % 100}", b"%d" % n) for n in range(5_000))
            last = table.set("last", b"1")
        node.stop(signal.SIGKILL)
        node.spawn_again()
        node.wait_ready()
        with bascule.connect_sync(node.addresses["http"]) as client:
            table = client.table("t")
            version = table.set("later", b"2")
            assert version == last + 1
            assert table.info().keys >= 1
            assert {key: table.get(key).value for key, _ in table.keys("k")} == {  # type: ignore[union-attr]
                b"k%d" % n: b"%d" % (4_900 + n) for n in range(100)
            }
            client.delete_stream("t")
            with pytest.raises(UnknownStream):
                client.table("t").get("k1")


def test_any_node_reads_and_writes_a_table_and_a_failover_keeps_it(
    tmp_path: Path, cluster: RunningCluster
) -> None:
    """The table has two replicas of three nodes, so one node asks the others."""
    one = cluster.nodes[1]
    with bascule.connect_sync(one.addresses["http"]) as client:
        client.create_table("t", replicas=2, min_isr=1)
    cluster.wait_in_sync("t")
    expected: dict[bytes, bytes] = {}
    for number, node in cluster.nodes.items():
        with bascule.connect_sync(node.addresses["http"]) as client:
            table = client.table("t")
            for n in range(20):
                key, value = b"%d.%d" % (number, n % 5), b"%d" % n
                table.set(key, value)
                expected[key] = value
                assert table.get(key).value == value  # type: ignore[union-attr]
            assert {k: table.get(k).value for k, _ in table.keys(b"")} == expected  # type: ignore[union-attr]
    leader = cluster.leader("t")
    cluster.nodes[leader].stop(signal.SIGKILL)
    cluster.leader("t")
    for node in cluster.alive():
        with bascule.connect_sync(node.addresses["http"]) as client:
            table = client.table("t")
            table.set("after", b"%d" % leader)
            assert table.get("after").value == b"%d" % leader  # type: ignore[union-attr]
            found = {k: table.get(k).value for k, _ in table.keys(b"")}  # type: ignore[union-attr]
            assert found == {**expected, b"after": b"%d" % leader}


def test_a_table_has_one_partition(node: Node) -> None:
    with pytest.raises(urllib.error.HTTPError, match="it has 3 partitions, and a table has one"):
        node.create("events", "events.>", cleanup=["compact"], table=True, partitions=3)
