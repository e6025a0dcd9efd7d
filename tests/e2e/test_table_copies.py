"""Copies of tables as clients and commands open them: their options, and watching them."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import bascule
from bascule.client.tables.replica import RefusedWrite
from support import commands
from support.processes import BIN, Node, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("copies")) as node:
        yield node


def test_a_client_opens_copies_with_all_options(node: Node, tmp_path: Path) -> None:
    refused: list[RefusedWrite] = []

    async def asynchronous(url: str) -> None:
        async with (
            bascule.connect(url) as client,
            client.replica("handy", tmp_path / "a", on_refused=refused.append) as copy,
        ):
            await copy.wait_current()

    with bascule.connect_sync(node.addresses["http"]) as client:
        client.create_table("handy")
        table = client.table("handy")
        table.set("a", b"1")
        with client.replica("handy", tmp_path / "b") as copy:
            copy.wait_current()
            found = copy.get("a")
            assert found is not None
            assert found.value == b"1"
        with client.replica("handy", tmp_path / "b", follow=False) as copy:
            copy.set("a", b"ours")
        table.set("a", b"theirs")
        with client.replica("handy", tmp_path / "b", on_refused=refused.append) as copy:
            copy.flush()
        assert [each.write.value for each in refused] == [b"ours"]
        with client.replica("handy", tmp_path / "b", conflicts="newer", anew=True) as copy:
            copy.wait_current()
            assert copy.count() == 1
        assert (tmp_path / "b" / "table.db.damaged").exists()
    asyncio.run(asynchronous(node.addresses["http"]))


def test_a_copy_is_watched_while_it_follows_and_offline(node: Node, tmp_path: Path) -> None:
    async def test(url: str) -> None:
        async with bascule.connect(url) as client:
            await client.create_table("watched")
            table = client.table("watched")
            await table.set("user.1", b"1")
            async with client.replica("watched", tmp_path) as copy:
                changes = copy.watch("user.*", start="state")
                async with asyncio.timeout(120):
                    assert (await anext(changes)).value == b"1"
                    await table.set("other", b"2")
                    version = await table.set("user.2", b"3")
                    found = await anext(changes)
                    assert (found.key, found.version, found.value) == (b"user.2", version, b"3")
                    await copy.set("user.1", b"ours")
                    found = await anext(changes)
                    assert (found.key, found.version, found.value) == (b"user.1", 3, b"ours")
                    await table.remove("user.1")
                    found = await anext(changes)
                    assert (found.version, found.value) == (4, None)
            async with bascule.open_replica("watched", tmp_path, follow=False) as copy:
                await copy.set("user.9", b"later")
                shown: list[int] = []
                changes = copy.watch(start="state", on_current=shown.append)
                assert [(await anext(changes)).key for _ in range(2)] == [b"other", b"user.2"]

    asyncio.run(test(node.addresses["http"]))


def test_the_command_line_reads_and_watches_a_copy(node: Node, tmp_path: Path) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        done = commands.run(
            "table", *arguments, env={"BASCULE_SERVER": node.addresses["http"]}, text=True
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    copy = ("--replica", str(tmp_path))
    run("create", "listed")
    for key in ("a", "b", "c"):
        run("set", "listed", key, key.upper())
    run("follow", "listed", "--to", str(tmp_path), "--once")
    run("set", "listed", "b", "ours", *copy)
    rows = [json.loads(line) for line in run("range", "listed", "a", "c", *copy).splitlines()]
    assert [(row["key"], row["version"], row["value"]) for row in rows] == [
        ("a", 0, "A"), ("b", 1, "ours"),
    ]  # fmt: skip
    assert run("range", "listed", "a", "c", *copy, "--json").count("\n") == 2
    assert run("range", "listed", *copy, "-n", "1").count("\n") == 1
    several = run("get", "listed", "a", "c", "--json", *copy)
    assert [json.loads(line)["value"] for line in several.splitlines()] == ["A", "C"]
    assert "shows its position" in run("get", "listed", "a", "--at-least", "1", *copy, code=2)
    assert "take --state" in run("watch", "listed", "--from", "1", *copy, code=2)
    command = [str(BIN / "bascule"), "table", "watch", "listed", "--state", "--json", *copy]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert watching.stdout is not None
        first = [json.loads(watching.stdout.readline()) for _ in range(3)]
        assert [each["value"] for each in first] == ["A", "B", "C"]
        run("follow", "listed", "--to", str(tmp_path), "--once")
        taken = json.loads(watching.stdout.readline())
        assert (taken["key"], taken["version"], taken["value"]) == ("b", 3, "ours")
    finally:
        watching.terminate()
        watching.communicate(timeout=20)
