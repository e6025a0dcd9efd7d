"""The command line against a real node."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import commands, http_calls
from support.processes import BIN, WAIT_SECONDS_MAX, Node, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("cli")) as node:
        yield node


def bascule(
    node: Node, *arguments: str, input: bytes = b"", code: int = 0
) -> subprocess.CompletedProcess[bytes]:
    environment = {"BASCULE_SERVER": node.addresses["http"], "COLUMNS": "120"}
    ended = commands.run(*arguments, input=input, env=environment)
    assert ended.returncode == code, ended.stderr.decode()
    return ended


def test_a_stream_by_hand(node: Node) -> None:
    made = bascule(node, "stream", "create", "hand", "--subject", "hand.>", "--json")
    assert json.loads(made.stdout)["created"] is True
    again = bascule(node, "stream", "create", "hand", "--subject", "hand.>", "--json")
    assert json.loads(again.stdout)["created"] is False
    refused = bascule(
        node, "stream", "create", "hand", "--subject", "other", "--sync", "never", code=4
    )
    assert b"subject is 'hand.>', asked for 'other'" in refused.stderr
    listed = json.loads(bascule(node, "stream", "list", "--json").stdout)
    assert "hand" in [stream["name"] for stream in listed]
    listed = json.loads(bascule(node, "stream", "list", "--subject", "nobody", "--json").stdout)
    assert not listed
    assert b"queue group" in bascule(node, "stream", "info", "hand").stdout
    deleted = bascule(node, "stream", "delete", "hand", "--yes", "--json")
    assert json.loads(deleted.stdout) == {"name": "hand", "messages": 0}
    gone = bascule(node, "stream", "info", "hand", code=3)
    assert b"`bascule stream list` shows what exists" in gone.stderr


def test_a_stream_s_settings_by_hand(node: Node) -> None:
    bascule(
        node, "stream", "create", "kept", "--subject", "kept.>", "--retention", "7d",
        "--retention-bytes", "1GiB", "--segment-bytes", "1MiB", "--dedupe-window", "none",
    )  # fmt: skip
    bascule(node, "publish", "kept.x", "y", "--count", "100")
    altered = bascule(node, "stream", "alter", "kept", "--retention", "1d", "--json")
    config = json.loads(altered.stdout)["config"]
    assert (config["retention_ms_max"], config["retention_bytes_max"]) == (86_400_000, 1 << 30)
    refused = bascule(node, "stream", "alter", "kept", "--cleanup", "compact", code=2)
    assert b"add delete to cleanup" in refused.stderr

    bascule(node, "stream", "pause", "kept")
    assert b"paused" in bascule(node, "stream", "info", "kept").stdout
    rejected = bascule(node, "publish", "kept.x", "y", code=7)
    assert b"paused" in rejected.stderr
    bascule(node, "stream", "resume", "kept")

    asked = bascule(node, "stream", "purge", "kept", "--to", "40", input=b"n\n", code=1)
    assert b"remove 40 messages of stream kept, before offset 40?" in asked.stderr
    purged = bascule(node, "stream", "purge", "kept", "--to", "40", "--yes", "--json")
    partition = json.loads(purged.stdout)["partitions"][0]
    assert (partition["start_offset_before"], partition["start_offset"]) == (0, 40)
    first = bascule(node, "read", "kept", "--limit", "1", "--json").stdout
    assert json.loads(first)["offset"] == 40
    beyond = bascule(node, "stream", "purge", "kept", "--to", "101", "--yes", code=2)
    assert b"offset 101 is outside [40, 100)" in beyond.stderr
    other = bascule(node, "stream", "purge", "kept", "--partition", "1", "--yes", code=3)
    assert b"has 1 partition, asked for number 1" in other.stderr
    everything = bascule(node, "stream", "purge", "kept", "--yes")
    assert "60 messages removed from stream kept" in everything.stdout.decode()
    listed = json.loads(bascule(node, "stream", "list", "--json").stdout)
    assert not [stream["name"] for stream in listed if stream["name"].startswith("_")]


def test_top_shows_what_a_node_does(node: Node) -> None:
    bascule(node, "stream", "create", "busy", "--subject", "busy.>")
    bascule(node, "publish", "busy.x", "y", "--count", "1000")
    shown = json.loads(bascule(node, "top", "--once", "--json", "--interval", "200ms").stdout)
    busy = next(row for row in shown["streams"] if row["name"] == "busy")
    assert (busy["end_offset"], busy["state"], busy["partitions"]) == (1_000, "ok", 1)
    assert shown["node"]["ready"] is True
    assert shown["node"]["disk_size_bytes"] > shown["node"]["disk_free_bytes"] > 0
    assert not [row for row in shown["streams"] if row["name"].startswith("_")]
    text = bascule(node, "top", "--once", "-i", "200ms").stdout.decode()
    assert "NATS connected" in text
    assert any(line.split()[:1] == ["busy"] for line in text.splitlines())


def test_publish_and_read(node: Node) -> None:
    bascule(node, "stream", "create", "pub", "--subject", "pub.>")
    one = bascule(
        node, "publish", "pub.one", "hello", "--key", "k", "-H", "A: b", "-H", "C: d", "--json"
    )
    ack = json.loads(one.stdout)
    assert (ack["stream"], ack["offset"], ack["seq"], ack["synced"]) == ("pub", 0, 1, True)
    lines = bascule(
        node, "publish", "pub.lines", "--key-separator", "=", input=b"a=1\n2\r\nc=3", code=0
    )
    assert b"3 messages acknowledged, offsets 1 to 3" in lines.stdout
    bascule(node, "publish", "pub.many", "x", "--count", "1000")

    read = bascule(node, "read", "pub", "--limit", "4", "--json").stdout.splitlines()
    messages = [json.loads(line) for line in read]
    assert [m["offset"] for m in messages] == [0, 1, 2, 3]
    assert [m["key"] for m in messages] == ["k", "a", None, "c"]
    assert [m["value"] for m in messages] == ["hello", "1", "2", "3"]
    assert messages[0]["headers"] == [["A", "b"], ["C", "d"]]
    assert messages[0]["subject"] == "pub.one"
    values = bascule(node, "read", "pub", "--from", "4", "--values").stdout
    assert values == b"x\n" * 1_000
    assert bascule(node, "read", "pub", "--from", "latest").stdout == b""
    beyond = bascule(node, "read", "pub", "--from", "2000", code=2)
    assert b"offset 2000 is outside [0, 1004)" in beyond.stderr
    later = bascule(node, "read", "pub", "--from", "2100-01-01T00:00:00Z")
    assert later.stdout == b""


def test_overlapping_streams_are_told_and_every_ack_is_shown(node: Node) -> None:
    def create(name: str, subject: str, *more: str) -> str:
        made = bascule(node, "stream", "create", name, "--subject", subject, *more)
        return " ".join(made.stderr.decode().split())

    assert create("lap", "lap.>") == ""
    told = create("lap1", "lap.1")
    assert "messages on lap.1 may also be stored by lap (lap.>)" in told
    assert "publishers get an ack of each of lap1, lap" in told
    told = create("policy", "lap.2", "--ack-policy", "none")
    assert "may also be stored by lap (lap.>); lap acks them" in told
    bascule(node, "stream", "delete", "policy", "--yes")
    told = create("heard", "lap.2", "--no-acks")
    assert "may also be stored by lap (lap.>); lap acks them" in told
    made = bascule(node, "stream", "info", "lap", "--json")
    assert [each["name"] for each in json.loads(made.stdout)["overlaps"]] == ["heard", "lap1"]
    assert b"acks" in bascule(node, "stream", "info", "heard").stdout

    both = bascule(node, "publish", "lap.1", "x").stdout.decode()
    assert sorted(line.split()[1] for line in both.splitlines()) == ["lap", "lap1"]
    lines = bascule(node, "publish", "lap.1", "x", "--json").stdout.splitlines()
    assert sorted(json.loads(line)["stream"] for line in lines) == ["lap", "lap1"]
    one = bascule(node, "publish", "lap.1", "x", "--stream", "lap1").stdout.decode()
    assert [line.split()[1] for line in one.splitlines()] == ["lap1"]
    assert b"lap partition" in bascule(node, "publish", "lap.2", "x").stdout
    expected = bascule(node, "publish", "lap.1", "x", "-H", "Nats-Expected-Stream: lap")
    assert b"lap partition" in expected.stdout
    assert len(expected.stdout.splitlines()) == 1

    bascule(node, "stream", "pause", "lap1")
    paused = bascule(node, "publish", "lap.1", "x")
    assert b"lap partition" in paused.stdout
    assert b"stream lap1: publish rejected: stream is paused" in paused.stderr
    refused = bascule(node, "publish", "lap.1", "x", "--stream", "lap1", code=7)
    assert b"paused" in refused.stderr
    bascule(node, "stream", "resume", "lap1")
    many = bascule(node, "publish", "lap.1", "x", "--count", "500")
    assert b"500 messages acknowledged" in many.stdout
    assert b"acknowledged by stream lap" in many.stdout
    altered = bascule(node, "stream", "alter", "lap1", "--no-acks")
    assert b"lap acks them" in b" ".join(altered.stderr.split())
    assert len(bascule(node, "publish", "lap.1", "x").stdout.splitlines()) == 1


def test_nobody_listens(node: Node) -> None:
    refused = bascule(node, "publish", "nobody.listens", "x", code=3)
    assert b"nobody.listens" in refused.stderr
    assert b"Traceback" not in refused.stderr


def test_follow_sees_what_comes_and_ends_on_ctrl_c(node: Node) -> None:
    bascule(node, "stream", "create", "tail", "--subject", "tail")
    with subprocess.Popen(
        [str(BIN / "bascule"), "read", "tail", "--follow", "--values"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "BASCULE_SERVER": node.addresses["http"]},
    ) as follower:
        assert follower.stdout is not None
        for text in ("one", "two"):
            bascule(node, "publish", "tail", text)
            assert follower.stdout.readline() == text.encode() + b"\n"
        follower.send_signal(signal.SIGINT)
        _, error = follower.communicate(timeout=30)
    assert follower.returncode == 130
    assert b"Traceback" not in error


def test_a_reader_that_has_seen_enough(node: Node) -> None:
    bascule(node, "stream", "create", "head", "--subject", "head")
    bascule(node, "publish", "head", "x" * 1_000, "--count", "2000")
    command = f"{BIN / 'bascule'} read head --values | head -n 1"
    ended = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        timeout=120,
        check=True,
        env={**os.environ, "BASCULE_SERVER": node.addresses["http"]},
    )
    assert ended.stdout == b"x" * 1_000 + b"\n"
    assert ended.stderr == b""


def test_no_node_says_what_to_do(tmp_path: Path) -> None:
    ended = commands.run("stream", "list", "--server", "127.0.0.1:1")
    assert ended.returncode == 5
    assert b"bascule serve" in ended.stderr


def test_a_second_node_on_the_same_data_is_refused(node: Node) -> None:
    ended = subprocess.run(
        [
            str(BIN / "bascule"), "serve", "--data", str(node.directory / "data"),
            "--client-port", "0", "--http-port", "0", "--nats-port", "0", "--peer-port", "0",
        ],
        capture_output=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 4
    assert b"is in use by" in ended.stderr
    assert b"--data" in ended.stderr


def test_metrics_and_docs_of_a_real_node(node: Node) -> None:
    names = {line.split("{")[0].split(" ")[0] for line in fetch(node, "/metrics").splitlines()}
    assert {"bascule_ready", "bascule_ingest_messages_total", "bascule_client_connections"} <= names
    assert "process_resident_memory_bytes" in names
    assert "<h1>Bascule HTTP API</h1>" in fetch(node, "/docs")


def fetch(node: Node, path: str) -> str:
    return http_calls.get(node.addresses["http"] + path)


def test_json_logs_the_ready_file_and_the_service_manager(tmp_path: Path) -> None:
    said = {"NOTIFY_SOCKET": f"@bascule-{os.getpid()}"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(said["NOTIFY_SOCKET"].replace("@", "\0"))
        with running_node(tmp_path, options=("--log-format", "json"), environment=said) as node:
            assert node.process is not None
            assert node.addresses["pid"] == node.process.pid
            manager.settimeout(WAIT_SECONDS_MAX)
            assert manager.recv(100) == b"READY=1"
    lines = [json.loads(line) for line in node.log.read_text().splitlines()]
    assert all({"time", "level", "logger", "event"} <= line.keys() for line in lines)
    assert node.process.returncode == 0
    assert not (tmp_path / "ready.json").exists()
