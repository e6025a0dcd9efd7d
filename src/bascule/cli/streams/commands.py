"""The commands of `bascule stream`."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from bascule.cli.exit_codes import CORRUPT
from bascule.cli.help import CommandGroup
from bascule.cli.output import (
    JsonOption,
    ServerOption,
    StreamArgument,
    YesOption,
    confirm,
    err,
    out,
    print_json,
    print_warning,
)
from bascule.cli.streams.moves import elect_leader, reassign
from bascule.cli.streams.recovery import recover
from bascule.cli.streams.settings import with_settings
from bascule.cli.streams.tables import (
    partitions_table,
    purged_table,
    repaired_table,
    stream_as_json,
    stream_detail,
    streams_table,
)
from bascule.cli.units import counted, moment_text, parse_moment
from bascule.model import PartitionBy, StreamDefinition, StreamInfo, is_internal_stream

if TYPE_CHECKING:
    from bascule.client import SyncClient

streams = CommandGroup(
    help="Create, alter, list, show, pause, purge and delete streams. Also: ls, rm.",
)


NewNameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the stream.")]


@streams.command()
@with_settings(alterable_only=False)
def create(
    name: NewNameArgument,
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
        _warn_of_unknown_consumer(client, info)
    if json:
        print_json({"created": created, "stream": stream_as_json(info)})
    else:
        done = "created" if created else "exists already, as asked:"
        out.print(f"[green]✓[/green] stream [bold]{name}[/bold] {done} on {subject}")
    _warn_of_overlaps(info)
    _warn_of_copies(info.definition)


@streams.command()
@with_settings(alterable_only=True)
def alter(
    name: StreamArgument,
    settings: dict[str, Any],
    yes: YesOption = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Change settings of a stream. Settings that are left out stay unchanged.

    Subject, group, partition-by and key-from cannot change. Partitions can only be added: with
    partition-by subject or key, later messages of a subject or key may then go to another partition
    than earlier ones, so the command asks first.
    """
    import bascule

    if not settings:
        raise typer.BadParameter("nothing to change: give at least one setting")
    with bascule.connect_sync(server) as client:
        if "partitions" in settings and not yes:
            _confirm_moving_keys(client.stream(name), settings["partitions"])
        info = client.alter_stream(name, **settings)
        if "retention_after" in settings:
            _warn_of_unknown_consumer(client, info)
    if json:
        print_json(stream_as_json(info))
    else:
        out.print(f"[green]✓[/green] stream [bold]{name}[/bold] altered")
    if settings.keys() & {"acks", "ack_policy"}:
        _warn_of_overlaps(info)
    if not {"replicas", "min_isr"}.isdisjoint(settings):
        _warn_of_copies(info.definition)


def _warn_of_copies(definition: StreamDefinition) -> None:
    """Warn where each replica is needed: one node that is away has messages refused."""
    replicas = definition.config.replicas
    if replicas > 1 and definition.min_isr >= replicas:
        print_warning(
            f"with {replicas} replicas, all of which are to be in sync (min_isr), messages are "
            "refused (20008) while one of their nodes is away: take --replicas "
            f"{replicas + 1}, or --min-isr {replicas - 1}, which acks what so many nodes have"
        )


@streams.command("ls", hidden=True)
@streams.command("list")
def list_streams(
    subject: Annotated[
        str | None,
        typer.Option(help="Only streams that store messages on this subject; may have wildcards."),
    ] = None,
    internal: Annotated[bool, typer.Option("--internal", help="Include internal streams.")] = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """List the streams."""
    import bascule

    with bascule.connect_sync(server) as client:
        every = client.streams(subject)
    infos = [info for info in every if internal or not is_internal_stream(info.definition.name)]
    if json:
        print_json([stream_as_json(info) for info in infos])
    elif infos:
        out.print(streams_table(infos))
    elif subject is not None:
        err.print(f"no stream stores messages on {subject}")
    else:
        err.print("no streams yet: bascule stream create NAME --subject SUBJECT")


@streams.command()
def info(
    name: StreamArgument,
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
        consumer = found.definition.config.retention_after
        commits = client.offsets(consumer=consumer, stream=name) if consumer else []
        in_cluster = not json and len(client.cluster().nodes) > 1
    if json:
        print_json(stream_as_json(found))
        return
    out.print(stream_detail(found, commits, all_settings=all_settings))
    out.print()
    out.print(partitions_table(found.partitions, with_places=in_cluster))


@streams.command()
def pause(name: StreamArgument, server: ServerOption = None, json: JsonOption = False) -> None:
    """Stop accepting messages: publishers that want an ack get an error. Reading continues."""
    import bascule

    with bascule.connect_sync(server) as client:
        _report(client.pause_stream(name), "paused", json=json)


@streams.command()
def resume(name: StreamArgument, server: ServerOption = None, json: JsonOption = False) -> None:
    """Accept messages again."""
    import bascule

    with bascule.connect_sync(server) as client:
        _report(client.resume_stream(name), "accepts messages", json=json)


@streams.command()
def purge(
    name: StreamArgument,
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
        if to is not None and partition is None and len(found.partitions) > 1:
            raise typer.BadParameter(
                f"--to needs --partition: stream {name} has {len(found.partitions)} partitions, "
                "each with its own offsets"
            )
        question = _purge_question(found, to=to, before_ms=before_ms, partition=partition)
        confirm(question, yes=yes)
        purged = client.purge_stream(name, to_offset=to, before_ms=before_ms, partition=partition)
    known = [
        item.start_offset - item.start_offset_before
        for item in purged
        if item.start_offset is not None and item.start_offset_before is not None
    ]
    gone = _messages_text(sum(known) if len(known) == len(purged) else None)
    if json:
        print_json({"name": name, "partitions": [asdict(item) for item in purged]})
    else:
        out.print(purged_table(purged))
        out.print(f"[green]✓[/green] {gone} removed from stream [bold]{name}[/bold]")


@streams.command()
def repair(
    name: StreamArgument,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.")
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Give up records that are missing or damaged."),
    ] = False,
    yes: YesOption = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Open the failed partitions of a stream again, for example after restoring their files.

    With --accept-loss, a damaged partition ends before its first damage. Offsets from there on are
    given to new records, in a new leader epoch. Where nothing can be kept, or the files are
    missing, an empty log begins at the largest offset that a consumer has committed.
    """
    import bascule

    with bascule.connect_sync(server) as client:
        failed = [
            item
            for item in client.stream(name).partitions
            if item.failure is not None and partition in (None, item.partition)
        ]
        if accept_loss and failed and not yes:
            for item in failed:
                err.print(f"partition {item.partition}: {escape(item.failure or '')}")
            question = f"give up what is missing or damaged in stream {name}?"
            confirm(question, yes=False)
        repaired = client.repair_stream(name, partition=partition, accept_loss=accept_loss)
    if json:
        print_json({"name": name, "partitions": [asdict(item) for item in repaired]})
    elif not repaired:
        out.print(f"[green]✓[/green] no partition of stream [bold]{name}[/bold] has failed")
    else:
        out.print(repaired_table(repaired))
    if any(item.failure for item in repaired):
        raise typer.Exit(CORRUPT)


@streams.command("acknowledge-loss")
def acknowledge_loss(
    name: StreamArgument,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.")
    ] = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Show the unclean elections of a stream no longer: you know what may be lost.

    They stay in the log and in the metrics. The next one is shown again.
    """
    import bascule

    with bascule.connect_sync(server) as client:
        info = client.acknowledge_loss(name, partition=partition)
    _report(info, "shows no unclean election any more", json=json)


@streams.command("rm", hidden=True)
@streams.command()
def delete(
    name: StreamArgument,
    yes: YesOption = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a stream and all its messages permanently."""
    import bascule

    with bascule.connect_sync(server) as client:
        held = _held(client.stream(name), None)
        confirm(f"delete stream {name} and its {_messages_text(held)}?", yes=yes)
        client.delete_stream(name)
    if json:
        print_json({"name": name, "messages": held})
    else:
        out.print(f"[green]✓[/green] stream [bold]{name}[/bold] deleted")


def _confirm_moving_keys(info: StreamInfo, partitions: int) -> None:
    """Ask before partitions are added to a stream whose keys or subjects choose the partition.
    Raises: as `confirm`."""
    config = info.definition.config
    by_hash = config.partition_by in (PartitionBy.SUBJECT, PartitionBy.KEY)
    if not by_hash or partitions <= config.partitions:
        return
    if not any(item.high_watermark for item in info.partitions):
        return
    what = config.partition_by.value
    confirm(
        f"with {partitions} partitions instead of {config.partitions}, most {what}s move: later "
        f"messages of a {what} go to another partition than earlier ones, and their order is lost. "
        f"Add the partitions to stream {info.definition.name}?",
        yes=False,
    )


def _warn_of_unknown_consumer(client: SyncClient, info: StreamInfo) -> None:
    """Print a warning if retention waits for a consumer that has never committed an offset."""
    name, consumer = info.definition.name, info.definition.config.retention_after
    if consumer and not client.offsets(consumer=consumer, stream=name):
        print_warning(
            f"consumer {consumer!r} has not committed an offset of stream {name} yet: retention "
            "removes nothing until it does; `bascule group list` shows the consumers"
        )


def _warn_of_overlaps(info: StreamInfo) -> None:
    """Print which other streams store the same messages, and who acks those that ask for no policy
    of their own."""
    if not info.overlaps:
        return
    name = info.definition.name
    others = ", ".join(f"{each.name} ({each.subject})" for each in info.overlaps)
    answering = [each.name for each in info.overlaps if each.acks]
    if info.definition.config.acks_usually:
        answering.insert(0, name)
    text = f"messages on {info.definition.config.subject} may also be stored by {others}"
    if len(answering) > 1:
        text += (
            f"; publishers get an ack of each of {', '.join(answering)}: set the header "
            f"Nats-Expected-Stream, or alter a stream with --no-acks"
        )
    else:
        text += f"; {answering[0] if answering else 'none of them'} acks them"
    print_warning(text)


def _report(info: StreamInfo, done: str, *, json: bool) -> None:
    if json:
        print_json(stream_as_json(info))
    else:
        out.print(f"[green]✓[/green] stream [bold]{info.definition.name}[/bold] {done}")


def _held(info: StreamInfo, partition: int | None) -> int | None:
    """The messages of a stream or a partition; None where they are not known."""
    held = [item.messages for item in info.partitions if partition in (None, item.partition)]
    known = [count for count in held if count is not None]
    return sum(known) if len(known) == len(held) else None


def _messages_text(count: int | None) -> str:
    return "messages (how many is unknown)" if count is None else counted(count, "message")


def _purge_question(
    info: StreamInfo, *, to: int | None, before_ms: int | None, partition: int | None
) -> str:
    name = info.definition.name
    where = f"stream {name}" if partition is None else f"partition {partition} of stream {name}"
    if before_ms is not None:
        return f"remove the messages of {where} older than {moment_text(before_ms)}?"
    if to is None:
        return f"remove all {_messages_text(_held(info, partition))} of {where}?"
    starts = [p.start_offset for p in info.partitions if partition in (None, p.partition)]
    gone = [max(to - start, 0) for start in starts if start is not None]
    count = sum(gone) if len(gone) == len(starts) else None
    return f"remove {_messages_text(count)} of {where}, before offset {to:,}?"


# Behind those of this module: the help shows commands in the order of these calls.
streams.command("reassign")(reassign)
streams.command("elect-leader")(elect_leader)
streams.command("recover")(recover)
