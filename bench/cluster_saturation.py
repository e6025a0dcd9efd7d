"""A cluster on a machine that has no time left: nothing may be taken for a failure.

Three nodes, one `nats-server` and three publishers share the machine. Each publisher keeps a window
of unanswered messages for a stream of its own with three replicas, `sync = always`, so that every
core is busy all the time. No process is stopped or paused. Counted are the changes that only a
failure justifies: elections of a partition's leader, changes of in-sync replica sets, other
controllers, and nodes that were given up. The figures are those of the nodes' own events and of the
leader epochs. Beside them: messages acknowledged per second, and how long a single message waits
for its ack, ten times a second.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.acked import PART, SIZE, MessageCounter
from bench.clusters import NODES, ClusterNode, served_cluster, wait_until
from bench.harness import confirm, in_child, nats_connection, report, row, work_directory

SECONDS: Final = 600.0
QUICK_SECONDS: Final = 60.0
WARM_UP_S: Final = 5.0
"""The first messages open files and connections."""
WINDOW: Final = 5_000
SEGMENT_BYTES: Final = 64 << 20
PROBE_S: Final = 0.1
ANSWER_SECONDS_MAX: Final = 10.0
SILENCE_BAR_S: Final = 1.5
"""At which a process counts as lost, whatever the delays before."""
BUSY_MIN: Final = 0.9
"""Share of all cores that has to be in use, else nothing was shown."""
ELECTIONS: Final = ("node lost", "silent leader replaced", "unclean election")
ISR_CHANGES: Final = ("isr changed",)
CONTROLLERS: Final = ("this node is the controller", "no controller; this node leads nothing")


def publish_for_ever(port: int, stream: str, counted: int) -> None:
    """Keep `WINDOW` messages unanswered. Write the number of acks to the file each second."""
    sock = nats_connection(port)
    sock.settimeout(ANSWER_SECONDS_MAX)
    inbox = f"_INBOX.saturation.{stream}"
    sock.sendall(b"SUB %s 1\r\n" % inbox.encode())
    confirm(sock)
    part = b"PUB %s.x %s %d\r\n%s\r\n" % (stream.encode(), inbox.encode(), SIZE, b"x" * SIZE) * PART
    counter = MessageCounter(sock)
    sent = acked = 0
    said = time.monotonic()
    while True:
        while sent - acked + PART <= WINDOW:
            sock.sendall(part)
            sent += PART
        try:
            acked += counter.receive()
        except TimeoutError:
            sent = acked  # the acks were lost with a leader
        if time.monotonic() - said > 1:
            said = time.monotonic()
            os.pwrite(counted, b"%20d" % acked, 0)


class Publishers:
    """One process for each stream."""

    def __init__(self, port: int, streams: Sequence[str], place: Path) -> None:
        self._files: list[int] = []
        self._pids: list[int] = []
        for name in streams:
            file = os.open(place / f"acked-{name}", os.O_RDWR | os.O_CREAT)
            os.pwrite(file, b"%20d" % 0, 0)
            self._files.append(file)
            self._pids.append(
                in_child(lambda name=name, file=file: publish_for_ever(port, name, file))  # type: ignore[misc]
            )

    def acked(self) -> int:
        """How many messages were acknowledged so far."""
        return sum(int(os.pread(file, 20, 0)) for file in self._files)

    def stop(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for file in self._files:
            os.close(file)


class Probe:
    """Publishes one message, and waits for its ack."""

    def __init__(self, port: int, stream: str) -> None:
        self._sock = nats_connection(port)
        self._sock.settimeout(ANSWER_SECONDS_MAX)
        self._sock.sendall(b"SUB _INBOX.probe 1\r\n")
        confirm(self._sock)
        self._message = b"PUB %s.probe _INBOX.probe %d\r\n%s\r\n" % (
            stream.encode(), SIZE, b"x" * SIZE,
        )  # fmt: skip
        self._counter = MessageCounter(self._sock)

    def measure(self) -> float:
        """Seconds until the ack."""
        began = time.monotonic()
        self._sock.sendall(self._message)
        try:
            while not self._counter.receive():
                pass
        except TimeoutError:
            pass
        return time.monotonic() - began

    def close(self) -> None:
        self._sock.close()


class Cpu:
    """How busy the machine is."""

    def __init__(self) -> None:
        self._before = self._read()

    @staticmethod
    def _read() -> tuple[int, int]:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        times = [int(field) for field in fields]
        return sum(times), times[3] + times[4]

    def busy(self) -> float:
        """The share of all cores in use since the last call."""
        total, idle = self._read()
        before_total, before_idle = self._before
        self._before = total, idle
        return 1 - (idle - before_idle) / max(1, total - before_total)


def leader_epochs(node: ClusterNode, streams: Sequence[str]) -> dict[str, int]:
    """Of the only partition of each stream. An election raises it."""
    return {name: int(node.partition(name)["leader_epoch"]) for name in streams}


def events_of(nodes: Sequence[ClusterNode], marks: Sequence[int]) -> list[dict[str, Any]]:
    """What the nodes have logged since their logs had the sizes `marks`."""
    found = []
    for node, mark in zip(nodes, marks, strict=True):
        for line in node.log.read_bytes()[mark:].splitlines():
            if line.startswith(b"{"):
                found.append({"of": node.number, **json.loads(line)})
    return found


def heartbeat_silence(node: ClusterNode) -> float:
    """The longest time in which another node did not answer this one's heartbeats, in seconds."""
    with urllib.request.urlopen(node.http + "/metrics", timeout=10) as response:
        text = response.read().decode()
    found = [
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("bascule_heartbeat_silence_max_seconds{")
    ]
    return max(found, default=0.0)


def counted(events: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """How often these events happened, and the first of them as they are."""
    chosen = [event for event in events if event.get("event") in names]
    kinds = Counter(event["event"] for event in chosen)
    return {"value": sum(kinds.values()), "events": dict(kinds), "first": chosen[:20]}


def run(*, quick: bool = False, seconds: float | None = None) -> None:
    seconds = seconds or (QUICK_SECONDS if quick else SECONDS)
    streams = [f"s{n}" for n in range(1, NODES + 1)]
    with (
        work_directory() as place,
        served_cluster(place, environment={"BASCULE_LOG_FORMAT": "json"}) as (nodes, nats),
    ):
        client = nodes[1]
        for name in streams:
            client.create(
                name, f"{name}.>", replicas=NODES,
                segment_bytes_max=SEGMENT_BYTES, retention_bytes_max=4 * SEGMENT_BYTES,
            )  # fmt: skip
        wait_until(lambda: all(len(client.partition(name)["isr"]) == NODES for name in streams))
        publishers = Publishers(nats.port, streams, place)
        probe = Probe(nats.port, streams[0])
        try:
            time.sleep(WARM_UP_S)
            measured = measure(list(nodes.values()), streams, publishers, probe, seconds)
        finally:
            publishers.stop()
            probe.close()
    report("cluster_saturation", rows_of(measured, seconds))


def measure(
    nodes: Sequence[ClusterNode],
    streams: Sequence[str],
    publishers: Publishers,
    probe: Probe,
    seconds: float,
) -> dict[str, Any]:
    """Watch for `seconds`."""
    marks = [node.log.stat().st_size for node in nodes]
    epochs, cpu, acked = leader_epochs(nodes[0], streams), Cpu(), publishers.acked()
    began, waits = time.monotonic(), []
    while time.monotonic() - began < seconds:
        waits.append(probe.measure())
        time.sleep(PROBE_S)
    elapsed = time.monotonic() - began
    rate = (publishers.acked() - acked) / elapsed
    busy = cpu.busy()
    after = leader_epochs(nodes[0], streams)
    events = events_of(nodes, marks)
    return {
        "elections": {
            **counted(events, ELECTIONS),
            "value": sum(after[name] - epochs[name] for name in streams),
        },
        "isr": counted(events, ISR_CHANGES),
        "controllers": counted(events, CONTROLLERS),
        "silences": [heartbeat_silence(node) for node in nodes],
        "rate": rate, "busy": busy, "waits": sorted(waits),
    }  # fmt: skip


def rows_of(measured: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
    waits = measured["waits"]
    p99 = waits[int(0.99 * len(waits))]
    of = f"{seconds:g} s saturated"
    return [
        row(f"{of}: elections", measured["elections"], at_most=0),
        row(f"{of}: ISR changes", measured["isr"], at_most=0),
        row(f"{of}: changes of the controller", measured["controllers"], at_most=0),
        row(f"{of}: longest silence of heartbeats, s",
            {"value": round(max(measured["silences"]), 3),
             "nodes": [round(each, 3) for each in measured["silences"]]},
            at_most=SILENCE_BAR_S),
        row(f"{of}: share of all cores in use", {"value": round(measured["busy"], 3)},
            at_least=BUSY_MIN),
        row(f"{of}: acknowledged messages/s", {"value": round(measured["rate"])}, at_least=1),
        row(f"{of}: publish to ack p99, s",
            {"value": round(p99, 4), "max": round(waits[-1], 4), "count": len(waits)},
            at_most=ANSWER_SECONDS_MAX),
    ]  # fmt: skip
