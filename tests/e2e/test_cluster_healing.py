"""Bytes flip in the log of one replica of three: it heals from the others, with no operator."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bascule
from bascule.errors import BasculeError
from bascule.record.batch import scan_batches
from bascule.record.header import batch_crc
from support import commands
from support.clusters import RunningCluster, running_cluster
from support.kafka_readers import read_confluent
from support.processes import Node, running_nats, wait_for

pytestmark = pytest.mark.tier3

COUNT = 400
"""Messages of the first part: some three closed segments and an active one."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with (
        running_nats(tmp_path / "nats") as nats,
        running_cluster(
            tmp_path / "nodes",
            nats=nats.url,
            # Each test says who finds the damage.
            environment={"BASCULE_LIMITS_SCRUB_PERIOD_MS": "0"},
        ) as found,
    ):
        yield found


def wait_until(node: Node, look: Callable[[], Any]) -> None:
    """Return once `look` finds something."""

    def safely() -> bool | None:
        try:
            return True if look() else None
        except (OSError, BasculeError):
            return None

    wait_for(safely, node.process, node.log)


def value(number: int) -> bytes:
    return b"%06d " % number + b"x" * 9_000


def publish(node: Node, stream: str, numbers: range) -> None:
    """Return once all of them are acknowledged."""
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.publish_many([(f"{stream}.a", value(number)) for number in numbers])


def flip(cluster: RunningCluster, node: int, stream: str, *, closed: bool) -> Path:
    """Change a byte in the middle of a replica's second or last segment file.

    The first may have one batch: a log whose first batch is damaged is given up as a whole.
    """
    files = sorted(cluster.replica(node, stream).glob("*.log"))
    files = [each for each in files if each.stat().st_size]
    assert len(files) > 2, files
    chosen = files[1] if closed else files[-1]
    # Within a value: the CRC of a batch does not cover its base offset.
    at = chosen.read_bytes().index(b"x" * 64, chosen.stat().st_size // 2) + 32
    with chosen.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0x10]))
    return chosen


def wait_healed(cluster: RunningCluster, node: int, stream: str) -> None:
    """Return once the node has healed its replica and all are in sync."""
    process, log = cluster.nodes[node].process, cluster.nodes[node].log
    needle = "replica opened up to its damage"
    wait_for(lambda: True if needle in log.read_text() else None, process, log)
    cluster.wait_in_sync(stream)


def check_equal(cluster: RunningCluster, stream: str, count: int) -> None:
    """Every message is readable with a Kafka client, and the logs of all nodes are equal."""
    leader = cluster.nodes[cluster.leader(stream)]
    found = read_confluent(leader.addresses["client"], stream, count)
    assert [each.value for each in found] == [value(n) for n in range(count)]
    for node in cluster.alive():
        assert node.call("GET", "/v1/cluster")["failed"] == []
    cluster.stop()
    logs = [cluster.log_bytes(node, stream) for node in cluster.nodes]
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.parametrize(
    ("role", "closed", "number"),
    [
        pytest.param("leader", True, signal.SIGTERM, marks=pytest.mark.long),
        ("leader", False, signal.SIGKILL),
        ("follower", True, signal.SIGKILL),
        pytest.param("follower", False, signal.SIGTERM, marks=pytest.mark.long),
    ],
)
def test_a_log_that_is_damaged_while_its_node_is_down_heals(
    cluster: RunningCluster, role: str, closed: bool, number: signal.Signals
) -> None:
    """The damage is found when the log is opened, or when all of it is read after the start."""
    cluster.nodes[1].create("flights", "flights.>", replicas=3, segment_bytes_max=1 << 20)
    cluster.wait_in_sync("flights")
    publish(cluster.nodes[1], "flights", range(COUNT))
    cluster.wait_in_sync("flights")
    leader = cluster.leader("flights")
    damaged = leader if role == "leader" else next(n for n in cluster.nodes if n != leader)
    other = next(each for n, each in cluster.nodes.items() if n != damaged)
    cluster.nodes[damaged].stop(number)
    flip(cluster, damaged, "flights", closed=closed)
    publish(other, "flights", range(COUNT, COUNT + 50))
    cluster.nodes[damaged].start()
    publish(other, "flights", range(COUNT + 50, COUNT + 100))
    wait_healed(cluster, damaged, "flights")
    publish(other, "flights", range(COUNT + 100, COUNT + 110))
    cluster.wait_in_sync("flights")
    kept = list((cluster.nodes[damaged].directory / "data/aside").iterdir())
    assert [each.name for each in kept] == ["damage.1"]
    check_equal(cluster, "flights", COUNT + 110)


def test_a_leader_whose_followers_get_damaged_batches_heals(cluster: RunningCluster) -> None:
    """A follower that was away copies what the leader has on its disk, and finds the damage; the
    third replica leads then."""
    cluster.nodes[1].create("flights", "flights.>", replicas=3, segment_bytes_max=1 << 20)
    cluster.wait_in_sync("flights")
    leader = cluster.leader("flights")
    node = cluster.nodes[leader]
    away = next(n for n in cluster.nodes if n != leader)
    cluster.nodes[away].stop(signal.SIGTERM)
    publish(node, "flights", range(COUNT))
    wait_until(node, lambda: away not in node.partition("flights")["isr"])
    flip(cluster, leader, "flights", closed=True)
    cluster.nodes[away].start()
    wait_healed(cluster, leader, "flights")
    told = cluster.nodes[away]
    wait_until(told, lambda: "leader sends damaged batches" in told.log.read_text())
    publish(node, "flights", range(COUNT, COUNT + 10))
    check_equal(cluster, "flights", COUNT + 10)


@pytest.mark.long
def test_the_last_replica_in_sync_is_not_healed(cluster: RunningCluster) -> None:
    """Nobody else has all records: what it has is not removed."""
    cluster.nodes[1].create(
        "flights", "flights.>", replicas=2, min_isr=1, segment_bytes_max=1 << 20
    )
    cluster.wait_in_sync("flights")
    state = cluster.partition("flights")
    last = state["leader"]
    (behind,) = set(state["replicas"]) - {last}
    node = cluster.nodes[last]
    publish(node, "flights", range(10))
    cluster.nodes[behind].stop(signal.SIGKILL)
    wait_until(node, lambda: node.partition("flights")["isr"] == [last])
    publish(node, "flights", range(10, COUNT))
    damaged = flip(cluster, last, "flights", closed=True)
    before = damaged.read_bytes()
    node.stop(signal.SIGTERM)
    cluster.start(last, behind)
    node.wait_replica_failed("flights")
    (failed,) = node.call("GET", "/v1/cluster")["failed"]
    assert "it is the last in sync" in failed["advice"]
    assert "healing a replica" not in node.log.read_text()
    assert damaged.read_bytes() == before


def scrub(node: Node, stream: str, *, code: int) -> list[dict[str, Any]]:
    """What `bascule scrub --json` prints."""
    done = commands.run("scrub", stream, "--json", "--server", node.addresses["http"], text=True)
    assert done.returncode == code, (done.stdout, done.stderr)
    found: list[dict[str, Any]] = json.loads(done.stdout)["replicas"]
    return found


@pytest.mark.parametrize("role", ["leader", pytest.param("follower", marks=pytest.mark.long)])
def test_a_scrub_finds_damage_while_all_nodes_run(cluster: RunningCluster, role: str) -> None:
    """First in a closed segment, then in the active one."""
    cluster.nodes[1].create("flights", "flights.>", replicas=3, segment_bytes_max=1 << 20)
    cluster.wait_in_sync("flights")
    node = cluster.nodes[1]
    publish(node, "flights", range(COUNT))
    cluster.wait_in_sync("flights")
    for row in scrub(node, "flights", code=0):
        assert (row["result"], row["records"], row["found"]) == ("ok", COUNT, "")
        assert row["bytes"] == row["bytes_total"] > COUNT * 9_000
    end = COUNT
    for closed in (True, False):
        leader = cluster.leader("flights")
        damaged = leader if role == "leader" else next(n for n in cluster.nodes if n != leader)
        log = cluster.nodes[damaged].log
        before = log.read_text().count("replica opened up to its damage")
        flip(cluster, damaged, "flights", closed=closed)
        results = {row["node"]: row["result"] for row in scrub(node, "flights", code=6)}
        assert results == {n: "corrupt" if n == damaged else "ok" for n in cluster.nodes}
        wait_until(
            node,
            lambda log=log, before=before: (
                log.read_text().count("replica opened up to its damage") > before
            ),
        )
        cluster.wait_in_sync("flights")
        publish(node, "flights", range(end, end + 20))
        end += 20
    cluster.wait_in_sync("flights")
    assert {row["result"] for row in scrub(node, "flights", code=0)} == {"ok"}
    check_equal(cluster, "flights", end)


@pytest.mark.long
def test_replicas_that_differ_in_a_compacted_range_are_reported(cluster: RunningCluster) -> None:
    """The ranges of such logs are not compared batch by batch, and the CRC is good."""
    node = cluster.nodes[1]
    node.create(
        "latest", "latest.>", replicas=3, cleanup=["compact"], dirty_percent_min=0,
        dedupe_window_ms=0, segment_bytes_max=20_000,
    )  # fmt: skip
    cluster.wait_in_sync("latest")
    with bascule.connect_sync(node.addresses["http"]) as client:
        for number in range(3):
            client.publish_many(("latest.a", b"%d" % number * 900, f"key-{n}") for n in range(30))
    cluster.wait_in_sync("latest")
    for each in cluster.nodes.values():
        wait_until(each, lambda log=each.log: "reason=dirty" in log.read_text())
    leader = cluster.leader("latest")
    other = next(n for n in cluster.nodes if n != leader)
    assert {row["result"] for row in scrub(node, "latest", code=0)} == {"ok"}
    segment = next(
        path
        for path in sorted(cluster.replica(other, "latest").glob("*.log"))
        if b"2" * 900 in path.read_bytes()
    )
    data = segment.read_bytes()
    at = data.index(b"2" * 900)
    batch = next(each for each in scan_batches(data) if each.start <= at < each.end)
    changed = bytearray(data[batch.start : batch.end])
    changed[at - batch.start] ^= 1
    changed[17:21] = batch_crc(changed).to_bytes(4, "big")
    with segment.open("r+b") as file:
        file.seek(batch.start)
        file.write(changed)
    results = {row["node"]: row for row in scrub(node, "latest", code=6)}
    assert {n: row["result"] for n, row in results.items()} == dict.fromkeys(
        cluster.nodes, "differs"
    )
    assert f"differ from node {other}" in results[leader]["found"]


def test_replicas_that_differ_are_reported_and_stay(cluster: RunningCluster) -> None:
    """A batch is replaced by another one with a good CRC: nobody knows which is right."""
    cluster.nodes[1].create("flights", "flights.>", replicas=3)
    cluster.wait_in_sync("flights")
    node = cluster.nodes[1]
    publish(node, "flights", range(20))
    cluster.wait_in_sync("flights")
    leader = cluster.leader("flights")
    other = next(n for n in cluster.nodes if n != leader)
    (segment,) = cluster.replica(other, "flights").glob("*.log")
    data = bytearray(segment.read_bytes())
    at = data.index(b"000001 xxx")
    batch = next(each for each in scan_batches(bytes(data)) if each.start <= at < each.end)
    data[at + 8] ^= 1
    header = bytearray(data[batch.start : batch.end])
    header[17:21] = batch_crc(header).to_bytes(4, "big")
    with segment.open("r+b") as file:
        file.seek(batch.start)
        file.write(header)
    results = {row["node"]: row for row in scrub(node, "flights", code=6)}
    assert {n: row["result"] for n, row in results.items()} == dict.fromkeys(
        cluster.nodes, "differs"
    )
    assert f"differ from node {other}, and all CRCs are good" in results[leader]["found"]
    wait_until(node, lambda: node.call("GET", "/v1/cluster")["differing"])
    assert len(node.partition("flights")["isr"]) == 3
    assert "replicas differ" in "".join(each.log.read_text() for each in cluster.nodes.values())
    assert segment.read_bytes()[at + 8] == data[at + 8]


def records(cluster: RunningCluster, node: int, stream: str) -> bytes:
    return b"".join(p.read_bytes() for p in sorted(cluster.replica(node, stream).glob("*.log")))


def test_a_replica_is_not_cut_while_the_log_of_its_leader_is_damaged_too(
    cluster: RunningCluster,
) -> None:
    """Each has what the other one lacks. Nobody else has it, so an operator decides."""
    cluster.nodes[1].create(
        "flights", "flights.>", replicas=2, min_isr=1, segment_bytes_max=1 << 20
    )
    cluster.wait_in_sync("flights")
    last = cluster.leader("flights")
    (waiting,) = set(cluster.partition("flights")["replicas"]) - {last}
    node = cluster.nodes[last]
    publish(node, "flights", range(COUNT))
    cluster.wait_in_sync("flights")
    cluster.nodes[waiting].stop(signal.SIGTERM)
    # So many that it cannot get beyond the damage, and is in sync at no time.
    publish(node, "flights", range(COUNT, COUNT + 200))
    wait_until(node, lambda: node.partition("flights")["isr"] == [last])
    flip(cluster, last, "flights", closed=False)
    commands.run("scrub", "flights", "--server", node.addresses["http"], text=True)
    wait_until(node, lambda: "damaged log" in node.log.read_text())
    assert "is corrupt" in node.partition("flights")["damage"]
    flip(cluster, waiting, "flights", closed=True)
    before = records(cluster, waiting, "flights")
    cluster.nodes[waiting].start()

    def said() -> dict[int, dict[str, Any]]:
        return {each["node"]: each for each in node.call("GET", "/v1/cluster")["failed"]}

    def are_told() -> bool:
        found = said()  # without those that did not answer in time
        advice = [found.get(each, {}).get("advice", "") for each in (last, waiting)]
        is_waiting = "waits: " in found.get(waiting, {}).get("failure", "")
        return is_waiting and all(f"restart node {last}" in each for each in advice)

    wait_until(node, are_told)
    assert records(cluster, waiting, "flights").startswith(before)
    assert "healing a replica" not in cluster.nodes[waiting].log.read_text()
    publish(node, "flights", range(COUNT + 200, COUNT + 210))

    node.stop(signal.SIGTERM)
    node.start()
    node.wait_replica_failed("flights")
    done = commands.run(
        "stream", "repair", "flights", "--accept-loss", "--yes",
        "--server", node.addresses["http"], text=True,
    )  # fmt: skip
    assert "stopped" not in done.stdout, (done.stdout, done.stderr)
    cluster.wait_in_sync("flights")
    wait_until(node, lambda: not said())
