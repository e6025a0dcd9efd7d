"""Copies of tables as clients and commands open them: their options, and watching them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import bascule
from bascule.client.tables.replica import RefusedWrite
from support.processes import Node, running_node


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
