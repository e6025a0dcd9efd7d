"""A cluster of three nodes with many partitions that nobody uses.

Real nodes with one `nats-server` on one machine; every partition has three replicas. Once with
streams of 100 partitions each, once with streams of one. Measured are the CPU of each node while
all is idle, the time from SIGTERM to the end of all processes, and the time from the start of all
nodes until a message to each partition was acked, after SIGTERM and after SIGKILL. Then one node
ends with SIGTERM while the others serve, and comes back.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bascule.errors import Broken
from bascule.ingest.routing import partition_of
from bascule.log_connection import LogConnection
from bascule.wire.messages.list_offsets import (
    TIMESTAMP_LATEST,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from bench.clusters import ClusterNode, served_cluster, wait_until
from bench.harness import nats_connection, report, row, work_directory
from bench.streams import Creator, stop

COUNT: Final = 10_000
SHAPES: Final = (100, 1)
"""Partitions of a stream."""
IDLE_SECONDS: Final = 60.0
CALM_SECONDS: Final = 75.0
"""After the last request, before the CPU is measured: logs are checked and checkpoints written."""
WAIT_SECONDS: Final = 300.0
ASK_SECONDS: Final = 0.2
"""Between two questions to all partitions."""
ASKED_STREAMS: Final = 1_000
"""In one request."""
ACKED_COUNT: Final = 100
"""Partitions that have to ack a message. To write to all of them is a measurement of the disk."""
AGAIN_SECONDS: Final = 2.0
"""A message that is not acked is sent again after this time."""
CPU_MAX: Final = 0.03
SERVING_SECONDS_MAX: Final = 30.0
STOP_SECONDS_MAX: Final = 10.0


class Probe:
    """Asks every partition for what only a leader that serves can tell."""

    def __init__(
        self, nats_port: int, nodes: Sequence[ClusterNode], streams: int, partitions: int
    ) -> None:
        self._nats_port = nats_port
        self._nodes = nodes
        self._asked = [
            ListOffsetsTopic(
                f"s{stream}",
                [
                    ListOffsetsPartition(index, timestamp=TIMESTAMP_LATEST)
                    for index in range(partitions)
                ],
            )
            for stream in range(streams)
        ]
        self._count = streams * partitions
        self._subjects = [
            subject for stream in range(streams) for subject in _subjects(stream, partitions)
        ]

    def wait_served(self) -> float:
        """Wait until the leader of each partition tells its end offset, none lacks replicas in
        sync, and some partitions have acked a message. The time, on the monotonic clock."""
        deadline = time.monotonic() + WAIT_SECONDS
        while (served := self._served()) < self._count or not self._take_messages():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{served} of {self._count} partitions have a leader")
            time.sleep(ASK_SECONDS)
        self.wait_acked(self._subjects[:: max(self._count // ACKED_COUNT, 1)])
        return time.monotonic()

    def _not_as_they_should_be(self) -> str:
        """What the cluster says is wrong, and partitions with records that are not committed."""
        found = self._nodes[0].call("GET", "/v1/cluster")
        counts = {name: count for name, count in found.items() if name.endswith("_count")}
        open_ends = [
            (topic.name, state)
            for topic in self._asked
            for state in self._nodes[0].call("GET", f"/v1/streams/{topic.name}")["partitions"]
            if state["end_offset"] != state["high_watermark"]
        ]
        return f"{counts}, {len(open_ends)} with an open end: {open_ends[:3]}"

    def _served(self) -> int:
        return sum(map(self._served_by, self._nodes))

    def _served_by(self, node: ClusterNode) -> int:
        try:
            connection = LogConnection("127.0.0.1", node.client_port, timeout=60)
        except Broken:
            return 0
        count = 0
        with contextlib.closing(connection), contextlib.suppress(Broken):
            for start in range(0, len(self._asked), ASKED_STREAMS):
                connection.send(
                    ListOffsetsRequest(topics=self._asked[start : start + ASKED_STREAMS])
                )
                answer = connection.receive()
                assert isinstance(answer, ListOffsetsResponse)
                count += sum(not p.error_code for t in answer.topics for p in t.partitions)
        return count

    def _take_messages(self) -> bool:
        """Whether every partition has a leader and enough replicas in sync."""
        found = self._nodes[0].call("GET", "/v1/cluster")
        return not found["leaderless"] and not found["under_min_isr"]

    def publish_to_all(self) -> None:
        """Return once every partition has acked a message."""
        self.wait_acked(self._subjects, again_seconds=30.0)

    def wait_acked(self, subjects: Sequence[str], *, again_seconds: float = AGAIN_SECONDS) -> None:
        sock = nats_connection(self._nats_port)
        sock.sendall(b"SUB _acks.* 1\r\n")
        waiting = dict(enumerate(subjects))
        deadline = time.monotonic() + WAIT_SECONDS
        buffer = b""
        while waiting:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"no ack of {len(waiting)} partitions: {[*waiting.values()][:3]}; "
                    f"{self._not_as_they_should_be()}"
                )
            for number, subject in waiting.items():
                sock.sendall(b"PUB %s _acks.%d 1\r\nx\r\n" % (subject.encode(), number))
            again = time.monotonic() + again_seconds
            while waiting and (left := again - time.monotonic()) > 0:
                sock.settimeout(left)
                try:
                    buffer += sock.recv(1 << 20)
                except TimeoutError:
                    break
                buffer, acked = _acks(buffer)
                for number in acked:
                    waiting.pop(number, None)
        sock.close()


def _subjects(stream: int, partitions: int) -> Iterator[str]:
    """A subject for each partition of a stream."""
    left, number = set(range(partitions)), 0
    while left:
        subject = f"s.{stream}.{number}"
        found = partition_of(subject.encode(), partitions) if partitions > 1 else 0
        if found in left:
            left.remove(found)
            yield subject
        number += 1


def _acks(buffer: bytes) -> tuple[bytes, list[int]]:
    """What is left of a piece of the NATS protocol, and the numbers of the messages acked in it."""
    acked, at = [], 0
    while (end := buffer.find(b"\r\n", at)) >= 0:
        line = buffer[at:end]
        if not line.startswith(b"MSG "):
            at = end + 2
            continue
        _, subject, _, size = line.split()
        body_end = end + 2 + int(size)
        if len(buffer) < body_end + 2:
            break
        if b'"error"' not in buffer[end:body_end]:
            acked.append(int(subject.rpartition(b".")[2]))
        at = body_end + 2
    return buffer[at:], acked


def is_whole(node: ClusterNode) -> bool:
    """Whether every partition has a leader and all of its replicas in sync."""
    found = node.call("GET", "/v1/cluster")
    return not found["leaderless"] and not found["under_replicated"]


def restart_seconds(cluster: Sequence[ClusterNode], probe: Probe) -> tuple[float, float]:
    """Start all nodes; seconds until every partition has acked, and until all are in sync."""
    began = time.monotonic()
    for node in cluster:
        node.start()
    wait_until(lambda: any(node.is_ready for node in cluster), WAIT_SECONDS)
    serving = probe.wait_served() - began
    for node in cluster:
        node.wait_ready(WAIT_SECONDS)
    wait_until(lambda: is_whole(cluster[0]), WAIT_SECONDS)
    return serving, time.monotonic() - began


def kill(cluster: Sequence[ClusterNode]) -> None:
    for node in cluster:
        node.process.kill()
    for node in cluster:
        node.process.wait()


def measure(
    count: int, partitions: int, idle_seconds: float, place: Path
) -> list[dict[str, object]]:
    """The rows for streams of so many partitions."""
    streams = count // partitions
    with served_cluster(place) as (nodes, nats):
        cluster = list(nodes.values())
        settings = {"partitions": partitions, "partition_by": "subject"} if partitions > 1 else {}
        creator = Creator(cluster, streams, streams, subject="s.{}.*", settings=settings)
        creator.run()
        created = creator.times[-1][0] - creator.times[0][0]
        probe = Probe(nats.port, cluster, streams, partitions)
        probe.publish_to_all()
        wait_until(lambda: is_whole(cluster[0]), WAIT_SECONDS)
        print(f"waiting {CALM_SECONDS:.0f} s for the checkpoints of what was published", flush=True)
        time.sleep(CALM_SECONDS)
        before = [node.cpu_seconds() for node in cluster]
        time.sleep(idle_seconds)
        cpu = [
            (node.cpu_seconds() - each) / idle_seconds
            for node, each in zip(cluster, before, strict=True)
        ]
        print(f"{partitions} a stream: created in {created:.1f} s, CPU {cpu}", flush=True)
        memory = [node.resident_mb() for node in cluster]
        stopped = stop(cluster)
        print(f"stopped in {stopped:.1f} s", flush=True)
        restarted, restarted_whole = restart_seconds(cluster, probe)
        print(f"serving after {restarted:.1f} s, whole {restarted_whole:.1f} s", flush=True)
        kill(cluster)
        killed, killed_whole = restart_seconds(cluster, probe)
        print(f"after kill -9: {killed:.1f} s, whole {killed_whole:.1f} s", flush=True)
        alone, taken_over = leave(cluster[1], probe)
        print(f"one node: stopped in {alone:.1f} s, all serve {taken_over:.1f} s", flush=True)
    of = f"{count} partitions in {streams} streams"
    return [
        row(f"{of}: CPU of the busiest of 3 idle nodes, cores",
            {"value": round(max(cpu), 4), "all": [round(each, 4) for each in cpu],
             "resident_mb": memory, "created_seconds": round(created, 1)}, at_most=CPU_MAX),
        row(f"{of}: stop of all nodes, s", {"value": round(stopped, 2)}, at_most=STOP_SECONDS_MAX),
        row(f"{of}: start of all nodes until each partition serves, s",
            {"value": round(restarted, 2), "all_in_sync": round(restarted_whole, 2)},
            at_most=SERVING_SECONDS_MAX),
        row(f"{of}: the same after kill -9 of all, s",
            {"value": round(killed, 2), "all_in_sync": round(killed_whole, 2)},
            at_most=SERVING_SECONDS_MAX),
        row(f"{of}: stop of one node, s",
            {"value": round(alone, 2), "until_each_partition_serves": round(taken_over, 2)},
            at_most=STOP_SECONDS_MAX),
    ]  # fmt: skip


def leave(node: ClusterNode, probe: Probe) -> tuple[float, float]:
    """End one node with SIGTERM; seconds until it has ended, and until each partition acks."""
    began = time.monotonic()
    node.process.send_signal(signal.SIGTERM)
    code = node.process.wait(WAIT_SECONDS)
    assert code == 0, code
    ended = time.monotonic() - began
    return ended, probe.wait_served() - began


def run(*, quick: bool = False, count: int | None = None) -> None:
    count = count or (1_000 if quick else COUNT)
    rows: list[dict[str, object]] = []
    for partitions in SHAPES:
        with work_directory() as place:
            rows += measure(count, partitions, 10.0 if quick else IDLE_SECONDS, place)
    report("cluster_idle", rows)
