"""`bascule dev` as a developer runs it: one command, a whole cluster, and nothing left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import bascule
from bascule.errors import BasculeError
from support.children import child_pids
from support.ports import reserve_port_range
from support.processes import BIN, WAIT_SECONDS_MAX, note_started, wait_for

pytestmark = [pytest.mark.tier3, pytest.mark.timeout(3 * WAIT_SECONDS_MAX)]


class Dev:
    """A running `bascule dev`."""

    def __init__(self, place: Path, *options: str, environment: Mapping[str, str]) -> None:
        self.log = place / "dev.log"
        self._out = place / "dev.out"
        with self.log.open("wb") as errors, self._out.open("wb") as output:
            self.process = subprocess.Popen(
                [str(BIN / "bascule"), "dev", "--json", *options],
                stdout=output,
                stderr=errors,
                env={**os.environ, **environment},
            )
        note_started(self.process, None)
        self.cluster: dict[str, Any] = {}

    def wait_ready(self) -> None:
        self.cluster = json.loads(
            wait_for(lambda: self._out.read_text() or None, self.process, self.log)
        )

    @property
    def pids(self) -> list[int]:
        return [node["pid"] for node in self.cluster["nodes"]]

    def connect(self) -> bascule.SyncClient:
        return bascule.connect_sync(self.cluster["server"], nats=self.cluster["nats"])

    def wait_reported(self, text: str) -> None:
        wait_for(lambda: text in self.log.read_text() or None, self.process, self.log)

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_SECONDS_MAX)


Start = Callable[..., Dev]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `bascule dev` with options, once it serves if `ready`."""
    started: list[Dev] = []

    def start(*options: str, ready: bool = True, **environment: str) -> Dev:
        dev = Dev(tmp_path, *options, environment=environment)
        started.append(dev)
        if ready:
            dev.wait_ready()
        return dev

    yield start
    for dev in started:
        if dev.process.poll() is None:
            dev.end(signal.SIGTERM)


@pytest.fixture
def base() -> str:
    return str(reserve_port_range(10))


def leader(client: bascule.SyncClient, stream: str) -> int:
    return client.stream(stream).partitions[0].leader


def publish_again(dev: Dev, client: bascule.SyncClient, subject: str, value: bytes) -> int:
    """The offset of a message that is sent until it is acked: a loaded machine may need longer than
    the client's patience."""

    def look() -> int | None:
        try:
            return client.publish(subject, value, message_id=value.hex()).offset
        except BasculeError:
            return None

    offset: int = wait_for(look, dev.process, dev.log)
    return offset


def test_a_cluster_that_survives_a_node_and_comes_back(
    start: Start, tmp_path: Path, base: str
) -> None:
    data = tmp_path / "cluster"
    dev = start("--data", str(data), "--port-base", base)
    assert dev.cluster["nats"] == f"nats://127.0.0.1:{base}"
    assert len(set(dev.pids)) == 3
    with dev.connect() as client:
        client.create_stream("flights", "flights.>", replicas=3)
        assert client.publish("flights.a", b"before").replicas == 3
        killed = leader(client, "flights")
        os.kill(dev.pids[killed - 1], signal.SIGKILL)
        assert publish_again(dev, client, "flights.a", b"after") == 1
        dev.wait_reported(f"node {killed} (pid {dev.pids[killed - 1]}) was ended by SIGKILL")
        dev.wait_reported(f"node{killed}/node.toml")
    assert dev.end() == 0
    again = start("--data", str(data))
    assert [node["http"] for node in again.cluster["nodes"]] == [
        node["http"] for node in dev.cluster["nodes"]
    ]
    with again.connect() as client:
        values = [message.value for message in client.read("flights", start="earliest")]
        assert values == [b"before", b"after"]
    assert again.end(signal.SIGTERM) == 0
    other = start("--data", str(data), "--nodes", "2", ready=False)
    assert other.process.wait(WAIT_SECONDS_MAX) == 2
    assert "is of a cluster of 3 nodes, and --nodes is 2" in other.log.read_text()


@pytest.mark.long
def test_restart_brings_a_killed_node_back(start: Start, base: str) -> None:
    dev = start("--port-base", base, "--restart", "--nodes", "1")
    with dev.connect() as client:
        client.create_stream("s", "s")
        assert client.publish("s", b"1").offset == 0
        os.kill(dev.pids[0], signal.SIGKILL)
        dev.wait_reported("node 1 serves again")
        assert publish_again(dev, client, "s", b"2") == 1
        os.kill(nats_pid(dev), signal.SIGKILL)
        dev.wait_reported("the NATS server ended: SIGKILL")
        dev.wait_reported("the NATS server serves again")
        assert publish_again(dev, client, "s", b"3") == 2


def nats_pid(dev: Dev) -> int:
    (found,) = (
        pid
        for pid in child_pids(dev.process.pid)
        if Path(f"/proc/{pid}/comm").read_text().strip() == "nats-server"
    )
    return found


def test_an_interrupt_while_it_starts_ends_all_of_it(
    start: Start, tmp_path: Path, base: str
) -> None:
    dev = start("--port-base", base, "--data", str(tmp_path / "cluster"), ready=False)
    log = tmp_path / "cluster/node3/node.log"
    wait_for(lambda: log.exists() or None, dev.process, dev.log)
    assert dev.end() == 0


def test_nothing_outlives_a_killed_command(start: Start, tmp_path: Path, base: str) -> None:
    dev = start("--port-base", base, "--data", str(tmp_path / "cluster"), "--nodes", "2")
    dev.end(signal.SIGKILL)
    # The test fails if a process is left.


def test_a_temporary_directory_is_removed(start: Start, tmp_path: Path, base: str) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    dev = start("--port-base", base, "--nodes", "1", TMPDIR=str(temporary))
    assert Path(dev.cluster["directory"]).parent == temporary
    assert dev.end(signal.SIGTERM) == 0
    assert list(temporary.iterdir()) == []


def test_a_second_interrupt_kills(start: Start, base: str) -> None:
    dev = start("--port-base", base, "--nodes", "2")
    os.kill(dev.pids[0], signal.SIGSTOP)
    dev.process.send_signal(signal.SIGINT)
    dev.wait_reported("Ctrl-C again kills")
    assert dev.end(signal.SIGINT) == 130


def test_a_node_that_does_not_start_is_shown_with_its_log(start: Start, base: str) -> None:
    dev = start("--port-base", base, ready=False, BASCULE_LOG_LEVEL="loud")
    assert dev.process.wait(WAIT_SECONDS_MAX) == 5
    text = dev.log.read_text()
    assert "ended with exit code 2; the end of" in text
    assert "BASCULE_LOG_LEVEL" in text


def test_a_directory_of_something_else_is_left_alone(start: Start, tmp_path: Path) -> None:
    place = tmp_path / "thesis"
    place.mkdir()
    (place / "thesis.txt").write_text("years of work")
    dev = start("--data", str(place), ready=False)
    assert dev.process.wait(WAIT_SECONDS_MAX) == 2
    assert "it is not one of `bascule dev`" in dev.log.read_text()
    assert [each.name for each in place.iterdir()] == ["thesis.txt"]
