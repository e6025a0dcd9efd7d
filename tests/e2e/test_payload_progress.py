"""How far payloads are, and what slow nodes hold up: only what has to wait for them. Nodes are in
this process."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bascule.datastream import successor
from bascule.datastream.limits import DataStreamLimits
from bascule.datastream.protocol.chains import FAR_TIMES, NodeLink
from bascule.payload_connection.writer import OnProgress, PayloadWriter
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import decode_message, encode_message
from bascule.wire.datastream.messages import OpenPayload, PayloadOpened
from support.payload_nodes import STREAM, PayloadNode, RawSender, payload_nodes, wait_until

MIB = 1 << 20
ID, OTHER = "ab" * 16, "cd" * 16


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node is left out of a tree: the tests say for how long one is slow."""
    monkeypatch.setattr(successor, "SILENT_LOOKS_MAX", 1_000)


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def writer(
    node: PayloadNode, id: str = ID, on_progress: OnProgress | None = None, **options: object
) -> PayloadWriter:
    opening = OpenPayload(id, STREAM, 0, **options)  # type: ignore[arg-type]
    return PayloadWriter(lambda: node.address, opening, timeout=60, on_progress=on_progress)


def whole(node: PayloadNode, id: str = ID) -> bytes:
    found = node.store.payloads.find(id)
    assert found is not None
    return Path(found.path).read_bytes()


@contextmanager
def nodes_that_follow(
    directory: Path, limits: DataStreamLimits | None = None
) -> Iterator[dict[int, PayloadNode]]:
    """Nodes 1 to 3. 3 leads, and 1 is sent to: it is the first of each tree."""
    with payload_nodes(directory, 3, limits=limits) as nodes:
        for node in nodes.values():
            node.leader = 3
        yield nodes


async def received(node: PayloadNode, count: int) -> None:
    counts = node.streams.counts
    what = f"node {node.number} has received it"
    await asyncio.to_thread(wait_until, what, lambda: counts.bytes_received >= count)


def test_progress_is_what_every_node_has_written(tmp_path: Path) -> None:
    data, told = content(6 * MIB), list[int]()

    async def test() -> None:
        async with writer(nodes[1], on_progress=told.append, topology="chain") as out:
            await out.write(data[:MIB])
            await out.sync()
            assert told[-1] == MIB
            last = nodes[out.route[-1][1][0]]
            thawed = last.freeze()
            await out.write(data[MIB:])
            for node in nodes.values():
                if node is not last:
                    await received(node, len(data))
            assert told[-1] == MIB
            thawed.set()
        assert told[-1] == len(data)
        assert told == sorted(set(told)), "it never goes back"

    with nodes_that_follow(tmp_path) as nodes:
        asyncio.run(test())


def test_a_majority_does_not_wait_for_a_slow_node_and_it_catches_up(tmp_path: Path) -> None:
    data = content(8 * MIB)

    async def test() -> None:
        async with writer(nodes[1], quorum=True) as out:
            await out.write(data[:MIB])
            await received(nodes[3], MIB)
            thawed = nodes[3].freeze()
            # More than one window: each part is acknowledged by the others.
            for at in range(MIB, len(data), MIB):
                await out.write(data[at : at + MIB])
                await out.sync()
            assert out.acknowledged == len(data)
            assert nodes[3].streams.counts.bytes_received == MIB
            thawed.set()
        assert out.ack is not None
        assert out.ack.replicas == 3

    with nodes_that_follow(tmp_path, DataStreamLimits(window_bytes=2 * MIB)) as nodes:
        asyncio.run(test())
        assert [whole(node) for node in nodes.values()] == [data] * 3
        assert nodes[1].streams.counts.successors_lost == 0
        assert nodes[3].streams.counts.fetched == 0, "what it lacked was forwarded"


def test_a_payload_that_waits_holds_up_no_other_one(tmp_path: Path) -> None:
    """One goes by way of a node that takes nothing, the other one does not. They share the node
    that is sent to, its thread and its disk."""
    slow, fast = content(24 * MIB), content(24 * MIB, seed=2)

    async def test() -> None:
        nodes[1].alive = [nodes[1], nodes[3]]
        async with writer(nodes[1]) as waiting:
            await waiting.write(slow[:MIB])
            await waiting.sync()
            thawed = nodes[3].freeze()
            rest = asyncio.create_task(waiting.write(slow[MIB:]))
            await received(nodes[1], 17 * MIB)  # with a window; sockets do not take as much
            nodes[1].alive = [nodes[1], nodes[2]]
            async with writer(nodes[1], OTHER) as flowing:
                for at in range(0, len(fast), MIB):
                    await flowing.write(fast[at : at + MIB])
            assert flowing.ack is not None
            assert whole(nodes[2], OTHER) == fast
            assert (waiting.acknowledged, rest.done()) == (MIB, False)
            thawed.set()
            await rest
        assert whole(nodes[3]) == whole(nodes[1]) == slow

    with nodes_that_follow(tmp_path) as nodes:
        asyncio.run(test())
        assert nodes[1].streams.counts.successors_lost == 0


@contextmanager
def slow_way(bytes_per_s: int) -> Iterator[int]:
    """The port of a node that takes all of a payload, so slowly."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)  # accepted ones have it, too
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    stopping = threading.Event()

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(1 << 10)
            sock.sendall(encode_message(frames.OPENED, PayloadOpened(0, 0, 1 << 30)))
            step = 64 << 10
            while not stopping.wait(step / bytes_per_s) and sock.recv(step):
                pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        stopping.set()
        listener.close()
        thread.join()


def test_a_slow_way_is_measured_and_a_chain_avoids_it(tmp_path: Path) -> None:
    with nodes_that_follow(tmp_path) as nodes, slow_way(4 * MIB) as port:
        first, own = nodes[1], nodes[2].port
        nodes[2].port, first.alive = port, [nodes[1], nodes[2]]
        sender = RawSender(first.port)
        sender.open(ID)
        sender.until(frames.OPENED)
        for number in range(16):
            sender.packet(number * MIB, content(MIB))
        try:
            wait_until("it is measured", lambda: 2 in first.streams.rates)
        finally:
            nodes[2].port = own
            sender.close()
        first.links = {(1, 2): NodeLink(-1, first.streams.rates[2])}
        assert first.links[1, 2].distance > FAR_TIMES
        first.alive = list(nodes.values())
        sender = RawSender(first.port)
        sender.open(OTHER)
        planned = decode_message(sender.until(frames.OPENED), PayloadOpened)
        sender.close()
        assert planned.route == [(1, [3]), (3, [2])]
        assert planned.why.endswith("by distance")
