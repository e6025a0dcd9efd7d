"""Ingest without acks, sync always, against a bare subscriber that only counts bytes.

Beside it the limit: a subscriber that copies the bytes it receives once, computes their CRC-32C and
writes them to a file that another thread syncs. It does not look for messages in them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crc32c import crc32c

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
WRITE_BYTES = 192 << 10
"""Bytes of a write of the subscriber that only stores: about those of a node's batch."""


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


def bare_rate(
    port: int, size: int, messages: int, take: Callable[[memoryview], None] | None = None
) -> float:
    """Messages/s from the first publish to the last byte at a subscriber that counts bytes.

    `take` gets the bytes of each receive.
    """
    sock = nats_connection(port)
    sock.sendall(b"SUB %s 1\r\n" % SUBJECT.encode())
    confirm(sock)
    wanted = messages * (len(b"MSG %s 1 %d\r\n" % (SUBJECT.encode(), size)) + size + 2)
    child = TimedChild(lambda: publish(port, size, messages))
    buffer = bytearray(1 << 20)
    view = memoryview(buffer)
    received = 0
    while received < wanted:
        count = sock.recv_into(buffer)
        assert count, "the server dropped the bare subscriber"
        received += count
        if take is not None:
            take(view[:count])
    ended = time.perf_counter()
    began = child.wait()
    sock.close()
    return messages / (ended - began)


def least_rate(directory: Path, port: int, size: int, messages: int) -> tuple[float, float]:
    """Messages/s of a subscriber that copies, checksums and writes bytes, until all are synced, and
    its CPU seconds."""
    path = directory / "least"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    copied = memoryview(bytearray(WRITE_BYTES + (1 << 20)))
    ended = threading.Event()
    checksum = filled = 0

    def take(data: memoryview) -> None:
        nonlocal filled
        copied[filled : filled + len(data)] = data
        filled += len(data)
        if filled >= WRITE_BYTES:
            write()

    def write() -> None:
        nonlocal checksum, filled
        checksum = crc32c(copied[:filled], checksum)
        os.write(file, copied[:filled])
        filled = 0

    def sync() -> None:
        while not ended.wait(0.001):
            os.fdatasync(file)

    syncing = threading.Thread(target=sync)
    syncing.start()
    cpu = time.process_time()
    try:
        receiving_s = messages / bare_rate(port, size, messages, take)
        waiting = time.perf_counter()
        write()
    finally:
        ended.set()
        syncing.join()
    os.fdatasync(file)
    os.close(file)
    path.unlink()
    assert checksum
    seconds = receiving_s + time.perf_counter() - waiting
    return messages / seconds, time.process_time() - cpu


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
            ours, others, least, cpu, least_cpu = [], [], [], [], []
            for _ in range(rounds):
                others.append(bare_rate(server.port, size, messages))
                rate, spent = least_rate(directory, server.port, size, messages)
                least.append(rate)
                least_cpu.append(round(spent, 2))
                rate, spent = stored_rate(running, server.port, size, messages)
                ours.append(rate)
                cpu.append(round(spent, 2))
            measured = {
                **median_ratio(ours, others), "node_cpu_s": cpu, "messages": messages,
                "limit": median_ratio(least, others)["ratio"], "limit_cpu_s": least_cpu,
            }  # fmt: skip
            if size == 1024:
                measured["disk_mb_s"] = round(disk_rate(directory, 2 << 30) / 1e6)
            rows.append(row(f"ingest without acks, {size} B", measured, at_least=bar))
    report("ingest", rows)
