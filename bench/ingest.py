"""Ingest without acks, sync always, against a bare subscriber that only counts bytes."""

from __future__ import annotations

import os
import time
from pathlib import Path
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

MESSAGES = 3_000_000
SUBJECT = "bench.ingest"


def publish(port: int, size: int, messages: int) -> float:
    """Publish as fast as the server takes it; when the first byte left."""
    sock = nats_connection(port)
    one = b"PUB %s %d\r\n%s\r\n" % (SUBJECT.encode(), size, b"x" * size)
    block_messages = max(1, (256 << 10) // len(one))
    block = one * block_messages
    began = time.perf_counter()
    for _ in range(messages // block_messages):
        sock.sendall(block)
    sock.sendall(one * (messages % block_messages))
    confirm(sock)
    sock.close()
    return began


def bare_rate(port: int, size: int, messages: int) -> float:
    """Messages/s from the first publish to the last byte at a subscriber that counts bytes."""
    sock = nats_connection(port)
    sock.sendall(b"SUB %s 1\r\n" % SUBJECT.encode())
    confirm(sock)
    wanted = messages * (len(b"MSG %s 1 %d\r\n" % (SUBJECT.encode(), size)) + size + 2)
    child = TimedChild(lambda: publish(port, size, messages))
    buffer = bytearray(1 << 20)
    received = 0
    while received < wanted:
        count = sock.recv_into(buffer)
        assert count, "the server dropped the bare subscriber"
        received += count
    ended = time.perf_counter()
    began = child.wait()
    sock.close()
    return messages / (ended - began)


def stored_rate(running: Node, port: int, size: int, messages: int) -> tuple[float, float]:
    """Messages/s from the first publish until all are synced, and the node's CPU seconds."""
    name = f"ingest{size}"
    running.create(name, SUBJECT)
    cpu = running.cpu_seconds()
    began = TimedChild(lambda: publish(port, size, messages)).wait()
    running.wait_stored(name, messages)
    ended = time.perf_counter()
    found = running.partition(name)
    assert found["synced_offset"] == found["end_offset"] == messages, found
    running.delete(name)
    return messages / (ended - began), running.cpu_seconds() - cpu


def disk_rate(directory: Path, total: int) -> float:
    """Bytes/s of plain 1 MiB writes with one fdatasync at a time beside them."""
    block = os.urandom(1 << 20)
    path = directory / "plain"
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for number in range(total >> 20):
            file.write(block)
            if number % 16 == 15:
                os.fdatasync(file.fileno())
        os.fdatasync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return total / seconds


def run(*, quick: bool = False) -> None:
    messages = MESSAGES // 10 if quick else MESSAGES
    rounds = 3 if quick else 5
    rows: list[dict[str, Any]] = []
    with (
        work_directory() as directory,
        nats_server(directory) as server,
        node(directory, nats=server.url) as running,
    ):
        for size, bar in ((16, 0.90), (128, 0.90), (1024, 0.50)):
            bare_rate(server.port, size, messages // 10)
            stored_rate(running, server.port, size, messages // 10)
            ours, others, cpu = [], [], []
            for _ in range(rounds):
                others.append(bare_rate(server.port, size, messages))
                rate, spent = stored_rate(running, server.port, size, messages)
                ours.append(rate)
                cpu.append(round(spent, 2))
            measured = {**median_ratio(ours, others), "node_cpu_s": cpu, "messages": messages}
            if size == 1024:
                measured["disk_mb_s"] = round(disk_rate(directory, 2 << 30) / 1e6)
            rows.append(row(f"ingest without acks, {size} B", measured, at_least=bar))
    report("ingest", rows)
