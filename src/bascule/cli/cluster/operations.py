"""The commands `node drain`, `node resume`, `cluster balance` and `cluster throttle`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.markup import escape
from rich.table import Table

from bascule.cli.cluster.waiting import STUCK_LOOKS, Remaining, wait_moved
from bascule.cli.exit_codes import FAILED
from bascule.cli.output import JsonOption, ServerOption, out, print_error, print_json, print_warning
from bascule.cli.units import bytes_text, counted, parse_rate
from bascule.errors import Broken, UnknownNode
from bascule.model import ClusterInfo, PartitionRef
from bascule.operation_results import BalancePlan, NodeDrain

if TYPE_CHECKING:
    from bascule.client import SyncClient

MOVES_SHOWN_MAX: Final = 20
"""Listed of those that go on; the rest is counted."""

NumberArgument = Annotated[int, typer.Argument(metavar="N", help="Number of the node.")]


def drain(
    number: NumberArgument,
    replicas: Annotated[
        bool, typer.Option("--replicas", help="Its replicas move to other nodes, too.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when all has left it that can.")
    ] = False,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Shown with the node as long as it is.")
    ] = "",
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Have other nodes lead what a node leads, as before it is restarted.

    It gets no leaders and replicas until `bascule node resume`, also if it starts again. Its
    replicas follow and stay in sync. What nobody else can lead it leads on.

    With --wait the exit code is 1 where something does not leave it: the output says what and why.
    """
    import bascule

    with bascule.connect_sync(server) as client:
        found = client.drain_node(number, replicas=replicas, reason=reason)
        if wait:
            found = wait_drained(client, number, replicas=replicas)
    is_ended = wait and not _is_under_way(found, replicas=replicas)
    if json:
        print_json(asdict(found))
    elif is_ended:
        print_error(f"the drain of node {number} was ended meanwhile, as by `bascule node resume`")
    else:
        _show_drain(found)
    if is_ended or (wait and found.stuck_count):
        raise typer.Exit(FAILED)


def resume(number: NumberArgument, server: ServerOption = None, json: JsonOption = False) -> None:
    """Have a drained node lead and get replicas again.

    Its preferred leaders return to it within seconds (cluster.leader_balance_ms).
    """
    import bascule

    with bascule.connect_sync(server) as client:
        found = client.resume_node(number)
        info = None if json else client.cluster()
    if info is None:
        print_json(asdict(found))
    else:
        held = _held(found)
        out.print(f"[green]✓[/green] node {number} goes on, with {held}")
        show_moves_away(info, number)


def move_text(ref: PartitionRef) -> str:
    """From where to where a partition moves: `1 2 3 → 4 2 3`."""
    before, after = (" ".join(map(str, nodes)) for nodes in (ref.replicas, ref.target))
    return f"{before} → {after}"


def show_moves_away(info: ClusterInfo, number: int) -> None:
    """The moves off a node that stays, which go on, and how to take them back."""
    away = [each for each in info.moving if number in each.replicas and number not in each.target]
    if not away:
        return
    count = counted(len(away), "partition")
    out.print(f"moves away from it that had begun go on ({count}):")
    for each in away[:MOVES_SHOWN_MAX]:
        out.print(f"  {each.stream} {each.partition}: {move_text(each)}", markup=False)
    if len(away) > MOVES_SHOWN_MAX:
        out.print(f"  and {len(away) - MOVES_SHOWN_MAX:,} more")
    out.print(
        f"`bascule stream reassign {away[0].stream} --cancel` takes those of one stream back",
        markup=False,
    )


def balance(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would move.")] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Begin no more moves; those under way go on.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it is done.")] = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Have all nodes hold about as many replicas, as after a node has joined.

    A few partitions move at a time, and racks stay apart. `bascule cluster throttle` limits how
    fast they are copied.
    """
    import bascule

    if dry_run + stop + wait > 1:
        raise typer.BadParameter("give one of --dry-run, --stop and --wait")
    with bascule.connect_sync(server) as client:
        plan = client.balance_plan() if dry_run else client.balance(stop=stop)
        if wait:
            wait_moved(lambda: _left_to_balance(client))
    if json:
        print_json(asdict(plan))
        return
    if plan.moves and not stop:
        out.print(_plan_table(plan))
        if plan.count > len(plan.moves):
            out.print(f"  and {plan.count - len(plan.moves):,} more")
    done = {True: "no more moves begin", False: "they begin, a few at a time"}[stop]
    if wait:
        done = "they are done"
    elif dry_run:
        done = "nothing has been changed"
    if plan.count or stop:
        copied = bytes_text(plan.bytes)
        out.print(f"[green]✓[/green] {counted(plan.count, 'move')}, {copied} to copy: {done}")
    else:
        out.print("[green]✓[/green] the nodes hold about as many replicas: nothing is to be moved")


def throttle(
    rate: Annotated[
        str | None,
        typer.Argument(
            metavar="SIZE",
            help="Bytes a second, such as 50MiB; none or 0: no limit, moves yield to messages.",
        ),
    ] = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Limit what each node sends to replicas that are not in sync, or show the limit.

    It is in force at once, also for moves under way, and stays. Replicas in sync have no limit.
    Without one, a move of a partition yields to messages, and other copies have no limit.
    """
    import bascule

    wanted = None if rate is None else parse_rate(rate)
    with bascule.connect_sync(server) as client:
        if wanted is not None:
            client.throttle(wanted)
        limit = client.cluster().catch_up_rate
    if json:
        print_json({"bytes_per_second": limit})
    else:
        out.print(f"catch-up  {limit_text(limit)}")


def limit_text(rate: int) -> str:
    """A limit of bytes a second, for people."""
    return f"{bytes_text(rate)}/s of each node" if rate else "no limit; moves yield to messages"


def _is_under_way(found: NodeDrain, *, replicas: bool) -> bool:
    """Whether a node is drained still, as it was asked; with `replicas` they are to leave it."""
    return found.is_drained and (found.is_emptied or not replicas)


def wait_drained(client: SyncClient, number: int, *, replicas: bool = False) -> NodeDrain:
    """Wait until all has left a drained node that can, or somebody has ended the drain."""
    found = client.node_drain(number)

    def look() -> Remaining:
        nonlocal found
        found = client.node_drain(number)
        if not _is_under_way(found, replicas=replicas):
            return Remaining(0)
        return Remaining(found.pending_count, found.bytes_left)

    wait_moved(look)
    return found


def wait_left(client: SyncClient, number: int) -> NodeDrain | None:
    """Return None once a node that is to be removed has left the cluster. Where nothing of it moves
    any more that can, return what stays; where somebody has taken the removal back, too.

    Raises: Broken where no server answers, as when the only one was that node.
    """
    found: NodeDrain | None = None
    stuck_looks = 0

    def look() -> Remaining:
        nonlocal found, stuck_looks
        try:
            found = client.node_drain(number)
        except UnknownNode:
            found = None
            return Remaining(0)
        except Broken as error:
            raise Broken(
                f"{error}; node {number} ends when it has left, so ask another one: `bascule node "
                "list --server URL`"
            ) from error
        if not found.is_leaving:
            return Remaining(0)
        stuck_looks = stuck_looks + 1 if found.stuck_count and not found.pending_count else 0
        if stuck_looks == STUCK_LOOKS:
            return Remaining(0)
        if left := found.pending_count + found.stuck_count:
            return Remaining(left, found.bytes_left)
        return Remaining(
            1, instead=f"node {number} has no replicas any more, and leaves the cluster"
        )

    wait_moved(look)
    return found


def _left_to_balance(client: SyncClient) -> Remaining:
    plan = client.balance_plan()
    return Remaining(plan.count + plan.moving if plan.is_balancing else plan.moving, plan.bytes)


def _show_drain(found: NodeDrain) -> None:
    if found.left:
        out.print(left_table(found))
    held = _held(found)
    out.print(f"[green]✓[/green] node {found.node_id} is drained; it has {held}")
    if found.pending_count:
        out.print(f"{counted(found.pending_count, 'partition')} still to leave it")
    if found.stuck_count:
        print_warning(f"{counted(found.stuck_count, 'partition')} cannot leave it")


def _held(found: NodeDrain) -> str:
    return f"{counted(found.leaders, 'leader')} and {counted(found.replicas, 'replica')}"


def left_table(found: NodeDrain) -> Table:
    """What has not left a node yet, one row per partition."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("stream", "partition", "is", "why it stays"):
        table.add_column(title)
    for each in found.left:
        style = "" if each.is_pending else "[yellow]"
        role = "leader" if each.leads else "replica"
        table.add_row(escape(each.stream), str(each.partition), role, style + escape(each.why))
    return table


def _plan_table(plan: BalancePlan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("stream", "partition", "from", "to"):
        table.add_column(title, no_wrap=title == "stream")
    table.add_column("bytes", justify="right")
    for each in plan.moves:
        size = bytes_text(each.bytes) if each.is_copied else "preferred leader"
        row = (str(each.partition), str(each.source), str(each.destination), size)
        table.add_row(escape(each.stream), *row)
    return table
