"""A stream's directory is missing when the node starts: nothing begins anew at offset 0."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from support import commands
from support.processes import Node, RawNats, running_node


def publish(node: Node, subject: str) -> dict[str, object]:
    nats = RawNats(int(node.addresses["nats"].rsplit(":", 1)[1]))
    nats.send(b"SUB in 1\r\nPUB %s in 1\r\nx\r\n" % subject.encode())
    answers: list[tuple[bytes, bytes]] = []
    while not answers:
        answers = nats.messages()
    nats.close()
    answer: dict[str, object] = json.loads(answers[0][1])
    return answer


def bascule(node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.run(*words, "--server", node.addresses["http"], text=True)


def test_a_removed_stream_directory_is_damage_until_its_loss_is_accepted(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        for name in ("a", "b"):
            node.create(name, name)
            assert [publish(node, name)["offset"] for _ in range(3)] == [0, 1, 2]
        node.call("POST", "/v1/groups/c/reset-offsets", {"stream": "a", "offset": 2})
        node.stop()
        shutil.move(tmp_path / "data" / "streams" / "a", tmp_path / "away")
        node.start()
        ready = bascule(node, "stream", "info", "a")
        assert "is missing" in " ".join(ready.stdout.split()), ready
        error = publish(node, "a")["error"]
        assert isinstance(error, dict)
        assert (error["err_code"], error["description"]) == (
            10077, "message was not stored: partition 0 has stopped: its log is missing",
        )  # fmt: skip
        assert publish(node, "b")["offset"] == 3
        parts = {part["part"]: part for part in node.call("GET", "/readyz")["parts"]}
        assert parts["partitions"]["state"] == "degraded"
        assert "a/0" in parts["partitions"]["reason"], parts

        shutil.move(tmp_path / "away", tmp_path / "data" / "streams" / "a")
        repaired = bascule(node, "stream", "repair", "a", "--json")
        assert repaired.returncode == 0, repaired
        assert json.loads(repaired.stdout)["partitions"][0]["end_offset"] == 3
        assert publish(node, "a")["offset"] == 3

        node.stop()
        shutil.rmtree(tmp_path / "data" / "streams" / "a")
        node.start()
        refused = bascule(node, "stream", "repair", "a")
        assert refused.returncode == 6, refused
        accepted = bascule(node, "stream", "repair", "a", "--accept-loss", "--yes")
        assert accepted.returncode == 0, accepted
        # The consumer has processed offsets 0 and 1: no other record gets them.
        assert publish(node, "a")["offset"] == 2
        again = bascule(node, "stream", "repair", "a")
        assert "no partition of stream a has failed" in again.stdout
        assert "Traceback" not in node.log.read_text()


def test_a_node_leads_again_with_metadata_from_an_older_copy(tmp_path: Path) -> None:
    """The logs have records of later epochs than the copy knows of."""
    raft, copy = tmp_path / "data" / "raft", tmp_path / "copy"
    with running_node(tmp_path) as node:
        node.create("a", "a")
        assert publish(node, "a")["offset"] == 0
        node.stop()
        shutil.copytree(raft, copy)
        for offset in (1, 2):
            node.start()
            assert publish(node, "a")["offset"] == offset
            node.stop()
        shutil.rmtree(raft)
        shutil.move(copy, raft)
        node.start()
        bascule(node, "stream", "pause", "a")  # returns once the leader has followed
        bascule(node, "stream", "resume", "a")
        assert publish(node, "a")["offset"] == 3
        assert node.partition("a")["failure"] is None
