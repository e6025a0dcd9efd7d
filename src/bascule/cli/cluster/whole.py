"""`bascule cluster wait`: for scripts that restart one node after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
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
    allow_short: Annotated[
        bool,
        typer.Option(
            "--allow-short",
            help="Do not wait for replicas that no node is there for, as after `node remove "
            "--force` without a spare node.",
        ),
    ] = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Wait until all nodes are alive and have NATS, all replicas are in sync, and each partition
    has a leader, and as many replicas as its stream asks for.

    Run it before you stop the next node. It exits with 1 where something is missing after the
    timeout, and says what.
    """
    began, lines = time.monotonic(), ProgressLines()
    while missing := _missing(server, allow_short=allow_short):
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


def _missing(server: str | None, *, allow_short: bool) -> list[str]:
    import bascule

    try:
        with bascule.connect_sync(server) as client:
            return missing_parts(client.cluster(), allow_short=allow_short)
    except Broken as error:
        return [str(error)]


def missing_parts(info: ClusterInfo, *, allow_short: bool = False) -> list[str]:
    """What keeps a cluster from being whole, for people; empty: nothing does. With `allow_short`
    partitions may lack replicas that there is no node for."""
    away = [each.node_id for each in info.nodes if not each.alive]
    lacking = [each.node_id for each in info.lacking_nats]
    if len(lacking) == len(info.nodes) - len(away):
        lacking = []  # All of them: nobody takes messages, and it matters to no other who stops.
    # The counts are 0 where an earlier release answers, which lists all of them.
    leaderless = max(info.leaderless_count, len(info.leaderless))
    behind = max(info.under_replicated_count, len(info.under_replicated)) - info.short_count
    counts = (
        (leaderless, "partition", " without a leader"),
        (behind, "partition", " with a replica that is not in sync, or is yet to be made"),
        (0 if allow_short else info.short_count, "partition", short_text(info)),
        (max(info.failed_count, len(info.failed)), "failed replica", ""),
    )
    return [
        *([] if info.controller else ["no controller"]),
        *([f"not alive: {_listed(away)}"] if away else []),
        *([f"no NATS connection: {_listed(lacking)}"] if lacking else []),
        *(f"{counted(count, what)}{rest}" for count, what, rest in counts if count),
    ]


def _listed(nodes: Sequence[int]) -> str:
    return f"{'node' if len(nodes) == 1 else 'nodes'} {', '.join(map(str, nodes))}"


def short_text(info: ClusterInfo) -> str:
    """What is said of the partitions that lack nothing but a node, with what helps."""
    text = " with fewer replicas than asked for, and no node for more"
    for each in info.under_replicated:
        if each.short and len(each.isr) == len(each.replicas):
            return f"{text}: {each.stream} {each.partition}: {each.short}"
    return f"{text}: add one with `bascule node join`"
