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


LARGE = [("Note", b"n" * 40_000)]
LITTLE = DataStreamLimits(requests_bytes_max=100_000)


def test_large_headers_share_a_memory(tmp_path: Path) -> None:
    """Beyond it the longest silent ones give way; a payload without large headers needs none."""
    clock, data = ShiftedClock(), content(2 * MIB)
    with payload_nodes(tmp_path, 1, limits=LITTLE, clock=clock) as nodes:
        node, held = nodes[1], nodes[1].streams._admission.sessions
        senders = [RawSender(node.port) for _ in IDS]
        for sender, id in zip(senders[:2], IDS, strict=False):
            sender.open(id, headers=LARGE)
            sender.until(frames.OPENED)
        senders[2].open(IDS[2], headers=LARGE)
        failed = decode_message(senders[2].until(frames.FAILED), PayloadFailed)
        assert (failed.name, failed.text) == (
            "Broken", "this node has too many large requests already",
        )  # fmt: skip
        asyncio.run(stored(data, writer(node.address)))
        assert whole(node) == data
        advance(clock, node, 1.5)
        senders[3].open(IDS[3], headers=LARGE)
        senders[3].until(frames.OPENED)
        senders[0].until(frames.FAILED)
        assert node.streams.counts.gave_way == 1
        assert 80_000 < held.held < 100_000
        senders[1].packet(0, b"x")
        senders[3].finish(b"")
        senders[3].until(frames.CLOSED)
        assert node.openings[-1].headers == LARGE
        for sender in senders:
            sender.close()
        wait_until("it is given back", lambda: held.held == 0)
        assert node.streams.counts.sessions == 1, "its bytes are kept for its sender"


def test_many_small_headers_count_for_what_they_take(tmp_path: Path) -> None:
    with payload_nodes(tmp_path, 1, limits=LITTLE) as nodes:
        sender = RawSender(nodes[1].port)
        sender.open(IDS[0], headers=[("A", b"")] * 1_000)
        sender.until(frames.FAILED)
        sender.close()


def test_requests_that_come_in_part_share_the_memory(tmp_path: Path) -> None:
    clock = ShiftedClock()
    with payload_nodes(tmp_path, 1, limits=LITTLE, clock=clock) as nodes:
        node, held = nodes[1], nodes[1].streams._admission.connections
        senders = [RawSender(node.port) for _ in range(4)]
        for count, sender in enumerate(senders[:2], start=1):
            sender.send(frames.HEAD.pack(40_000, frames.OPEN, 0), bytes(10_000))
            wait_until("it has come", lambda count=count: held.held == 40_004 * count)
        senders[2].send(frames.HEAD.pack(40_000, frames.OPEN, 0))
        senders[2].until(frames.FAILED)
        advance(clock, node, 1.5)
        senders[1].send(bytes(10_000))  # that is no use of the place
        senders[3].send(frames.HEAD.pack(80_000, frames.OPEN, 0))
        for sender in senders[:2]:
            sender.until(frames.FAILED)
        wait_until("it has come", lambda: held.held == 80_004)
        senders[3].close()
        wait_until("it is given back", lambda: held.held == 0)
        for sender in senders[:3]:
            sender.close()
