"""Creating, stopping and starting with many streams, in a cluster of one node or of three.

Real nodes with one `nats-server`. Requests go to all nodes in turn over `IN_FLIGHT` connections.
Measured are creations per second for each thousand, the time from SIGTERM to the end of all
processes with a new record in every stream, and from the start until all nodes are ready.
"""

from __future__ import annotations

import http.client
import json
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from bench.clusters import ClusterNode, served_cluster
from bench.harness import confirm, nats_connection, report, row, work_directory

COUNT: Final = 5_000
NODES: Final = (1, 3)
IN_FLIGHT: Final = 32
STEP: Final = 1_000
"""Creations for which one rate is printed."""
CREATED_PER_SECOND_MIN: Final = 200.0
"""Of one node; three nodes share the machine."""
CPU_GROWTH_MAX: Final = 1.25
"""CPU of the nodes for a creation of the last step, over one of the first. Unlike the rate it does
not depend on who else uses the machine."""
STOP_SECONDS_MAX: Final = 10.0
START_SECONDS_MAX: Final = 10.0
START_WAIT_S: Final = 300.0
UNAVAILABLE: Final = 503
"""A leader was too slow, and the stream is not there: the request is sent again."""


class Creator:
    """Creates streams over many connections, and notes when each was there."""

    def __init__(
        self,
        cluster: Sequence[ClusterNode],
        count: int,
        step: int,
        *,
        subject: str = "s.{}",
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`subject` gets the number of the stream."""
        self._cluster = cluster
        self._step = step
        self._subject = subject
        self._settings = settings
        self._numbers = iter(range(count))
        self._lock = threading.Lock()
        self._done = 0
        self.times: list[tuple[float, float]] = []
        """At the start and after each step: the time, and the CPU seconds of all nodes."""

    def run(self) -> None:
        """Create all; return once they are there."""
        self._note_time()
        count = max(IN_FLIGHT // int(self._settings.get("partitions", 1)), 3)
        threads = [threading.Thread(target=self._work, args=(n,)) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, number: int) -> None:
        url = urlsplit(self._cluster[number % len(self._cluster)].http)
        server = http.client.HTTPConnection(url.hostname or "", url.port, timeout=60)
        while (stream := self._next()) is not None:
            replicas = len(self._cluster)
            body = {
                "name": f"s{stream}",
                "subject": self._subject.format(stream),
                "replicas": replicas,
                **self._settings,
            }
            head = {"content-type": "application/json"}
            while True:
                server.request("POST", "/v1/streams", json.dumps(body), head)
                response = server.getresponse()
                answer = response.read()
                if response.status != UNAVAILABLE:
                    break
            assert response.status == 201, answer
            with self._lock:
                self._done += 1
                if self._done % self._step == 0:
                    self._note_time()
        server.close()

    def _next(self) -> int | None:
        with self._lock:
            return next(self._numbers, None)

    def _note_time(self) -> None:
        cpu = sum(node.cpu_seconds() for node in self._cluster)
        self.times.append((time.monotonic(), cpu))


def measure(count: int, nodes: int, place: Path) -> list[dict[str, object]]:
    """The rows of a cluster of `nodes`."""
    with served_cluster(place, count=nodes) as (served, nats):
        cluster = list(served.values())
        step = min(STEP, count // 2)
        creator = Creator(cluster, count, step)
        creator.run()
        rates = [step / (end[0] - start[0]) for start, end in pairwise(creator.times)]
        cpu_ms = [1000 * (end[1] - start[1]) / step for start, end in pairwise(creator.times)]
        print(f"{nodes} nodes, creations/s by {step}:", *map(round, rates), flush=True)
        publisher = nats_connection(nats.port)
        for number in range(count):
            publisher.sendall(b"PUB s.%d 1\r\nx\r\n" % number)
        confirm(publisher)
        stopped = stop(cluster)
        began = time.monotonic()
        for node in cluster:
            node.start()
        for node in cluster:
            node.wait_ready(START_WAIT_S)
        started = time.monotonic() - began
    of = f"{nodes} node{'s'[: nodes > 1]}, {count} streams"
    return [
        row(f"{of}: creations/s, the last {step}",
            {"value": round(rates[-1], 1), "all": [round(each, 1) for each in rates]},
            at_least=CREATED_PER_SECOND_MIN if nodes == 1 else 0),
        row(f"{of}: CPU of a creation, the last {step} over the first",
            {"value": round(cpu_ms[-1] / cpu_ms[0], 2), "ms": [round(each, 2) for each in cpu_ms]},
            at_most=CPU_GROWTH_MAX),
        row(f"{of}: stop, s", {"value": round(stopped, 2)}, at_most=STOP_SECONDS_MAX),
        row(f"{of}: start, s", {"value": round(started, 2)}, at_most=START_SECONDS_MAX),
    ]  # fmt: skip


def stop(cluster: Sequence[ClusterNode]) -> float:
    """End all nodes at once; return how many seconds that took."""
    began = time.monotonic()
    for node in cluster:
        node.process.send_signal(signal.SIGTERM)
    for node in cluster:
        assert node.process.wait(300) == 0
    return time.monotonic() - began


def run(*, quick: bool = False, count: int | None = None, nodes: int | None = None) -> None:
    rows: list[dict[str, object]] = []
    for size in NODES if nodes is None else (nodes,):
        with work_directory() as place:
            rows += measure(count or (600 if quick else COUNT), size, place)
    report("streams", rows)
