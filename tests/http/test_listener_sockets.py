"""The sockets of the HTTP listener."""

from __future__ import annotations

import asyncio
import socket

from starlette.applications import Starlette

from bascule.http.listener import HttpListener


def test_no_response_waits_for_an_acknowledgement_of_its_head() -> None:
    """asyncio sets TCP_NODELAY only on sockets that name their protocol."""

    async def scene() -> None:
        listener = HttpListener(Starlette())
        reader, writer = await asyncio.open_connection(*await listener.start("127.0.0.1", 0))
        try:
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 404")
            (connection,) = listener._server.server_state.connections
            accepted = connection.transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        finally:
            writer.close()
            await listener.close()

    asyncio.run(scene())
