"""`bascule stream create|list|info|delete`."""

from __future__ import annotations

from typing import Annotated

import typer

from bascule.cli.output import (
    JsonOption,
    ServerOption,
    err,
    out,
    print_json,
    stream_as_json,
    stream_detail,
    streams_table,
)

streams = typer.Typer(help="Create, list, show and delete streams.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the stream.")]


@streams.command()
def create(
    name: NameArgument,
    subject: Annotated[
        str, typer.Option("--subject", help="NATS subject; wildcards * and > are allowed.")
    ],
    group: Annotated[
        str | None, typer.Option("--group", help="NATS queue group to subscribe in.")
    ] = None,
    sync: Annotated[
        str | None,
        typer.Option("--sync", help="When acks leave: always (synced), interval or never."),
    ] = None,
    sync_interval_ms: Annotated[
        int | None, typer.Option(help="Time between syncs under interval.")
    ] = None,
    segment_bytes_max: Annotated[
        int | None, typer.Option(help="Roll segments at this size.")
    ] = None,
    segment_age_ms_max: Annotated[
        int | None, typer.Option(help="Roll segments at this age.")
    ] = None,
    message_bytes_max: Annotated[int | None, typer.Option(help="Largest message stored.")] = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Create a stream; asking again for the same one changes nothing.

    What is left out gets the node's default. Another configuration under the same name is refused.
    """
    import bascule

    with bascule.connect_sync(server) as client:
        info, created = client.create_stream(
            name,
            subject,
            group=group,
            sync=sync,
            sync_interval_ms=sync_interval_ms,
            segment_bytes_max=segment_bytes_max,
            segment_age_ms_max=segment_age_ms_max,
            message_bytes_max=message_bytes_max,
        )
    if json:
        print_json({"created": created, "stream": stream_as_json(info)})
    else:
        done = "created" if created else "exists already, as asked:"
        out.print(f"[green]✓[/green] stream [bold]{name}[/bold] {done} on {subject}")


@streams.command("list")
def list_streams(server: ServerOption = None, json: JsonOption = False) -> None:
    """List all streams."""
    import bascule

    with bascule.connect_sync(server) as client:
        infos = client.streams()
    if json:
        print_json([stream_as_json(info) for info in infos])
    elif infos:
        out.print(streams_table(infos))
    else:
        err.print("no streams yet: bascule stream create NAME --subject SUBJECT")


@streams.command()
def info(name: NameArgument, server: ServerOption = None, json: JsonOption = False) -> None:
    """Show one stream: its configuration, and its partitions now."""
    import bascule

    with bascule.connect_sync(server) as client:
        found = client.stream(name)
    if json:
        print_json(stream_as_json(found))
    else:
        out.print(stream_detail(found))


@streams.command()
def delete(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    server: ServerOption = None,
) -> None:
    """Delete a stream and all its messages, for good."""
    import bascule

    with bascule.connect_sync(server) as client:
        found = client.stream(name)
        held = sum(p.high_watermark - p.start_offset for p in found.partitions)
        if not yes:
            typer.confirm(f"delete stream {name} and its {held:,} messages?", abort=True, err=True)
        client.delete_stream(name)
    out.print(f"[green]✓[/green] stream [bold]{name}[/bold] deleted")
