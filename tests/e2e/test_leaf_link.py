"""The leafnode connection, against a server that says what the test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from bascule.keyvalue import leaf
from bascule.keyvalue.leaf import LeafLink
from bascule.wire.nats import ServerAddress

INFO = b'INFO {"server_id":"S","port":7422}\r\n'
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Seen:
    """What the link has told."""

    def __init__(self) -> None:
        self.interest: list[str | None] = []
        self.lost = 0


async def connected(serve: Serve, seen: Seen) -> tuple[LeafLink, asyncio.Server]:
    """A link to a server whose every connection is served by `serve`."""

    async def greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(INFO)
            connect = await reader.readuntil(b"\r\n")
            fields = json.loads(connect.removeprefix(b"CONNECT "))
            assert (fields["user"], fields["pass"], fields["name"]) == ("u", "p", "n1")
            assert await reader.readuntil(b"\r\n") == b"PING\r\n"
            await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(greeted, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    address = ServerAddress("127.0.0.1", port, user="u", password="p")

    def lost() -> None:
        seen.lost += 1

    link = LeafLink(lambda: address, name="n1", on_interest=seen.interest.append, on_lost=lost)
    link.start()
    return link, server


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not look():
            await asyncio.sleep(0.01)


def test_interest_is_known_and_what_is_sent_arrives() -> None:
    async def test() -> None:
        received: asyncio.Queue[bytes] = asyncio.Queue()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"LS+ a.b\r\nLS+ queue.c group 1\r\nLS+ w.*\r\nPO")
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.write(b"NG\r\nLS+ late\r\nPING\r\n")
            received.put_nowait(await reader.readuntil(b"\r\n"))
            received.put_nowait(await reader.readuntil(b"\r\n"))
            writer.write(b"LS- late\r\nLS- w.*\r\n")
            await reader.read()

        seen = Seen()
        link, server = await connected(serve, seen)
        await until(lambda: "late" in seen.interest)
        assert link.is_connected
        found = [link.has_interest(each) for each in ("a.b", "queue.c", "w.x", "w.x.y", "late")]
        assert found == [True, False, True, False, True]
        link.send(b"LMSG a.b 0\r\n")
        assert await received.get() == b"PONG\r\n"
        assert await received.get() == b"LMSG a.b 0\r\n"
        await until(lambda: not link.has_interest("late") and not link.has_interest("w.x"))
        assert seen.interest == ["a.b", None, "late", "late", None]
        await link.close()
        server.close()

    asyncio.run(test())


@pytest.mark.parametrize(
    "answer",
    [b"-ERR 'Authorization Violation'\r\n", b"NONSENSE\r\n", b"x" * (leaf.LINE_BYTES_MAX + 1), b""],
)
def test_a_connection_that_fails_is_made_again(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaf, "BACKOFF_SECONDS", (0.01,))

    async def test() -> None:
        connections = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            if connections == 1:
                writer.write(answer)  # before it is accepted
                await writer.drain()
                return
            writer.write(b"PONG\r\n")
            if connections == 2:
                await asyncio.sleep(0.05)
                writer.write(answer)  # after that
                await writer.drain()
                return
            await reader.read()

        seen = Seen()
        link, server = await connected(serve, seen)
        await until(lambda: connections == 3 and link.is_connected)
        assert seen.lost == 1
        assert not link.has_interest("a")
        await link.close()
        link.send(b"dropped")
        await link.drain()
        server.close()

    asyncio.run(test())


def test_without_an_address_nothing_is_sent() -> None:
    async def test() -> None:
        link = LeafLink(lambda: None, name="n", on_interest=lambda _: None, on_lost=lambda: None)
        link.start()
        await asyncio.sleep(0.01)
        assert not link.is_connected
        assert not link.is_writable
        link.send(b"dropped")
        await link.drain()
        await link.close()

    asyncio.run(test())
