"""Ingest of messages that carry a `Nats-Msg-Id`, with the stream's window on over off."""

from __future__ import annotations

import time
from typing import Any

from bench.harness import (
    Node,
    TimedChild,
    confirm,
    median_ratio,
    nats_connection,
    nats_server,
    node,
    report,
    row,
    work_directory,
)

MESSAGES = 1_000_000
PAYLOAD_BYTES = 128
SUBJECT = "bench.dedupe"
BLOCK_BYTES = 256 << 10


def operations(prefix: str, messages: int) -> list[bytes]:
    """PUB operations with ids of 22 characters, as NUIDs have, in blocks to send at a time."""
    payload = b"x" * PAYLOAD_BYTES
    block = b"NATS/1.0\r\nNats-Msg-Id: %b%010d\r\n\r\n"
    size = len(block % (prefix.encode(), 0))
    one = b"HPUB %b %d %d\r\n%b%b\r\n" % (
        SUBJECT.encode(), size, size + PAYLOAD_BYTES, block, payload,
    )  # fmt: skip
    count = BLOCK_BYTES // len(one)
    return [
        b"".join(one % (prefix.encode(), n) for n in range(at, min(at + count, messages)))
        for at in range(0, messages, count)
    ]


def stored_rate(running: Node, port: int, window_ms: int, prefix: str, messages: int) -> float:
    """Messages/s from the first publish until all are synced."""
    blocks = operations(prefix, messages)
    running.create("dedupe", SUBJECT, dedupe_window_ms=window_ms, dedupe_messages_max=messages)

    def publish() -> float:
        sock = nats_connection(port)
        began = time.perf_counter()
        for block in blocks:
            sock.sendall(block)
        confirm(sock)
        return began

    began = TimedChild(publish).wait()
    running.wait_stored("dedupe", messages)
    ended = time.perf_counter()
    assert running.partition("dedupe")["end_offset"] == messages
    running.delete("dedupe")
    return messages / (ended - began)


def run(*, quick: bool = False) -> None:
    messages = MESSAGES // 10 if quick else MESSAGES
    rounds = 3 if quick else 7
    rows: list[dict[str, Any]] = []
    with (
        work_directory() as directory,
        nats_server(directory) as server,
        node(directory, nats=server.url) as running,
    ):
        stored_rate(running, server.port, 0, "warm-up-0000", messages // 10)
        on, off = [], []
        for number in range(rounds):
            for window_ms, rates in ((0, off), (120_000, on)):
                prefix = f"{number:05d}-{window_ms:06d}"
                rates.append(stored_rate(running, server.port, window_ms, prefix, messages))
        measured = {**median_ratio(on, off), "messages": messages}
        rows.append(row("ingest with dedupe by message id, on over off", measured, at_least=0.7))
    report("dedupe", rows)
