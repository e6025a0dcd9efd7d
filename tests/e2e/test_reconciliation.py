"""Decisions while NATS is away or the process is killed: the node follows its image afterwards."""

from __future__ import annotations

import json
import signal
import urllib.error
from pathlib import Path

import pytest

from support.processes import RawNats, running_nats, running_node, wait_for


def publish(port: int, subject: str) -> dict[str, object]:
    nats = RawNats(port)
    nats.send(b"SUB in 1\r\nPUB %s in 1\r\nx\r\n" % subject.encode())
    answers: list[tuple[bytes, bytes]] = []
    while not answers:
        answers = nats.messages()
    nats.close()
    answer: dict[str, object] = json.loads(answers[0][1])
    return answer


def test_a_stream_is_deleted_while_nats_is_down(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats") as nats,
        running_node(tmp_path / "node", nats=nats.url) as node,
    ):
        node.create("s", "s")
        port = int(nats.url.rsplit(":", 1)[1])
        assert publish(port, "s")["offset"] == 0
        nats.stop()
        wait_for(
            lambda: None if node.call("GET", "/v1/node")["ready"] else True,
            node.process,
            node.log,
        )
        node.call("DELETE", "/v1/streams/s")
        with pytest.raises(urllib.error.HTTPError) as caught:
            node.call("GET", "/v1/streams/s")
        assert caught.value.code == 404
        data = tmp_path / "node" / "data"
        assert not (data / "streams" / "s").exists()
        with pytest.raises(urllib.error.HTTPError) as caught:
            node.create("s", "s")
        assert caught.value.code == 503
        nats.start()
        wait_for(
            lambda: True if node.call("GET", "/v1/node")["ready"] else None,
            node.process,
            node.log,
        )
        node.create("s", "s")
        assert publish(int(nats.url.rsplit(":", 1)[1]), "s")["offset"] == 0


def test_a_killed_node_knows_what_was_decided(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats") as nats,
        running_node(tmp_path / "node", nats=nats.url) as node,
    ):
        port = int(nats.url.rsplit(":", 1)[1])
        for round_ in range(5):
            node.create("s", "s", partitions=1 + round_ % 2)
            assert publish(port, "s")["offset"] == 0
            node.call("PATCH", "/v1/streams/s", {"retention_messages_max": 1_000 + round_})
            node.stop(signal.SIGKILL)
            node.start()
            stream = node.call("GET", "/v1/streams/s")
            assert stream["config"]["retention_messages_max"] == 1_000 + round_
            assert sum(p["end_offset"] for p in stream["partitions"]) == 1
            node.call("DELETE", "/v1/streams/s")
            node.stop(signal.SIGKILL)
            node.start()
            names = [s["name"] for s in node.call("GET", "/v1/streams")["streams"]]
            assert "s" not in names
