"""Publish-to-ack p99 while a replica of 1 GiB moves to another node, over without.

Four nodes with one `nats-server`, one stream with three replicas, `sync = always`. A publisher
sends 1,000 messages a second and waits for each ack. In each round one replica that does not lead
moves to the node that has none, once under a limit (`bascule cluster throttle`) and once as it is
by default: the move yields to messages by itself. Before it, the same publisher is measured while
nothing moves.
"""

from __future__ import annotations

from typing import Any, Final

from bench.acked import acked_rate
from bench.clusters import NODES, ClusterNode, served_cluster, wait_until
from bench.harness import median_ratio, report, row, work_directory
from bench.latency import RATE, percentile, publish_times

STREAM: Final = "moved"
MESSAGE_BYTES: Final = 1024
LIMIT: Final = 40_000_000
"""Bytes a second: 1 GiB takes half a minute."""
ROUNDS: Final = 3
CALM_COUNT: Final = 5_000
BAR: Final = 1.5


def choose(state: dict[str, Any], count: int) -> tuple[int, list[int]]:
    """The node that gets a replica, and the replicas after the move."""
    (added,) = {*range(1, count + 1)} - {*state["replicas"]}
    gone = next(node for node in reversed(state["replicas"]) if node != state["leader"])
    kept = [node for node in state["replicas"] if node != gone]
    return added, [*kept, added]


def times_while_moving(node: ClusterNode, port: int, count: int) -> list[float]:
    """How long acks take until the move that begins now is done, in seconds."""
    added, target = choose(node.partition(STREAM), count)
    node.call("POST", f"/v1/streams/{STREAM}/reassign", {"replicas": target})
    times: list[float] = []
    while node.partition(STREAM)["target"]:
        times += publish_times(port, RATE // 2)
    assert added in node.partition(STREAM)["isr"]
    return times


def run(*, quick: bool = False, rounds: int | None = None) -> None:
    size = (128 << 20) if quick else (1 << 30)
    rounds = rounds or (1 if quick else ROUNDS)
    rows: list[dict[str, Any]] = []
    with work_directory() as place, served_cluster(place, count=NODES + 1) as (nodes, server):
        node = nodes[1]
        node.create(STREAM, "bench.>", replicas=NODES)
        wait_until(lambda: len(node.partition(STREAM)["isr"]) == NODES)
        acked_rate(server.port, size // MESSAGE_BYTES, size=MESSAGE_BYTES)
        publish_times(server.port, 500)
        for name, limit in ((f"at {LIMIT // 10**6} MB/s", LIMIT), ("by default", 0)):
            node.call("PUT", "/v1/cluster/throttle", {"bytes_per_second": limit})
            moving: list[float] = []
            without: list[float] = []
            counts: list[int] = []
            for _ in range(rounds):
                calm = publish_times(server.port, CALM_COUNT)
                times = times_while_moving(node, server.port, NODES + 1)
                without.append(percentile(calm, 0.99))
                moving.append(percentile(times, 0.99))
                counts.append(len(times))
                print(name, round(without[-1], 3), round(moving[-1], 3), counts[-1], flush=True)
            measured = {**median_ratio(moving, without), "bytes": size, "messages": counts}
            figure = f"publish to ack p99 while 1 GiB is reassigned, {name}, over without"
            rows.append(row(figure, measured, at_most=BAR))
    report("cluster_reassign", rows)
