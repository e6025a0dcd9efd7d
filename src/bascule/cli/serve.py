"""`bascule serve`: runs one node until it is stopped."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from bascule.config import Config, layer_from_environment, layer_from_flags, layer_from_toml, merge
from bascule.errors import ConfigError, DiskFull
from bascule.model import NodeInfo

CONFIG_VARIABLE = "BASCULE_CONFIG"

NodeId = Annotated[int | None, typer.Option(metavar="N", help="This node's number in its cluster.")]
PeerPort = Annotated[
    int | None, typer.Option(metavar="N", help="Other nodes of the cluster connect here.")
]
Peers = Annotated[
    str | None,
    typer.Option(
        metavar="N@HOST:PORT,...", help="The founding nodes of the cluster, this one too."
    ),
]
Join = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT,...", help="Join a cluster: peer listeners of some of its nodes."
    ),
]
ClusterName = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the cluster.")]
BootstrapExpect = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Instead of --peers: the nodes 1 to N found a cluster; they find each other over "
        "the NATS server of --nats.",
    ),
]
Rack = Annotated[
    str | None, typer.Option(metavar="NAME", help="Replicas are placed in different racks.")
]


def serve(
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Data directory.")] = None,
    nats: Annotated[
        str | None,
        typer.Option(metavar="URL,...", help="NATS servers. Default: an embedded server."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file; flags take precedence.")
    ] = None,
    client_port: Annotated[
        int | None, typer.Option(metavar="N", help="Kafka wire protocol; 0 picks a free port.")
    ] = None,
    http_port: Annotated[
        int | None, typer.Option(metavar="N", help="HTTP; 0 picks a free port.")
    ] = None,
    nats_port: Annotated[
        int | None, typer.Option(metavar="N", help="Embedded NATS; 0 picks a free port.")
    ] = None,
    node_id: NodeId = None,
    peer_port: PeerPort = None,
    peers: Peers = None,
    join: Join = None,
    cluster: ClusterName = None,
    bootstrap_expect: BootstrapExpect = None,
    rack: Rack = None,
    ready_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Receives the listeners as JSON once the node serves."),
    ] = None,
    new_cluster_id: Annotated[
        bool,
        typer.Option("--new-cluster-id", help="Replace a missing or damaged cluster id."),
    ] = False,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json.")] = None,
) -> None:
    """Run one node until Ctrl-C or SIGTERM. Then drain, sync and exit with 0."""
    flags = {
        "data": ("--data", data),
        "nats.urls": ("--nats", listed("--nats", nats)),
        "client.port": ("--client-port", client_port),
        "http.port": ("--http-port", http_port),
        "nats.port": ("--nats-port", nats_port),
        "node_id": ("--node-id", node_id),
        "peer.port": ("--peer-port", peer_port),
        "cluster.peers": ("--peers", listed("--peers", peers)),
        "cluster.join": ("--join", listed("--join", join)),
        "cluster.name": ("--cluster", cluster),
        "cluster.bootstrap_expect": ("--bootstrap-expect", bootstrap_expect),
        "cluster.rack": ("--rack", rack),
        "ready_file": ("--ready-file", ready_file),
        "log.level": ("--log-level", log_level),
        "log.format": ("--log-format", log_format),
    }
    run_node(load_config(config, os.environ, flags), new_cluster_id=new_cluster_id)


def listed(flag: str, text: str | None) -> list[str] | None:
    """The parts of a list with commas; None without the flag. An empty one, as of a variable of a
    script that is not set, would found a cluster of one node. Raises: ConfigError."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError(f"{flag} is empty: give a value, or leave it out")
    return parts


def load_config(
    path: Path | None, environment: Mapping[str, str], flags: Mapping[str, tuple[str, object]]
) -> Config:
    """Load the configuration from defaults, file, environment and flags.

    `path` defaults to BASCULE_CONFIG. Raises: ConfigError, also for an unreadable file.
    """
    path = path or (
        Path(environment[CONFIG_VARIABLE]) if environment.get(CONFIG_VARIABLE) else None
    )
    layers = []
    if path is not None:
        try:
            layers.append(layer_from_toml(path.read_text(), str(path)))
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror.lower() if isinstance(error, OSError) and error.strerror else error
            raise ConfigError(f"configuration file {path} cannot be read: {why}") from error
    return merge(*layers, layer_from_environment(environment), layer_from_flags(flags))


def run_node(config: Config, *, new_cluster_id: bool = False) -> None:
    """Serve until a signal. Raises: BasculeError if the node cannot start."""
    from bascule.cli.logs import set_up_logging
    from bascule.host.api import NO_SPACE
    from bascule.host.real import RealFiles
    from bascule.host.service_manager import notify_ready
    from bascule.node.node import serve as serve_node
    from bascule.replica.disk_reserve import START_BYTES

    if not __debug__:
        raise ConfigError("the node does not run with python -O, because it relies on assertions")
    set_up_logging(config.log)
    ready_file = Path(config.ready_file) if config.ready_file else None
    if ready_file is not None:
        _prepare_ready_file(ready_file)

    def on_ready(node: NodeInfo) -> None:
        show_banner(config, node)
        if ready_file is not None:
            write_ready_file(ready_file, node)
        notify_ready()

    try:
        asyncio.run(serve_node(config, on_ready=on_ready, new_cluster_id=new_cluster_id))
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        free_bytes, _ = RealFiles().room(config.data)
        raise DiskFull(
            config.data, free_bytes, f"free at least {START_BYTES} bytes and start the node again"
        ) from error
    finally:
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)


def _prepare_ready_file(path: Path) -> None:
    """Remove the file of an earlier node, whose listeners are closed, and check that a new one can
    be written. Raises: ConfigError."""
    unfinished = _unfinished(path, os.getpid())
    try:
        path.unlink(missing_ok=True)
        unfinished.touch()
        unfinished.unlink()
    except OSError as error:
        why = (error.strerror or "").lower()
        raise ConfigError(
            f"ready file {path} cannot be written: {why}; "
            "name a file in a directory that exists with --ready-file FILE"
        ) from error


def _unfinished(path: Path, pid: int) -> Path:
    return path.with_name(f".{path.name}.{pid}")


def write_ready_file(path: Path, node: NodeInfo) -> None:
    """Write the addresses of the listeners as JSON, atomically."""
    addresses = {
        "pid": node.pid,
        "nats": node.nats,
        "client": node.client,
        "http": node.http,
        "peer": node.peer,
    }
    unfinished = _unfinished(path, node.pid)
    unfinished.write_text(json.dumps(addresses) + "\n")
    unfinished.replace(path)


def show_banner(config: Config, node: NodeInfo) -> None:
    """Print the listeners to standard error, unless the log is JSON."""
    if config.log.format == "json":
        return
    from rich.panel import Panel
    from rich.table import Table

    from bascule.cli.output import err

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    nats = "embedded nats-server" if node.nats_embedded else "connected"
    table.add_row("NATS", f"{node.nats}  [dim]{nats}; publish here[/dim]")
    table.add_row("clients", f"{node.client}  [dim]Kafka wire protocol[/dim]")
    table.add_row("HTTP", f"{node.http}  [dim]API, /docs, /metrics[/dim]")
    table.add_row("peers", f"{node.peer}  [dim]other nodes of a cluster[/dim]")
    table.add_row("data", node.data)
    style = "green" if node.twin == "compiled" else "yellow"
    slow = "" if node.twin == "compiled" else "  [dim]slow: `make build` compiles[/dim]"
    version = ".".join(map(str, sys.version_info[:3]))
    table.add_row("code", f"[{style}]{node.twin}[/{style}], Python {version}{slow}")
    err.print(Panel(table, title=f"bascule {node.version}", border_style="cyan", expand=False))
