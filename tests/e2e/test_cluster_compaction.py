"""Key compaction in a cluster: no replica brings back a key that was removed while it was away."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import bascule
from support.clusters import RunningCluster
from support.processes import wait_for

pytestmark = pytest.mark.tier3

KEYS = 100
SEGMENT_BYTES = 20_000


def publish_keys(cluster: RunningCluster, value: bytes | None) -> None:
    """A value for every key; None: remove it."""
    headers = {} if value is not None else {"KV-Operation": "DEL"}
    with bascule.connect_sync(cluster.alive()[0].addresses["http"]) as client:
        client.publish_many(("latest.a", value or b"", f"key-{n}", headers) for n in range(KEYS))


def compactions(log: Path) -> int:
    """How often a node has compacted the stream."""
    lines = log.read_text().splitlines()
    return sum(" compaction " in line and "stream=latest" in line for line in lines)


def make_leader_compact(cluster: RunningCluster, node: int) -> None:
    """Return once a node has compacted what was published before."""
    running = cluster.nodes[node]
    before = compactions(running.log)
    with bascule.connect_sync(running.addresses["http"]) as client:
        client.publish_many(("latest.a", os.urandom(900)) for _ in range(60))
    wait_for(lambda: compactions(running.log) > before or None, running.process, running.log)


def keyed(cluster: RunningCluster) -> list[tuple[bytes, bytes | None]]:
    """Key and value of every record with a key, as the leader has them."""
    with bascule.connect_sync(cluster.alive()[0].addresses["http"]) as client:
        found = client.read("latest", start="earliest", end="latest")
        return [(each.key, each.value) for each in found if each.key is not None]


@pytest.mark.long
def test_a_replica_that_was_away_hears_of_every_removed_key(cluster: RunningCluster) -> None:
    cluster.nodes[1].create(
        "latest", "latest.>", replicas=3, cleanup=["compact"], dirty_percent_min=0,
        dedupe_window_ms=0, tombstone_retention_ms=0, segment_bytes_max=SEGMENT_BYTES,
    )  # fmt: skip
    publish_keys(cluster, b"a value that is removed later")
    cluster.wait_in_sync("latest")
    leader = cluster.leader("latest")
    away = next(number for number in cluster.nodes if number != leader)
    cluster.nodes[away].stop(signal.SIGKILL)
    publish_keys(cluster, None)
    for _ in range(3):  # the first one removes the values, later ones may remove the tombstones
        make_leader_compact(cluster, leader)
    assert cluster.leader("latest") == leader
    assert {value for _, value in keyed(cluster)} == {None}
    cluster.start(away)
    cluster.wait_in_sync("latest")
    others = [number for number in cluster.nodes if number != away]
    target = {"replicas": [away, *others]}
    cluster.alive()[0].call("POST", "/v1/streams/latest/reassign", target)
    running = cluster.nodes[away]
    wait_for(lambda: cluster.leader("latest") == away or None, running.process, running.log)
    assert set(dict(keyed(cluster)).values()) <= {None}, "removed keys are back"

    def are_gone() -> bool | None:
        make_leader_compact(cluster, away)
        return None if keyed(cluster) else True

    wait_for(are_gone, running.process, running.log)
