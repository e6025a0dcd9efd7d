"""Copies of tables outside the cluster: offline reads and writes, and what comes back."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

import bascule
from bascule.client.tables.replica import Conflict, LocalReplica, LocalWrite, RefusedWrite
from bascule.errors import (
    ConfigError,
    CopyDamaged,
    DataDirectoryInUse,
    Indeterminate,
    InvalidKey,
    UnknownStream,
)
from bascule.wire.tables.sync_pages import checksum, decode_page
from support import commands
from support.clusters import running_cluster
from support.processes import BIN, Node, running_node

NOWHERE = "http://127.0.0.1:1"
"""No node answers there."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("copies")) as node:
        yield node


async def contents(copy: LocalReplica) -> dict[bytes, bytes]:
    return {entry.key: entry.value async for entry in copy.entries()}


async def of_table(client: bascule.Client, name: str) -> dict[bytes, bytes]:
    return {entry.key: entry.value async for entry in client.table(name).entries()}


def metric(node: Node, name: str) -> float:
    text = httpx.get(f"{node.addresses['http']}/metrics").text
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def test_a_copy_is_read_and_written_offline(node: Node, tmp_path: Path) -> None:
    async def test() -> None:
        url = node.addresses["http"]
        async with bascule.connect(url) as client:
            await client.create_table("prices")
            table = client.table("prices")
            for name in ("a", "b", "c", "fruit.apple", "fruit.pear"):
                await table.set(name, name.encode(), content_type="text/plain")
            began = time.monotonic()
            async with client.replica("prices", tmp_path) as copy:
                await copy.wait_current()
                assert time.monotonic() - began < 5
                assert await contents(copy) == await of_table(client, "prices")
                entry = await copy.get("a")
                assert entry is not None
                assert entry.content_type == "text/plain"
                version = await table.set("a", b"changed")
                await copy.wait_position(version + 1)
                entry = await copy.get("a")
                assert entry is not None
                assert (entry.version, entry.value) == (version, b"changed")
        async with bascule.open_replica("prices", tmp_path, NOWHERE) as copy:
            assert [key async for key in copy.keys("fruit.*")] == [b"fruit.apple", b"fruit.pear"]
            assert [key async for key in copy.keys("fruit.p")] == [b"fruit.pear"]
            assert [entry.key async for entry in copy.range("b", "d", limit=1)] == [b"b"]
            await copy.set("a", b"offline")
            await copy.set("new", b"new")
            await copy.remove("b")
            assert await copy.get("b") is None
            with pytest.raises(InvalidKey):
                await copy.set("", b"")
            with pytest.raises(Indeterminate, match=r"3 writes .* no Bascule node answers"):
                await copy.flush(0.3)
            with pytest.raises(Indeterminate, match="has not caught up"):
                await copy.wait_current(0.1)
            status = await copy.status()
            assert (status.pending, status.is_connected, status.is_whole) == (3, False, True)
        async with bascule.connect(url) as client:
            await client.table("prices").set("c", b"of others")
            async with bascule.open_replica("prices", tmp_path, url) as copy:
                await copy.wait_current()
                await copy.flush()
                assert await contents(copy) == await of_table(client, "prices")
                assert await contents(copy) == {
                    b"a": b"offline", b"c": b"of others", b"new": b"new",
                    b"fruit.apple": b"fruit.apple", b"fruit.pear": b"fruit.pear",
                }  # fmt: skip
                assert (await copy.status()).refused == 0

    asyncio.run(test())


def test_any_key_is_written_on_a_copy(node: Node, tmp_path: Path) -> None:
    """A line break was no part of a path: its write held up all others."""
    keys = [
        b"\n",
        b"a\n",
        b"a\nb",
        b"\r\n",
        b".",
        b"..",
        b"/",
        b"\x00",
        b"\xff",
        b"\xe2\x80\xa8",
        b"z",
    ]

    async def test() -> None:
        url = node.addresses["http"]
        async with bascule.connect(url) as client:
            await client.create_table("any-key")
            async with bascule.open_replica("any-key", tmp_path, url) as copy:
                for key in keys:
                    await copy.set(key, b"v")
                await copy.flush(60)
                assert await of_table(client, "any-key") == dict.fromkeys(keys, b"v")
                for key in keys:
                    await copy.remove(key)
                await copy.flush(60)
                assert await of_table(client, "any-key") == {}
                assert (await copy.status()).refused == 0

    asyncio.run(test())


async def offline_writes(
    node: Node, directory: Path, table: str, ours: dict[str, bytes | None], **options: Any
) -> tuple[dict[bytes, bytes], list[RefusedWrite]]:
    """Have a copy and others write the same keys, and the copy come back; what is in the table
    then, and what was refused. Keys `late*` are written here last."""
    refused: list[RefusedWrite] = []
    url = node.addresses["http"]
    async with bascule.connect(url) as client:
        await client.create_table(table)
        opened = client.table(table)
        for key in ours:
            if "new" not in key:
                await opened.set(key, b"before")
        async with bascule.open_replica(table, directory, url) as copy:
            await copy.wait_current()
        async with bascule.open_replica(table, directory, NOWHERE) as copy:
            for key, value in ours.items():
                if not key.startswith("late"):
                    await (copy.remove(key) if value is None else copy.set(key, value))
            await asyncio.sleep(0.01)
            for key in ours:
                if "gone" in key:
                    await opened.remove(key)
                elif "same" in key:
                    await opened.set(key, ours[key] or b"")
                else:
                    await opened.set(key, b"theirs")
            await asyncio.sleep(0.01)
            for key, value in ours.items():
                if key.startswith("late"):
                    await (copy.remove(key) if value is None else copy.set(key, value))
        async with bascule.open_replica(
            table, directory, url, on_refused=refused.append, **options
        ) as copy:
            await copy.wait_current()
            await copy.flush()
            assert sorted(each.number for each in refused) == sorted(
                each.number for each in await copy.refused()
            )
            found = await of_table(client, table)
            assert await contents(copy) == found
    return found, refused


OURS = {
    "early": b"ours",
    "early-new": b"ours",
    "early-gone": b"ours",
    "early-removed": None,
    "early-same": b"alike",
    "late": b"ours",
    "late-new": b"ours",
    "late-gone": b"ours",
    "late-removed": None,
}


def test_writes_to_keys_that_others_have_changed_are_refused(node: Node, tmp_path: Path) -> None:
    found, refused = asyncio.run(offline_writes(node, tmp_path, "rejected", OURS))
    assert {each.write.key.decode() for each in refused} == OURS.keys() - {"early-same"}
    assert found == {
        b"early": b"theirs", b"early-new": b"theirs", b"early-removed": b"theirs",
        b"early-same": b"alike", b"late": b"theirs", b"late-new": b"theirs",
        b"late-removed": b"theirs",
    }  # fmt: skip
    assert all("others have written" in each.reason for each in refused)


def test_the_newer_write_wins(node: Node, tmp_path: Path) -> None:
    found, refused = asyncio.run(offline_writes(node, tmp_path, "newer", OURS, conflicts="newer"))
    assert found == {
        b"early": b"theirs", b"early-new": b"theirs", b"early-removed": b"theirs",
        b"early-same": b"alike", b"late": b"ours", b"late-new": b"ours", b"late-gone": b"ours",
    }  # fmt: skip
    assert {each.write.key for each in refused} == {
        b"early", b"early-new", b"early-gone", b"early-removed"
    }  # fmt: skip


def test_a_function_decides(node: Node, tmp_path: Path) -> None:
    seen: dict[bytes, Conflict] = {}

    async def decide(conflict: Conflict) -> LocalWrite | None:
        seen[conflict.ours.key] = conflict
        if conflict.ours.key == b"fails":
            raise ValueError("not so")
        if conflict.theirs.value is None or conflict.ours.value is None:
            return conflict.ours
        return conflict.merged(conflict.theirs.value + b"+" + conflict.ours.value)

    ours = {"early": b"ours", "early-gone": b"ours", "early-removed": None, "fails": b"x"}
    found, refused = asyncio.run(offline_writes(node, tmp_path, "decided", ours, conflicts=decide))
    assert found == {b"early": b"theirs+ours", b"early-gone": b"ours", b"fails": b"theirs"}
    assert [each.write.key for each in refused] == [b"fails"]
    assert "not so" in refused[0].reason
    gone = seen[b"early-gone"].theirs
    assert gone.version is not None
    assert gone.value is None
    assert gone.timestamp > seen[b"early-gone"].ours.timestamp


def test_what_a_table_never_takes_is_refused(node: Node, tmp_path: Path) -> None:
    async def test() -> None:
        url = node.addresses["http"]
        async with bascule.connect(url) as client:
            await client.create_table("small", message_bytes_max=2_000)
            async with bascule.open_replica("small", tmp_path, url) as copy:
                await copy.set("a", b"x" * 3_000)
                await copy.set("b", b"x")
                await copy.flush()
                (refused,) = await copy.refused()
                assert "3000 bytes exceeds the stream's limit of 2000 bytes" in refused.reason
                assert await contents(copy) == {b"b": b"x"}
                await copy.forget_refused(refused.number)
                assert await copy.refused() == []
            await client.pause_stream("small")
            async with bascule.open_replica("small", tmp_path, url) as copy:
                await copy.set("c", b"x")
                with pytest.raises(Indeterminate, match="paused"):
                    await copy.flush(2)
                await client.resume_stream("small")
                await copy.flush()
            assert (await of_table(client, "small")).keys() == {b"b", b"c"}

    asyncio.run(test())


def test_a_table_that_was_made_anew(node: Node, tmp_path: Path) -> None:
    async def test() -> None:
        url = node.addresses["http"]
        async with bascule.connect(url) as client:
            await client.create_table("again")
            for n in range(20):
                await client.table("again").set(f"old.{n}", b"1")
            async with bascule.open_replica("again", tmp_path, url) as copy:
                await copy.wait_current()
                await client.delete_stream("again")
                await client.create_table("again")
                await client.table("again").set("new", b"1")
                for _ in range(200):
                    if await contents(copy) == {b"new": b"1"}:
                        break
                    await copy.wait_changed(0.1)
                assert await contents(copy) == {b"new": b"1"}
            with pytest.raises(UnknownStream):
                async with bascule.open_replica("none", tmp_path / "none", url) as copy:
                    await copy.wait_current()

    asyncio.run(test())


def test_one_process_follows_and_others_read(node: Node, tmp_path: Path) -> None:
    url = node.addresses["http"]
    with bascule.connect_sync(url) as client:
        client.create_table("shared")
        table = client.table("shared")
        table.set("a", b"1")
        with bascule.open_replica_sync("shared", tmp_path, url) as copy:
            copy.wait_current()
            with pytest.raises(DataDirectoryInUse):
                bascule.open_replica_sync("shared", tmp_path, url)
            with bascule.open_replica_sync("shared", tmp_path, NOWHERE, follow=False) as other:
                assert list(other.keys()) == [b"a"]
                other.set("b", b"2")
                with pytest.raises(Indeterminate, match="does not follow"):
                    other.wait_current()
            copy.wait_position(2)
            found = copy.get("b")
            assert found is not None
            assert (found.version, found.is_pending) == (1, False)
            assert copy.status().pending == 0
    with pytest.raises(ConfigError, match="'shared', not of 'other'"):
        bascule.open_replica_sync("other", tmp_path, NOWHERE)
    with pytest.raises(ConfigError, match="conflicts is reject, newer or a function"):
        bascule.open_replica("shared", tmp_path, conflicts="older")  # type: ignore[arg-type]


def test_only_the_keys_that_have_changed_come(tmp_path: Path) -> None:
    """Also across a kill -9 of the node, behind which its oplog goes on."""
    with running_node(tmp_path / "node", keep_ports=True) as node:
        url = node.addresses["http"]

        async def test() -> None:
            async with bascule.connect(url) as client:
                await client.create_table("t")
                table = client.table("t")
                await asyncio.gather(*(table.set(f"k{n:04}", b"1") for n in range(2_000)))
                async with bascule.open_replica("t", tmp_path / "copy", url) as copy:
                    await copy.wait_current()
                for _ in range(10):
                    await asyncio.gather(*(table.set(f"k{n:04}", b"2") for n in range(100)))
                version = await table.remove("k1999")
            await asyncio.to_thread(node.stop, 9)
            await asyncio.to_thread(node.start)
            assert metric(node, "bascule_table_follower_rows_total") == 0
            async with (
                bascule.connect(url) as client,
                bascule.open_replica("t", tmp_path / "copy", url) as copy,
            ):
                await copy.wait_position(version + 1)
                assert (await copy.status()).received == 101
                assert await contents(copy) == await of_table(client, "t")
            assert metric(node, "bascule_table_follower_rows_total") == 101
            assert metric(node, "bascule_table_follower_full_pages_total") == 0
            assert metric(node, "bascule_table_followers") == 1

        asyncio.run(test())


def test_the_pages_over_http(node: Node) -> None:
    url = f"{node.addresses['http']}/v1/tables/paged/changes"
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.create_table("paged")
        table = client.table("paged")
        for n in range(5):
            table.set(f"k{n}", b"1")
        assert table.get("k4") is not None  # it waits for what it has set; a page does not
        found = httpx.get(url, params={"rows": 2})
        page = decode_page(found.content, found.headers["bascule-crc32c"])
        assert checksum(found.content) == found.headers["bascule-crc32c"]
        assert (page.is_full, page.next_after, page.keys) == (True, b"k1", 5)
        began = time.monotonic()
        query: dict[str, str | int] = {
            "id": page.table.hex(), "since": 5, "epoch": page.epoch, "wait_ms": 300,
        }  # fmt: skip
        found = httpx.get(url, params=query)
        assert time.monotonic() - began >= 0.3
        page = decode_page(found.content, found.headers["bascule-crc32c"])
        assert (page.rows, page.is_full, page.is_current) == ([], False, True)
        for wrong in ({"id": "zz"}, {"since": "-1"}, {"epoch": "x"}, {"wait_ms": "60000"},
                      {"bytes": "0"}, {"follower": "x" * 200}):  # fmt: skip
            found = httpx.get(url, params=wrong)
            assert found.status_code == 400, wrong
            assert found.json()["error"]["field"] == next(iter(wrong))


def table_command(url: str, *arguments: str, code: int = 0) -> str:
    """What `bascule table` prints; it ends with `code`."""
    done = commands.run("table", *arguments, env={"BASCULE_SERVER": url}, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_the_command_line_keeps_a_copy(node: Node, tmp_path: Path) -> None:
    url, directory = node.addresses["http"], str(tmp_path / "copy")

    run = partial(table_command, url)

    run("create", "cars")
    for key in ("a", "b", "c"):
        run("set", "cars", key, "1")
    assert "has everything up to offset 3" in run("follow", "cars", "--to", directory, "--once")
    copy = ("--replica", directory)
    assert run("get", "cars", "a", *copy) == "1"
    run("set", "cars", "a", "ours", *copy)
    run("set", "cars", "b", "ours", *copy)
    run("rm", "cars", "c", *copy)
    assert run("keys", "cars", *copy) == "a\nb\n"
    assert json.loads(run("get", "cars", "a", "--json", *copy))["value"] == "ours"
    assert "already" not in run("set", "cars", "x", "y", "--if-absent", *copy, code=2)
    run("set", "cars", "b", "theirs")
    said = run("follow", "cars", "--to", directory, "--once")
    assert "the write of 'b' was refused: others have written: expected version 1" in said
    assert run("keys", "cars") == "a\nb\n"
    assert (run("get", "cars", "a"), run("get", "cars", "b")) == ("ours", "theirs")
    about = json.loads(run("info", "cars", "--json", *copy))
    assert (about["keys"], about["refused"], about["pending"]) == (2, 1, 0)
    assert "b: value of" in run("info", "cars", *copy)
    assert "there is no copy" in run("get", "cars", "a", "--replica", f"{directory}2", code=2)
    assert "no stream is named" in run("follow", "no", "--to", f"{directory}3", "--once", code=3)


@pytest.mark.parametrize("other", ["begun anew", "cloned"])
def test_the_writes_of_a_copy_are_not_taken_for_others(
    node: Node, tmp_path: Path, other: str
) -> None:
    """The node took the second write for a repetition of the first, which had the same number."""
    name, url = f"ids-{other.split()[-1]}", node.addresses["http"]

    async def test() -> None:
        async with bascule.connect(url) as client:
            await client.create_table(name)
            async with client.replica(name, tmp_path / "first") as copy:
                await copy.wait_current()
            second = tmp_path / "first"
            if other == "cloned":
                second = tmp_path / "second"
                shutil.copytree(tmp_path / "first", second)
            async with client.replica(name, tmp_path / "first") as copy:
                await copy.set("a", b"1")
                await copy.flush()
            async with bascule.open_replica(name, second, url, anew=other == "begun anew") as copy:
                await copy.set("b", b"2")
                await copy.flush()
                await copy.wait_current()
                assert (await copy.status()).refused == 0
                assert await contents(copy) == await of_table(client, name)
                assert await of_table(client, name) == {b"a": b"1", b"b": b"2"}

    asyncio.run(test())


def test_a_damaged_copy_says_so_and_begins_anew(node: Node, tmp_path: Path) -> None:
    url, directory = node.addresses["http"], tmp_path / "copy"

    run = partial(table_command, url)

    follow, copy = (
        ("follow", "hurt", "--to", str(directory), "--once"),
        ("--replica", str(directory)),
    )
    run("create", "hurt")
    run("set", "hurt", "a", "whole value")
    run("set", "hurt", "b", "2")
    run(*follow)
    run("set", "hurt", "offline", "kept", *copy)
    assert run("info", "hurt", "--verify", *copy)
    path = directory / "table.db"
    data = path.read_bytes()
    assert b"whole value" in data
    path.write_bytes(data.replace(b"whole value", b"wrong value"))
    assert run("get", "hurt", "b", *copy) == "2"
    for command in (("get", "hurt", "a"), ("keys", "hurt"), ("info", "hurt", "--verify")):
        said = run(*command, *copy, code=6)
        assert "table.db is corrupt at the row of key 'a': expected the checksum" in said
        assert "`bascule table follow TABLE --to DIR --anew`" in said
    path.write_bytes(data[:4096] + bytes(200) + data[4296:])
    said = run(*follow, code=6)
    assert "--anew" in said
    assert "has everything up to offset" in run(*follow, "--anew")
    assert run("get", "hurt", "a", *copy) == "whole value"
    assert (directory / "table.db.damaged").exists()


def test_following_ends_where_the_copy_turns_out_to_be_damaged(node: Node, tmp_path: Path) -> None:
    async def test() -> None:
        url = node.addresses["http"]
        async with bascule.connect(url) as client:
            await client.create_table("ends")
            await client.table("ends").set("a", b"1")
            async with bascule.open_replica("ends", tmp_path, url) as copy:
                await copy.wait_current()
            async with bascule.open_replica("ends", tmp_path, url, follow=False) as copy:
                await copy.set("b", b"never sent")
            path = tmp_path / "table.db"
            path.write_bytes(path.read_bytes().replace(b"never sent", b"never kept"))
            async with bascule.open_replica("ends", tmp_path, url) as copy:
                with pytest.raises(CopyDamaged, match="write 1: expected the checksum"):
                    await copy.flush()
                with pytest.raises(CopyDamaged):
                    await copy.wait_position(1 << 40)
                assert "--anew" in str((await copy.status()).trouble)
            async with bascule.open_replica("ends", tmp_path, url, anew=True) as copy:
                await copy.flush()
                await copy.wait_current()
                assert await contents(copy) == {b"a": b"1"}
                assert await copy.verify() == 1
        with pytest.raises(ConfigError, match="leave out follow=False"):
            bascule.open_replica("ends", tmp_path, url, follow=False, anew=True)

    asyncio.run(test())


@pytest.mark.long
def test_kill_9_of_who_follows(node: Node, tmp_path: Path) -> None:
    """In the middle of the first pages and of offers: the next one goes on."""
    url, dice = node.addresses["http"], random.Random(3)
    command = [str(BIN / "bascule"), "table", "follow", "many", "--to", str(tmp_path), "--json"]

    async def fill() -> None:
        async with bascule.connect(url) as client:
            await client.create_table("many")
            table = client.table("many")
            for start in range(0, 12_000, 1_000):
                await asyncio.gather(
                    *(table.set(f"{n:05}", b"x" * 500) for n in range(start, start + 1_000))
                )

    asyncio.run(fill())
    for turn in range(8):
        with bascule.open_replica_sync("many", tmp_path, url, follow=False) as copy:
            for n in range(40):
                copy.set(f"mine.{n}", b"%d" % turn)
        following = subprocess.Popen([*command, "--server", url], stdout=subprocess.PIPE)
        assert following.stdout is not None
        for _ in range(dice.randrange(1, 4)):
            following.stdout.readline()
        time.sleep(dice.uniform(0, 0.1))
        following.kill()
        following.communicate()
    with (
        bascule.connect_sync(url) as client,
        bascule.open_replica_sync("many", tmp_path, url) as copy,
    ):
        copy.wait_current()
        copy.flush()
        assert copy.refused() == []
        table = {entry.key: entry.value for entry in client.table("many").entries()}
        assert {entry.key: entry.value for entry in copy.entries()} == table
        assert [table[b"mine.%d" % n] for n in range(40)] == [b"7"] * 40


def test_a_copy_follows_a_cluster_whose_nodes_end(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster") as cluster:
        servers = ",".join(node.addresses["http"] for node in cluster.nodes.values())

        async def test() -> None:
            async with bascule.connect(servers) as client:
                await client.create_table("t", replicas=2, min_isr=1)
                await asyncio.to_thread(cluster.wait_in_sync, "t")
                table = client.table("t")
                await table.set("first", b"1")
                dice, stop = random.Random(5), asyncio.Event()

                async def write() -> None:
                    while not stop.is_set():
                        await table.set(f"k{dice.randrange(50)}", b"theirs", timeout=30)

                async with bascule.open_replica(
                    "t", tmp_path / "copy", servers, conflicts="newer"
                ) as copy:
                    writing = asyncio.create_task(write())
                    for number in (1, 2, 3):
                        await asyncio.to_thread(cluster.nodes[number].stop, 9)
                        for n in range(20):
                            await copy.set(f"ours.{number}.{n}", b"ours")
                        await copy.flush()
                        await asyncio.to_thread(cluster.nodes[number].start)
                        await asyncio.to_thread(cluster.wait_in_sync, "t")
                    stop.set()
                    await writing
                    version = await table.set("last", b"1")
                    await copy.wait_position(version + 1)
                    expected = await of_table(client, "t")
                    assert await contents(copy) == expected
                    assert sum(key.startswith(b"ours.") for key in expected) == 60
                    assert await copy.refused() == []

        asyncio.run(test())
