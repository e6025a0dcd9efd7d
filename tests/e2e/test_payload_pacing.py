"""Payloads beside messages that are synced: what a node is configured with, and measures."""

from __future__ import annotations

from pathlib import Path

import pytest

import bascule
from bascule.datastream.disk.pacing import MIB, START
from support.nats_servers import metric
from support.processes import running_node

LIMIT = "bascule_payload_disk_bytes_per_second_max"


@pytest.mark.parametrize("least", [0, 4 * MIB])
def test_the_syncs_of_a_node_limit_its_payloads(tmp_path: Path, least: int) -> None:
    environment = {"BASCULE_LIMITS_PAYLOAD_BYTES_PER_SECOND_MIN": str(least)}
    with (
        running_node(tmp_path, environment=environment) as node,
        bascule.connect_sync(node.addresses["http"]) as client,
    ):
        node.create("s", "s.>")
        assert metric(node, LIMIT) == 0
        limit = 0.0
        for _ in range(20):
            for _ in range(20):
                client.publish("s.a", b"x")
            limit = max(limit, metric(node, LIMIT))
            if limit:
                break
        assert limit == START * least
