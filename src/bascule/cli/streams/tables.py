"""Formats streams as tables, and as JSON like the HTTP API."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.markup import escape
from rich.table import Table

from bascule.cli.fitting_table import FittingTable
from bascule.cli.streams.settings import SETTINGS
from bascule.cli.units import UNKNOWN_MARK, bytes_text, counted, duration_text, moment_text
from bascule.group_results import CommittedOffset
from bascule.model import (
    NO_LEADER,
    DuplicateStream,
    PartitionInfo,
    StreamConfig,
    StreamInfo,
)
from bascule.operation_results import RepairedPartition

if TYPE_CHECKING:
    from bascule.client import PurgedPartition


def stream_as_json(info: StreamInfo) -> dict[str, Any]:
    """A stream as in the HTTP API."""
    definition = info.definition
    return {
        "name": definition.name,
        "id": definition.id.hex(),
        "created_ms": definition.created_ms,
        "paused": definition.paused,
        "config": asdict(definition.config),
        "refusal": info.refusal,
        "overlaps": [asdict(each) for each in info.overlaps],
        "duplicates": [asdict(each) for each in info.duplicates],
        "partitions": [asdict(partition) for partition in info.partitions],
    }


def streams_table(infos: Sequence[StreamInfo]) -> Table:
    """One row per stream."""
    table = _table(
        ("name", "subject", "sync", "partitions", "messages", "size", "kept", "state"),
        right=("partitions", "messages", "size"),
    )
    for info in infos:
        config = info.definition.config
        table.add_row(
            escape(info.definition.name),
            escape(config.subject + (f" (group {config.group})" if config.group else "")),
            config.sync.value,
            str(len(info.partitions)),
            _sum_text([p.messages for p in info.partitions], _number),
            _sum_text([p.bytes for p in info.partitions], bytes_text),
            kept_text(config),
            state_text(info),
        )
    return table


def _sum_text(values: Sequence[int | None], shown: Callable[[int], str]) -> str:
    """A sum of what is known, as rich markup."""
    known = [value for value in values if value is not None]
    if len(known) == len(values):
        return shown(sum(known))
    return f"at least {shown(sum(known))}" if known else UNKNOWN_MARK


def _number(value: int | None) -> str:
    return UNKNOWN_MARK if value is None else f"{value:,}"


def state_text(info: StreamInfo) -> str:
    """The state as rich markup: ok, paused, read-only, the failure, no leader, what is unknown and
    why, why NATS refuses the subscription, or that another cluster has the stream."""
    stopped = [p.failure for p in info.partitions if p.failure]
    if stopped:
        return f"[red]stopped: {escape(stopped[0])}"
    if waiting := sum(bool(p.waits) for p in info.partitions):
        return f"[red]{counted(waiting, 'partition')} without a leader"
    if unknown := [p.unknown for p in info.partitions if p.unknown]:
        return f"[yellow]{counted(len(unknown), 'partition')} unknown: {escape(unknown[0])}"
    if info.refusal:
        return f"[red]refused by NATS: {escape(info.refusal)}"
    if any(each.conflict for each in info.duplicates):
        return "[red]in conflict with another cluster"
    if info.definition.paused:
        return "[yellow]paused"
    return "[yellow]read-only" if info.definition.config.read_only else "[green]ok"


def kept_text(config: StreamConfig) -> str:
    """The retention limits of a stream as a short text."""
    limits = []
    if config.retention_ms_max:
        limits.append(duration_text(config.retention_ms_max))
    if config.retention_bytes_max:
        limits.append(bytes_text(config.retention_bytes_max))
    if config.retention_messages_max:
        limits.append(f"{config.retention_messages_max:,} messages")
    if "compact" in config.cleanup:
        limits.append("last of each key")
    return ", ".join(limits) or "all"


def stream_detail(
    info: StreamInfo, commits: Sequence[CommittedOffset] = (), *, all_settings: bool = False
) -> Table:
    """All properties of one stream, one per row: all settings, or those that differ from the
    defaults. `commits` are those of the consumer that retention waits for."""
    definition, config = info.definition, info.definition.config
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    rows = [
        ("name", escape(definition.name)),
        ("id", definition.id.hex()),
        ("created", moment_text(definition.created_ms)),
        ("subject", escape(config.subject)),
        ("queue group", escape(config.group or "none")),
        ("state", state_text(info)),
        ("kept", kept_text(config)),
    ]
    rows += [("in conflict with" if each.conflict else "also in", duplicate_text(each))
             for each in info.duplicates]  # fmt: skip
    if config.retention_after:
        rows.append(("retention waits for", escape(waits_text(info, commits))))
    usual = StreamConfig(subject=config.subject)
    shown = [
        item
        for item in SETTINGS
        if all_settings or getattr(config, item.field) != getattr(usual, item.field)
    ]
    rows += [(item.flag.partition("/")[0].removeprefix("--").replace("-", " "),
              escape(item.text(config))) for item in shown]  # fmt: skip
    if not all_settings:
        rows.append(("", "[dim]settings not shown hold Bascule's defaults; --all shows them"))
    for row in rows:
        table.add_row(*row)
    return table


def duplicate_text(other: DuplicateStream) -> str:
    """The same stream in another cluster, as rich markup."""
    nodes = ", ".join(map(str, other.nodes))
    text = (
        f"cluster {other.cluster_id} (node {nodes}), on {other.subject}: it "
        f"{'answers' if other.acks else 'does not answer'} publishers"
    )
    if other.conflict:
        return f"[red]{escape(text)}; delete one, or alter one with --no-acks or --shared"
    return escape(text)


def waits_text(info: StreamInfo, commits: Sequence[CommittedOffset]) -> str:
    """What the consumer of `retention_after` has not committed yet."""
    consumer = info.definition.config.retention_after
    offsets = {entry.partition: entry.offset for entry in commits}
    if not offsets:
        return f"consumer {consumer}, which has not committed an offset yet; nothing is removed"
    behind, unknown = 0, False
    for p in info.partitions:
        if p.high_watermark is None or p.start_offset is None:
            unknown = True
        else:
            start = max(offsets.get(p.partition, 0), p.start_offset)
            behind += max(p.high_watermark - start, 0)
    without = [str(p.partition) for p in info.partitions if p.partition not in offsets]
    least = "at least " if unknown else ""
    text = f"consumer {consumer}, {least}{counted(behind, 'message')} behind"
    if without:
        what = "partition" if len(without) == 1 else "partitions"
        text += f"; no offset committed yet in {what} {', '.join(without)}"
    return text


def partitions_table(
    partitions: Sequence[PartitionInfo], *, with_places: bool = False
) -> FittingTable:
    """One row per partition. Leaders and replicas are shown where there are copies, or
    `with_places`, as in a cluster."""
    is_copied = with_places or any(len(item.replicas) > 1 or item.target for item in partitions)
    droppable: list[tuple[str, ...]] = [("start",), ("epoch",), ("size",)]
    if all(item.end_offset == item.high_watermark for item in partitions):
        droppable.insert(0, ("end",))
    if all(item.synced_offset == item.high_watermark for item in partitions):
        droppable.insert(0, ("on disk",))
    hidden = () if is_copied else PLACES
    return FittingTable(
        lambda dropped: _make_partitions_table(partitions, {*dropped, *hidden}), droppable
    )


PLACES: Final = ("leader", "replicas", "in sync")
NUMBERS: Final = ("partition", "start", "committed", "on disk", "end", "messages", "size", "epoch")


def _make_partitions_table(partitions: Sequence[PartitionInfo], dropped: Collection[str]) -> Table:
    titles = [title for title in (*NUMBERS, *PLACES, "state") if title not in dropped]
    table = _table(titles, right=NUMBERS)
    for item in partitions:
        leader, replicas, isr = _places(item)
        row = {
            "partition": str(item.partition),
            "start": _number(item.start_offset),
            "committed": _number(item.high_watermark),
            "on disk": _number(item.synced_offset),
            "end": _number(item.end_offset),
            "messages": _number(item.messages),
            "size": UNKNOWN_MARK if item.bytes is None else bytes_text(item.bytes),
            "epoch": str(item.leader_epoch),
            "leader": leader,
            "replicas": replicas,
            "in sync": isr,
            "state": partition_state_text(item),
        }
        table.add_row(*(row[title] for title in titles))
    return table


def partition_state_text(item: PartitionInfo) -> str:
    """The state of a partition, as rich markup."""
    if item.failure:
        return f"[red]stopped: {escape(item.failure)}"
    if item.waits:
        return f"[red]no leader: {escape(item.waits)}"
    if item.unknown:
        return f"[yellow]unknown: {escape(item.unknown)}"
    if item.damage:
        return f"[red]damaged: {escape(item.damage)}"
    if item.move_waits:
        return f"[yellow]ok; {escape(item.move_waits)}"
    if item.unclean_epoch:
        return f"[yellow]ok; may have lost records before epoch {item.unclean_epoch}"
    return "[green]ok"


def _places(item: PartitionInfo) -> tuple[str, str, str]:
    """Leader, replicas and replicas in sync, as text."""
    replicas = " ".join(map(str, item.replicas))
    if item.target:
        replicas += " → " + " ".join(map(str, item.target))
    leader = "[red]none" if item.leader == NO_LEADER else str(item.leader)
    return leader, replicas, " ".join(map(str, item.isr))


def purged_table(purged: Sequence[PurgedPartition]) -> Table:
    """The removed records of each partition."""
    columns = ("partition", "started at", "starts at", "gone", "left", "freed")
    table = _table(columns, right=columns)
    for item in purged:
        freed = _difference(item.bytes_before, item.bytes)
        table.add_row(
            str(item.partition),
            _number(item.start_offset_before),
            _number(item.start_offset),
            _number(_difference(item.start_offset, item.start_offset_before)),
            _number(_difference(item.high_watermark, item.start_offset)),
            UNKNOWN_MARK if freed is None else bytes_text(freed),
        )
    return table


def _difference(value: int | None, other: int | None) -> int | None:
    """How much a value is above another one, 0 or more; None: not known."""
    return None if value is None or other is None else max(value - other, 0)


def repaired_table(repaired: Sequence[RepairedPartition]) -> Table:
    """What became of each partition that had failed."""
    table = _table(("partition", "start", "end", "state", "old files"), right=("start", "end"))
    for item in repaired:
        table.add_row(
            str(item.partition),
            f"{item.start_offset:,}",
            f"{item.end_offset:,}",
            f"[red]stopped: {escape(item.failure)}" if item.failure else "[green]ok",
            item.moved_to or "",
        )
    return table


def _table(columns: Sequence[str], *, right: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in columns:
        # Do not wrap columns that are copied or compared.
        whole = title == "name" or title in right or title in PLACES
        justify: Literal["left", "right"] = "right" if title in right else "left"
        table.add_column(title, justify=justify, no_wrap=whole)
    return table
