"""Nodes that hang: listeners are asked last for a while, and what a node streams ends soon."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Iterator
from typing import cast

import httpx
import pytest

from bascule.client import connection as connection_module
from bascule.client.admin import servers as servers_module
from bascule.client.admin.servers import SILENCE_ASKED_S, Servers
from bascule.client.admin.table_events import while_there
from bascule.client.connection import SilentNodes, connect_any
from bascule.errors import Broken, ConfigError
from support.virtual_time import elapse, run_virtually


@pytest.fixture
def hanging() -> Iterator[str]:
    """The address of a listener that accepts and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def refusing() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_node_that_hangs_is_waited_for_once(
    hanging: str, refusing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each partition of a stream has a connector of its own, with the same list."""
    monkeypatch.setattr(connection_module, "UNANSWERED_S", 0.2)
    monkeypatch.setattr(connection_module, "_SILENT", SilentNodes())
    seconds = []
    for _ in range(4):
        began = time.monotonic()
        with pytest.raises(Broken):
            connect_any(f"{hanging},{refusing}", timeout=0.3)
        seconds.append(time.monotonic() - began)
    assert seconds[0] >= 0.2
    silent = connection_module._SILENT
    assert silent.last([hanging, refusing, "a:1"]) == ["a:1", hanging, refusing]
    silent.forget(hanging)
    assert silent.last([refusing, hanging]) == [hanging, refusing]


@pytest.mark.parametrize("bootstrap", ["", " ", "a", "a:b", "a:1:2", ",a:1"])
def test_an_address_that_is_none_is_named(bootstrap: str) -> None:
    with pytest.raises(ConfigError, match="the address of a client listener is '"):
        connect_any(bootstrap)


def test_silence_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "SILENT_S", 0.0)
    silent = SilentNodes()
    silent.note("a:1")
    assert silent.last(["a:1", "b:1"]) == ["a:1", "b:1"]


def test_a_stream_ends_where_its_node_does_not_answer_any_more() -> None:
    """It is asked only while it sends nothing."""
    asked: list[float] = []
    answers = [True, True, False]

    async def test() -> None:
        loop = asyncio.get_running_loop()

        async def chunks() -> AsyncGenerator[bytes, None]:
            for _ in range(10):
                await elapse(SILENCE_ASKED_S / 2)
                yield b"x"
            await asyncio.Event().wait()

        async def is_there() -> bool:
            asked.append(loop.time())
            return answers[len(asked) - 1]

        began, found = loop.time(), []
        with pytest.raises(httpx.ReadTimeout):
            async for chunk in while_there(chunks(), is_there, SILENCE_ASKED_S):
                found.append(chunk)
        assert found == [b"x"] * 10
        assert min(asked) > began + 5 * SILENCE_ASKED_S
        assert len(asked) == 3

    run_virtually(test())


def test_who_stops_to_watch_is_cancelled_as_usual() -> None:
    async def test() -> None:
        async def chunks() -> AsyncGenerator[bytes, None]:
            await asyncio.Event().wait()
            yield b""

        async def is_there() -> bool:
            return True

        async def watch() -> None:
            async for _ in while_there(chunks(), is_there, SILENCE_ASKED_S):
                pass

        watching = asyncio.create_task(watch())
        await elapse(10)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching

    run_virtually(test())


@pytest.mark.parametrize(
    ("addresses", "living", "is_left"),
    [
        (["http://slow"], [], False),
        (["http://slow", "http://b"], [], False),
        (["http://slow", "http://b"], ["http://b"], True),
        (["http://slow", "http://b"], ["http://b", "http://slow"], False),
        (["http://b"], ["http://b"], True),  # which has named the slow one
    ],
)
def test_a_silent_node_is_left_for_one_that_answers(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], living: list[str], is_left: bool
) -> None:
    """Else a slow one would be connected to again and again."""

    async def answers(_: Servers, address: str) -> bool:
        return address in living

    async def test() -> None:
        servers = Servers(addresses, cast("httpx.AsyncClient", None), timeout=10)
        assert await servers.is_best("http://slow", SILENCE_ASKED_S) != is_left

    monkeypatch.setattr(Servers, "_answers", answers)
    run_virtually(test())


def test_a_node_that_was_left_in_vain_is_given_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all others name the slow one: only it has a replica."""
    living = {"http://b"}

    async def answers(_: Servers, address: str) -> bool:
        return address in living

    async def test() -> None:
        servers = Servers(["http://a", "http://b"], cast("httpx.AsyncClient", None), timeout=10)
        found = []
        for _ in range(5):
            found.append(servers.silence_s("http://a"))
            assert not await servers.is_best("http://a", found[-1])
            assert not await servers.is_best("http://a", found[-1]), "another stream of it"
        assert found == [2.5, 5, 10, 20, 20]
        assert servers.silence_s("http://b") == SILENCE_ASKED_S
        living.add("http://a")
        await elapse(servers_module.HEARD_S + 1)
        assert await servers.is_best("http://a", found[-1])
        assert servers.silence_s("http://a") == SILENCE_ASKED_S

    monkeypatch.setattr(Servers, "_answers", answers)
    run_virtually(test())
