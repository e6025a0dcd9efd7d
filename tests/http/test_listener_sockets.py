"""The sockets of the HTTP listener."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bascule.host.real import RealFiles
from bascule.http import listener as listener_module
from bascule.http.listener import HttpListener
from bascule.http.metrics.http_statistics import HttpStatistics, StatisticsMiddleware
from bascule.http.payloads.sendfile import SENDFILE


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


@pytest.mark.parametrize(("method", "sent"), [("GET", 5), ("HEAD", 0)])
def test_bytes_of_bodies_are_counted_if_they_are_sent(method: str, sent: int) -> None:
    async def answer(_: object) -> PlainTextResponse:
        return PlainTextResponse("hello")

    assert counted(Starlette(routes=[Route("/", answer)]), method) == sent


def test_bytes_that_go_out_by_sendfile_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "payload"
    path.write_bytes(bytes(300_000))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"200000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        file = RealFiles().open(str(path), write=False)
        await scope["extensions"][SENDFILE](file, 50_000, 200_000)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    assert counted(app, "GET") == 200_000


def counted(app: ASGIApp, method: str) -> int:
    """The bytes of bodies that the statistics have after one request."""
    statistics = HttpStatistics()

    async def scene() -> None:
        listener = HttpListener(StatisticsMiddleware(app, statistics), statistics=statistics)
        reader, writer = await asyncio.open_connection(*await listener.start("127.0.0.1", 0))
        try:
            writer.write(f"{method} / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
        finally:
            writer.close()
            await listener.close()

    asyncio.run(scene())
    return statistics.bytes_out


@pytest.mark.parametrize(
    ("method", "expected"),
    [("GET", "closing"), ("POST", "indeterminate"), ("BEGUN", "")],
)
def test_requests_that_are_not_answered_in_time_are_told_so(
    method: str, expected: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "CLOSE_SECONDS_MAX", 0.1)
    runs = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if method == "BEGUN":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"some", "more_body": True})
        runs.set()
        await asyncio.Event().wait()

    async def scene() -> bytes:
        listener = HttpListener(app)
        reader, writer = await asyncio.open_connection(*await listener.start("127.0.0.1", 0))
        try:
            word = "GET" if method == "BEGUN" else method
            writer.write(f"{word} / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n".encode())
            await runs.wait()
            answer, _ = await asyncio.gather(_until_closed(reader), listener.close())
            return answer
        finally:
            writer.close()

    answer = asyncio.run(scene())
    if method == "BEGUN":
        assert answer.startswith(b"HTTP/1.1 200")
        assert not answer.endswith(b"0\r\n\r\n")
    else:
        assert answer.startswith(b"HTTP/1.1 503")
        assert f'"code":"{expected}"'.encode() in answer
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == []
    assert "requests are not answered in time" in caplog.text


async def _until_closed(reader: asyncio.StreamReader) -> bytes:
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while some := await reader.read(1 << 16):
            received += some
    return bytes(received)
