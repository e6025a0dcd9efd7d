"""What publishers that ask for no ack lose when a leader dies, and what a second subscriber costs.

A message that nobody acknowledges is lost if it is published between the death of a leader and the
subscription of the next one. Each round kills the leader of a stream with three replicas with -9
while one publisher sends numbered messages at a steady rate, and counts what the stream lacks.

Followers that subscribe, too, and keep the last seconds, could close that gap. What that costs at
the least is measured beside it: the rate of acked messages with as many more subscribers on the
subject as the stream has followers, one at each follower's NATS server, which read and do nothing
else, over the rate without.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import statistics
import time
from collections.abc import Iterator
from typing import Final

import bascule
from bench.acked import SUBJECT, acked_rate
from bench.clusters import (
    NODES,
    Cluster,
    ClusterNode,
    bascule_cluster,
    served_cluster,
    wait_until,
)
from bench.harness import confirm, nats_connection, report, work_directory

KILLS: Final = 100
RATE: Final = 1_000
"""Messages a second: each stands for a millisecond."""
CALM_S: Final = 0.5
"""Before and after a kill."""
ROUNDS: Final = 5
MESSAGES: Final = 500_000
STREAM: Final = "flights"


def lost_in_kills(nodes: dict[int, ClusterNode], nats_port: int, kills: int) -> list[int]:
    """Messages that each kill of the leader costs."""
    sock = nats_connection(nats_port)
    sent, firsts = 0, list[int]()
    for _ in range(kills):
        leader = int(nodes[1].partition(STREAM)["leader"])
        firsts.append(sent)
        sent = publish(sock, sent, CALM_S)
        os.kill(nodes[leader].process.pid, signal.SIGKILL)
        sent = publish(sock, sent, 2 * CALM_S)
        nodes[leader].end()
        nodes[leader].start()
        for node in nodes.values():
            node.wait_ready()
        wait_until(lambda: len(nodes[1].partition(STREAM)["isr"]) == NODES)
        wait_until(lambda: len({node.partition(STREAM)["leader"] for node in nodes.values()}) == 1)
    confirm(sock)
    sock.close()
    found = set[int]()
    with bascule.connect_sync(nodes[1].http) as client:
        found.update(int(message.value) for message in client.read(STREAM))
    ends = [*firsts[1:], sent]
    return [
        end - first - sum(number in found for number in range(first, end))
        for first, end in zip(firsts, ends, strict=True)
    ]


def publish(sock: socket.socket, number: int, seconds: float) -> int:
    """Send numbered messages at `RATE`; the next number."""
    began = time.monotonic()
    for due in range(int(seconds * RATE)):
        value = b"%d" % number
        sock.sendall(b"PUB %s.x %d\r\n%s\r\n" % (STREAM.encode(), len(value), value))
        number += 1
        time.sleep(max(began + due / RATE - time.monotonic(), 0))
    return number


@contextlib.contextmanager
def subscribers(ports: list[int]) -> Iterator[None]:
    """A process for each of these NATS servers, which reads all messages."""
    pids = []
    for port in ports:
        ready, say = os.pipe()
        pid = os.fork()
        if not pid:
            sock = nats_connection(port)
            sock.sendall(b"SUB %s 1\r\n" % SUBJECT.encode())
            confirm(sock)
            os.write(say, b"x")
            room = bytearray(1 << 20)
            while sock.recv_into(room):
                pass
            os._exit(0)
        pids.append(pid)
        os.read(ready, 1)
        os.close(ready)
        os.close(say)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def rate(cluster: Cluster, messages: int, *, with_subscribers: bool) -> float:
    leader = cluster.create("acked", SUBJECT)
    followers = [node.port for number, node in cluster.nodes.items() if number != leader]
    with subscribers(followers if with_subscribers else []):
        found = acked_rate(cluster.nodes[leader].port, messages)
    cluster.delete("acked")
    return found


def run(*, quick: bool = False, rounds: int | None = None) -> None:
    kills = rounds or (5 if quick else KILLS)
    with work_directory() as place, served_cluster(place) as (nodes, nats):
        nodes[1].create(STREAM, f"{STREAM}.>", replicas=NODES)
        wait_until(lambda: len(nodes[1].partition(STREAM)["isr"]) == NODES)
        lost = lost_in_kills(nodes, nats.port, kills)
    with work_directory() as place, bascule_cluster(place) as cluster:
        messages = MESSAGES // 5 if quick else MESSAGES
        ratios = []
        for number in range(-1, 3 if quick else ROUNDS):
            count = messages // 10 if number < 0 else messages
            pair = {
                extra: rate(cluster, count, with_subscribers=extra)
                for extra in ((True, False) if number % 2 else (False, True))
            }
            if number >= 0:
                ratios.append(pair[True] / pair[False])
                print(number, {k: round(v) for k, v in pair.items()}, flush=True)
    figures: list[dict[str, object]] = [
        {
            "figure": f"messages without ack lost when the leader is killed, at {RATE}/s, median",
            "value": statistics.median(lost),
            "max": max(lost),
            "none_lost": lost.count(0),
            "all": lost,
        },
        {
            "figure": "acked publish with a subscriber for each follower over without",
            "value": round(statistics.median(ratios), 2),
            "all": [round(each, 2) for each in ratios],
        },
    ]
    report("cluster_unacked", figures)
