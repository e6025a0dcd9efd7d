"""A leader forwards no payload that a follower may take. Nodes are in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bascule.errors import DiskFull
from bascule.payload_connection.writer import PayloadWriter
from bascule.wire.datastream.messages import OpenPayload, ReplicaAddress
from e2e.test_payload_peers import ID, MIB, content, stored, whole
from support.payload_nodes import STREAM, PayloadNode, RawSender, frames, payload_nodes

DATA = content(3 * MIB)


def writer(*nodes: PayloadNode, topology: str = "auto", quorum: bool = False) -> PayloadWriter:
    opening = OpenPayload(ID, STREAM, 0, topology=topology, quorum=quorum)
    return PayloadWriter(lambda: ",".join(node.address for node in nodes), opening, timeout=20)


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

        def check_room(size: int = 0) -> None:
            raise DiskFull("here", 0)

        monkeypatch.setattr(nodes[2].store.payloads, "check_room", check_room)
        out = writer(nodes[1])
        asyncio.run(stored(DATA, out))
        assert out.route[0][0] == 1


def test_a_client_of_a_release_before_is_served_by_the_leader(tmp_path: Path) -> None:
    with payload_nodes(tmp_path, 2) as nodes:
        sender = RawSender(nodes[1].port)
        sender.open(ID)
        sender.until(frames.OPENED)
        sender.close()
