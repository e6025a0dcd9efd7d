"""Commits of 100 members beside Apache Kafka: CPU of the server, without the other parts of
`groups`."""

from __future__ import annotations

import asyncio

from bench.groups import COMMIT_SECONDS, MEMBERS, TOPIC, cpu_of_commits, create_topic
from bench.harness import median_ratio, node, report, row, work_directory
from bench.kafka.broker import broker, class_path

ROUNDS = 5


def run(*, quick: bool = False) -> None:
    found: dict[str, list[float]] = {"ours": [], "kafka": []}
    seconds = 5.0 if quick else COMMIT_SECONDS
    with work_directory() as directory:
        for name in ("node", "kafka"):
            (directory / name).mkdir()
        jars = class_path(directory)
        with node(directory / "node") as ours, broker(directory / "kafka", jars) as kafka:
            sides = {"ours": (ours, ours.addresses["client"]), "kafka": (kafka, kafka.url)}
            for _, address in sides.values():
                create_topic(address, TOPIC, MEMBERS)
            # One round more, which does not count: Kafka's code is compiled meanwhile.
            for number in range((2 if quick else ROUNDS) + 1):
                for name, (running, address) in sides.items():
                    cost = asyncio.run(cpu_of_commits(running, address, f"c{number}", seconds))
                    found[name].append(cost)
    figure = "10,000 commits/s of 100 members, CPU of the node over Kafka's"
    measured = median_ratio(found["ours"][1:], found["kafka"][1:])
    report("group_commits", [row(figure, measured, at_most=1.0)])
