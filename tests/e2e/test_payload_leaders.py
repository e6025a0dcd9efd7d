"""A leader forwards no payload that a follower may take. Nodes are in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from bascule.errors import DiskFull
from bascule.payload_connection.writer import PayloadWriter
from bascule.wire.datastream.messages import OpenPayload, ReplicaAddress
from e2e.test_payload_peers import ID, MIB, content, stored, whole
from e2e.test_payload_rooms import fill
from support.payload_nodes import STREAM, PayloadNode, RawSender, frames, payload_nodes

DATA = content(3 * MIB)


def writer(
    *nodes: PayloadNode,
    topology: str = "auto",
    quorum: bool = False,
    route: Sequence[tuple[int, list[int]]] = (),
    timeout: float = 20,
) -> PayloadWriter:
    opening = OpenPayload(ID, STREAM, 0, topology=topology, quorum=quorum, route=list(route))
    return PayloadWriter(lambda: ",".join(node.address for node in nodes), opening, timeout=timeout)


@pytest.mark.parametrize("topology", ["auto", "star", "chain", "tree", "quorum"])
def test_a_client_of_the_leader_s_node_begins_at_a_follower(tmp_path: Path, topology: str) -> None:
    with payload_nodes(tmp_path, 3) as nodes:
        is_quorum = topology == "quorum"
        out = writer(nodes[1], topology="auto" if is_quorum else topology, quorum=is_quorum)
        asyncio.run(stored(DATA, out))
        assert out.route[0][0] == 2
        assert [whole(node) for node in nodes.values()] == [DATA] * 3
        assert nodes[1].streams.counts.bytes_forwarded == 0


def test_the_leader_names_the_nearest_follower_with_an_address(tmp_path: Path) -> None:
    with payload_nodes(tmp_path, 3) as nodes:
        opening = OpenPayload(ID, STREAM, 0, prefers_follower=True)
        place, streams = nodes[1].place_of(STREAM, 0), nodes[1].streams
        replicas = tuple(
            ReplicaAddress(number, "" if number == 2 else f"n:{number}", "ab"[number % 2])
            for number in (1, 2, 3)
        )
        named = streams.plan(place._replace(replicas=replicas), opening, is_node=False)
        assert named == replicas[2]
        replicas = tuple(each for each in replicas if each.node != 3)
        planned = streams.plan(place._replace(replicas=replicas), opening, is_node=False)
        assert not isinstance(planned, ReplicaAddress)
        assert planned.route == ((1, (2,)),)


def test_the_leader_takes_it_where_that_follower_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names one once, also where it does not know yet that it is lost."""
    with payload_nodes(tmp_path, 2) as nodes:
        nodes[2].stop()
        out = writer(nodes[1])
        asyncio.run(stored(DATA, out))
        assert out.route[0][0] == 1
        nodes[2].start()
        fill(nodes[2], monkeypatch)
        out = writer(nodes[1])
        asyncio.run(stored(DATA, out))
        assert out.route[0][0] == 1


@pytest.mark.parametrize("order", [(2, 1), (2, 1, 3)])
def test_the_leader_takes_it_where_that_follower_was_asked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...]
) -> None:
    """The leader names the full one, which are not all replicas."""
    with payload_nodes(tmp_path, len(order)) as nodes:
        fill(nodes[2], monkeypatch)
        out = writer(*(nodes[number] for number in order))
        asyncio.run(stored(DATA, out))
        assert out.route[0][0] == 1


def test_a_route_is_replanned_where_its_first_node_was_asked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with payload_nodes(tmp_path, 2) as nodes:
        fill(nodes[2], monkeypatch)
        out = writer(nodes[2], nodes[1], route=[(2, [1])])
        asyncio.run(stored(DATA, out))
        assert out.route[0][0] == 1
        assert "the route cannot begin at its first node" in out.why


def test_no_room_anywhere_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the leader names a follower first."""
    with payload_nodes(tmp_path, 2) as nodes:
        for node in nodes.values():
            fill(node, monkeypatch)
        for order in ((1, 2), (2, 1), (1,)):
            out = writer(*(nodes[number] for number in order), timeout=600)
            with pytest.raises(DiskFull):
                asyncio.run(stored(DATA, out))


def test_a_client_of_a_release_before_is_served_by_the_leader(tmp_path: Path) -> None:
    with payload_nodes(tmp_path, 2) as nodes:
        sender = RawSender(nodes[1].port)
        sender.open(ID)
        sender.until(frames.OPENED)
        sender.close()
