"""Publish-to-ack latency at a steady rate with three replicas, against JetStream R3.

JetStream acks what two of three servers have written and not synced. Bascule acks what three
nodes have synced: the p99 of two plain fdatasyncs of the same round is added to JetStream's time.
One publisher, which waits for each ack, is connected to the leader's NATS server.
"""

from __future__ import annotations

from typing import Any, Final

from bench.clusters import bascule_cluster, jetstream_cluster
from bench.harness import median_ratio, report, row, work_directory
from bench.latency import SUBJECT, percentile, publish_times, sync_times

ROUNDS: Final = 5
BAR: Final = 1.0


def run(*, quick: bool = False, rounds: int | None = None) -> None:
    count = 1_000 if quick else 5_000
    rounds = rounds or (3 if quick else ROUNDS)
    ours: list[float] = []
    floor: list[float] = []
    parts: list[dict[str, Any]] = []
    with (
        work_directory() as directory,
        bascule_cluster(directory) as cluster,
        jetstream_cluster(directory) as other,
    ):
        leader = cluster.create("latency", SUBJECT)
        their_leader = other.create("bench", SUBJECT)
        our_port = cluster.nodes[leader].port
        their_port = other.servers[their_leader].port
        our_ack = b'"replicas":3,"synced":true'
        publish_times(our_port, 500, our_ack)
        publish_times(their_port, 500, b'"seq"')
        for number in range(rounds):
            sync = sync_times(directory, count)
            if number % 2:
                jetstream = publish_times(their_port, count, b'"seq"')
                bascule = publish_times(our_port, count, our_ack)
            else:
                bascule = publish_times(our_port, count, our_ack)
                jetstream = publish_times(their_port, count, b'"seq"')
            ours.append(percentile(bascule, 0.99))
            floor.append(percentile(jetstream, 0.99) + 2 * percentile(sync, 0.99))
            parts.append(
                {
                    "fdatasync_p50_ms": round(percentile(sync, 0.5), 3),
                    "fdatasync_p99_ms": round(percentile(sync, 0.99), 3),
                    "jetstream_p50_ms": round(percentile(jetstream, 0.5), 3),
                    "jetstream_p99_ms": round(percentile(jetstream, 0.99), 3),
                    "ack_p50_ms": round(percentile(bascule, 0.5), 3),
                    "ack_p99_ms": round(percentile(bascule, 0.99), 3),
                }
            )
            print(number, parts[-1], flush=True)
    measured = {**median_ratio(ours, floor), "rounds": parts}
    figure = "publish to ack p99, 3 synced replicas, over JetStream R3 p99 and two fdatasync p99"
    report("cluster_latency", [row(figure, measured, at_most=BAR)])
