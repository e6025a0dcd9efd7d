"""Clusters to measure: `bascule serve`, and `nats-server` with JetStream.

`served_cluster` has nodes that share one NATS server. `bascule_cluster` and `jetstream_cluster` are
for comparisons, and have the same shape: three NATS servers with routes to each other, one beside
each node, and a publisher may use any of them. In JetStream server and node are one process, here
they are two.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

import nats
from nats.js import JetStreamContext
from nats.js.api import StorageType, StreamConfig

from bench.harness import SERVE, Node, Running, free_ports, nats_server

NODES: Final = 3
NATS_SERVER: Final = str(Path(sys.executable).parent / "nats-server")
T = TypeVar("T")


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Raises: TimeoutError."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the cluster does not get there")
        time.sleep(0.01)


class ClusterNode(Node):
    """One `bascule serve` of a cluster, which may be ended and started again with its data."""

    def __init__(
        self,
        number: int,
        peers: str,
        ports: Sequence[int],
        place: Path,
        *,
        nats: str | None,
        environment: Mapping[str, str],
    ) -> None:
        """`ports` are those for peers, HTTP, Kafka clients and NATS; with `nats`, a URL, the last
        one is not used. `environment` is added to that of this process."""
        peer_port, http_port, self.client_port, nats_port = ports
        self.number = number
        self.data = place / "data"
        self.log = place / "node.log"
        self._ready = place / "ready.json"
        self._environment = {**os.environ, **environment}
        self._command = [
            *SERVE, "--node-id", str(number), "--peers", peers, "--peer-port", str(peer_port),
            "--http-port", str(http_port), "--client-port", str(self.client_port),
            *(["--nats", nats] if nats else ["--nats-port", str(nats_port)]),
            "--data", str(self.data), "--ready-file", str(self._ready),
        ]  # fmt: skip
        place.mkdir(parents=True)
        super().__init__(
            self._spawn(),
            nats or f"nats://127.0.0.1:{nats_port}",
            {"http": f"http://127.0.0.1:{http_port}"},
        )

    @property
    def http(self) -> str:
        return str(self.addresses["http"])

    @property
    def is_ready(self) -> bool:
        return self._ready.exists()

    def start(self) -> None:
        """Start the process again; see `wait_ready`."""
        self.process = self._spawn()

    def wait_ready(self, seconds: float = 60.0) -> None:
        wait_until(self._is_ready_or_raise, seconds)

    def _is_ready_or_raise(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return self.is_ready

    def _spawn(self) -> subprocess.Popen[bytes]:
        self._ready.unlink(missing_ok=True)
        with self.log.open("ab") as output:
            return subprocess.Popen(
                self._command, stdout=output, stderr=output, env=self._environment
            )


@contextlib.contextmanager
def _cluster_nodes(
    place: Path, count: int, *, nats: str | None, environment: Mapping[str, str]
) -> Iterator[dict[int, ClusterNode]]:
    """Nodes by number, once they serve. At the end they are killed: what they have goes, too."""
    ports = free_ports(4 * count)
    peers = ",".join(f"{n + 1}@127.0.0.1:{ports[4 * n]}" for n in range(count))
    nodes: dict[int, ClusterNode] = {}
    try:
        for n in range(count):
            nodes[n + 1] = ClusterNode(
                n + 1, peers, ports[4 * n : 4 * n + 4], place / f"node{n + 1}",
                nats=nats, environment=environment,
            )  # fmt: skip
        for node in nodes.values():
            node.wait_ready()
        yield nodes
    finally:
        for node in nodes.values():
            node.end()


@contextlib.contextmanager
def served_cluster(
    place: Path,
    *,
    count: int = NODES,
    settings: str = "",
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[dict[int, ClusterNode], Running]]:
    """`count` nodes by number, once they serve, and the NATS server that they share, which has
    these `settings`."""
    with (
        nats_server(place, settings=settings) as nats,
        _cluster_nodes(place, count, nats=nats.url, environment=environment) as nodes,
    ):
        yield nodes, nats


class Cluster:
    """Three nodes of Bascule by number."""

    def __init__(self, nodes: dict[int, ClusterNode]) -> None:
        self.nodes = nodes

    def create(self, name: str, subject: str, **config: object) -> int:
        """Create a stream with three replicas; return its leader once all are in sync."""
        any_node = self.nodes[1]
        any_node.create(name, subject, replicas=NODES, **config)
        wait_until(lambda: len(any_node.partition(name)["isr"]) == NODES)
        leader = int(any_node.partition(name)["leader"])
        # The leader knows itself, and has subscribed.
        wait_until(lambda: self.nodes[leader].partition(name)["leader"] == leader)
        return leader

    def delete(self, name: str) -> None:
        self.nodes[1].delete(name)

    def leader(self, name: str) -> int:
        """The node that leads partition 0 of a stream."""
        return int(self.nodes[1].partition(name)["leader"])

    def other(self, leader: int) -> int:
        """A node that does not lead, and is not the controller."""
        controller = self.nodes[leader].call("GET", "/v1/cluster")["controller"]
        return next(number for number in self.nodes if number not in (leader, controller))


@contextlib.contextmanager
def bascule_cluster(directory: Path) -> Iterator[Cluster]:
    """Three nodes with their defaults and embedded NATS servers, which have formed a cluster."""
    with _cluster_nodes(directory, NODES, nats=None, environment={}) as nodes:
        yield Cluster(nodes)


def accepts(port: int) -> bool:
    """Whether a server takes connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class JetStreamServer(Running):
    """One `nats-server` of a cluster, which may be ended and started again with its data."""

    def __init__(self, port: int, command: list[str], log: Path) -> None:
        self._command, self._log = command, log
        super().__init__(self._spawn(), f"nats://127.0.0.1:{port}")

    def start(self) -> None:
        """Start it again, with its data, and wait until it takes connections."""
        self.process = self._spawn()
        wait_until(partial(accepts, self.port))

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            return subprocess.Popen(self._command, stdout=output, stderr=output)


class JetStreamCluster:
    """Three `nats-server` processes by name."""

    def __init__(self, servers: dict[str, JetStreamServer]) -> None:
        self.servers = servers

    def create(self, name: str, subject: str) -> str:
        """Create a stream of three file replicas; return the name of its leader's server."""
        config = StreamConfig(
            name=name, subjects=[subject], storage=StorageType.FILE, num_replicas=NODES
        )

        async def work(js: JetStreamContext) -> str:
            while True:
                try:
                    await js.add_stream(config)
                    break
                except (nats.js.errors.APIError, nats.errors.TimeoutError):
                    await asyncio.sleep(0.2)  # the servers have not elected a leader yet
            return await _settled_leader(js, name)

        return self._call(work)

    def leader(self, name: str) -> str:
        """The name of the stream's leader's server, once all replicas are current."""
        return self._call(partial(_settled_leader, name=name))

    def messages(self, name: str) -> int:
        """How many messages a stream holds."""

        async def work(js: JetStreamContext) -> int:
            return int((await js.stream_info(name)).state.messages)

        return self._call(work)

    def delete(self, name: str) -> None:
        async def work(js: JetStreamContext) -> bool:
            return await js.delete_stream(name)

        self._call(work)

    def other(self, leader: str) -> str:
        """A server that does not lead."""
        return next(name for name in self.servers if name != leader)

    def _call(self, work: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        async def run() -> T:
            client = await nats.connect(next(iter(self.servers.values())).url)
            try:
                return await work(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(run())


async def _settled_leader(js: JetStreamContext, name: str) -> str:
    """The leader of a stream, once all its replicas are current."""
    while True:
        with contextlib.suppress(nats.js.errors.APIError, nats.errors.TimeoutError):
            cluster = (await js.stream_info(name)).cluster
            replicas = [] if cluster is None else cluster.replicas or []
            if cluster and cluster.leader and all(each.current for each in replicas):
                return str(cluster.leader)
        await asyncio.sleep(0.05)


@contextlib.contextmanager
def jetstream_cluster(directory: Path) -> Iterator[JetStreamCluster]:
    """Three `nats-server` processes with their defaults, which have formed a cluster."""
    ports = free_ports(2 * NODES)
    routes = ",".join(f"nats://127.0.0.1:{port}" for port in ports[NODES:])
    servers: dict[str, JetStreamServer] = {}
    try:
        for n in range(NODES):
            name, place = f"js{n + 1}", directory / f"js{n + 1}"
            place.mkdir(parents=True)
            command = [
                NATS_SERVER, "-a", "127.0.0.1", "-p", str(ports[n]), "-n", name, "-js",
                "-sd", str(place), "--cluster_name", "bench",
                "--cluster", f"nats://127.0.0.1:{ports[NODES + n]}", "--routes", routes,
            ]  # fmt: skip
            servers[name] = JetStreamServer(ports[n], command, place / "nats.log")
        for server in servers.values():
            wait_until(partial(accepts, server.port))
        yield JetStreamCluster(servers)
    finally:
        for server in servers.values():
            server.stop()
