"""The commands `cluster status`, `node list`, `node info` and `node remove`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.table import Table

from bascule.cli.cluster.joining import join
from bascule.cli.cluster.operations import (
    balance,
    drain,
    left_table,
    limit_text,
    move_text,
    resume,
    show_moves_away,
    throttle,
    wait_left,
)
from bascule.cli.cluster.whole import short_text, wait
from bascule.cli.exit_codes import FAILED
from bascule.cli.output import (
    JsonOption,
    ServerOption,
    YesOption,
    confirm,
    out,
    print_error,
    print_json,
    print_warning,
)
from bascule.cli.units import counted, moment_text
from bascule.errors import ConfigError, UnknownNode
from bascule.model import NO_LEADER, ClusterInfo, NodeRegistration, PartitionRef
from bascule.operation_results import NodeDrain

SHOWN_MAX: Final = 20
"""Partitions listed for each trouble; the rest is counted."""

cluster = typer.Typer(help="Show the cluster, and balance it.", no_args_is_help=True)
node = typer.Typer(help="Show, add, drain and remove nodes of the cluster.", no_args_is_help=True)
node.command("join")(join)
node.command("drain")(drain)
node.command("resume")(resume)
cluster.command("balance")(balance)
cluster.command("throttle")(throttle)
cluster.command("wait")(wait)


@cluster.command()
def status(server: ServerOption = None, json: JsonOption = False) -> None:
    """Show the controller, the nodes, and the partitions that are not as they should be."""
    import bascule

    with bascule.connect_sync(server) as client:
        info = client.cluster()
        answering = 0 if info.controller else client.node().node_id
    if json:
        print_json(asdict(info))
        return
    controller = f"node {info.controller}, term {info.term}" if info.controller else "[red]none"
    out.print(f"cluster     {escape(info.name)}")
    out.print(f"controller  {controller}")
    out.print(f"version     {version_text(info)}")
    out.print(f"partitions  {info.partitions:,}")
    if info.catch_up_rate:
        out.print(f"catch-up    {limit_text(info.catch_up_rate)}")
    if info.is_balancing:
        out.print("balance     replicas move until nodes hold about as many")
    out.print(_nodes_table(info))
    _show_lost(info, answering)
    _show_lacking_nats(info)
    _show_trouble(
        "without a leader: nothing is taken or served", info.leaderless, info.leaderless_count
    )
    _show_trouble(
        "with fewer replicas in sync than messages need",
        info.under_min_isr,
        info.under_min_isr_count,
    )
    _show_under_replicated(info)
    _show_moving(info)
    _show_failed(info)
    if info.differing:
        out.print(f"[red]{counted(len(info.differing), 'differing replica')}")
        for differing in info.differing[:SHOWN_MAX]:
            where = f"{differing.stream} {differing.partition} on node {differing.node}"
            out.print(f"  {escape(where)}: {escape(differing.failure)}; {escape(differing.advice)}")
    _show_trouble(
        "that may have lost committed records: a leader was elected out of sync",
        info.unclean,
        info.unclean_count,
    )
    if info.unclean:
        out.print(
            "  bascule stream acknowledge-loss STREAM removes them from this list", style="dim"
        )
    troubles = (
        info.leaderless, info.under_min_isr, info.under_replicated, info.failed, info.lacking_nats,
    )  # fmt: skip
    if info.controller and not any(troubles):
        out.print("[green]all partitions have a leader, and all replicas are in sync")


@node.command("list")
def list_nodes(server: ServerOption = None, json: JsonOption = False) -> None:
    """List the nodes."""
    info = _ask(server)
    if json:
        print_json([asdict(each) for each in info.nodes])
        return
    out.print(_nodes_table(info))


@node.command("info")
def show_node(
    number: Annotated[int, typer.Argument(metavar="N", help="Number of the node.")],
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Show one node: its state, its addresses, and what it leads and holds."""
    import bascule

    with bascule.connect_sync(server) as client:
        info, held = client.cluster(), client.node_drain(number)
    found = next((each for each in info.nodes if each.node_id == number), None)
    if found is None:
        raise UnknownNode(number)
    if json:
        print_json({**asdict(found), "leaders": held.leaders, "replicas": held.replicas})
        return
    table = Table.grid(padding=(0, 2))
    for title, text in (
        ("node", str(number)),
        ("state", _state(found, info)),
        ("rack", escape(found.rack) or "none"),
        ("peer", found.peer),
        ("client", found.client),
        ("HTTP", found.http),
        ("version", found.version),
        ("supports", f"cluster version {_supported(found)}; {info.cluster_version} is in force"),
        ("leads", counted(held.leaders, "partition")),
        ("holds", counted(held.replicas, "replica")),
    ):
        table.add_row(title, text)
    out.print(table)
    if held.left:
        out.print()
        out.print(left_table(held))


@node.command("remove")
def remove_node(
    number: Annotated[int, typer.Argument(metavar="N", help="Number of the node.")],
    force: Annotated[
        bool,
        typer.Option("--force", help="Give its replicas up: for a node that is dead for good."),
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Take the removal back: the node stays.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Show the progress, and return when it has left.")
    ] = False,
    yes: YesOption = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Remove a node from the cluster. Its replicas move to other nodes first, then it stops.

    With --wait the exit code is 1 where something does not leave it: the output says what and why.

    With --force the replicas of a node that is lost are given up, and other nodes copy them from
    those that are left. The number may be used again by a node with an empty data directory.

    With --cancel a removal that is in progress ends: no more replicas move away.
    """
    import bascule

    if cancel:
        if force or wait:
            raise ConfigError("--cancel takes a removal back: leave --force and --wait out")
        with bascule.connect_sync(server) as client:
            held = client.cancel_removal(number)
            known = None if json else client.cluster()
        if known is None:
            print_json({"node_id": number, "replicas": held})
        else:
            out.print(f"[green]✓[/green] node {number} stays, with {counted(held, 'replica')}")
            show_moves_away(known, number)
        return
    confirm(f"remove node {number} from the cluster?", yes=yes)
    with bascule.connect_sync(server) as client:
        held = client.remove_node(number, force=force)
        stays = wait_left(client, number) if wait else None
        info = client.cluster() if force else None
    if json:
        left = [asdict(each) for each in stays.left] if stays else []
        short = {"short_count": info.short_count} if info else {}
        print_json({"node_id": number, "replicas": held} | ({"left": left} if wait else {}) | short)
    elif stays:
        _show_staying(stays)
    elif wait or force:
        out.print(f"[green]✓[/green] node {number} is removed")
        _warn_of_copies(info)
    else:
        out.print(
            f"[green]✓[/green] node {number} leaves: {counted(held, 'replica')} to move first; "
            "`bascule node list` shows when it has left"
        )
    if stays:
        raise typer.Exit(FAILED)


def _show_staying(stays: NodeDrain) -> None:
    """Why a node that was to be removed is in the cluster still."""
    number = stays.node_id
    if not stays.is_leaving:
        held = counted(stays.replicas, "replica")
        print_error(f"the removal of node {number} was taken back meanwhile: it stays, with {held}")
        return
    out.print(left_table(stays))
    stuck = counted(stays.stuck_count, "partition")
    print_error(
        f"node {number} is not removed yet: {stuck} cannot leave it",
        f"the removal goes on once they can; `bascule node remove {number} --cancel` takes it back",
    )


def _warn_of_copies(info: ClusterInfo | None) -> None:
    """Say what a removal by force has left with fewer copies."""
    if info is None:
        return
    if info.short_count:
        print_warning(f"{counted(info.short_count, 'partition')}{short_text(info)}")
    if count := info.under_replicated_count - info.short_count:
        print_warning(
            f"{counted(count, 'partition')} with fewer replicas in sync than asked for, until "
            "other nodes have copied them: `bascule cluster wait` waits for that"
        )


def _ask(server: str | None) -> ClusterInfo:
    import bascule

    with bascule.connect_sync(server) as client:
        return client.cluster()


def _nodes_table(info: ClusterInfo) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("node", "state", "rack", "peer", "client", "HTTP", "version", "supports"):
        table.add_column(title)
    for each in info.nodes:
        table.add_row(
            str(each.node_id),
            _state(each, info),
            escape(each.rack),
            each.peer,
            each.client,
            each.http,
            each.version,
            _supported(each),
        )
    return table


def _supported(node: NodeRegistration) -> str:
    oldest, newest = node.cluster_version_min, node.cluster_version_max
    return str(newest) if oldest == newest else f"{oldest}-{newest}"


def version_text(info: ClusterInfo) -> str:
    """The cluster version in force, and what keeps it from rising."""
    newest = max((each.cluster_version_max for each in info.nodes), default=info.cluster_version)
    behind = [each for each in info.nodes if each.cluster_version_max < newest]
    if newest <= info.cluster_version or not behind:
        return str(info.cluster_version)
    nodes = ", ".join(f"{each.node_id} (release {each.version or '?'})" for each in behind)
    who = "node" if len(behind) == 1 else "nodes"
    return f"{info.cluster_version}; {newest} once {who} {nodes} {_have(behind)} a release for it"


def _have(nodes: list[NodeRegistration]) -> str:
    return "has" if len(nodes) == 1 else "have"


def _state(each: NodeRegistration, info: ClusterInfo) -> str:
    if not info.controller:  # nobody looks
        return "[yellow]was alive" if each.alive else "[red]was lost"
    words = ["[green]alive" if each.alive else "[red]lost"]
    if each.node_id == info.controller:
        words.append("controller")
    elif each.node_id in info.learners:
        words.append("learner")
    if each.is_leaving:
        words.append("[yellow]leaving[/yellow]")
    if each.is_drained:
        emptied = ", gives its replicas away" if each.is_emptied else ""
        reason = f" ({escape(each.drain_reason)})" if each.drain_reason else ""
        words.append(f"[yellow]drained{reason}{emptied}[/yellow]")
    if each.alive and each.lacks_nats:
        words.append("[yellow]no NATS[/yellow]")
    if each.alive and each.is_stopping:
        words.append("stopping")
    return ", ".join(words)


def _show_lost(info: ClusterInfo, answering: int) -> None:
    """What can be done where nodes are lost; `answering` is the node that says so."""
    if not info.controller:
        others = [str(each) for each in info.voters if each != answering]
        voters = f"voters {', '.join(others)}" if others else "other voters"
        out.print(
            "[red]nothing can be decided: fewer than a majority of the voters run and reach each "
            "other[/red]"
        )
        out.print(
            f"  start the {voters}, or mend the network between them and node {answering}, which "
            "answers; if too many of them are lost for good: docs/backup.md. Above and below is "
            "what this node knew last"
        )
        return
    lost = [str(each.node_id) for each in info.nodes if not each.alive]
    if lost:
        out.print(
            f"  start node {', '.join(lost)} again; if it is lost for good: docs/operations.md, "
            "replace a machine that is lost",
            style="dim",
        )


def _show_lacking_nats(info: ClusterInfo) -> None:
    for each in info.lacking_nats:
        leads = counted(each.led, "partition") if each.led else "no partition"
        why = ", where no other replica in sync has NATS" if each.led else ""
        out.print(
            f"[red]node {each.node_id} has had no NATS connection since "
            f"{moment_text(each.since_ms)}: it leads {leads}{why}"
        )


def _show_moving(info: ClusterInfo) -> None:
    if not info.moving:
        return
    count = max(info.moving_count, len(info.moving))
    out.print(f"[yellow]{counted(count, 'partition')} on the way to other nodes")
    for each in info.moving[:SHOWN_MAX]:
        waits = f"; {each.move_waits}" if each.move_waits else ""
        out.print(f"  {each.stream} {each.partition}: {move_text(each)}{waits}", markup=False)
    if count > SHOWN_MAX:
        out.print(f"  and {count - SHOWN_MAX:,} more")


def _show_under_replicated(info: ClusterInfo) -> None:
    """Those that are behind, and those that have fewer replicas than their streams ask for."""
    short = tuple(each for each in info.under_replicated if each.short)
    behind = tuple(each for each in info.under_replicated if not each.short)
    # Only those that are listed are known to be one or the other.
    count = max(info.under_replicated_count, len(info.under_replicated))
    _show_trouble("with a replica that is not in sync", behind, len(behind) if short else count)
    _show_trouble(
        "with fewer replicas than their streams ask for",
        short,
        len(short) if behind else count,
    )
    if behind and short and count > len(info.under_replicated):
        out.print(f"  and {count - len(info.under_replicated):,} more of these two kinds")


def _show_failed(info: ClusterInfo) -> None:
    if not info.failed:
        return
    count = max(info.failed_count, len(info.failed))
    out.print(f"[red]{counted(count, 'failed replica')}")
    for each in info.failed[:SHOWN_MAX]:
        text = f"{each.stream} {each.partition} on node {each.node}: {each.advice}"
        out.print(f"  {text}; cause: {each.failure}", markup=False)
    if info.failed_count > SHOWN_MAX:
        out.print(f"  and {info.failed_count - SHOWN_MAX:,} more")


def _show_trouble(what: str, partitions: tuple[PartitionRef, ...], told: int) -> None:
    """`told` is 0 where an earlier release answers, which lists all of them."""
    if not partitions:
        return
    count = max(told, len(partitions))
    out.print(f"[red]{counted(count, 'partition')} {what}")
    for each in partitions[:SHOWN_MAX]:
        leader = "no leader" if each.leader == NO_LEADER else f"leader {each.leader}"
        text = f"{leader}, in sync {list(each.isr)} of {list(each.replicas)}"
        if each.unclean_epoch:
            text += f", leader epoch {each.unclean_epoch} began without one that was in sync"
        text += "".join(f"; {why}" for why in (each.waits, each.short) if why)
        out.print(f"  {each.stream} {each.partition}: {text}", markup=False)
    if count > SHOWN_MAX:
        out.print(f"  and {count - SHOWN_MAX:,} more")
