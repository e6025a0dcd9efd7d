"""Senders that take up all places of a node keep nobody away. Nodes are in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bascule.datastream.limits import DataStreamLimits
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import decode_message
from bascule.wire.datastream.messages import PayloadFailed
from e2e.test_payload_peers import MIB, content, stored, whole, writer
from support.payload_clocks import ShiftedClock, advance
from support.payload_nodes import RawSender, payload_nodes, wait_until

FEW = DataStreamLimits(sessions_max=4)
IDS = [f"{number:032x}" for number in range(4)]


def silent(port: int) -> list[RawSender]:
    """Senders that open a payload and send nothing."""
    senders = [RawSender(port) for _ in IDS]
    for sender, id in zip(senders, IDS, strict=True):
        sender.open(id, topology="star")
        sender.until(frames.OPENED)
    return senders


def test_silent_senders_give_way(tmp_path: Path) -> None:
    """They have all places of the node that is sent to, and of the nodes below it."""
    data = content(2 * MIB)
    with payload_nodes(tmp_path, 3, limits=FEW) as nodes:
        senders = silent(nodes[1].port)
        for node in nodes.values():
            wait_until("all places are taken", lambda node=node: node.streams.counts.sessions == 4)
        asyncio.run(stored(data, writer(nodes[1].address)))
        for node in nodes.values():
            assert whole(node) == data
        assert nodes[1].streams.counts.gave_way
        failed = decode_message(senders[0].until(frames.FAILED), PayloadFailed)
        assert failed.name == "Broken"
        assert "too many payloads" in failed.text
        for sender in senders:
            sender.close()


def test_slow_senders_give_way(tmp_path: Path) -> None:
    """None is silent for a second."""
    clock, data = ShiftedClock(), content(2 * MIB)
    with payload_nodes(tmp_path, 1, limits=FEW, clock=clock) as nodes:
        node = nodes[1]
        senders = silent(node.port)
        for at in range(24):
            for sender in senders:
                sender.packet(at, b"x")
            wait_until(
                "all have come",
                lambda at=at: node.streams.counts.bytes_received == 4 * (at + 1),
            )
            advance(clock, node, 0.5)
        assert node.streams.counts.sessions == 4
        asyncio.run(stored(data, writer(node.address)))
        assert whole(node) == data
        assert node.streams.counts.gave_way == 1
        for sender in senders:
            sender.close()


def test_who_waits_for_other_nodes_keeps_its_place(tmp_path: Path) -> None:
    clock, limits = ShiftedClock(), DataStreamLimits(sessions_max=1)
    with payload_nodes(tmp_path, 2, limits=limits, clock=clock) as nodes:
        sender, other = RawSender(nodes[1].port), RawSender(nodes[1].port)
        sender.open(IDS[0])
        sender.until(frames.OPENED)
        wait_until("the tree is there", lambda: nodes[2].streams.counts.sessions == 1)
        thawed = nodes[2].freeze()
        sender.packet(0, b"1")
        wait_until("it has come", lambda: nodes[1].streams.counts.bytes_received == 1)
        advance(clock, nodes[1], 2)
        other.open(IDS[1])
        assert (
            "receives 1 payloads already"
            in decode_message(other.until(frames.FAILED), PayloadFailed).text
        )
        thawed.set()
        sender.finish(b"1")
        sender.until(frames.CLOSED)
        assert nodes[1].streams.counts.gave_way == 0
        sender.close()
        other.close()


def test_a_sender_that_has_lost_its_place_goes_on(tmp_path: Path) -> None:
    clock, data = ShiftedClock(), content(2 * MIB)
    with payload_nodes(tmp_path, 1, limits=FEW, clock=clock) as nodes:
        node = nodes[1]

        async def run() -> None:
            out = writer(node.address)
            async with out:
                await out.write(data[:MIB])
                await out.sync()
                advance(clock, node, 1.5)
                senders = await asyncio.to_thread(silent, node.port)
                assert node.streams.counts.gave_way == 1
                advance(clock, node, 1.5)
                await out.write(data[MIB:])
            for sender in senders:
                sender.close()

        asyncio.run(run())
        assert whole(node) == data


def test_connections_that_do_nothing_give_way(tmp_path: Path) -> None:
    clock, limits = ShiftedClock(), DataStreamLimits(connections_max=4)
    with payload_nodes(tmp_path, 1, limits=limits, clock=clock) as nodes:
        node, data = nodes[1], content(2 * MIB)
        senders = [RawSender(node.port) for _ in range(4)]
        for sender in senders:
            sender.until(frames.HELLO)
        late = RawSender(node.port)
        with pytest.raises(ConnectionError):
            late.until(frames.HELLO)
        late.close()
        advance(clock, node, 1.5)
        asyncio.run(stored(data, writer(node.address)))
        assert whole(node) == data
        assert node.streams.counts.gave_way == 1
        for sender in senders:
            sender.close()
