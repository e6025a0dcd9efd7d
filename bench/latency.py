"""Publish-to-ack latency at a steady rate, beside fdatasync and a NATS round trip."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from bench.harness import (
    confirm,
    median_ratio,
    nats_connection,
    nats_server,
    node,
    report,
    row,
    work_directory,
)

RATE = 1_000
SUBJECT = "bench.latency"
PAYLOAD = b"x" * 128


def percentile(times: list[float], share: float) -> float:
    """In milliseconds."""
    ordered = sorted(times)
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def steady(count: int, one: Any) -> list[float]:
    """Call `one` RATE times a second; how long each call took, in seconds."""
    times = []
    due = time.perf_counter()
    for _ in range(count):
        due += 1 / RATE
        while (wait := due - time.perf_counter()) > 0:
            time.sleep(wait)
        began = time.perf_counter()
        one()
        times.append(time.perf_counter() - began)
    return times


def publish_times(port: int, count: int, expected: bytes = b'"synced":true') -> list[float]:
    """How long each of `count` acks took, in seconds; every ack has `expected`."""
    sock = nats_connection(port)
    sock.sendall(b"SUB in.latency 1\r\n")
    confirm(sock)
    publication = b"PUB %s in.latency %d\r\n%s\r\n" % (SUBJECT.encode(), len(PAYLOAD), PAYLOAD)

    def one() -> None:
        sock.sendall(publication)
        received = b""
        while not received.endswith(b"}\r\n"):
            received += sock.recv(4096)
            # The server asks too, some seconds in, and maybe in the same packet.
            if b"PING\r\n" in received:
                sock.sendall(b"PONG\r\n")
                received = received.replace(b"PING\r\n", b"")
        assert expected in received, received

    times = steady(count, one)
    sock.close()
    return times


def ping_times(port: int, count: int) -> list[float]:
    sock = nats_connection(port)
    times = steady(count, lambda: confirm(sock))
    sock.close()
    return times


def sync_times(directory: Path, count: int) -> list[float]:
    path = directory / "plain"
    with path.open("wb", buffering=0) as file:

        def one() -> None:
            file.write(PAYLOAD * 2)
            os.fdatasync(file.fileno())

        times = steady(count, one)
    path.unlink()
    return times


def run(*, quick: bool = False) -> None:
    count = 1_000 if quick else 5_000
    rounds = 3 if quick else 5
    ours, floor, parts = [], [], []
    with (
        work_directory() as directory,
        nats_server(directory) as server,
        node(directory, nats=server.url) as running,
    ):
        running.create("latency", SUBJECT)
        publish_times(server.port, 500)
        for _ in range(rounds):
            sync = percentile(sync_times(directory, count), 0.99)
            ping = percentile(ping_times(server.port, count), 0.99)
            times = publish_times(server.port, count)
            ours.append(percentile(times, 0.99))
            floor.append(sync + 2 * ping)
            parts.append(
                {
                    "fdatasync_p99_ms": round(sync, 3),
                    "ping_p99_ms": round(ping, 3),
                    "ack_p50_ms": round(percentile(times, 0.5), 3),
                    "ack_p99_ms": round(percentile(times, 0.99), 3),
                }
            )
    measured = {**median_ratio(ours, floor), "rounds": parts}
    report("latency", [row("publish to ack p99 over its floor", measured, at_most=2.0)])
