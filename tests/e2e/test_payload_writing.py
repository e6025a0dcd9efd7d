"""Payloads are received as they were sent, whatever their senders do. Nodes are in this process."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from bascule.payload_connection.writer import PayloadWriter
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import decode_message
from bascule.wire.datastream.messages import OpenPayload, PayloadFailed, PayloadOpened
from support.payload_nodes import STREAM, PayloadNode, RawSender, payload_nodes, wait_until

KIB = 1 << 10
MIB = 1 << 20
ID = "ab" * 16


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def writer(
    *nodes: PayloadNode, timeout: float = 20, id: str = ID, **options: object
) -> PayloadWriter:
    bootstrap = ",".join(node.address for node in nodes)
    opening = OpenPayload(id, STREAM, 0, **options)  # type: ignore[arg-type]
    return PayloadWriter(lambda: bootstrap, opening, timeout=timeout)


def opened(sender: RawSender) -> PayloadOpened:
    return decode_message(sender.until(frames.OPENED), PayloadOpened)


def failure(sender: RawSender) -> PayloadFailed:
    while True:
        kind, frame = sender.next()
        if kind == frames.FAILED:
            return decode_message(frame, PayloadFailed)


def die_within_a_packet(node: PayloadNode, *, confirmed: bytes = b"") -> None:
    """A sender sends 700 KiB of a packet of 1 MiB, behind what is confirmed, and dies."""
    received = node.streams.counts.bytes_received
    sender = RawSender(node.port)
    sender.open(ID)
    opened(sender)
    if confirmed:
        sender.packet(0, confirmed)
        wait_until("confirmed", lambda: node.streams.counts.bytes_received > received)
    at = len(confirmed)
    sender.send(frames.encode_data_head(at, MIB, 0), content(700 * KIB, seed=9))
    wait_until(
        "the part is in the file",
        lambda: [f for f in node.files() if f.stat().st_size >= at + 700 * KIB],
    )
    sender.close()
    wait_until("the connection has ended", lambda: not node.streams.counts.connections)


async def stored(data: bytes, out: PayloadWriter) -> None:
    async with out:
        await out.write(data)
    assert out.ack is not None
    assert out.ack.payload_bytes == len(data)


def whole(node: PayloadNode) -> bytes:
    (file,) = [f for f in node.files() if f.suffix == ".whole"]
    assert node.files() == [file], "nothing else is left"
    return file.read_bytes()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_payload_has_no_more_bytes_than_were_confirmed(tmp_path: Path, restarts: bool) -> None:
    """What a dead sender left beyond the end of the payload is cut off."""
    with payload_nodes(tmp_path, 3) as nodes:
        die_within_a_packet(nodes[1])
        if restarts:
            nodes[1].stop()
            nodes[1].start()
        asyncio.run(stored(b"12345", writer(nodes[1])))
        for node in nodes.values():
            assert whole(node) == b"12345"


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("confirmed", [0, 300 * KIB])
def test_unconfirmed_bytes_are_not_taken_over(
    tmp_path: Path, restarts: bool, confirmed: int
) -> None:
    """Bytes of a packet whose checksum has not been compared do not count, also once they are all
    that is left of it on the disk."""
    data = content(2 * MIB)
    with payload_nodes(tmp_path, 1) as nodes:
        die_within_a_packet(nodes[1], confirmed=data[:confirmed])
        if restarts:
            nodes[1].stop()
            nodes[1].start()
        else:
            nodes[1].forget_sessions()
            wait_until("the session has ended", lambda: not nodes[1].streams.counts.sessions)
        sender = RawSender(nodes[1].port)
        sender.open(ID)
        assert opened(sender).position == confirmed
        sender.close()
        asyncio.run(stored(data, writer(nodes[1])))
        assert whole(nodes[1]) == data
