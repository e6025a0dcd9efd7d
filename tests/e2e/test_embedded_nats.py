"""The embedded NATS server: restarts, the end of a node, and when it lets clients in."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bascule.errors import ConfigError
from bascule.host.real import RealClock
from bascule.ingest import embedded_nats, nats_supervisor
from bascule.ingest.embedded_nats import EmbeddedNats
from bascule.ingest.nats_supervisor import NatsSupervisor
from support import keeping_publisher
from support.clusters import running_cluster
from support.nats_servers import eventually, metric
from support.processes import Node, RawNats, running_node


def health(node: Node, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(node.addresses["http"] + path, timeout=10) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def nats_server_pids(node: Node) -> list[int]:
    """The children of the node, zombies included."""
    assert node.process is not None
    text = Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children").read_text()
    return [int(pid) for pid in text.split()]


def nats_port(node: Node) -> int:
    return int(node.addresses["nats"].rpartition(":")[2])


def publish(node: Node, subject: str, payload: bytes) -> None:
    nats = RawNats(nats_port(node))
    nats.send(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))
    nats.flush()
    nats.close()


def test_a_server_that_is_killed_is_started_again_on_its_port(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        node.create("s", "s.>", message_bytes_max=9 << 20)
        publish(node, "s.x", b"before")
        for count in (1, 2):
            (pid,) = nats_server_pids(node)
            os.kill(pid, signal.SIGKILL)
            eventually(
                lambda expected=count: (
                    metric(node, "bascule_nats_server_restarts_total") == expected
                ),
                "not restarted",
            )
            eventually(lambda: health(node, "/readyz")[0] == 200, "not ready again")
            assert health(node, "/healthz")[0] == 200
            assert metric(node, "bascule_nats_server_ends_total") == count
            (restarted,) = nats_server_pids(node)
            assert restarted != pid
            publish(node, "s.x", b"x" * (9 << 20))
            node.wait_stored("s", 1 + count)
    text = node.log.read_text()
    assert text.count("nats-server ended; what is published meanwhile is not stored") == 2
    assert "SIGKILL" in text


def test_a_node_whose_server_cannot_be_restarted_stops_and_names_the_log(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start()
    try:
        directory = tmp_path / "data" / "nats"
        directory.rename(tmp_path / "data" / "nats-before")
        directory.write_text("no directory")
        (pid,) = nats_server_pids(node)
        os.kill(pid, signal.SIGKILL)
        seen: list[tuple[int, str]] = []

        def look() -> bool:
            """Note the health of the server until the node ends."""
            assert node.process is not None
            if node.process.poll() is not None:
                return True
            try:
                status, found = health(node, "/readyz")
            except OSError:
                return False  # The listener is closing.
            part = next(part for part in found["parts"] if part["part"] == "nats-server")
            seen.append((status, part["state"]))
            return False

        eventually(look, "the node goes on without its server")
        assert node.stop() == 5
        # For a moment the server is known to be away, and the lost connection to it is not.
        assert (503, "degraded") in seen
        text = node.log.read_text()
        assert "the embedded nats-server failed 6 times in a row" in text
        assert "nats-server.log" in text
    finally:
        node.stop(signal.SIGKILL)


def test_no_server_is_left_of_a_node_that_is_killed(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        (pid,) = nats_server_pids(node)
        # One that is stopped does not handle SIGTERM.
        os.kill(pid, signal.SIGSTOP)
        node.stop(signal.SIGKILL)
        eventually(lambda: not is_running(pid), "the server outlived its node")


def test_a_server_is_joined_once_it_is_connected_to_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that knew one of two others counted itself as the second one. One that was started
    again let clients in before the others had connected to it: what these sent was lost."""

    async def scenario() -> None:
        servers = [
            EmbeddedNats(
                tmp_path / name, host="127.0.0.1", port=0, message_bytes_max=0, token="t",
                name=name, cluster="c",
            )
            for name in "abc"
        ]  # fmt: skip
        try:
            for each in servers:
                await each.start()
                await each.open()
            await join(servers)
        finally:
            for each in servers:
                await each.stop()

    async def join(servers: list[EmbeddedNats]) -> None:
        first, second, third = servers

        def awaited() -> list[str]:
            return [each.route for each in servers]

        monkeypatch.setattr(embedded_nats, "JOIN_SECONDS_MAX", 0.5)
        await third.join(lambda: [first.route], awaited)
        assert "connected to 1 servers; expected 2" in caplog.records[-1].__dict__["error"]
        caplog.clear()
        monkeypatch.setattr(embedded_nats, "JOIN_SECONDS_MAX", 120.0)
        await asyncio.gather(
            first.join(list, awaited),
            second.join(lambda: [first.route], awaited),
            third.join(lambda: [first.route, second.route], awaited),
        )
        assert first._process is not None
        first._process.kill()
        await first.wait_ended()
        await first.start()
        await first.rejoin()
        assert len((await first._announced()).connect_urls) == 3
        assert not caplog.records

    caplog.set_level(logging.WARNING)
    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("mode", "why"), [(0o644, "Permission denied"), (0o755, "Exec format error")]
)
def test_a_binary_that_cannot_be_started_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, why: str
) -> None:
    """The node ended with the error of the system alone, `[Errno 8] Exec format error`."""
    binary = tmp_path / "nats-server"
    binary.write_text("of another machine")
    binary.chmod(mode)
    monkeypatch.setattr(embedded_nats, "_find_binary", lambda: str(binary))
    server = EmbeddedNats(
        tmp_path / "data", host="127.0.0.1", port=0, message_bytes_max=0, token="t"
    )
    with pytest.raises(ConfigError, match=f"{binary} cannot be started: {why}; install"):
        asyncio.run(server.start())


async def supervised(
    directory: Path, look: Callable[[list[EmbeddedNats], NatsSupervisor], Awaitable[None]]
) -> None:
    """Run `look` with two servers that know each other; the first one is supervised."""

    async def subscribed() -> None:
        pass

    servers = [
        EmbeddedNats(
            directory / name, host="127.0.0.1", advertised="10.0.0.1", port=0, message_bytes_max=0,
            token="t", name=name, cluster="c",
        )
        for name in "ab"
    ]  # fmt: skip
    supervisor = NatsSupervisor(servers[0], subscribed=subscribed, clock=RealClock())
    supervision = None
    try:
        for each in servers:
            await each.start()
            await each.open()
        routes = [each.route for each in servers]
        await servers[1].join(lambda: routes, lambda: routes)
        await servers[0].join(list, lambda: routes)
        supervision = asyncio.create_task(supervisor.run())
        await look(servers, supervisor)
    finally:
        if supervision is not None:
            supervision.cancel()
            await asyncio.wait({supervision})
        for each in servers:
            await each.stop()


async def until(look: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(eventually, look, what)


def test_a_server_that_hangs_is_ended_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing said so: the node itself went on with another server, its clients waited."""
    monkeypatch.setattr(nats_supervisor, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(embedded_nats, "ANNOUNCED_SECONDS_MAX", 1.0)

    async def look(servers: list[EmbeddedNats], supervisor: NatsSupervisor) -> None:
        process = servers[0]._process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        await until(lambda: "says nothing" in supervisor.trouble, "not noticed")
        await until(lambda: supervisor.counts.restarts == 1, "not started again")
        assert process.poll() == -signal.SIGKILL
        assert not supervisor.failure
        assert not supervisor.trouble
        assert len((await servers[0]._announced()).connect_urls) == 2

    asyncio.run(supervised(tmp_path, look))
    assert "nats-server hangs and is ended" in [each.message for each in caplog.records]


def test_a_server_that_is_not_connected_to_all_others_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node told it at its start, once: messages were lost later, or all the time."""
    monkeypatch.setattr(nats_supervisor, "LOOK_SECONDS", 0.05)
    caplog.set_level(logging.INFO)

    async def look(servers: list[EmbeddedNats], supervisor: NatsSupervisor) -> None:
        await servers[1].set_routes([])
        await until(lambda: supervisor.trouble, "not noticed")
        assert supervisor.counts.routes_missing == 1
        assert "connected to 0 servers; expected 1" in supervisor.trouble
        assert str(servers[0].log_file) in supervisor.trouble
        assert "other machines do not reach 127.0.0.1, which nats.host is" in supervisor.trouble
        await servers[1].set_routes([servers[0].route])
        await until(lambda: not supervisor.trouble, "does not end")
        assert not supervisor.counts.routes_missing

    asyncio.run(supervised(tmp_path, look))
    told = [each.message for each in caplog.records]
    assert told.count("nats-server lost others") == 1
    assert told.count("nats-server connected to all others again") == 1


class EagerClient(threading.Thread):
    """Connects again and again; where it is let in, it publishes one message."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port
        self.accepted = 0
        self.refused = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(0.001):
            try:
                self._publish_once()
            except OSError:
                self.refused += 1

    def _publish_once(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
            self._wait_for_pong(connection)
            connection.sendall(b"PUB s.x 1\r\nx\r\nPING\r\n")
            self._wait_for_pong(connection)
        self.accepted += 1

    def _wait_for_pong(self, connection: socket.socket) -> None:
        received = b""
        while b"PONG\r\n" not in received:
            data = connection.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            received += data


def test_what_a_client_can_publish_while_the_server_starts_is_stored(tmp_path: Path) -> None:
    with running_node(tmp_path, keep_ports=True) as node:
        node.create("s", "s.>")
        node.stop(signal.SIGKILL)
        client = EagerClient(nats_port(node))
        client.start()
        try:
            node.start()
            eventually(lambda: client.accepted, "no client is let in")
            # The same when the server alone ends.
            (pid,) = nats_server_pids(node)
            os.kill(pid, signal.SIGKILL)
            eventually(
                lambda: metric(node, "bascule_nats_server_restarts_total") == 1, "not restarted"
            )
            before = client.accepted
            eventually(lambda: client.accepted > before, "no client is let in again")
        finally:
            client.stopping.set()
            client.join()
        assert client.refused
        node.wait_stored("s", client.accepted)
        text = node.log.read_text()
        assert "nats subscriptions restored" in text
        assert metric(node, "bascule_nats_unsubscribed_seconds_total") > 0


def test_what_a_client_can_publish_at_another_node_than_the_leader_is_stored(
    tmp_path: Path,
) -> None:
    """While a node, or its server alone, starts. The others connect to the smallest number."""
    with running_cluster(tmp_path) as cluster:
        cluster.nodes[1].create("s", "s.>", replicas=3)
        cluster.wait_in_sync("s")
        cluster.alive()[0].call("POST", "/v1/streams/s/reassign", {"replicas": [2, 3, 1]})
        eventually(lambda: cluster.leader("s") != 1, "the leadership has not moved")
        node, accepted = cluster.nodes[1], 0

        def kill_server() -> None:
            (pid,) = nats_server_pids(node)
            os.kill(pid, signal.SIGKILL)

        def kill_node() -> None:
            node.stop(signal.SIGKILL)

        for kill, start in ((kill_node, node.start), (kill_server, None)):
            kill()
            client = EagerClient(nats_port(node))
            client.start()
            try:
                if start is not None:
                    start()
                eventually(lambda c=client: c.accepted > 20, "no client is let in")
            finally:
                client.stopping.set()
                client.join()
            accepted += client.accepted
            cluster.nodes[2].wait_stored("s", accepted)


def test_a_client_keeps_its_messages_until_the_node_has_subscribed(tmp_path: Path) -> None:
    """nats-py sends what it kept at once when it is connected again."""
    with running_node(tmp_path, keep_ports=True) as node:
        node.create("s", "s.>")
        client = subprocess.Popen(
            [sys.executable, keeping_publisher.__file__, node.addresses["nats"], "500"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == "connected\n"
            for kill in (1, 2, 3):
                node.stop(signal.SIGKILL)
                assert client.stdout.readline() == "published\n"
                node.start()
                node.wait_stored("s", kill * 500)
        finally:
            client.kill()
            client.communicate()


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
