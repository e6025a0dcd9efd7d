"""The command `node join`: what a new node has to be started with, asked of the cluster itself."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from bascule.cli.output import (
    JsonOption,
    ServerOption,
    err,
    out,
    print_json,
    print_warning,
)
from bascule.errors import ConfigError
from bascule.model import ClusterInfo, NodeInfo

UNREACHABLE: Final = ("0.0.0.0:", "[::]:")
"""How addresses begin to which nobody can connect."""
LOOPBACK: Final = ("127.", "[::1]:")
PORTS: Final = ("--peer-port", "--client-port", "--http-port", "--nats-port")


def join(
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- OPTIONS]", help="More options of `bascule serve`, behind two hyphens."
        ),
    ] = None,
    number: Annotated[
        int | None,
        typer.Option("--node-id", metavar="N", help="Number of the new node. Default: a free one."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Its data directory, empty.", show_default="nodeN"),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Start the node here, and stay until it stops.")
    ] = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Print the command that starts a new node of the cluster, or run it.

    The cluster of --server says what belongs to it: a free number, the addresses of its nodes, its
    name, and its NATS servers. The node joins when the command is run; with --run that is at once.
    """
    import bascule

    if run and json:
        raise ConfigError("--json prints the command, and --run runs it: leave one of them out")
    with bascule.connect_sync(server) as client:
        info, asked = client.cluster(), client.node()
    number, command = serve_command(info, asked, number=number, data=data, options=options or ())
    if run:
        _check_empty(command[command.index("--data") + 1])
        err.print(shlex.join(command), markup=False, style="dim")
        sys.stdout.flush()
        program = [sys.executable, "-m", "bascule.cli.main", *command[1:]]
        os.execv(sys.executable, program)  # noqa: S606
    if json:
        print_json({"node_id": number, "command": command})
        return
    out.print(shlex.join(command), markup=False)
    seeds = command[command.index("--join") + 1].split(",")
    if on_loopback(seeds):
        print_warning("it works on the machine of these nodes alone: they listen on loopback")


def serve_command(
    info: ClusterInfo,
    asked: NodeInfo,
    *,
    number: int | None = None,
    data: str | None = None,
    options: Sequence[str] = (),
) -> tuple[int, list[str]]:
    """The number of a new node, and the command that starts it, as a list of words.

    `asked` is the node that was asked: its NATS servers are those of the cluster, unless each node
    has its own. Raises: ConfigError for a number that is taken.
    """
    taken = {each.node_id for each in info.nodes}
    if number is None:
        number = max(taken, default=0) + 1
    if number in taken:
        raise ConfigError(
            f"the cluster has a node {number}: give another number with --node-id, or remove that "
            f"node first with `bascule node remove {number}`"
        )
    staying = [each for each in info.nodes if each.alive and not each.is_leaving]
    seeds = [each.peer for each in staying if not each.peer.startswith(UNREACHABLE)]
    if not seeds:
        raise ConfigError(
            "no node of the cluster has a peer address that other machines can connect to: start "
            "its nodes with peer.advertised"
        )
    command = ["bascule", "serve", "--node-id", str(number), "--join", ",".join(seeds)]
    command += ["--data", data or f"node{number}", "--cluster", info.name]
    if not asked.nats_embedded:
        command += ["--nats", asked.nats]
    if on_loopback(seeds):
        for name in PORTS if asked.nats_embedded else PORTS[:-1]:
            if not any(each.partition("=")[0] == name for each in options):
                command += [name, "0"]
    return number, [*command, *options]


def on_loopback(seeds: Sequence[str]) -> bool:
    """Whether all nodes are on this machine, so that the default ports are those of one of them."""
    return all(each.startswith(LOOPBACK) for each in seeds)


def _check_empty(data: str) -> None:
    """Raises: ConfigError for a directory that has files; OSError."""
    path = Path(data)
    if path.exists() and next(path.iterdir(), None) is not None:
        raise ConfigError(
            f"data directory {data} is not empty: a new node needs an empty one; a node that has "
            "joined already is started with `bascule serve`"
        )
