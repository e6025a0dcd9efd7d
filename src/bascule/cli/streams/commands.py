"""The commands of `bascule stream`."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from bascule.cli.output import JsonOption, ServerOption, err, out, print_json
from bascule.cli.streams.settings import with_settings
from bascule.cli.streams.tables import (
    partitions_table,
    purged_table,
    stream_as_json,
    stream_detail,
    streams_table,
)
from bascule.cli.units import moment_text, parse_moment
from bascule.model import StreamInfo

streams = typer.Typer(
    help="Create, alter, list, show, pause, purge and delete streams.", no_args_is_help=True
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the stream.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@streams.command()
@with_settings(alterable_only=False)
def create(
    name: NameArgument,
    subject: Annotated[
        str, typer.Option("--subject", help="NATS subject; wildcards * and > are allowed.")
    ],
    settings: dict[str, Any],
    group: Annotated[
        str | None, typer.Option("--group", help="NATS queue group to subscribe in.")
    ] = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Create a stream. Repeating the command with the same settings changes nothing.

    Settings that are left out get the node's defaults. Another configuration under the same name is
    refused. Sizes are written as 10GiB, durations as 7d, 12h, 90s or 250ms, no limit as none.
    """
    import bascule

    with bascule.connect_sync(server) as client:
        info, created = client.create_stream(name, subject, group=group, **settings)
    if json:
        print_json({"created": created, "stream": stream_as_json(info)})
    else:
        done = "created" if created else "exists already, as asked:"
        out.print(f"[green]✓[/green] stream [bold]{name}[/bold] {done} on {subject}")


@streams.command()
@with_settings(alterable_only=True)
def alter(
    name: NameArgument,
    settings: dict[str, Any],
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Change settings of a stream. Settings that are left out stay unchanged.

    Subject, group, partition-by and key-from cannot change. Partitions can only be added: with
    partition-by subject or key, later messages of a subject or key may then go to another partition
    than earlier ones.
    """
    import bascule

    if not settings:
        raise typer.BadParameter("nothing to change: give at least one setting")
    with bascule.connect_sync(server) as client:
        info = client.alter_stream(name, **settings)
    if json:
        print_json(stream_as_json(info))
    else:
        out.print(f"[green]✓[/green] stream [bold]{name}[/bold] altered")


@streams.command("list")
def list_streams(
    internal: Annotated[bool, typer.Option("--internal", help="Include internal streams.")] = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """List the streams."""
    import bascule

    with bascule.connect_sync(server) as client:
        every = client.streams()
    infos = [info for info in every if internal or not info.definition.name.startswith("_")]
    if json:
        print_json([stream_as_json(info) for info in infos])
    elif infos:
        out.print(streams_table(infos))
    else:
        err.print("no streams yet: bascule stream create NAME --subject SUBJECT")


@streams.command()
def info(
    name: NameArgument,
    all_settings: Annotated[
        bool,
        typer.Option("--all", help="Every setting, not only those that differ from the defaults."),
    ] = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Show one stream: its settings and the state of its partitions."""
    import bascule

    with bascule.connect_sync(server) as client:
        found = client.stream(name)
    if json:
        print_json(stream_as_json(found))
        return
    out.print(stream_detail(found, all_settings=all_settings))
    out.print()
    out.print(partitions_table(found.partitions))


@streams.command()
def pause(name: NameArgument, server: ServerOption = None, json: JsonOption = False) -> None:
    """Stop accepting messages: publishers that want an ack get an error. Reading continues."""
    import bascule

    with bascule.connect_sync(server) as client:
        _report(client.pause_stream(name), "paused", json=json)


@streams.command()
def resume(name: NameArgument, server: ServerOption = None, json: JsonOption = False) -> None:
    """Accept messages again."""
    import bascule

    with bascule.connect_sync(server) as client:
        _report(client.resume_stream(name), "accepts messages", json=json)


@streams.command()
def purge(
    name: NameArgument,
    to: Annotated[
        int | None, typer.Option("--to", metavar="OFFSET", min=0, help="First offset to keep.")
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="TIME",
            help="Remove older messages: 2026-01-31T12:00Z, or 7d (ago).",
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.")
    ] = None,
    yes: YesOption = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Remove the oldest messages of a stream permanently; without --to or --before, all of them.

    Readers see the new start at once. Disk space is freed in whole segments.
    """
    import bascule

    if to is not None and before is not None:
        raise typer.BadParameter("--to and --before are both given: expected one of them")
    before_ms = None if before is None else parse_moment(before, now_ms=time.time_ns() // 1_000_000)
    with bascule.connect_sync(server) as client:
        found = client.stream(name)
        if not yes:
            question = _purge_question(found, to=to, before_ms=before_ms, partition=partition)
            typer.confirm(question, abort=True, err=True)
        purged = client.purge_stream(name, to_offset=to, before_ms=before_ms, partition=partition)
    gone = sum(item.start_offset - item.start_offset_before for item in purged)
    if json:
        print_json({"name": name, "partitions": [asdict(item) for item in purged]})
    else:
        out.print(purged_table(purged))
        out.print(f"[green]✓[/green] {gone:,} messages of stream [bold]{name}[/bold] are gone")


@streams.command()
def delete(name: NameArgument, yes: YesOption = False, server: ServerOption = None) -> None:
    """Delete a stream and all its messages permanently."""
    import bascule

    with bascule.connect_sync(server) as client:
        held = _held(client.stream(name), None)
        if not yes:
            typer.confirm(f"delete stream {name} and its {held:,} messages?", abort=True, err=True)
        client.delete_stream(name)
    out.print(f"[green]✓[/green] stream [bold]{name}[/bold] deleted")


def _report(info: StreamInfo, done: str, *, json: bool) -> None:
    if json:
        print_json(stream_as_json(info))
    else:
        out.print(f"[green]✓[/green] stream [bold]{info.definition.name}[/bold] {done}")


def _held(info: StreamInfo, partition: int | None) -> int:
    return sum(
        item.high_watermark - item.start_offset
        for item in info.partitions
        if partition in (None, item.partition)
    )


def _purge_question(
    info: StreamInfo, *, to: int | None, before_ms: int | None, partition: int | None
) -> str:
    name = info.definition.name
    where = f"stream {name}" if partition is None else f"partition {partition} of stream {name}"
    if before_ms is not None:
        return f"remove the messages of {where} older than {moment_text(before_ms)}?"
    if to is None:
        return f"remove all {_held(info, partition):,} messages of {where}?"
    starts = [p.start_offset for p in info.partitions if partition in (None, p.partition)]
    gone = sum(max(to - start, 0) for start in starts)
    return f"remove {gone:,} messages of {where}, those before offset {to:,}?"
