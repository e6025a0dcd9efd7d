"""Acked publishing with a window to three replicas, against JetStream's R3 file streams.

Both sides are three nodes on this machine. Bascule acks what all replicas in sync have synced
(`sync = always`). JetStream acks what two of three servers have written, and syncs every two
minutes, its default. One publisher, the one of `acked`, is connected to the leader's NATS server,
or to another one. Each round has all four pairs in turn; the order changes with the round.
"""

from __future__ import annotations

from typing import Final

from bench.acked import SUBJECT, WINDOW, acked_rate
from bench.clusters import Cluster, JetStreamCluster, bascule_cluster, jetstream_cluster
from bench.harness import median_ratio, report, row, work_directory

MESSAGES: Final = 500_000
ROUNDS: Final = 5
BAR: Final = 3.0
PLACES: Final = ("the leader's server", "another server")


def our_rate(cluster: Cluster, messages: int, place: str) -> float:
    leader = cluster.create("acked", SUBJECT)
    node = leader if place == PLACES[0] else cluster.other(leader)
    rate = acked_rate(cluster.nodes[node].port, messages)
    state = cluster.nodes[leader].partition("acked")
    assert state["high_watermark"] == messages, state
    assert len(state["isr"]) == len(cluster.nodes), state
    cluster.delete("acked")
    return rate


def jetstream_rate(cluster: JetStreamCluster, messages: int, place: str) -> float:
    leader = cluster.create("bench", SUBJECT)
    server = leader if place == PLACES[0] else cluster.other(leader)
    rate = acked_rate(cluster.servers[server].port, messages)
    stored = cluster.messages("bench")
    assert stored == messages, f"JetStream stored {stored} of {messages} messages"
    cluster.delete("bench")
    return rate


def run(*, quick: bool = False, rounds: int | None = None) -> None:
    messages = MESSAGES // 5 if quick else MESSAGES
    rounds = rounds or (3 if quick else ROUNDS)
    ours: dict[str, list[float]] = {place: [] for place in PLACES}
    theirs: dict[str, list[float]] = {place: [] for place in PLACES}
    with (
        work_directory() as directory,
        bascule_cluster(directory) as cluster,
        jetstream_cluster(directory) as other,
    ):
        for number in range(-1, rounds):
            count = messages // 10 if number < 0 else messages
            for place in PLACES:
                if number % 2:
                    jetstream = jetstream_rate(other, count, place)
                    bascule = our_rate(cluster, count, place)
                else:
                    bascule = our_rate(cluster, count, place)
                    jetstream = jetstream_rate(other, count, place)
                if number >= 0:
                    ours[place].append(bascule)
                    theirs[place].append(jetstream)
                    print(number, place, round(bascule), round(jetstream), flush=True)
    report(
        "cluster_acked",
        [
            row(
                f"acked publish to 3 synced replicas over JetStream R3, at {place}",
                {**median_ratio(ours[place], theirs[place]), "messages": messages,
                 "window": WINDOW},
                at_least=BAR,
            )
            for place in PLACES
        ],
    )  # fmt: skip
