"""Clusters of three: `bascule serve` with embedded NATS servers, and `nats-server` with JetStream.

Both have the same shape: three NATS servers with routes to each other, one beside each node, and
a publisher may use any of them. In JetStream server and node are one process, here they are two.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import nats
from nats.js import JetStreamContext
from nats.js.api import StorageType, StreamConfig

from bench.cluster_failover import free_ports, wait_until
from bench.harness import SERVE, Running

NODES: Final = 3
NATS_SERVER: Final = str(Path(sys.executable).parent / "nats-server")
T = TypeVar("T")


class ClusterNode(Running):
    """One `bascule serve` with the embedded NATS server. Its directory outlives its process."""

    def __init__(self, number: int, peers: str, ports: list[int], place: Path) -> None:
        self.number = number
        self.nats_port = ports[3]
        self.data = place / "data"
        self.log = place / "node.log"
        self._http = f"http://127.0.0.1:{ports[1]}"
        self._ready = place / "ready.json"
        self._command = [
            *SERVE, "--node-id", str(number), "--peers", peers, "--peer-port", str(ports[0]),
            "--http-port", str(ports[1]), "--client-port", str(ports[2]),
            "--nats-port", str(ports[3]), "--data", str(self.data),
            "--ready-file", str(self._ready),
        ]  # fmt: skip
        place.mkdir(parents=True)
        self.start()

    def start(self) -> None:
        """Start the process; see `wait_ready`."""
        self._ready.unlink(missing_ok=True)
        with self.log.open("ab") as output:
            super().__init__(subprocess.Popen(self._command, stdout=output, stderr=output))

    def wait_ready(self) -> None:
        wait_until(self._ready.exists)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(
            self._http + path, data=data, method=method, headers=headers
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read()
        return json.loads(text) if text else None

    def partition(self, stream: str) -> dict[str, Any]:
        """The state of partition 0."""
        found: dict[str, Any] = self.call("GET", f"/v1/streams/{stream}")["partitions"][0]
        return found


class Cluster:
    """Three nodes of Bascule by number."""

    def __init__(self, nodes: dict[int, ClusterNode]) -> None:
        self.nodes = nodes

    def create(self, name: str, subject: str, **config: object) -> int:
        """Create a stream with three replicas; return its leader once all are in sync."""
        any_node = self.nodes[1]
        body = {"name": name, "subject": subject, "replicas": NODES, **config}
        any_node.call("POST", "/v1/streams", body)
        wait_until(lambda: len(any_node.partition(name)["isr"]) == NODES)
        leader = int(any_node.partition(name)["leader"])
        # The leader knows itself, and has subscribed.
        wait_until(lambda: self.nodes[leader].partition(name)["leader"] == leader)
        return leader

    def delete(self, name: str) -> None:
        self.nodes[1].call("DELETE", f"/v1/streams/{name}")

    def other(self, leader: int) -> int:
        """A node that does not lead, and is not the controller."""
        controller = self.nodes[leader].call("GET", "/v1/cluster")["controller"]
        return next(number for number in self.nodes if number not in (leader, controller))


@contextlib.contextmanager
def bascule_cluster(directory: Path) -> Iterator[Cluster]:
    """Three nodes with their defaults, which have formed a cluster."""
    ports = free_ports(4 * NODES)
    peers = ",".join(f"{n + 1}@127.0.0.1:{ports[4 * n]}" for n in range(NODES))
    nodes: dict[int, ClusterNode] = {}
    try:
        for n in range(NODES):
            place = directory / f"node{n + 1}"
            nodes[n + 1] = ClusterNode(n + 1, peers, ports[4 * n : 4 * n + 4], place)
        for node in nodes.values():
            node.wait_ready()
        yield Cluster(nodes)
    finally:
        for node in nodes.values():
            node.process.terminate()
        for node in nodes.values():
            node.stop()


def accepts(port: int) -> bool:
    """Whether a server takes connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class JetStreamCluster:
    """Three `nats-server` processes by name."""

    def __init__(self, servers: dict[str, Running]) -> None:
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
            while True:
                cluster = (await js.stream_info(name)).cluster
                replicas = [] if cluster is None else cluster.replicas or []
                if cluster and cluster.leader and all(each.current for each in replicas):
                    return str(cluster.leader)
                await asyncio.sleep(0.05)

        return self._call(work)

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


@contextlib.contextmanager
def jetstream_cluster(directory: Path) -> Iterator[JetStreamCluster]:
    """Three `nats-server` processes with their defaults, which have formed a cluster."""
    ports = free_ports(2 * NODES)
    routes = ",".join(f"nats://127.0.0.1:{port}" for port in ports[NODES:])
    servers: dict[str, Running] = {}
    try:
        for n in range(NODES):
            name, place = f"js{n + 1}", directory / f"js{n + 1}"
            place.mkdir(parents=True)
            command = [
                NATS_SERVER, "-a", "127.0.0.1", "-p", str(ports[n]), "-n", name, "-js",
                "-sd", str(place), "--cluster_name", "bench",
                "--cluster", f"nats://127.0.0.1:{ports[NODES + n]}", "--routes", routes,
            ]  # fmt: skip
            with (place / "nats.log").open("wb") as output:
                process = subprocess.Popen(command, stdout=output, stderr=output)
            servers[name] = Running(process, f"nats://127.0.0.1:{ports[n]}")
        for server in servers.values():
            wait_until(partial(accepts, server.port))
        yield JetStreamCluster(servers)
    finally:
        for server in servers.values():
            server.stop()
