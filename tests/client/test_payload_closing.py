"""How long the end of a payload is waited for. The node is played, and time passes at once."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from crc32c import crc32c

from bascule.errors import Indeterminate
from bascule.payload_connection import PayloadWriter
from bascule.payload_connection.connection import PayloadConnection
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import encode_ack, encode_message
from bascule.wire.datastream.messages import OpenPayload, PayloadClosed, PayloadOpened
from support.virtual_time import elapse, run_virtually

SIZE = 8 << 20
TIMEOUT = 30.0
ACK = {
    "stream": "s", "seq": 1, "offset": 0, "partition": 0, "replicas": 1, "synced": True,
    "payload": {"id": "a" * 32, "bytes": SIZE, "crc32c": "00000000"},
}  # fmt: skip


class SlowNode:
    """It takes all bytes at once, and writes a MiB in so many seconds; then it closes the payload,
    or does not. It says each second that it is there."""

    address = "node:1"

    def __init__(self, *, seconds: float, closes: bool = True) -> None:
        self._seconds, self._closes = seconds, closes
        self._said: asyncio.Queue[bytes] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self.closings = self._written = 0

    async def send(self, data: bytes) -> None:
        if len(data) > 4 and data[4] == frames.OPEN:
            crc = crc32c(bytes(self._written))
            opened = PayloadOpened(self._written, crc, 2 * SIZE)
            self._said.put_nowait(encode_message(frames.OPENED, opened))
        elif len(data) > 4 and data[4] == frames.CLOSE:
            self.closings += 1
            if self._task is None:
                self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        self._written = 0
        for second in range(1, int(self._seconds * (SIZE >> 20)) + 1):
            await elapse(1)
            if second % self._seconds == 0:
                self._written += 1 << 20
            self._said.put_nowait(encode_ack(self._written, 0))
        while not self._closes:
            await elapse(1)
            self._said.put_nowait(encode_ack(self._written, 0))
        self._said.put_nowait(encode_message(frames.CLOSED, PayloadClosed(ACK)))

    async def next_frame(self) -> tuple[int, bytes]:
        frame = await self._said.get()
        return frame[4], frame

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None


async def close_payload(node: SlowNode, monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(address: str, *, timeout: float) -> PayloadConnection:
        return cast(PayloadConnection, node)

    monkeypatch.setattr(PayloadConnection, "connect", connect)
    writer = PayloadWriter(lambda: node.address, OpenPayload("a" * 32, "s", 0), timeout=TIMEOUT)
    async with writer:
        await writer.write(bytes(SIZE))


def test_the_end_of_a_payload_is_waited_for_while_bytes_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where many payloads are written at the least rate. What was sent before the end may be in
    sockets only."""
    node = SlowNode(seconds=TIMEOUT - 1)
    run_virtually(close_payload(node, monkeypatch))
    assert node.closings == 1


def test_a_payload_whose_end_is_not_answered_may_or_may_not_be_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = SlowNode(seconds=1, closes=False)
    with pytest.raises(Indeterminate, match=r"no answer to the end of the payload for 30\.0 s"):
        run_virtually(close_payload(node, monkeypatch))
    assert node.closings > 1
