"""What a node says of its health while its world changes, and what its metrics say of its work."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bascule
from support import http_calls
from support.processes import Node, running_nats, running_node

PATIENCE_SECONDS = 120.0


def asked(node: Node, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(node.addresses["http"] + path, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def eventually(look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def part(health: dict[str, Any], name: str) -> dict[str, str]:
    found: dict[str, str] = next(item for item in health["parts"] if item["part"] == name)
    return found


def test_readiness_follows_the_nats_server(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as nats, running_node(tmp_path, nats=nats.url) as node:
        status, health = asked(node, "/readyz")
        assert (status, http_calls.troubled_parts(health)) == (200, [])
        assert health["status"] == ("ok" if part(health, "disk")["state"] == "ok" else "degraded")
        assert {item["part"] for item in health["parts"]} >= {
            "node", "nats", "threads", "partitions", "disk"
        }  # fmt: skip

        nats.stop()
        eventually(lambda: asked(node, "/readyz")[0] == 503, "still ready without a NATS server")
        health = asked(node, "/readyz")[1]
        assert part(health, "nats")["state"] == "down"
        assert "not connected to" in part(health, "nats")["reason"]
        assert part(health, "partitions")["state"] == "ok"
        assert asked(node, "/healthz")[0] == 200, "a restart would not help"

        nats.start()
        eventually(lambda: asked(node, "/readyz")[0] == 200, "not ready again")


def test_a_stopped_partition_degrades_the_node(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        for name in ("good", "bad"):
            node.call("POST", "/v1/streams", {"name": name, "subject": f"{name}.>"})
        with bascule.connect_sync(node.addresses["http"]) as client:
            for _ in range(3):
                client.publish("bad.x", b"v" * 1_000)
    segment = next((tmp_path / "data" / "streams" / "bad" / "0").glob("*.log"))
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    segment.write_bytes(damaged)
    with running_node(tmp_path) as node:
        # A log that was closed cleanly is checked beside its service, soon after the start.
        eventually(
            lambda: part(asked(node, "/readyz")[1], "partitions")["state"] != "ok", "damage unseen"
        )
        status, health = asked(node, "/readyz")
        assert (status, health["status"]) == (200, "degraded"), "the other streams are served"
        stopped = part(health, "partitions")
        assert stopped["state"] == "degraded"
        assert "stream 'bad' partition 0 has stopped" in stopped["reason"]
        text = http_calls.get(node.addresses["http"] + "/metrics")
        assert 'bascule_partition_failed{stream="bad",partition="0"} 1' in text
        assert 'bascule_partition_failed{stream="good",partition="0"} 0' in text


def test_what_a_node_tells_is_all_documented(tmp_path: Path) -> None:
    """Every metric of a node that has worked is in the table, and no other is promised."""
    document = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(bascule_\w+)` \| (\w+) \| ([\w, ]*) \|", document, re.MULTILINE)
    with running_node(tmp_path) as node:
        node.call("POST", "/v1/streams", {"name": "a", "subject": "a.>"})
        node.call("GET", "/v1/streams")
        text = http_calls.get(node.addresses["http"] + "/metrics")
    kinds = dict(re.findall(r"^# TYPE (bascule_\w+) (\w+)$", text, re.MULTILINE))
    kinds = {name: kind for name, kind in kinds.items() if not name.endswith("_created")}
    assert kinds == {name: kind for name, kind, _ in rows}
    labels = {name: set(filter(None, given.replace(" ", "").split(","))) for name, _, given in rows}
    samples = re.compile(r"^(bascule_\w+?)(?:_bucket|_sum|_count)?\{(.+)\} ", re.MULTILINE)
    for name, given in samples.findall(text):
        assert set(re.findall(r'(\w+)="', given)) - {"le"} == labels[name], name
