"""Three real nodes that form a cluster, for tests of tier 3."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.chaos_links import PeerLinks
from support.peer_proxy import PeerProxy
from support.ports import reserve_ports
from support.processes import Node, wait_for


@dataclass
class RunningCluster:
    """The nodes by id. A node that was killed keeps its directory and its ports."""

    nodes: dict[int, Node] = field(default_factory=dict)
    proxies: dict[int, PeerProxy] = field(default_factory=dict)
    """In front of the peer listeners, if the cluster runs with them."""
    directory: Path = Path()
    nats: str | None = None
    links: PeerLinks | None = None
    peer_ports: dict[int, int] = field(default_factory=dict)

    def start(self, *ids: int) -> None:
        """Start these nodes, or all, and return once they are ready."""
        chosen = [self.nodes[node] for node in ids or self.nodes]
        for node in chosen:
            node.spawn_again()
        for node in chosen:
            node.wait_ready()

    def alive(self) -> list[Node]:
        return [n for n in self.nodes.values() if n.process and n.process.poll() is None]

    def leader(self, stream: str, partition: int = 0) -> int:
        """The node that leads a partition, once there is one that is alive."""

        def look() -> int | None:
            state = self.partition(stream, partition)
            found = self.nodes.get(state["leader"])
            return state["leader"] if found in self.alive() else None

        any_node = self.alive()[0]
        leader: int = wait_for(look, any_node.process, any_node.log)
        return leader

    def wait_in_sync(self, stream: str) -> None:
        """Return once all replicas of the stream's partitions are in sync, and each leader knows.

        A node learns of a change of the in-sync set from the controller, a leader maybe last.
        """

        def look() -> bool | None:
            found = self.alive()[0].call("GET", f"/v1/streams/{stream}")["partitions"]
            return (
                True if all(is_in_sync(place, each) for place, each in enumerate(found)) else None
            )

        def is_in_sync(place: int, told: dict[str, Any]) -> bool:
            leader = self.nodes.get(told["leader"])
            if leader is None or leader not in self.alive():
                return False
            known = leader.call("GET", f"/v1/streams/{stream}")["partitions"][place]
            return all(len(each["isr"]) == len(each["replicas"]) for each in (told, known))

        any_node = self.alive()[0]
        wait_for(look, any_node.process, any_node.log)

    def add(self, number: int, *seeds: int, options: Sequence[str] = ()) -> Node:
        """A node that is to join by the nodes `seeds`, or by any; it is not started."""
        chosen = seeds or tuple(self.peer_ports)
        addresses = ",".join(f"127.0.0.1:{self.peer_ports[each]}" for each in chosen)
        peer, *ports = reserve_ports(4)
        place = self.directory / f"node{number}"
        place.mkdir(parents=True, exist_ok=True)
        node = Node(
            place,
            self.nats,
            ["--node-id", str(number), "--join", addresses, "--peer-port", str(peer), *options],
            keep_ports=True,
            ports=ports,
        )
        self.nodes[number], self.peer_ports[number] = node, peer
        return node

    def join(self, number: int, *seeds: int, options: Sequence[str] = ()) -> Node:
        """A node that has joined."""
        node = self.add(number, *seeds, options=options)
        node.start()
        return node

    def info(self) -> dict[str, Any]:
        """The cluster, as a node that is alive says."""
        found: dict[str, Any] = self.alive()[0].call("GET", "/v1/cluster")
        return found

    def wait_voters(self, *numbers: int) -> None:
        """Return once these nodes vote, and no other."""
        self._wait(lambda: self.info()["voters"] == list(numbers))

    def wait_moved(self, stream: str) -> None:
        """Return once no partition of the stream moves."""

        def look() -> bool:
            found = self.alive()[0].call("GET", f"/v1/streams/{stream}")["partitions"]
            return not any(each["target"] for each in found)

        self._wait(look)

    def _wait(self, look: Callable[[], bool]) -> None:
        any_node = self.alive()[0]
        wait_for(lambda: look() or None, any_node.process, any_node.log)

    def replica(self, node: int, stream: str, partition: int = 0) -> Path:
        """The directory of a node's replica."""
        return self.nodes[node].directory / "data/streams" / stream / str(partition)

    def wait_removed(self, node: int, stream: str, partition: int = 0) -> None:
        """Return once a node has removed its replica."""
        self._wait(lambda: not self.replica(node, stream, partition).exists())

    def stop(self) -> None:
        """Stop all nodes, so that their logs can be compared."""
        for node in self.alive():
            assert node.process is not None
            node.process.terminate()
        for node in self.nodes.values():
            node.stop()

    def log_bytes(self, node: int, stream: str, partition: int = 0) -> bytes:
        """All batches of a node's replica."""
        place = self.replica(node, stream, partition)
        return b"".join(path.read_bytes() for path in sorted(place.glob("*.log")))

    def partition(self, stream: str, partition: int = 0) -> dict[str, Any]:
        """The state of a partition, as a node that is alive says."""
        found: dict[str, Any] = self.alive()[0].call("GET", f"/v1/streams/{stream}")
        state: dict[str, Any] = found["partitions"][partition]
        return state


@contextlib.contextmanager
def running_cluster(
    directory: Path,
    *,
    nats: str | None = None,
    count: int = 3,
    options: Sequence[str] = (),
    proxied: bool = False,
    linked: bool = False,
    racks: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    kinds: Mapping[int, type[Node]] | None = None,
    peer_ports: Sequence[int] = (),
) -> Iterator[RunningCluster]:
    """`count` nodes that have formed a cluster; `proxied`: they reach each other by proxies that
    can cut off followers; `linked`: by proxies whose links can fail one by one.

    `racks` has the rack of each node, `kinds` the classes of nodes that are no `Node`, `peer_ports`
    the ports of the peer listeners, if they are not any free ones.
    """
    ports = [*peer_ports, *reserve_ports(5 * count - len(peer_ports))]
    reached = ports[4 * count :] if proxied or linked else ports
    peers = ",".join(f"{n + 1}@127.0.0.1:{reached[n]}" for n in range(count))
    cluster = RunningCluster(directory=directory, nats=nats)
    if proxied:
        cluster.proxies = {n + 1: PeerProxy(reached[n], ports[n]) for n in range(count)}
    if linked:
        cluster.links = PeerLinks({n + 1: (reached[n], ports[n]) for n in range(count)})
    for n in range(count):
        rack = ["--rack", racks[n]] if racks else []
        place = directory / f"node{n + 1}"
        place.mkdir(parents=True)
        cluster.peer_ports[n + 1] = ports[n]
        cluster.nodes[n + 1] = (kinds or {}).get(n + 1, Node)(
            place,
            nats,
            environment=dict(environment or {}),
            options=[
                "--node-id",
                str(n + 1),
                "--peers",
                peers,
                "--peer-port",
                str(ports[n]),
                *rack,
                *options,
            ],
            keep_ports=True,
            ports=ports[count + 3 * n : count + 3 * n + 3],
        )
    try:
        cluster.start()
        yield cluster
    finally:
        for node in cluster.nodes.values():
            if node.process is not None and node.process.poll() is None:
                node.process.terminate()
        for node in cluster.nodes.values():
            if node.process is not None:
                node.stop()
        for proxy in cluster.proxies.values():
            proxy.stop()
        if cluster.links is not None:
            cluster.links.stop()
