"""Where a cluster of `bascule dev` keeps its files, and on which ports it listens."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from bascule.config import KEYS
from bascule.errors import ConfigError, CorruptData
from bascule.host.real import LOCK_NAME, RealFiles, RealRandom
from bascule.storage.checkpoint import replace_file

HOST: Final = "127.0.0.1"
FILE_NAME: Final = "dev.json"
NODES: Final = 3
FREE_START, FREE_END = 20_000, 32_000
"""Where free ports are searched: below the range from which the kernel takes ports for outgoing
connections, which could take them between two starts."""


class NodePorts(msgspec.Struct, frozen=True):
    """The listeners of one node."""

    client: int
    http: int
    peer: int


class Ports(msgspec.Struct, frozen=True):
    """All listeners of a cluster; also the content of its file."""

    nats: int
    nodes: tuple[NodePorts, ...]

    def named(self) -> Iterator[tuple[str, int]]:
        """Each port, with whose it is."""
        yield "the NATS server", self.nats
        for number, node in enumerate(self.nodes, 1):
            yield f"node {number}'s client listener", node.client
            yield f"node {number}'s HTTP listener", node.http
            yield f"node {number}'s peer listener", node.peer


@dataclass(frozen=True, slots=True)
class NodePlace:
    """One node: its number, ports and files."""

    number: int
    ports: NodePorts
    directory: Path

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        return self.directory / "node.log"

    @property
    def config(self) -> Path:
        return self.directory / "node.toml"

    @property
    def ready_file(self) -> Path:
        return self.directory / "ready.json"

    @property
    def client(self) -> str:
        return f"{HOST}:{self.ports.client}"

    @property
    def http(self) -> str:
        return f"{HOST}:{self.ports.http}"

    @property
    def peer(self) -> str:
        return f"{HOST}:{self.ports.peer}"


class Layout:
    """The files and ports of one cluster."""

    def __init__(self, directory: Path, ports: Ports) -> None:
        self.directory = directory
        self.ports = ports
        self.nodes = [
            NodePlace(number, node, directory / f"node{number}")
            for number, node in enumerate(ports.nodes, 1)
        ]

    @property
    def nats_directory(self) -> Path:
        return self.directory / "nats"

    @property
    def nats_url(self) -> str:
        return f"nats://{HOST}:{self.ports.nats}"

    @property
    def servers(self) -> str:
        """For BASCULE_SERVER."""
        return ",".join(node.http for node in self.nodes)

    def write_configs(self) -> None:
        """Write the configuration file of each node. Raises: OSError."""
        peers = [f"{node.number}@{node.peer}" for node in self.nodes]
        for node in self.nodes:
            node.directory.mkdir(exist_ok=True)
            values: dict[str, object] = {
                "data": str(node.data),
                "node_id": node.number,
                "ready_file": str(node.ready_file),
                "nats.urls": [self.nats_url],
                "client.host": HOST,
                "client.port": node.ports.client,
                "http.host": HOST,
                "http.port": node.ports.http,
                "peer.host": HOST,
                "peer.port": node.ports.peer,
                "cluster.peers": peers,
            }
            lines = "".join(
                f"{key} = {json.dumps(value, ensure_ascii=False)}\n"
                for key, value in values.items()
            )
            node.config.write_text("# Written by `bascule dev` at every start.\n" + lines)


def own_variables() -> frozenset[str]:
    """Environment variables that would override the nodes' files, or the way to their NATS."""
    keys = ("data", "node_id", "ready_file")
    sections = ("nats.", "client.", "http.", "peer.", "cluster.")
    return frozenset(
        ["BASCULE_CONFIG"]
        + [key.variable for key in KEYS.values() if key.name.startswith((*keys, *sections))]
    )


def check_directory(directory: Path) -> None:
    """Before anything is written: whether it is empty, or of `bascule dev`. Raises: ConfigError."""
    names = {entry.name for entry in directory.iterdir()}
    if names - {LOCK_NAME} and FILE_NAME not in names:
        raise ConfigError(
            f"directory {directory} has files but no {FILE_NAME}, so it is not one of "
            "`bascule dev`: name an empty directory with --data"
        )


def open_layout(directory: Path, *, nodes: int | None, port_base: int | None) -> Layout:
    """The layout that `directory` has, or a new one that is kept in it.

    Raises: ConfigError where it has another cluster than asked for, or a port is taken;
    CorruptData, OSError.
    """
    path = directory / FILE_NAME
    if path.exists():
        ports = _kept_ports(path)
        _check_same(ports, path, nodes=nodes, port_base=port_base)
        advice = f"end the program that has it; {path} names the ports of this cluster"
        _check_free(ports, advice)
        return Layout(directory, ports)
    ports = choose_ports(NODES if nodes is None else nodes, port_base)
    replace_file(RealFiles(), str(path), msgspec.json.format(msgspec.json.encode(ports)) + b"\n")
    return Layout(directory, ports)


def _kept_ports(path: Path) -> Ports:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Ports)
    except msgspec.MsgspecError as error:
        raise CorruptData(str(path), 0, "the ports of a cluster as JSON", str(error)) from None


def _check_same(ports: Ports, path: Path, *, nodes: int | None, port_base: int | None) -> None:
    """Raises: ConfigError where another number of nodes or other ports are asked for."""
    if nodes is not None and nodes != len(ports.nodes):
        raise ConfigError(
            f"{path} is of a cluster of {len(ports.nodes)} nodes, and --nodes is {nodes}: leave "
            "--nodes out, or name another directory with --data"
        )
    if port_base and port_base != ports.nats:
        raise ConfigError(
            f"{path} is of a cluster whose ports begin at {ports.nats}, and --port-base is "
            f"{port_base}: leave --port-base out, or name another directory with --data"
        )


def choose_ports(nodes: int, base: int | None) -> Ports:
    """Ports for a new cluster.

    Without `base`: the default ports for NATS and node 1, and the next free ones for the others.
    With 0: any free ones; else the ports from `base` on. Raises: ConfigError where one is taken.
    """
    if base is None:
        ports = _default_ports(nodes)
        advice = "choose others with --port-base N, 0 for any free ones"
    elif base:
        ports = _consecutive_ports(nodes, base)
        advice = "choose another --port-base, 0 for any free ones"
    else:
        return _free_ports(nodes)
    _check_free(ports, advice)
    return ports


def _default_ports(nodes: int) -> Ports:
    nats, client = KEYS["nats.port"].default, KEYS["client.port"].default
    http, peer = KEYS["http.port"].default, KEYS["peer.port"].default
    first = NodePorts(client, http, peer)
    taken = {nats, client, http, peer}

    def following(port: int) -> int:
        while port in taken or not _is_free(port):
            port += 1
        taken.add(port)
        return port

    others = [
        NodePorts(following(client + 2 * n), following(http + n), following(peer + 2 * n))
        for n in range(1, nodes)
    ]
    return Ports(nats, (first, *others))


def _consecutive_ports(nodes: int, base: int) -> Ports:
    starts = [base + 1 + 3 * n for n in range(nodes)]
    return Ports(base, tuple(NodePorts(start, start + 1, start + 2) for start in starts))


def _free_ports(nodes: int) -> Ports:
    """Raises: ConfigError where there is no free range."""
    count = FREE_END - FREE_START
    first = int(RealRandom().uniform(0, count))
    for step in range(0, count, 7):
        ports = _consecutive_ports(nodes, FREE_START + (first + step) % count)
        if all(_is_free(port) for _, port in ports.named()):
            return ports
    raise ConfigError(f"no {3 * nodes + 1} free consecutive ports from {FREE_START} to {FREE_END}")


def _check_free(ports: Ports, advice: str) -> None:
    for whose, port in ports.named():
        if not _is_free(port):
            raise ConfigError(f"port {port}, for {whose}, cannot be used on {HOST}: {advice}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a connection of an earlier server in TIME_WAIT does not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return False
    return True
