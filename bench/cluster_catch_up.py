"""How fast a follower that is 1 GiB behind catches up, against a plain copy of the same bytes.

A follower is killed with -9, 1 GiB is written with acks of the other two, and it starts again. The
time runs from the first byte that it appends until the leader has it back in the ISR: everything
is synced, and the controller has agreed. The plain copy sends the leader's segment files with
sendfile over loopback to a process that writes what it receives, and syncs at the end.
"""

from __future__ import annotations

import os
import socket
import time
from functools import partial
from pathlib import Path
from typing import Final

from bench.acked import SUBJECT, acked_rate
from bench.clusters import NODES, Cluster, bascule_cluster, wait_until
from bench.harness import in_child, median_ratio, reap, report, row, work_directory

MESSAGE_BYTES: Final = 1024
ROUNDS: Final = 3
BAR: Final = 0.6
POLL_SECONDS: Final = 0.005
COPY_BYTES: Final = 1 << 20
STREAM: Final = "catchup"


def segments(data: Path) -> list[Path]:
    return sorted((data / "streams" / STREAM / "0").glob("*.log"))


def log_bytes(data: Path) -> int:
    return sum(path.stat().st_size for path in segments(data))


def is_missing(cluster: Cluster, leader: int, follower: int) -> bool:
    """Whether the leader goes on without the follower."""
    state = cluster.nodes[leader].partition(STREAM)
    assert state["leader"] == leader, f"another node leads: {state}"
    return follower not in state["isr"]


def our_seconds(cluster: Cluster, leader: int, follower: int) -> tuple[float, float]:
    """Time from the first byte appended, and from the start of the process."""
    node, before = cluster.nodes[follower], log_bytes(cluster.nodes[follower].data)
    started = time.perf_counter()
    node.start()
    while log_bytes(node.data) <= before:
        time.sleep(POLL_SECONDS)
    began = time.perf_counter()
    while len(cluster.nodes[leader].partition(STREAM)["isr"]) < NODES:
        time.sleep(POLL_SECONDS)
    ended = time.perf_counter()
    assert log_bytes(node.data) == log_bytes(cluster.nodes[leader].data)
    node.wait_ready()
    return ended - began, ended - started


def plain_seconds(files: list[Path], target: Path) -> float:
    """sendfile, write, and one fdatasync of all bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()

        def receive() -> None:
            buffer = memoryview(bytearray(COPY_BYTES))
            with socket.create_connection(address) as sock, target.open("wb", buffering=0) as out:
                while count := sock.recv_into(buffer):
                    out.write(buffer[:count])
                os.fdatasync(out.fileno())
                sock.sendall(b"x")

        began = time.perf_counter()
        child = in_child(receive)
        sock, _ = listener.accept()
        with sock:
            for path in files:
                with path.open("rb") as file:
                    sock.sendfile(file)
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b"x"
        seconds = time.perf_counter() - began
    reap(child)
    target.unlink()
    return seconds


def run(*, quick: bool = False, rounds: int | None = None) -> None:
    behind = (256 << 20) if quick else (1 << 30)
    rounds = rounds or (2 if quick else ROUNDS)
    ours: list[float] = []
    plain: list[float] = []
    from_start: list[float] = []
    with work_directory() as directory, bascule_cluster(directory) as cluster:
        for number in range(rounds):
            leader = cluster.create(STREAM, SUBJECT)
            follower = cluster.other(leader)
            port = cluster.nodes[leader].port
            acked_rate(port, 1_000, size=MESSAGE_BYTES)
            cluster.nodes[follower].end()
            wait_until(partial(is_missing, cluster, leader, follower))
            had = log_bytes(cluster.nodes[follower].data)
            acked_rate(port, behind // MESSAGE_BYTES, size=MESSAGE_BYTES)
            data = cluster.nodes[leader].data
            missing = log_bytes(data) - had
            os.sync()
            seconds, since_start = our_seconds(cluster, leader, follower)
            os.sync()
            copy_seconds = plain_seconds(segments(data), directory / "copy")
            copied = log_bytes(data)
            ours.append(missing / seconds / 1e6)
            plain.append(copied / copy_seconds / 1e6)
            from_start.append(round(since_start, 2))
            print(number, round(ours[-1]), round(plain[-1]), from_start[-1], flush=True)
            cluster.delete(STREAM)
    measured = {
        **median_ratio(ours, plain),
        "bytes_behind": behind,
        "seconds_from_process_start": from_start,
    }
    figure = "catch-up of a follower 1 GiB behind, MB/s, over sendfile, write and sync"
    report("cluster_catch_up", [row(figure, measured, at_least=BAR)])
