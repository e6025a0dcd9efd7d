"""Reads of tables by key over the client listener, many in one request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import Any

import pytest

import bascule
from bascule.client import Client
from bascule.client.tables.read_connection import TableReader
from bascule.errors import InvalidKey, NotATable, RequestFailed, UnknownStream
from bascule.wire.tables.read_batches import KeyRead
from support.processes import Node, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("reads")) as node:
        yield node


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


def connected(node: Node) -> Client:
    return bascule.connect(node.addresses["http"])


def reader_of(node: Node) -> TableReader:
    return TableReader(lambda: [node.addresses["client"]])


@on_a_loop
async def test_reads_together_are_those_of_each_alone(node: Node) -> None:
    async with connected(node) as client:
        for name in ("one", "two"):
            await client.create_table(name)
        tables = {name: client.table(name) for name in ("one", "two")}
        written = {}
        for n in range(40):
            name, key = ("one", "two")[n % 2], b"k%d" % (n % 30)
            position = await tables[name].set(key, b"%s %d" % (name.encode(), n)) + 1
            written[name, key] = position, b"%s %d" % (name.encode(), n)
        written["one", b"k0"] = await tables["one"].remove(b"k0") + 1, b""
        reader = reader_of(node)
        nothing = await reader.read(KeyRead("one", [b"absent"]))
        assert nothing is not None
        assert nothing.entries == []
        asked = [
            KeyRead(name, [key, b"absent", key], position, linearizable=linearizable)
            for (name, key), (position, _) in written.items()
            for linearizable in (False, True)
        ]
        answers = await asyncio.gather(*(reader.read(each) for each in asked))
        reader.close()
        for read, answer in zip(asked, answers, strict=True):
            assert answer is not None
            assert answer.position >= read.at_least
            found = [(entry.key, entry.value) for entry in answer.entries]
            key = read.keys[0]
            is_removed = (read.table, key) == ("one", b"k0")
            assert found == ([] if is_removed else [(key, written[read.table, key][1])])


@on_a_loop
async def test_what_is_refused_is_nothing_and_the_client_says_why(node: Node) -> None:
    async with connected(node) as client:
        await client.create_table("refusing")
        await client.create_stream("plain", "plain")
        reader = reader_of(node)
        good = KeyRead("refusing", [b"a"])
        bad = [
            KeyRead("refusing", [b""]),
            KeyRead("refusing", [b"k" * 1_025]),
            KeyRead("nowhere", [b"a"]),
            KeyRead("plain", [b"a"]),
            KeyRead("refusing", [b"%d" % n for n in range(10_001)]),
            KeyRead("refusing", [b"a"], 1_000_000),
        ]
        found = await asyncio.gather(*(reader.read(each) for each in (good, *bad, good)))
        assert [each is None for each in found[:-2]] == [False, *[True] * 5]
        assert found[-2] is None
        reader.close()
        with pytest.raises(InvalidKey, match="1025 bytes"):
            await client.table("refusing").get(b"k" * 1_025)
        with pytest.raises(UnknownStream):
            await client.table("nowhere").get(b"a")
        with pytest.raises(NotATable):
            await client.table("plain").get(b"a")
        with pytest.raises(RequestFailed, match="10000"):
            await client.table("refusing").get_many(b"%d" % n for n in range(10_001))


@on_a_loop
async def test_large_values_are_read_in_whatever_number(node: Node) -> None:
    async with connected(node) as client:
        await client.create_table("large")
        table = client.table("large")
        for n in range(8):
            await table.set(b"%d" % n, b"%d" % n * 900_000)
        found = await asyncio.gather(*(table.get(b"%d" % n) for n in range(8)))
        assert [entry is not None and entry.value[:1] for entry in found] == [
            b"%d" % n for n in range(8)
        ]
        with pytest.raises(RequestFailed, match="bytes of the values"):
            await table.get_many(b"%d" % n for n in range(8))


@on_a_loop
async def test_a_session_reads_what_it_has_written_meanwhile(node: Node) -> None:
    async with connected(node) as client:
        await client.create_table("counted")
        table = client.table("counted")

        async def count(number: int) -> None:
            for n in range(20):
                await table.set(b"c%d" % number, b"%d" % n)
                found = await table.get(b"c%d" % number)
                assert found is not None
                assert int(found.value) == n

        await asyncio.gather(*(count(number) for number in range(8)))


@pytest.mark.parametrize("first", ["closes", "answers nonsense", "refuses"])
@on_a_loop
async def test_a_server_that_does_not_serve_reads_is_left_for_a_while(first: str) -> None:
    came = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        came += 1
        await reader.read(1)
        if first == "answers nonsense":
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    if first == "refuses":
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            reads = TableReader(lambda: [f"127.0.0.1:{bound.getsockname()[1]}"])
            assert await reads.read(KeyRead("t", [b"a"])) is None
        return
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    reads = TableReader(lambda: [f"{host}:{port}"])
    for _ in range(3):
        assert await reads.read(KeyRead("t", [b"a"])) is None
    assert came == 1
    reads.close()
    server.close()
    await server.wait_closed()


@on_a_loop
async def test_reads_go_on_over_http_where_the_connection_is_lost(node: Node) -> None:
    async with connected(node) as client:
        await client.create_table("lost")
        table = client.table("lost")
        await table.set("a", b"1")
        assert await table.get("a") is not None
        reading = [asyncio.create_task(table.get("a")) for _ in range(50)]
        await asyncio.sleep(0)
        client.table_reader.close()
        found = await asyncio.gather(*reading)
        assert [entry is not None and entry.value for entry in found] == [b"1"] * 50
        assert await table.get("a") is not None
