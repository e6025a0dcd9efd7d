"""Requests to another node, on connections that the network has forgotten."""

from __future__ import annotations

import asyncio
import socket

import pytest

from bascule.cluster_identity import ClusterIdentity
from bascule.errors import Broken
from bascule.peer.listener import PeerListener, PeerSession
from bascule.peer_client import PeerClient
from bascule.wire.messages.peer.control import ControlRequest, ControlResponse

SECONDS_MAX = 10.0
TOGETHER = 5


def test_one_time_out_is_enough_for_all_connections_that_were_kept() -> None:
    """Otherwise each of them costs another one, and a node that answers is lost meanwhile."""

    async def scene() -> None:
        sessions: set[PeerSession] = set()
        forgotten: set[PeerSession] = set()
        everybody_asks = asyncio.Event()

        async def answer(request: ControlRequest, session: PeerSession) -> ControlResponse:
            sessions.add(session)
            if session in forgotten:
                await asyncio.Event().wait()
            if len(sessions) == TOGETHER:
                everybody_asks.set()
            await everybody_asks.wait()
            return ControlResponse(body=b"answer")

        async def on_raft(sock: socket.socket) -> None:
            raise AssertionError(sock)

        listener = PeerListener(
            node_id=2, cluster=ClusterIdentity("c"), node_epoch=lambda: 1,
            handlers={ControlRequest: answer}, on_raft=on_raft, on_heartbeats=on_raft,
        )  # fmt: skip
        host, port = await listener.start("127.0.0.1", 0)
        client = PeerClient(1, ClusterIdentity("c"), node_epoch=lambda: 1)
        client.set_peer(2, host, port)

        async def ask(seconds: float) -> bytes:
            return await client.control(2, "kind", b"", timeout_s=seconds)

        try:
            await asyncio.gather(*(ask(SECONDS_MAX) for _ in range(TOGETHER)))
            assert len(sessions) == TOGETHER
            forgotten |= sessions
            with pytest.raises(Broken, match="did not answer"):
                await ask(0.1)
            assert await ask(SECONDS_MAX) == b"answer"
        finally:
            client.close()
            await listener.close()

    asyncio.run(scene())
