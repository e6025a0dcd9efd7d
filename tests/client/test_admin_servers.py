"""Which of several servers a request goes to, over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from bascule.client.admin.api import Admin
from bascule.errors import Broken

WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nback"
CUT = b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n"


class Servers:
    """Two listeners: the first one ends each connection within its answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []

    async def __aenter__(self) -> Servers:
        self._servers = [
            await asyncio.start_server(self._answer(number, text), "127.0.0.1", 0)
            for number, text in enumerate((CUT, WHOLE))
        ]
        ports = [each.sockets[0].getsockname()[1] for each in self._servers]
        self.addresses = ",".join(f"http://127.0.0.1:{port}" for port in ports)
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
            await server.wait_closed()

    def _answer(self, number: int, text: bytes):  # type: ignore[no-untyped-def]
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append((number, head.split(b" ", 1)[0].decode()))
            writer.write(text)
            writer.close()
            await writer.wait_closed()

        return answer


def test_a_read_goes_on_at_the_next_server_when_one_dies_within_its_answer() -> None:
    async def scene() -> None:
        async with Servers() as servers:
            admin = Admin(servers.addresses, timeout=10)
            try:
                assert await admin.metrics() == "back"
                assert await admin.metrics() == "back"
            finally:
                await admin.close()
        assert servers.asked == [(0, "GET"), (1, "GET"), (1, "GET")]

    asyncio.run(scene())


def test_a_change_is_not_sent_again_after_it_was_sent() -> None:
    async def scene() -> None:
        async with Servers() as servers:
            admin = Admin(servers.addresses, timeout=10)
            try:
                with pytest.raises(Broken, match="no Bascule node answers"):
                    await admin.delete_stream("orders")
            finally:
                await admin.close()
        assert servers.asked == [(0, "DELETE")]

    asyncio.run(scene())
