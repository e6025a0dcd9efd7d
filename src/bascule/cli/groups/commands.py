"""The commands of `bascule group`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from bascule.cli.completion import consumer_names, stream_names
from bascule.cli.exit_codes import UNKNOWN
from bascule.cli.groups.tables import (
    group_as_json,
    groups_table,
    listing_as_json,
    members_table,
    offsets_table,
    reset_as_json,
    resets_table,
    summary_grid,
)
from bascule.cli.help import CommandGroup
from bascule.cli.output import (
    JsonOption,
    ServerOption,
    YesOption,
    confirm,
    err,
    out,
    print_error,
    print_json,
)
from bascule.cli.units import parse_moment
from bascule.errors import UnknownGroup

groups = CommandGroup(
    help="List, show, reset and delete consumer groups: members, committed offsets and lag. "
    "Also: ls, rm.",
)

GroupArgument = Annotated[
    str,
    typer.Argument(
        metavar="GROUP",
        help="The group.id of Kafka clients, or the name of a consumer.",
        autocompletion=consumer_names,
    ),
]
StreamOption = Annotated[
    str | None, typer.Option("--stream", help="Only this stream.", autocompletion=stream_names)
]
PartitionOption = Annotated[
    int | None, typer.Option("--partition", min=0, help="Only this partition; needs --stream.")
]


@groups.command("ls", hidden=True)
@groups.command("list")
def list_groups(
    stream: StreamOption = None,
    state: Annotated[
        str | None,
        typer.Option("--state", help="Only groups in this state, such as Stable or Empty."),
    ] = None,
    type: Annotated[
        str | None, typer.Option("--type", metavar="classic|consumer", help="Only this type.")
    ] = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """List the groups with their lag: the records that they have not processed yet.

    A group has members, committed offsets, or both. One without members is Empty. With --stream,
    partitions and lag are those of this stream.
    """
    import bascule

    with bascule.connect_sync(server) as client:
        found = client.groups(stream=stream, state=state, type=type)
    if json:
        print_json([listing_as_json(each) for each in found])
    elif found:
        out.print(groups_table(found))
    elif stream or state or type:
        err.print("no such group; `bascule group list` shows all")
    else:
        err.print(
            "no groups; a Kafka client with a group.id makes one, "
            "and so does `bascule read STREAM --consumer NAME`"
        )


@groups.command("info")
def show_group(
    group: GroupArgument,
    stream: StreamOption = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Show one group: its members, and how far it is in each partition.

    offset is the next record that the group processes, end is behind the last one that can be read,
    and lag is the number between them. Without an end, the partition is gone, or its leader does
    not answer.
    """
    import bascule

    with bascule.connect_sync(server) as client:
        found = client.group(group)
    if json:
        print_json(group_as_json(found, stream))
        return
    out.print(summary_grid(found))
    if found.members:
        out.print()
        out.print(members_table(found.members))
    offsets = [each for each in found.offsets if stream in (None, each.stream)]
    out.print()
    if offsets:
        out.print(offsets_table(offsets, found.members))
    else:
        out.print("no committed offsets", style="dim")


@groups.command("reset-offsets")
def reset_offsets(
    group: GroupArgument,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the first record of each partition.")
    ] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="Behind the last record of each partition.")
    ] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, help="To this offset.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime",
            metavar="TIME",
            help="To the first record at or after this time: ISO 8601, local without a zone, or 2h "
            "for two hours ago.",
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by",
            metavar="N",
            help="By N records from the committed offsets; a negative N goes back. Stops at the "
            "ends of a partition.",
        ),
    ] = None,
    stream: Annotated[
        str | None,
        typer.Option(
            "--stream",
            help="Only this stream; without it, all for which the group has offsets.",
            autocompletion=stream_names,
        ),
    ] = None,
    partition: PartitionOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what it would do, and commit nothing.")
    ] = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Set the offsets at which a group continues. Give one of the positions.

    A group with members is refused: stop its clients first. The command cannot see a consumer that
    assigns partitions itself, such as `bascule read --consumer`; it overwrites the offsets while it
    runs. With --stream the group need not exist yet.
    """
    import bascule

    position = _position(
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_offset=to_offset,
        to_datetime=to_datetime,
        shift_by=shift_by,
    )
    _check_partition(stream, partition)
    with bascule.connect_sync(server) as client, _hint_of_stream(stream):
        done = client.reset_offsets(group, stream, partition=partition, dry_run=dry_run, **position)
    if json:
        print_json(
            {"group": group, "dry_run": dry_run, "partitions": [reset_as_json(e) for e in done]}
        )
        return
    out.print(resets_table(done))
    if dry_run:
        err.print("nothing has been committed: repeat the command without --dry-run")


@contextmanager
def _hint_of_stream(stream: str | None) -> Iterator[None]:
    """Say that a group that does not exist may be given offsets for a stream."""
    try:
        yield
    except UnknownGroup as error:
        if stream is not None:
            raise
        hint = "with --stream it need not exist; `bascule group list` shows the groups"
        print_error(str(error), hint)
        raise typer.Exit(UNKNOWN) from error


@groups.command("rm", hidden=True)
@groups.command("delete")
def delete_group(
    group: GroupArgument,
    stream: StreamOption = None,
    partition: PartitionOption = None,
    yes: YesOption = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a group: its committed offsets, or with --stream only those for one stream.

    Its consumers then start where they are told to start without an offset. A group with members is
    refused: stop its clients first.
    """
    import bascule

    _check_partition(stream, partition)
    with bascule.connect_sync(server) as client:
        what = f"forget its offsets in stream {stream}" if stream else "forget all its offsets"
        verb = "of group" if stream else "delete group"
        question = f"{verb} {group}: {what}?" if stream else f"{verb} {group} and {what}?"
        confirm(question, yes=yes)
        count = client.delete_group(group, stream=stream, partition=partition)
    if json:
        print_json({"group": group, "removed": count})
        return
    offsets = f"{count} committed {'offset' if count == 1 else 'offsets'}"
    done = f"{offsets} of group {group} removed" if stream else f"group {group} deleted, {offsets}"
    out.print("[green]✓[/green]", end=" ")
    out.print(done, markup=False)


def _check_partition(stream: str | None, partition: int | None) -> None:
    if partition is not None and stream is None:
        raise typer.BadParameter("--partition needs --stream: it is a partition of a stream")


def _position(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    shift_by: int | None,
) -> dict[str, Any]:
    """The arguments of `reset_offsets` for the one position that is given."""
    given: list[dict[str, Any]] = []
    if to_earliest:
        given.append({"to": "earliest"})
    if to_latest:
        given.append({"to": "latest"})
    if to_offset is not None:
        given.append({"offset": to_offset})
    if to_datetime is not None:
        now_ms = time.time_ns() // 1_000_000
        given.append({"timestamp_ms": max(0, parse_moment(to_datetime, now_ms=now_ms))})
    if shift_by is not None:
        given.append({"shift_by": shift_by})
    if len(given) != 1:
        raise typer.BadParameter(
            f"{len(given)} positions are given, expected one of --to-earliest, --to-latest, "
            "--to-offset, --to-datetime and --shift-by"
        )
    return given[0]
