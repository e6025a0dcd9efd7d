"""`bascule offsets`: lists, resets and removes the committed offsets of consumers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from bascule.cli.completion import consumer_names, stream_names
from bascule.cli.output import (
    JsonOption,
    ServerOption,
    StreamArgument,
    YesOption,
    confirm,
    err,
    out,
    print_json,
)
from bascule.cli.read import POSITION_HELP, POSITION_METAVAR, parse_position
from bascule.cli.units import moment_text
from bascule.model import CommittedOffset

offsets = typer.Typer(
    help="List, reset and remove the committed offsets of consumers. Also: ls, rm.",
    no_args_is_help=True,
)

ConsumerArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONSUMER",
        help="Name of the consumer; the group.id of a Kafka client.",
        autocompletion=consumer_names,
    ),
]
ConsumerOption = Annotated[
    str | None,
    typer.Option("--consumer", help="Only this consumer.", autocompletion=consumer_names),
]
StreamOption = Annotated[
    str | None, typer.Option("--stream", help="Only this stream.", autocompletion=stream_names)
]
PartitionOption = Annotated[
    int | None, typer.Option("--partition", min=0, help="Only this partition.")
]


@offsets.command("ls", hidden=True)
@offsets.command("list")
def list_offsets(
    consumer: ConsumerOption = None,
    stream: StreamOption = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """List the committed offset and the lag of each consumer and partition."""
    import bascule

    with bascule.connect_sync(server) as client:
        found = client.offsets(consumer=consumer, stream=stream)
    if json:
        print_json([offset_as_json(entry) for entry in found])
    elif found:
        out.print(offsets_table(found))
    else:
        err.print("no committed offsets; `bascule read STREAM --consumer NAME` commits some")


@offsets.command()
def reset(
    consumer: ConsumerArgument,
    stream: StreamArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar=POSITION_METAVAR,
            help=f"New position. {POSITION_HELP}",
        ),
    ],
    partition: PartitionOption = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Set the offset at which a consumer continues, in all partitions or in one.

    Stop the consumer first: a running consumer overwrites the offset.
    """
    import bascule

    place = parse_position(to, option="--to")
    with bascule.connect_sync(server) as client:
        if isinstance(place, datetime):
            at = max(0, round(place.timestamp() * 1_000))
            done = client.reset_offsets(consumer, stream, timestamp_ms=at, partition=partition)
        elif isinstance(place, int):
            done = client.reset_offsets(consumer, stream, offset=place, partition=partition)
        else:
            done = client.reset_offsets(consumer, stream, to=place, partition=partition)
    if json:
        print_json([offset_as_json(entry) for entry in done])
    else:
        out.print(offsets_table(done))


@offsets.command("rm", hidden=True)
@offsets.command()
def remove(
    consumer: ConsumerArgument,
    stream: StreamOption = None,
    partition: PartitionOption = None,
    yes: YesOption = False,
    server: ServerOption = None,
) -> None:
    """Remove the committed offsets of a consumer. It then starts from the beginning."""
    import bascule

    with bascule.connect_sync(server) as client:
        where = f"in stream {stream}" if stream else "in every stream"
        confirm(f"forget the offsets of consumer {consumer} {where}?", yes=yes)
        count = client.remove_offsets(consumer, stream=stream, partition=partition)
    out.print(f"[green]✓[/green] {count} committed {'offset' if count == 1 else 'offsets'} removed")


def offset_as_json(entry: CommittedOffset) -> dict[str, Any]:
    """A committed offset as in the HTTP API."""
    return {**asdict(entry), "lag": entry.lag}


def offsets_table(entries: Sequence[CommittedOffset]) -> Table:
    """One row per consumer and partition."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("consumer", "stream"):
        table.add_column(title, overflow="fold")
    for title in ("partition", "offset", "end", "lag"):
        table.add_column(title, justify="right")
    table.add_column("committed", no_wrap=True)
    table.add_column("metadata")
    for entry in entries:
        table.add_row(
            escape(entry.consumer),
            entry.stream,
            str(entry.partition),
            f"{entry.offset:,}",
            "[dim]gone" if entry.high_watermark is None else f"{entry.high_watermark:,}",
            _lag_text(entry),
            moment_text(entry.committed_ms),
            escape(entry.metadata),
        )
    return table


def _lag_text(entry: CommittedOffset) -> str:
    if entry.lag is None or entry.start_offset is None:
        return ""
    if entry.offset < entry.start_offset:
        return f"[red]{entry.lag:,}, {entry.start_offset - entry.offset:,} of them gone"
    return f"{entry.lag:,}" if entry.lag else "[green]0"
