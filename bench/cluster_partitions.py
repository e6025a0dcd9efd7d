"""What it costs that the partitions of a stream are on several nodes.

Three nodes with one `nats-server`, a stream of three partitions with one replica each, so that each
node leads one. With `partition_by = "subject"` each node receives every message and stores its own.
With `mapping` the NATS server writes the partition into the subject, and each node receives only
what it stores. Measured is CPU: the cores are shared, so rates would tell about the publisher.
"""

from __future__ import annotations

import time
from typing import Any, Final

import bascule
from bench.clusters import NODES, ClusterNode, served_cluster
from bench.harness import (
    Running,
    confirm,
    median_ratio,
    nats_connection,
    report,
    row,
    work_directory,
)

MESSAGES: Final = 1_000_000
ROUNDS: Final = 5
SUBJECTS: Final = 64
VALUE: Final = bytes(128)
MAPPINGS: Final = 'mappings = {"mapped.*": "mapped.{{partition(3,1)}}.{{wildcard(1)}}"}\n'
SUBJECT_OF: Final = {"subject": "hashed.*", "mapping": "mapped.*.*"}
SECONDS_MAX: Final = 300.0


def publish(port: int, by: str, messages: int) -> None:
    """Publish on all subjects in turn, and return once the server has everything."""
    prefix = SUBJECT_OF[by].split(".")[0]
    ops = (b"PUB %s.c%d %d\r\n%s\r\n" % (prefix.encode(), n, len(VALUE), VALUE)
           for n in range(SUBJECTS))  # fmt: skip
    block = b"".join(ops) * 16
    with nats_connection(port) as sock:
        for _ in range(messages // (16 * SUBJECTS)):
            sock.sendall(block)
        confirm(sock)


def stored(node: ClusterNode, by: str) -> int:
    partitions: list[dict[str, Any]] = node.call("GET", f"/v1/streams/{by}")["partitions"]
    return sum(int(each["high_watermark"]) for each in partitions)


def measure(by: str, nodes: list[ClusterNode], nats: Running, messages: int) -> tuple[float, float]:
    """CPU in µs for a message: of all nodes, of the NATS server."""
    before = stored(nodes[0], by)
    cpu = sum(node.cpu_seconds() for node in nodes), nats.cpu_seconds()
    publish(nats.port, by, messages)
    deadline = time.monotonic() + SECONDS_MAX
    count = messages // (16 * SUBJECTS) * 16 * SUBJECTS
    while stored(nodes[0], by) - before < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{stored(nodes[0], by) - before} of {count} messages are stored")
        time.sleep(0.1)
    used = sum(node.cpu_seconds() for node in nodes) - cpu[0], nats.cpu_seconds() - cpu[1]
    return 1e6 * used[0] / count, 1e6 * used[1] / count


def run(*, quick: bool = False) -> None:
    messages, rounds = (200_000, 3) if quick else (MESSAGES, ROUNDS)
    with (
        work_directory() as place,
        served_cluster(place, settings=MAPPINGS) as (cluster, nats),
    ):
        found = rounds_of(list(cluster.values()), nats, messages, rounds)
    nodes, servers = ({by: [each[at] for each in found[by]] for by in SUBJECT_OF} for at in (0, 1))
    report("cluster_partitions", [
        row("CPU of the nodes for a message, mapping over subject",
            median_ratio(nodes["mapping"], nodes["subject"]), at_most=0.8),
        {"figure": "CPU of the NATS server for a message, mapping over subject",
         **median_ratio(servers["mapping"], servers["subject"])},
    ])  # fmt: skip


def rounds_of(
    nodes: list[ClusterNode], nats: Running, messages: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Both ways in turn, after one round that does not count."""
    found: dict[str, list[tuple[float, float]]] = {by: [] for by in SUBJECT_OF}
    with bascule.connect_sync(nodes[0].http) as client:
        for by, subject in SUBJECT_OF.items():
            client.create_stream(by, subject, partitions=NODES, partition_by=by)
    for number in range(rounds + 1):
        for by in SUBJECT_OF:
            measured = measure(by, nodes, nats, messages)
            if number:
                found[by].append(measured)
    return found
