"""One round of a figure, for `bench.compare`, which runs this file by its path.

`bascule` and `bench` are those of the checkout that PYTHONPATH names, so that both sides run this
file and each measures itself. It uses only what `bench` has offered since the first release.
Prints one JSON object: metric -> value, more is better.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import acked, compaction, ingest, reading
from bench.harness import in_child, nats_server, node, reap, work_directory

SIZE = 128
SIM_SEEDS = range(100_000, 100_006)

Metrics = dict[str, float]


@contextmanager
def node_on_nats() -> Iterator[tuple[Any, Any]]:
    with (
        work_directory() as directory,
        nats_server(directory) as server,
        node(directory, nats=server.url) as running,
    ):
        yield running, server


def measure_ingest() -> Metrics:
    messages = 1_000_000
    found: Metrics = {}
    with node_on_nats() as (running, server):
        for size in (SIZE, 1024):
            ingest.stored_rate(running, server.port, size, messages // 10)
            rate, cpu = ingest.stored_rate(running, server.port, size, messages)
            found[f"messages/s, {size} B"] = rate
            found[f"messages per CPU s of the node, {size} B"] = messages / cpu
    return found


def measure_acked() -> Metrics:
    messages = 500_000
    with node_on_nats() as (running, server):
        running.create("acked", acked.SUBJECT)
        acked.acked_rate(server.port, messages // 10)
        cpu = running.cpu_seconds()
        rate = acked.acked_rate(server.port, messages)
        cpu = running.cpu_seconds() - cpu
        assert running.partition("acked")["synced_offset"] == messages + messages // 10
    return {"acked messages/s": rate, "acked messages per CPU s of the node": messages / cpu}


def measure_reading() -> Metrics:
    records = 2_000_000
    with work_directory() as directory, node(directory) as running:
        running.create("read", ingest.SUBJECT)
        ingest.publish(running.port, SIZE, records)
        running.wait_stored("read", records)
        reading.our_rate(running, records)
        cpu, client = running.cpu_seconds(), time.process_time()
        rates = [reading.our_rate(running, records) for _ in range(3)]
        client = time.process_time() - client
        cpu = running.cpu_seconds() - cpu
    return {
        "rows/s": sorted(rates)[1],
        "rows per CPU s of client and node": 3 * records / (client + cpu),
    }


def measure_fetch() -> Metrics:
    """What another client reads: confluent-kafka at the client listener."""
    records = 3_000_000  # the kernel counts CPU in 10 ms, and a record costs the node some 80 ns
    with work_directory() as directory, node(directory) as running:
        running.create("read", ingest.SUBJECT)
        ingest.publish(running.port, SIZE, records)
        running.wait_stored("read", records)
        reading.confluent_rate(running, records)
        cpu, client = running.cpu_seconds(), time.process_time()
        rates = [reading.confluent_rate(running, records) for _ in range(3)]
        client = time.process_time() - client
        cpu = running.cpu_seconds() - cpu
    return {
        "records/s": sorted(rates)[1],
        "records per CPU s of the node": 3 * records / cpu,
        "records per CPU s of the client": 3 * records / client,
    }


def measure_compaction() -> Metrics:
    with work_directory() as work:
        directory, result = work / "log", work / "result.json"
        directory.mkdir()

        def measure() -> None:
            log = compaction.build(directory, 512 << 20, compaction.KEYS // 18)
            size = log.size_bytes()
            result.write_text(json.dumps({**compaction.compact(directory, log), "bytes": size}))

        reap(in_child(measure))
        found = json.loads(result.read_text())
    mega = found["bytes"] / 1e6
    return {"MB/s": mega / found["seconds"], "MB per CPU s": mega / found["cpu_seconds"]}


def measure_raft_sim() -> Metrics:
    from bascule.sim.raft import plan
    from bench import raft_sim

    # The class had a shorter name in release 0.1.0.
    pace = getattr(plan, "HeartbeatPace", None) or plan.Pace  # type: ignore[attr-defined]
    raft_sim.measure(pace.SLOW, range(100_000, 100_002))  # the first run pays for imports
    return {"simulated s per core s": raft_sim.measure(pace.ANY, SIM_SEEDS)["value"]}


def reported(name: str) -> dict[str, Any]:
    """The first row that a short run of a measurement reports; nothing is kept."""
    rows: list[dict[str, Any]] = []
    module = importlib.import_module(f"bench.{name}")
    vars(module)["report"] = lambda _, found: rows.extend(found)
    module.run(quick=True)
    return rows[0]


def measure_decode() -> Metrics:
    return {"million records per CPU s": reported("decode")["value"]}


def measure_restart() -> Metrics:
    """As a rate, so that more is better here too."""
    return {"restarts/s after kill -9, 100 streams": 1 / min(reported("restart")["rounds"])}


FIGURES: dict[str, Callable[[], Metrics]] = {
    "ingest": measure_ingest,
    "acked": measure_acked,
    "reading": measure_reading,
    "fetch": measure_fetch,
    "decode": measure_decode,
    "compaction": measure_compaction,
    "raft_sim": measure_raft_sim,
    "restart": measure_restart,
}


def main() -> None:
    import bascule
    from bascule.host.twins import twin_of_all

    figure, checkout = sys.argv[1], Path(sys.argv[2]).resolve()
    for module in (bascule, ingest):
        loaded = Path(module.__file__ or "")
        assert loaded.is_relative_to(checkout), f"{loaded} is not of {checkout}"
    assert twin_of_all() == "compiled", f"{checkout}: hot modules are {twin_of_all()}: make build"
    found = FIGURES[figure]()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
