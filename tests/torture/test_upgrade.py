"""An earlier release is replaced by this one, node by node, under load.

The earlier release is taken from git and runs interpreted. The test needs the history of the
repository, and `--torture`: it takes some minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.clusters import RunningCluster, running_cluster
from support.processes import running_nats, wait_for
from torture.checks import Evidence, check, read_replica
from torture.messages import read_acks, streams_named
from torture.run import LoadProcess
from torture.watch import unexpected_lines

pytestmark = pytest.mark.tier3

ROOT = Path(__file__).parents[2]
EARLIER = os.environ.get("TORTURE_EARLIER", "eb0f5274b4")
"""A commit of an earlier release."""
STREAMS = streams_named(["orders", "single", "keys"])
"""Not `grouped`: a queue group has no member for some milliseconds while one leader hands all of
its partitions over, and messages that are sent then are sent again."""
RATE = 200.0
MORE = 50
"""Acks of each publisher between two upgrades."""
END_SECONDS_MAX = 240.0


def earlier_release() -> Path:
    """The source of the earlier release, kept in `build`."""
    place = ROOT / "build" / f"release-{EARLIER}"
    if not (place / "whole").exists():
        archive = ["git", "archive", EARLIER, "src", "pyproject.toml"]
        packed = subprocess.run(archive, cwd=ROOT, capture_output=True, check=False)
        if packed.returncode:
            pytest.skip(f"no commit {EARLIER} here: {packed.stderr.decode().strip()}")
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-x"], cwd=place, input=packed.stdout, check=True)
        (place / "whole").touch()
    return place / "src"


def uses(cluster: RunningCluster, number: int, place: Path) -> bool:
    """Whether a node runs the source in `place`."""
    process = cluster.nodes[number].process
    assert process is not None
    environment = Path(f"/proc/{process.pid}/environ").read_bytes()
    return f"PYTHONPATH={place}".encode() in environment.split(b"\0")


async def upgrade(cluster: RunningCluster, number: int) -> None:
    node = cluster.nodes[number]
    assert await asyncio.to_thread(node.stop, signal.SIGTERM) == 0
    node.environment.pop("PYTHONPATH")
    await asyncio.to_thread(node.start)
    for stream in STREAMS:
        await asyncio.to_thread(cluster.wait_in_sync, stream.name)


async def load_while_upgraded(
    cluster: RunningCluster, publishers: LoadProcess, readers: LoadProcess
) -> dict[str, Any]:
    """Replace all nodes; the state of the streams at the end."""
    await publishers.start()
    await readers.start()
    try:
        for number in cluster.nodes:
            await _acked_more(cluster, publishers)
            await upgrade(cluster, number)
        await _acked_more(cluster, publishers)
        assert await publishers.finish("", END_SECONDS_MAX) is None
        listed = await asyncio.to_thread(cluster.nodes[1].call, "GET", "/v1/streams")
        layout = {
            f"{stream['name']}/{each['partition']}": each
            for stream in listed["streams"]
            for each in stream["partitions"]
            if not stream["name"].startswith("_")
        }
        ends = {place: each["high_watermark"] for place, each in layout.items()}
        assert await readers.finish(json.dumps(ends), END_SECONDS_MAX) is None
        return layout
    finally:
        await publishers.kill()
        await readers.kill()


async def _acked_more(cluster: RunningCluster, publishers: LoadProcess) -> None:
    """Return once every publisher has got more acks."""
    before = publishers.state.get("acked", {})

    def look() -> bool | None:
        now = publishers.state.get("acked", {})
        grown = [count > before.get(key, 0) + MORE for key, count in now.items()]
        return True if grown and all(grown) else None

    node = cluster.nodes[1]
    await asyncio.to_thread(wait_for, look, node.process, node.log)


def test_nothing_is_lost_and_nobody_sees_an_error(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--torture"):
        pytest.skip("some minutes: with --torture only")
    earlier = earlier_release()
    names = [stream.name for stream in STREAMS]
    with (
        running_nats(tmp_path / "nats") as nats,
        running_cluster(
            tmp_path / "nodes", nats=nats.url, environment={"PYTHONPATH": str(earlier)}
        ) as cluster,
    ):
        assert all(uses(cluster, number, earlier) for number in cluster.nodes)
        for stream in STREAMS:
            cluster.nodes[1].call("POST", "/v1/streams", stream.body())
        servers = ",".join(node.addresses["client"] for node in cluster.nodes.values())
        acks, reads = tmp_path / "acks.bin", tmp_path / "reads.npz"
        publishers = LoadProcess(
            "torture.publishers",
            {"nats": nats.url, "rate": RATE, "acks": str(acks), "streams": names},
            tmp_path / "publishers.log",
        )
        readers = LoadProcess(
            "torture.readers",
            {"servers": servers, "racks": [], "seed": 1, "reads": str(reads), "streams": names},
            tmp_path / "readers.log",
        )
        layout = asyncio.run(load_while_upgraded(cluster, publishers, readers))
        assert not any(uses(cluster, number, earlier) for number in cluster.nodes)
        cluster.stop()
        with np.load(reads) as arrays:
            read = {(n, int(i)): arrays[f"{n}/{i}"] for n, _, i in map(_split, arrays.files)}
        replicas = {
            (name, int(index)): {
                number: read_replica(cluster.replica(number, name, int(index)))
                for number in layout[key]["replicas"]
            }
            for key in layout
            for name, _, index in [_split(key)]
        }
        assert check(Evidence(STREAMS, read_acks(acks), replicas, read)) == []
        assert publishers.state["refusals"] == {}
        assert readers.state["findings"] == []
        logs = [node.log for node in cluster.nodes.values()]
        assert unexpected_lines(logs, set()) == []


def _split(key: str) -> tuple[str, str, str]:
    return key.rpartition("/")
