"""A listener that closes while clients connect."""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
from collections.abc import Callable
from typing import NoReturn

import pytest

from bascule.cluster_identity import ClusterIdentity
from bascule.listening.connection import ServedConnection
from bascule.listening.listener import FrameListener
from bascule.peer.listener import PeerListener
from bascule.wire.connection import ServerConnection


class RefusingListener(FrameListener):
    """Every accepted client is gone before its connection begins."""

    def _connection(self, sock: socket.socket, peer: str) -> ServedConnection:
        raise ConnectionResetError(peer)


class ServingListener(FrameListener):
    """Serves no request."""

    def _connection(self, sock: socket.socket, peer: str) -> ServedConnection:
        def refuse(request: object) -> NoReturn:
            raise AssertionError(request)

        return ServedConnection(
            sock,
            ServerConnection(served={}, frame_bytes_max=1_000, requests={}),
            refuse,
            peer=peer,
            limits=self._limits,
            statistics=self._statistics,
            refusals=self._refusals,
            run_on_thread=self._run_on_thread,
        )


async def _refuse_raft(sock: socket.socket) -> None:
    raise AssertionError("no Raft here")


def peer_listener() -> FrameListener:
    return PeerListener(
        node_id=1, cluster=ClusterIdentity("c"), node_epoch=lambda: 1, handlers={},
        on_raft=_refuse_raft, on_heartbeats=_refuse_raft,
    )  # fmt: skip


async def turn() -> None:
    """Return in the next turn of the loop."""
    loop = asyncio.get_running_loop()
    reached = loop.create_future()
    loop.call_soon(reached.set_result, None)
    await reached


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize(
    "new_listener", [lambda: RefusingListener(None), lambda: ServingListener(None), peer_listener]
)
def test_a_connection_that_is_accepted_while_the_listener_closes_is_closed(
    new_listener: Callable[[], FrameListener], turns: int
) -> None:
    """However many turns of the loop the accept is ahead of the close."""

    async def scene() -> None:
        listener = new_listener()
        address = await listener.start("127.0.0.1", 0)
        with socket.create_connection(address) as client:
            for _ in range(turns):
                await turn()
            await listener.close()
            client.settimeout(5)
            with pytest.raises(ConnectionError):  # reset, or closed
                if not client.recv(1):
                    raise ConnectionResetError

    asyncio.run(scene())
    gc.collect()


def test_accepting_goes_on_after_no_file_descriptor_was_free(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bascule.listening.listener.ACCEPT_RETRY_SECONDS", 0.01)

    async def scene() -> None:
        listener = RefusingListener(None)
        host, port = await listener.start("127.0.0.1", 0)
        fill = []
        with socket.socket() as client:
            client.setblocking(False)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
            try:
                while True:
                    fill.append(socket.socket())
            except OSError:
                pass
            try:
                with pytest.raises(BlockingIOError):
                    client.connect((host, port))
                async with asyncio.timeout(10):
                    while "cannot accept a client" not in caplog.text:
                        await turn()
            finally:
                for sock in fill:
                    sock.close()
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            reader = asyncio.get_running_loop().sock_recv(client, 1)
            with pytest.raises(ConnectionError):
                if not await asyncio.wait_for(reader, 5):
                    raise ConnectionResetError
        await listener.close()

    asyncio.run(scene())
