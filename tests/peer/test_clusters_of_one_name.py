"""Requests between nodes of two clusters that have the same name."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bascule.cluster_identity import LOGGED_MAX, ClusterIdentity, ForeignPeer
from bascule.errors import Broken
from bascule.peer.listener import PeerListener, PeerSession
from bascule.peer_client import PeerClient
from bascule.wire.codec import encode
from bascule.wire.messages.peer.control import (
    ControlRequest,
    ControlResponse,
    PeerHelloRequest,
    PeerHelloResponse,
)
from bascule.wire.schema import Message

SECONDS_MAX = 10.0


def identity(id: str, *, tells: bool = False, requires: bool = False) -> ClusterIdentity:
    made = ClusterIdentity("blue", id)
    made.tells_id, made.requires_ids = tells or requires, requires
    return made


@contextlib.asynccontextmanager
async def nodes(mine: ClusterIdentity, its: ClusterIdentity) -> AsyncIterator[PeerClient]:
    """The requests of node 1 to node 2, which answers with the kind of each."""

    async def on_socket(sock: socket.socket) -> None:
        raise AssertionError(sock)

    def answer(request: ControlRequest, _: PeerSession) -> ControlResponse:
        return ControlResponse(body=request.kind.encode())

    listener = PeerListener(
        node_id=2, cluster=its, node_epoch=lambda: 1, handlers={ControlRequest: answer},
        on_raft=on_socket, on_heartbeats=on_socket, open_kinds=("join",),
    )  # fmt: skip
    host, port = await listener.start("127.0.0.1", 0)
    client = PeerClient(1, mine, node_epoch=lambda: 1)
    client.set_peer(2, host, port)
    try:
        yield client
    finally:
        client.close()
        await listener.close()


async def is_answered(client: PeerClient, kind: str) -> bool:
    try:
        return await client.control(2, kind, b"", timeout_s=SECONDS_MAX) == kind.encode()
    except Broken:
        return False


@pytest.mark.parametrize(
    ("mine", "its", "kinds"),
    [
        (identity("a", tells=True), identity("a", tells=True), "ask join"),
        (identity("a", requires=True), identity("a", requires=True), "ask join"),
        (identity("b", tells=True), identity("a", tells=True), ""),
        (identity("b", requires=True), identity("a", requires=True), ""),
        (identity("b", tells=True), identity("a"), ""),
        # A release before there were ids, or a founder or joiner: until ids are required.
        (identity(""), identity("a", tells=True), "ask join"),
        (identity(""), identity("a", requires=True), "join"),
        # It has not heard yet that all nodes tell theirs.
        (identity("a"), identity("a", requires=True), "join"),
        (identity("a", tells=True), identity(""), "ask join"),
    ],
)
def test_who_may_ask(mine: ClusterIdentity, its: ClusterIdentity, kinds: str) -> None:
    async def scene() -> None:
        async with nodes(mine, its) as client:
            found = [kind for kind in ("ask", "join") if await is_answered(client, kind)]
            assert found == kinds.split()
            assert bool(its.refused) == bool(mine.refused) == (kinds == "")

    asyncio.run(scene())


def test_a_node_of_another_cluster_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        mine, its = identity("b", requires=True), identity("a", requires=True)
        async with nodes(mine, its) as client:
            for _ in range(5):
                with pytest.raises(Broken, match="found the id a, expected the id b"):
                    await client.control(2, "ask", b"", timeout_s=SECONDS_MAX)
            assert mine.refused == its.refused == 5

    asyncio.run(scene())
    said = {each.getMessage(): vars(each) for each in caplog.records}
    assert len(caplog.records) == 2
    refused = said["peer of another cluster refused"]
    assert (refused["node"], refused["found"], refused["expected"]) == (1, "b", "a")
    misled = said["peer address belongs to another cluster"]
    assert (misled["node"], misled["found"], misled["expected"]) == (2, "a", "b")
    assert "stop the node that is at a wrong address" in misled["error"]


def test_connections_are_made_again_once_the_id_is_told() -> None:
    async def scene() -> None:
        mine, its = identity("a"), identity("a")
        async with nodes(mine, its) as client:
            assert await is_answered(client, "ask")
            its.tells_id = its.requires_ids = True
            assert not await is_answered(client, "ask"), "the connection of before says no id"
            mine.tells_id = True
            assert await is_answered(client, "ask")

    asyncio.run(scene())


def test_a_node_that_learns_its_id_answers_no_foreign_peer_any_more() -> None:
    async def scene() -> None:
        mine, its = identity("b", tells=True), identity("")
        async with nodes(mine, its) as client:
            assert await is_answered(client, "join")
            its.id = "a"
            assert not await is_answered(client, "join")

    asyncio.run(scene())


def test_an_address_is_asked_without_an_id() -> None:
    """So a node finds out which cluster is there."""

    async def scene() -> None:
        mine, its = identity("b", requires=True), identity("a", requires=True)
        async with nodes(mine, its) as client:
            address = client._addresses[2]
            reply = await client.control_at(address, "join", b"", timeout_s=SECONDS_MAX)
            assert reply == b"join"

    asyncio.run(scene())


@pytest.mark.parametrize(
    "message", [PeerHelloRequest("blue", 1, 2, 7, "id"), PeerHelloResponse(0, "", 7, "id")]
)
def test_a_release_before_there_were_ids_reads_version_0(message: Message) -> None:
    parts: dict[int, list[Any]] = {0: [], 1: []}
    for version, encoded in parts.items():
        encode(message, version, encoded)
    before, now = (b"".join(encoded) for encoded in parts.values())
    assert now == before + b"\x00\x02id"


def test_few_foreign_peers_are_remembered(caplog: pytest.LogCaptureFixture) -> None:
    ours = identity("a")
    for number in range(3 * LOGGED_MAX):
        with pytest.raises(ForeignPeer) as found:
            ours.check("blue", f"{number}")
        ours.on_refused(found.value, node=number, peer="127.0.0.1:1")
    assert ours.refused == len(caplog.records) == 3 * LOGGED_MAX
    assert len(ours._logged) == LOGGED_MAX
