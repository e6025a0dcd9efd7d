"""Heartbeats between real processes: who runs, who is silent, who is gone."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from bascule.cluster_identity import ClusterIdentity
from bascule.heartbeats.peer_heartbeats import PeerHeartbeats
from bascule.host.real import RealClock

pytestmark = pytest.mark.tier3

LIMIT_SECONDS = 60
CLUSTER = "c"
ANSWERER = """
import asyncio, sys, time
from bascule.cluster_identity import ClusterIdentity
from bascule.heartbeats.peer_heartbeats import PeerHeartbeats
from bascule.host.real import RealClock
import socket

async def main(node, incarnation, port):
    cluster = ClusterIdentity("c")
    heartbeats = PeerHeartbeats(node, cluster, incarnation, RealClock(), on_lost=lambda _: None)
    heartbeats.start()
    listener = socket.create_server(("127.0.0.1", port))
    listener.setblocking(False)
    print("ready", flush=True)
    while True:
        sock, _ = await asyncio.get_running_loop().sock_accept(listener)
        await heartbeats.adopt(sock)
        if sys.argv[4] == "hang":
            time.sleep(600)  # the event loop hangs; the thread does not

asyncio.run(main(*map(int, sys.argv[1:4])))
"""


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return run


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


class Watcher:
    """Node 1."""

    def __init__(self) -> None:
        self.lost: list[int] = []
        self.heartbeats = PeerHeartbeats(
            1, ClusterIdentity(CLUSTER), 11, RealClock(), on_lost=self.lost.append
        )

    def answers(self, node: int = 2) -> bool:
        return node in self.heartbeats.statistics()["longest_ns"]


@contextlib.asynccontextmanager
async def watcher() -> AsyncIterator[Watcher]:
    made = Watcher()
    made.heartbeats.start()
    try:
        yield made
    finally:
        await made.heartbeats.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@contextlib.asynccontextmanager
async def answerer(
    port: int, incarnation: int = 22, how: str = "serve"
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Node 2, in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ANSWERER, "2", str(incarnation), str(port), how,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@on_a_loop
async def test_a_paused_process_is_lost_and_comes_back() -> None:
    port = free_port()
    async with answerer(port) as process, watcher() as node:
        node.heartbeats.set_peers({2: ("127.0.0.1", port)})
        await until(node.answers)
        await until(lambda: not node.heartbeats.loss(2, 22))
        os.kill(process.pid, signal.SIGSTOP)
        await until(lambda: node.lost)
        await until(lambda: "no heartbeat for " in node.heartbeats.loss(2, 22))
        assert node.heartbeats.loss(2, 23) == "", "of another process nothing is known"
        os.kill(process.pid, signal.SIGCONT)
        await until(lambda: not node.heartbeats.loss(2, 22))
        assert set(node.lost) == {2}


@on_a_loop
async def test_a_killed_process_is_gone_until_another_one_serves() -> None:
    port = free_port()
    async with watcher() as node:
        node.heartbeats.set_peers({2: ("127.0.0.1", port)})
        async with answerer(port) as process:
            await until(node.answers)
            node.lost.clear()
            process.kill()
            await until(lambda: node.lost)
            assert node.heartbeats.loss(2, 22) == f"nobody listens at 127.0.0.1:{port}"
        async with answerer(port, incarnation=23):
            await until(lambda: not node.heartbeats.loss(2, 22))
            assert node.heartbeats.loss(2, 23) == ""


@on_a_loop
async def test_an_event_loop_that_hangs_answers_heartbeats() -> None:
    port = free_port()
    async with answerer(port, how="hang"), watcher() as node:
        node.heartbeats.set_peers({2: ("127.0.0.1", port)})
        await until(node.answers)
        await asyncio.sleep(2)  # longer than any limit
        await until(lambda: not node.heartbeats.loss(2, 22))


@on_a_loop
async def test_peers_that_are_not_watched_are_forgotten() -> None:
    port = free_port()
    async with answerer(port), watcher() as node:
        node.heartbeats.set_peers({1: ("127.0.0.1", 1), 2: ("127.0.0.1", port)})
        await until(node.answers)
        node.heartbeats.set_peers({})
        await until(lambda: not node.answers())
        node.heartbeats.set_peers({2: ("127.0.0.1", port)})
        await until(node.answers)


@on_a_loop
async def test_a_peer_that_moves_is_found_at_its_new_address() -> None:
    first, second = free_port(), free_port()
    async with watcher() as node, answerer(second, incarnation=23) as process:
        node.heartbeats.set_peers({2: ("127.0.0.1", first)})
        await until(lambda: node.lost)
        node.heartbeats.set_peers({2: ("127.0.0.1", second)})
        await until(node.answers)
        os.kill(process.pid, signal.SIGSTOP)
        await until(lambda: node.heartbeats.loss(2, 23))
