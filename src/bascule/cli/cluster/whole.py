"""`bascule cluster wait`: for scripts that restart one node after the other."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from bascule.cli import exit_codes
from bascule.cli.cluster.waiting import WAIT_SECONDS, ProgressLines
from bascule.cli.output import JsonOption, ServerOption, out, print_error, print_json
from bascule.cli.units import counted
from bascule.errors import Broken
from bascule.model import ClusterInfo

TIMEOUT_SECONDS: Final = 60.0


def wait(
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0, help="Give up after so long.")
    ] = TIMEOUT_SECONDS,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Wait until all nodes are alive, all replicas in sync, and each partition has a leader.

    Run it before you stop the next node. It exits with 1 where something is missing after the
    timeout, and says what.
    """
    began, lines = time.monotonic(), ProgressLines()
    while missing := _missing(server):
        if time.monotonic() - began >= timeout:
            break
        if not json:
            lines.say(f"waiting: {'; '.join(missing)}")
        time.sleep(WAIT_SECONDS)
    waited = round(time.monotonic() - began, 1)
    if json:
        print_json({"is_whole": not missing, "missing": missing, "waited_seconds": waited})
    elif missing:
        print_error(f"after {waited} s: {'; '.join(missing)}", "`bascule cluster status` says more")
    else:
        out.print("[green]✓[/green] all nodes are alive, and all replicas are in sync")
    if missing:
        raise typer.Exit(exit_codes.FAILED)


def _missing(server: str | None) -> list[str]:
    import bascule

    try:
        with bascule.connect_sync(server) as client:
            return missing_parts(client.cluster())
    except Broken as error:
        return [str(error)]


def missing_parts(info: ClusterInfo) -> list[str]:
    """What keeps a cluster from being whole, for people; empty: nothing does."""
    away = [str(each.node_id) for each in info.nodes if not each.alive]
    nodes = "node" if len(away) == 1 else "nodes"
    # The counts are 0 where an earlier release answers, which lists all of them.
    leaderless = max(info.leaderless_count, len(info.leaderless))
    behind = max(info.under_replicated_count, len(info.under_replicated))
    counts = (
        (leaderless, "partition", " without a leader"),
        (behind, "partition", " with a replica that is not in sync"),
        (max(info.failed_count, len(info.failed)), "failed replica", ""),
    )
    return [
        *([] if info.controller else ["no controller"]),
        *([f"not alive: {nodes} {', '.join(away)}"] if away else []),
        *(f"{counted(count, what)}{rest}" for count, what, rest in counts if count),
    ]
