"""Answers to the pings of other nodes, and to strangers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from bascule.cluster_identity import ClusterIdentity
from bascule.heartbeats.heartbeat_thread import (
    HELLO_BYTES_MAX,
    LENGTH,
    HeartbeatHello,
    encode_hello,
)
from bascule.heartbeats.peer_heartbeats import PeerHeartbeats
from bascule.host.real import RealClock

LIMIT_SECONDS = 30
CLUSTER = "c"


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return run


@contextlib.asynccontextmanager
async def answering() -> AsyncIterator[PeerHeartbeats]:
    """Node 1, in its process of number 11."""
    made = PeerHeartbeats(
        1, ClusterIdentity(CLUSTER, "ours"), 11, RealClock(), on_lost=lambda _: None
    )
    made.start()
    try:
        yield made
    finally:
        await made.close()


HELLO = encode_hello(HeartbeatHello(CLUSTER, 3, 1))


@pytest.mark.parametrize(
    "first",
    [
        encode_hello(HeartbeatHello("another", 3, 1)),
        encode_hello(HeartbeatHello(CLUSTER, 3, 2)),
        encode_hello(HeartbeatHello(CLUSTER, 3, 1, "theirs")),
        LENGTH.pack(3) + b"\x81\x00\x00",
        LENGTH.pack(HELLO_BYTES_MAX + 1),
        LENGTH.pack(0),
    ],
)
@on_a_loop
async def test_a_stranger_is_refused(first: bytes) -> None:
    async with answering() as node:
        reader, writer = await connected(node)
        writer.write(first + bytes(8))
        assert await asyncio.wait_for(reader.read(), LIMIT_SECONDS) == b""
        writer.close()


@pytest.mark.parametrize("size", [1, 3, 8, 1_000])
@on_a_loop
async def test_pings_are_answered_however_they_are_cut(size: int) -> None:
    async with answering() as node:
        reader, writer = await connected(node)
        pings = [number.to_bytes(8, "big") for number in (1, 2, 3)]
        data = HELLO + b"".join(pings)
        for start in range(0, len(data), size):
            writer.write(data[start : start + size])
            await writer.drain()
        answer = await asyncio.wait_for(reader.readexactly(3 * 16), LIMIT_SECONDS)
        assert answer == b"".join(ping + (11).to_bytes(8, "big") for ping in pings)
        writer.close()


@on_a_loop
async def test_a_later_connection_of_a_node_replaces_the_earlier_one() -> None:
    async with answering() as node:
        earlier, writer = await connected(node)
        writer.write(HELLO)
        later, second = await connected(node)
        second.write(HELLO + bytes(8))
        assert await asyncio.wait_for(later.readexactly(16), LIMIT_SECONDS)
        assert await asyncio.wait_for(earlier.read(), LIMIT_SECONDS) == b""
        for each in (writer, second):
            each.close()


async def connected(node: PeerHeartbeats) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that the node has adopted."""
    mine, its = socket.socketpair()
    await node.adopt(its)
    return await asyncio.open_connection(sock=mine)
