"""Calls of a writer of a payload that are cancelled, and followed by others. The node is played."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from crc32c import crc32c

from bascule.errors import Broken
from bascule.payload_connection import PayloadWriter
from bascule.payload_connection.connection import PayloadConnection
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import PACKET_BYTES, decode_data_head, encode_ack
from bascule.wire.datastream.frames import encode_message as encoded
from bascule.wire.datastream.messages import OpenPayload, PayloadClosed, PayloadOpened

ID = "a" * 32
WINDOW = 2 * PACKET_BYTES
DATA = b"".join(bytes([number]) * PACKET_BYTES for number in range(6)) + b"the end"
ROUTE = [(1, [2])]


class Node:
    def __init__(self) -> None:
        self.content = b""
        self.connections: list[Connection] = []
        self.openings: list[OpenPayload] = []
        self.acknowledges = True
        self.takes: Callable[[bytes], int] = len
        """How much of what is sent the socket takes before it takes no more."""
        self.stalled = asyncio.Event()

    async def connect(self, address: str, *, timeout: float) -> PayloadConnection:
        assert address == "node:1"
        self.connections.append(Connection(self))
        return cast(PayloadConnection, self.connections[-1])

    def acknowledge(self) -> None:
        said = encode_ack(len(self.content), len(self.content))
        self.connections[-1].said.put_nowait(said)


class Connection:
    """What is sent over it has to be whole frames, but for the last one."""

    address = "node:1"

    def __init__(self, node: Node) -> None:
        self.said: asyncio.Queue[bytes] = asyncio.Queue()
        self.is_closed = self.is_broken = False
        self._node = node
        self._is_cut = False
        self._position = -1
        """Of the packet whose bytes come next."""

    async def send(self, data: bytes) -> None:
        assert not self._is_cut, "a frame follows a part of one"
        assert not self.is_closed
        if self.is_broken:
            raise Broken("the other side closed the connection")
        if self._node.takes(data) < len(data):
            self._is_cut = True
            self._node.stalled.set()
            await asyncio.Event().wait()
        if self._position >= 0:
            self._take_packet(data)
        elif data[4] == frames.OPEN:
            content = self._node.content
            opened = PayloadOpened(len(content), crc32c(content), WINDOW, route=ROUTE)
            self.said.put_nowait(encoded(frames.OPENED, opened))
        elif data[4] == frames.DATA:
            head = decode_data_head(bytearray(data))
            self._position = head.position if head.length else -1
            if head.flags & frames.SYNC:
                assert head.position == len(self._node.content)
                self._node.acknowledge()
        elif data[4] == frames.CLOSE:
            ack = {
                "stream": "s", "seq": 1, "offset": 0, "partition": 0, "replicas": 1, "synced": True,
                "payload": {"id": ID, "bytes": len(DATA), "crc32c": f"{crc32c(DATA):08x}"},
            }  # fmt: skip
            self.said.put_nowait(encoded(frames.CLOSED, PayloadClosed(ack)))

    def _take_packet(self, data: bytes) -> None:
        position, self._position = self._position, -1
        known = len(self._node.content) - position
        assert known >= 0, "packets leave no gap"
        self._node.content += data[known:]
        if self._node.acknowledges:
            self._node.acknowledge()

    async def next_frame(self) -> tuple[int, bytes]:
        frame = await self.said.get()
        return frame[4], frame

    def close(self) -> None:
        self.is_closed = True


async def cancelled(node: Node, call: Awaitable[None]) -> None:
    """Cancel a call that waits for the node."""
    task = asyncio.ensure_future(call)
    waiting = asyncio.create_task(node.stalled.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    node.takes = len


def run(
    monkeypatch: pytest.MonkeyPatch, test: Callable[[Node, PayloadWriter], Awaitable[None]]
) -> Node:
    """Have the test begin a payload; the rest of it is written afterwards, and closed."""

    async def main() -> Node:
        node = Node()
        monkeypatch.setattr(PayloadConnection, "connect", node.connect)
        opening = OpenPayload(ID, "s", 0, route=ROUTE)
        out = PayloadWriter(lambda: "node:1", opening, timeout=10)
        async with out:
            await test(node, out)
            await out.write(DATA[out.position :])
        assert node.content == DATA
        assert out.ack is not None
        assert out.ack.payload_bytes == len(DATA)
        assert out.why == "", "its route is the one that was asked for"
        return node

    return asyncio.run(main())


@pytest.mark.parametrize("taken", [0, 9, 1_000])
def test_a_write_that_is_cancelled_in_a_packet_is_gone_on_with(
    monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """Over another connection, since nothing can follow the half packet."""

    async def test(node: Node, out: PayloadWriter) -> None:
        await out.write(DATA[:PACKET_BYTES])
        node.takes = lambda data: taken if len(data) > 100 or taken < 100 else len(data)
        await cancelled(node, out.write(DATA[PACKET_BYTES : 3 * PACKET_BYTES]))
        assert out.position == 2 * PACKET_BYTES

    node = run(monkeypatch, test)
    assert [each.is_closed for each in node.connections] == [True, True]


def test_a_write_that_is_cancelled_while_it_waits_is_sent_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over the same connection: nothing of it was sent."""

    async def test(node: Node, out: PayloadWriter) -> None:
        node.acknowledges = False
        await out.write(DATA[:WINDOW])
        node.stalled.set()
        await cancelled(node, out.write(DATA[WINDOW : WINDOW + PACKET_BYTES]))
        assert out.position == WINDOW + PACKET_BYTES
        node.acknowledges = True
        node.acknowledge()

    assert len(run(monkeypatch, test).connections) == 1


def test_the_end_sends_what_a_cancelled_write_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """To another node where the one at hand is gone."""

    async def test(node: Node, out: PayloadWriter) -> None:
        node.acknowledges = False
        await out.write(DATA[:WINDOW])
        node.stalled.set()
        await cancelled(node, out.write(DATA[WINDOW:]))
        assert out.position == WINDOW + PACKET_BYTES
        node.acknowledges = True
        node.connections[0].is_broken = True
        await out.close()
        assert node.content == DATA[: WINDOW + PACKET_BYTES]

    async def main() -> None:
        node = Node()
        monkeypatch.setattr(PayloadConnection, "connect", node.connect)
        out = PayloadWriter(lambda: "node:1", OpenPayload(ID, "s", 0), timeout=10)
        async with out:
            await test(node, out)
        assert len(node.connections) == 2

    asyncio.run(main())


@pytest.mark.parametrize("is_recovering", [False, True])
def test_a_sync_that_is_cancelled_may_be_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, is_recovering: bool
) -> None:
    async def test(node: Node, out: PayloadWriter) -> None:
        node.acknowledges = not is_recovering
        await out.write(DATA[:PACKET_BYTES])
        node.takes = lambda data: 7 if data[4] == frames.DATA else len(data)
        await cancelled(node, out.sync())
        if is_recovering:
            node.stalled.clear()
            node.takes = lambda data: 3 if len(data) == PACKET_BYTES else len(data)
            await cancelled(node, out.sync())
        node.acknowledges = True
        await out.sync()

    assert len(run(monkeypatch, test).connections) == 2 + is_recovering
