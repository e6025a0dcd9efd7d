"""Acked publishing with a window, against core NATS's own limit and JetStream file storage."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import time
from array import array
from collections.abc import Iterator
from typing import Any

import nats
from nats.js.api import StorageType, StreamConfig

from bascule.wire import _hot
from bench.harness import (
    confirm,
    in_child,
    median_ratio,
    nats_connection,
    nats_server,
    node,
    report,
    row,
    work_directory,
)

MESSAGES = 1_000_000
WINDOW = 5_000
SIZE = 128
SUBJECT = "bench.acked"
INBOX = "_INBOX.bench.acks"
ACK_SECONDS_MAX = 30
PART = 250
"""Messages per write: small against the window, large against a system call."""


class MessageCounter:
    """Counts MSG operations in a byte stream, in compiled code."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray(1 << 20)
        self._view = memoryview(self._buffer)
        self._end = 0
        self._messages = array("i", bytes(4 * 8 * 65536))
        self._state = array("q", bytes(32))

    def receive(self) -> int:
        """Receive once; how many messages became whole."""
        count = self._sock.recv_into(self._view[self._end :])
        assert count, "the server closed the connection"
        self._end += count
        at = found = 0
        while True:
            found += _hot.parse_messages(
                self._buffer, at, self._end, 1 << 24, 4096, self._messages, self._state
            )
            at, reason, end, _ = self._state
            if reason == _hot.CONTROL_LINE:
                if self._buffer[at : at + 4] == b"PING":
                    self._sock.sendall(b"PONG\r\n")
                at = end + 2
            elif reason == _hot.NEED_DATA:
                break
            else:
                assert reason == _hot.MESSAGES_FULL, bytes(self._buffer[at : at + 80])
        rest = self._end - at
        self._buffer[:rest] = self._buffer[at : self._end]
        self._end = rest
        return found


def acked_rate(port: int, messages: int, *, size: int = SIZE) -> float:
    """Messages/s from the first publish to the last ack, at most WINDOW unanswered.

    Raises: BlockingIOError if no ack comes for ACK_SECONDS_MAX.
    """
    sock = nats_connection(port)
    # Python's own timeout would make each receive two system calls.
    timeout = struct.pack("@ll", ACK_SECONDS_MAX, 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    sock.sendall(b"SUB %s 1\r\n" % INBOX.encode())
    confirm(sock)
    one = b"PUB %s %s %d\r\n%s\r\n" % (SUBJECT.encode(), INBOX.encode(), size, b"x" * size)
    part = one * PART
    counter = MessageCounter(sock)
    sent = acked = 0
    began = time.perf_counter()
    while acked < messages:
        while sent < messages and sent - acked + PART <= WINDOW:
            sock.sendall(part)
            sent += PART
        acked += counter.receive()
    seconds = time.perf_counter() - began
    sock.close()
    return messages / seconds


@contextlib.contextmanager
def responder(port: int) -> Iterator[None]:
    """A subscriber that answers each message at once with a PubAck, and stores nothing."""
    ack = b'{"stream":"bench","seq":1000000,"partition":0,"offset":999999,"replicas":1}'
    answer = b"PUB %s %d\r\n%s\r\n" % (INBOX.encode(), len(ack), ack)
    ready, say = os.pipe()

    def work() -> None:
        sock = nats_connection(port)
        sock.sendall(b"SUB %s 1\r\n" % SUBJECT.encode())
        confirm(sock)
        os.write(say, b"x")
        counter = MessageCounter(sock)
        while True:
            found = counter.receive()
            if found:
                sock.sendall(answer * found)

    child = in_child(work)
    os.read(ready, 1)
    try:
        yield
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(say)


async def with_jetstream(url: str, work: Any) -> Any:
    client = await nats.connect(url)
    try:
        return await work(client.jetstream())
    finally:
        await client.close()


def jetstream_rate(url: str, port: int, messages: int) -> float:
    config = StreamConfig(name="bench", subjects=[SUBJECT], storage=StorageType.FILE)
    asyncio.run(with_jetstream(url, lambda js: js.add_stream(config)))
    try:
        return acked_rate(port, messages)
    finally:
        asyncio.run(with_jetstream(url, lambda js: js.delete_stream("bench")))


def run(*, quick: bool = False) -> None:
    messages = MESSAGES // 10 if quick else MESSAGES
    rounds = 3 if quick else 5
    ours, limit, jetstream = [], [], []
    with work_directory() as directory:
        (directory / "core").mkdir()
        (directory / "js").mkdir()
        with (
            nats_server(directory / "core") as server,
            nats_server(directory / "js", jetstream=True) as other,
            node(directory, nats=server.url) as running,
        ):
            for round_number in range(-1, rounds):
                count = messages // 10 if round_number < 0 else messages
                running.create("acked", SUBJECT)
                mine = acked_rate(server.port, count)
                assert running.partition("acked")["synced_offset"] == count
                running.delete("acked")
                with responder(server.port):
                    best = acked_rate(server.port, count)
                stored = jetstream_rate(other.url, other.port, count)
                if round_number >= 0:
                    ours.append(mine)
                    limit.append(best)
                    jetstream.append(stored)
    report(
        "acked",
        [
            row("acked publish over a subscriber that only answers",
                {**median_ratio(ours, limit), "messages": messages, "window": WINDOW},
                at_least=0.80),
            row("acked publish over JetStream file storage",
                {**median_ratio(ours, jetstream), "messages": messages, "window": WINDOW},
                at_least=2.0),
        ],
    )  # fmt: skip
