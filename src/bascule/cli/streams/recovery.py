"""The command `stream recover`: partitions go on without the replicas that were in sync."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from bascule.cli.exit_codes import FAILED
from bascule.cli.output import (
    JsonOption,
    ServerOption,
    StreamArgument,
    YesOption,
    confirm,
    out,
    print_json,
)
from bascule.cli.units import counted, moment_text
from bascule.errors import Broken
from bascule.operation_results import PartitionRecovery


def recover(
    name: StreamArgument,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.")
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Elect leaders. What only lost replicas have is lost."),
    ] = False,
    yes: YesOption = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Have partitions that nobody leads go on without the replicas that were in sync.

    It shows who would lead, and where each log ends. Only with --accept-loss it is done: the
    replica with the latest leader epoch and then the longest log leads, and what it lacks is lost,
    also when other replicas come back. The other way is to start the nodes that are waited for.
    """
    import bascule

    with bascule.connect_sync(server) as client:
        found = client.recover_stream(name, partition=partition)
        if not found and not client.cluster().controller:
            raise Broken(
                "the cluster has no controller: who leads is not known, and nothing can be "
                "decided; `bascule cluster status` says more"
            )
        if accept_loss and any(not each.problem for each in found):
            if not yes:
                out.print(recovery_table(found))
                confirm(f"give up what these replicas of stream {name} lack?", yes=False)
            found = client.recover_stream(name, partition=partition, accept_loss=True)
    if json:
        print_json({"name": name, "partitions": [asdict(each) for each in found]})
    else:
        _show(name, found)
    if any(each.problem for each in found):
        raise typer.Exit(FAILED)


def _show(name: str, found: list[PartitionRecovery]) -> None:
    stream = f"stream [bold]{escape(name)}[/bold]"
    if not found:
        out.print(f"[green]✓[/green] every partition of {stream} has a leader")
        return
    out.print(recovery_table(found))
    for each in found:
        if not each.is_done:
            out.print(f"partition {each.partition}: {escape(each.why)}", style="dim")
        if each.problem:
            out.print(f"partition {each.partition}: [red]{escape(each.problem)}")
    done = sum(each.is_done for each in found)
    possible = sum(not each.problem and not each.is_done for each in found)
    if done:
        out.print(f"[green]✓[/green] {counted(done, 'partition')} of {stream} with a leader again")
    if possible:
        out.print(
            "nothing was done. Start the nodes that are waited for, or repeat with --accept-loss: "
            "what is not in the log of the node that would lead is lost then"
        )


def recovery_table(found: list[PartitionRecovery]) -> Table:
    """One row for each replica that is alive."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("partition", "node", "epoch", "end", "committed"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("last message", no_wrap=True)
    table.add_column("")
    for each in found:
        for replica in each.replicas:
            leads = "leads now" if each.is_done else "would lead"
            table.add_row(
                str(each.partition),
                str(replica.node_id),
                str(replica.last_epoch),
                f"{replica.end_offset:,}",
                f"{replica.committed_offset:,}",
                "none" if replica.last_ms < 0 else moment_text(replica.last_ms),
                f"[green]{leads}" if replica.node_id == each.leader else "",
            )
    return table
