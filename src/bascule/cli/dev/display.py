"""What `bascule dev` prints: the listeners, what to try, and which processes have ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from bascule.cli.dev.layout import Layout
from bascule.cli.dev.processes import Ending
from bascule.cli.output import err, out


def listeners(layout: Layout, pids: Mapping[int, int]) -> dict[str, Any]:
    """All listeners, for programs."""
    return {
        "nats": layout.nats_url,
        "server": layout.servers,
        "bootstrap": ",".join(node.client for node in layout.nodes),
        "directory": str(layout.directory),
        "nodes": [
            {
                "node_id": node.number,
                "pid": pids[node.number],
                "client": node.client,
                "http": f"http://{node.http}",
                "peer": node.peer,
                "data": str(node.data),
                "log": str(node.log),
                "config": str(node.config),
            }
            for node in layout.nodes
        ],
    }


def show_cluster(
    layout: Layout, pids: Mapping[int, int], *, command: str, is_temporary: bool
) -> None:
    """Print the listeners, and what to try."""
    table = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    for title in ("node", "pid", "HTTP", "Kafka clients", "other nodes", "log"):
        table.add_column(title, no_wrap=True)
    for node in layout.nodes:
        log = str(node.log.relative_to(layout.directory))
        table.add_row(
            str(node.number), str(pids[node.number]), node.http, node.client, node.peer, log
        )
    what = "removed at the end; --data DIR keeps it" if is_temporary else "kept at the end"
    count = len(layout.nodes)
    out.print(f"[green]✓[/green] a cluster of {count} {'nodes' if count > 1 else 'node'}")
    out.print(table)
    out.print(f"NATS  {layout.nats_url}  [dim]publish here; all nodes use this server[/dim]")
    out.print(f"data  {escape(str(layout.directory))}  [dim]{what}[/dim]")
    out.print("\n[bold]In another terminal[/bold]")
    run = escape(command)
    for line in (
        f"export BASCULE_SERVER={layout.servers}",
        f"{run} stream create flights --subject 'flights.>' --replicas {min(count, 3)}",
        f'{run} publish flights.JFK.B6 \'{{"dest": "BQN"}}\'',
        f"{run} read flights --from earliest",
        f"{run} cluster status   [dim]# the controller and the nodes; {run} top: rates[/dim]",
        *(
            [
                f"kill -9 {pids[1]}   [dim]# node 1: another one takes over; see "
                f"{run} cluster status[/dim]"
            ]
            if count > 2
            else []
        ),
    ):
        out.print(f"  {line}")
    out.print("\n[dim]Ctrl-C ends all of it.[/dim]")


class Reporter:
    """Prints events to standard error, with the time."""

    def on_waiting(self, nodes: list[str]) -> None:
        """Nodes that are not ready yet, each with its log."""
        _say("[yellow]still starting[/yellow]")
        for node in nodes:
            err.print(f"  {node}", markup=False)

    def on_ended(self, ending: Ending) -> None:
        """A process has ended that was not stopped."""
        pid = f" (pid {ending.pid})" if ending.pid else ""
        lines = f"; the end of {ending.log}:" if ending.last_lines else f"; see {ending.log}"
        _say(f"[red]{ending.name}{pid} {escape(ending.how)}[/red]{escape(lines)}")
        for line in ending.last_lines:
            err.print(f"  {line}", markup=False, style="dim")
        if ending.restart_seconds:
            err.print(f"  it is started again in {ending.restart_seconds:.0f} s")
        elif ending.restart_command:
            err.print(f"  start it again: {ending.restart_command}", markup=False)

    def on_restarted(self, name: str, pid: int) -> None:
        """A process serves again."""
        _say(f"[green]{name} serves again[/green]" + (f", pid {pid}" if pid else ""))

    def on_stopping(self) -> None:
        """The first Ctrl-C."""
        _say("stopping; Ctrl-C again kills")


def _say(text: str) -> None:
    err.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim] {text}")
