"""The commands `stream reassign` and `stream elect-leader`: where partitions are, and who leads."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.markup import escape
from rich.table import Table

from bascule.cli.cluster.operations import limit_text
from bascule.cli.cluster.waiting import STUCK_LOOKS, Remaining, wait_moved
from bascule.cli.exit_codes import FAILED
from bascule.cli.output import (
    JsonOption,
    ServerOption,
    StreamArgument,
    err,
    out,
    print_error,
    print_json,
    print_warning,
)
from bascule.cli.streams.tables import partitions_table, stream_as_json
from bascule.cli.units import bytes_text, counted, parse_rate
from bascule.model import NO_LEADER, PartitionInfo, StreamInfo
from bascule.operation_results import LeaderChange

if TYPE_CHECKING:
    from bascule.client import SyncClient

ASTRAY_LOOKS: Final = 5
"""In turn, one second, before a partition that does not go where it was asked to counts as moved by
somebody else: nodes learn of a change one after the other."""


def reassign(
    name: StreamArgument,
    replicas_on: Annotated[
        str | None,
        typer.Option(
            "--replicas-on",
            "--replicas",
            metavar="N,...",
            help="Nodes; the preferred leader first.",
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.")
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Take a move back: the replicas before it stay.")
    ] = False,
    throttle: Annotated[
        str | None,
        typer.Option(
            "--throttle",
            metavar="SIZE",
            help="Bytes a second that each node sends to replicas that are not in sync, also of "
            "other streams; none or 0: no limit. It stays: see `bascule cluster throttle`.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would move, and change nothing.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Show the progress, and return when it has moved.")
    ] = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Move a stream, or one partition, to other nodes. Messages go on meanwhile.

    New replicas copy the log first; the old ones stay until all new ones are in sync.

    With --dry-run nothing is changed: `1 2 3 → 4 2 3` shows where each partition would move.

    With --wait the exit code is 1 where the move does not go on, as for a node that is not alive,
    or where somebody else has cancelled or replaced it: the output says what and why.

    With --cancel a move that is under way is taken back. New replicas go at once, unless they are
    needed for min-isr.
    """
    import bascule

    if (replicas_on is None) == (not cancel):
        raise typer.BadParameter("give one of --replicas-on and --cancel")
    if dry_run and (cancel or wait or throttle is not None):
        raise typer.BadParameter("--dry-run changes nothing: give it with --replicas-on alone")
    rate = None if throttle is None else parse_rate(throttle)
    nodes = _node_numbers(replicas_on or "")
    with bascule.connect_sync(server) as client:
        if rate is not None:
            client.throttle(rate)
        if cancel:
            info = client.cancel_moves(name, partition=partition)
        else:
            info = client.reassign_stream(name, nodes, partition=partition, dry_run=dry_run)
        problems: list[str] = []
        if wait:
            asked = _asked(info, None if cancel else nodes, partition)
            info, problems = wait_reassigned(client, name, asked)
    if json:
        print_json(stream_as_json(info))
    elif problems:
        out.print(partitions_table(info.partitions, with_places=True))
    if problems:
        under_way = any(item.target for item in info.partitions)
        hint = f"the move goes on once it can; {_how_to_cancel(name)}" if under_way else ""
        print_error(f"stream {name} is not where it was asked to be: {'; '.join(problems)}", hint)
        raise typer.Exit(FAILED)
    if json:
        return
    done = _done(info, replicas_on, cancel=cancel, dry_run=dry_run)
    out.print(f"[green]✓[/green] stream [bold]{name}[/bold] {done}")
    if rate is not None:
        out.print(f"catch-up  {limit_text(rate)}")
    out.print(partitions_table(info.partitions, with_places=True))


def _done(info: StreamInfo, replicas_on: str | None, *, cancel: bool, dry_run: bool) -> str:
    left = _remaining(info)
    if cancel:
        return "moves back" if left.partitions else "is back where it was"
    if not left.partitions:
        return f"is on nodes {replicas_on}"
    if dry_run:
        copied = bytes_text(left.bytes)
        return f"would move to nodes {replicas_on}, {copied} to copy: nothing has been changed"
    return f"moves to nodes {replicas_on}"


def _node_numbers(text: str) -> list[int]:
    """Raises: typer.BadParameter."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if not (word.isascii() and word.isdigit() and int(word)):
            raise typer.BadParameter(
                f"{word!r} is not the number of a node: expected numbers such as 1,2,3; "
                "`bascule node list` shows them"
            )
    return [int(word) for word in words]


def _how_to_cancel(name: str) -> str:
    return f"`bascule stream reassign {name} --cancel` takes it back"


def _asked(
    info: StreamInfo, nodes: list[int] | None, partition: int | None
) -> dict[int, frozenset[int]]:
    """The replicas that partitions are to have: `nodes`, or, where their moves were cancelled,
    those that the answer to that says."""
    return {
        item.partition: frozenset(nodes or item.target or item.replicas)
        for item in info.partitions
        if partition in (None, item.partition)
    }


def wait_reassigned(
    client: SyncClient, name: str, asked: dict[int, frozenset[int]]
) -> tuple[StreamInfo, list[str]]:
    """Wait until these partitions have the replicas that were asked for, or will not have them by
    themselves. Returns the stream, and for each partition that is not there what has happened."""
    info = client.stream(name)
    astray_looks = stuck_looks = 0

    def look() -> Remaining:
        nonlocal info, astray_looks, stuck_looks
        info = client.stream(name)
        away = [item for item in info.partitions if _is_away(item, asked)]
        moving = [item for item in away if set(item.target) == asked[item.partition]]
        stuck = [item for item in moving if item.move_waits]
        astray_looks = astray_looks + 1 if away and not moving else 0
        stuck_looks = stuck_looks + 1 if moving and len(stuck) == len(moving) else 0
        if astray_looks == ASTRAY_LOOKS or stuck_looks == STUCK_LOOKS:
            return Remaining(0)
        return Remaining(len(away), sum(item.bytes_behind or 0 for item in moving))

    try:
        wait_moved(look)
    except KeyboardInterrupt:
        err.print(f"the move goes on; {_how_to_cancel(name)}", markup=False)
        raise
    return info, [_why_away(item, asked) for item in info.partitions if _is_away(item, asked)]


def _is_away(item: PartitionInfo, asked: dict[int, frozenset[int]]) -> bool:
    """Whether a partition that was moved is not where it was asked to be."""
    wanted = asked.get(item.partition)
    return wanted is not None and (bool(item.target) or set(item.replicas) != wanted)


def _why_away(item: PartitionInfo, asked: dict[int, frozenset[int]]) -> str:
    where = f"partition {item.partition}"
    if set(item.target) == asked[item.partition]:
        return f"{where}: {item.move_waits or 'it moves still'}"
    if item.target:
        return f"{where}: its move was replaced by one to nodes {_listed(item.target)}"
    return f"{where}: its move was cancelled or replaced; it is on nodes {_listed(item.replicas)}"


def _listed(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, nodes))


def elect_leader(
    name: StreamArgument,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.")
    ] = None,
    node: Annotated[
        int | None,
        typer.Option(
            "--node",
            metavar="N",
            min=1,
            help="A replica in sync, which is the preferred leader from then on. Default: the "
            "preferred leader.",
        ),
    ] = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Have the preferred leader, or a replica that you name, lead a stream now.

    The leadership is handed over: no message is lost, and acks wait for some 0.1 s.
    """
    import bascule

    with bascule.connect_sync(server) as client:
        changes = client.elect_leader(name, partition=partition, node=node)
    if json:
        print_json({"name": name, "partitions": [asdict(each) for each in changes]})
        return
    out.print(leaders_table(changes))
    left = [each for each in changes if each.why]
    moved = sum(not each.why and each.leader != each.before for each in changes)
    stream = f"stream [bold]{escape(name)}[/bold]"
    if moved or left:
        out.print(f"[green]✓[/green] {counted(moved, 'new leader')} of {stream}")
    else:
        out.print(f"[green]✓[/green] {stream} is led as asked: nothing was to be changed")
    if left:
        print_warning(f"{counted(len(left), 'partition')} not led as asked")


def leaders_table(changes: list[LeaderChange]) -> Table:
    """One row per partition."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("partition", "led before", "leads now", "epoch"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    for each in changes:
        leader = "[red]none" if each.leader == NO_LEADER else str(each.leader)
        before = "none" if each.before == NO_LEADER else str(each.before)
        why = f"[yellow]{escape(each.why)}" if each.why else ""
        table.add_row(str(each.partition), before, leader, str(each.leader_epoch), why)
    return table


def _remaining(info: StreamInfo) -> Remaining:
    moving = [item for item in info.partitions if item.target]
    return Remaining(len(moving), sum(item.bytes_behind or 0 for item in moving))
