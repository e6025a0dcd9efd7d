"""What commands print: people's tables on a terminal, JSON for programs."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bascule.model import StreamInfo

ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar="BASCULE_SERVER",
        help="HTTP address of the node.",
        show_default="http://127.0.0.1:9080",
        show_envvar=True,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

out = Console(highlight=False, soft_wrap=True)
"""Results, on standard output."""
err = Console(stderr=True, highlight=False, soft_wrap=True)
"""Progress and news, on standard error."""


def print_json(value: Any, *, indent: bool = True) -> None:
    """One JSON value on standard output; on one line without `indent`."""
    sys.stdout.write(json.dumps(value, indent=2 if indent else None, ensure_ascii=False) + "\n")


def bytes_text(count: float) -> str:
    """`1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1_024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1_024
    return f"{count:.1f} TiB"


def duration_text(ms: int) -> str:
    """`7 d`, `90 s`, `250 ms`: the largest unit that divides evenly."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= size and ms % size == 0:
            return f"{ms // size} {unit}"
    return f"{ms} ms"


def moment_text(ms: int) -> str:
    """UTC, to the second."""
    return datetime.fromtimestamp(ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def stream_as_json(info: StreamInfo) -> dict[str, Any]:
    """A stream in the shape of the HTTP API."""
    definition, config = info.definition, info.definition.config
    return {
        "name": definition.name,
        "id": definition.id.hex(),
        "created_ms": definition.created_ms,
        "config": {
            "subject": config.subject,
            "group": config.group,
            "sync": config.sync.value,
            "sync_interval_ms": config.sync_interval_ms,
            "segment_bytes_max": config.segment_bytes_max,
            "segment_age_ms_max": config.segment_age_ms_max,
            "message_bytes_max": config.message_bytes_max,
        },
        "partitions": [
            {
                "partition": partition.partition,
                "start_offset": partition.start_offset,
                "high_watermark": partition.high_watermark,
                "synced_offset": partition.synced_offset,
                "end_offset": partition.end_offset,
                "leader_epoch": partition.leader_epoch,
                "bytes": partition.bytes,
                "failure": partition.failure,
            }
            for partition in info.partitions
        ],
    }


def streams_table(infos: list[StreamInfo]) -> Table:
    """One row a stream."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, justify in (
        ("name", "left"),
        ("subject", "left"),
        ("sync", "left"),
        ("messages", "right"),
        ("size", "right"),
        ("state", "left"),
    ):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    for info in infos:
        config = info.definition.config
        held = sum(p.high_watermark - p.start_offset for p in info.partitions)
        failures = [p.failure for p in info.partitions if p.failure]
        table.add_row(
            info.definition.name,
            config.subject + (f" (group {config.group})" if config.group else ""),
            config.sync.value,
            f"{held:,}",
            bytes_text(sum(p.bytes for p in info.partitions)),
            f"[red]stopped: {failures[0]}" if failures else "[green]ok",
        )
    return table


def stream_detail(info: StreamInfo) -> Table:
    """Everything about one stream, a fact a row."""
    definition, config = info.definition, info.definition.config
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    rows: list[tuple[str, str]] = [
        ("name", definition.name),
        ("id", definition.id.hex()),
        ("created", moment_text(definition.created_ms)),
        ("subject", config.subject),
        ("queue group", config.group or "none"),
        ("sync", _sync_text(config.sync.value, config.sync_interval_ms)),
        ("segments", f"{bytes_text(config.segment_bytes_max)} or "
         f"{duration_text(config.segment_age_ms_max)}"),
        ("message limit", bytes_text(config.message_bytes_max)),
    ]  # fmt: skip
    for partition in info.partitions:
        rows += [
            (
                f"partition {partition.partition}",
                f"offsets {partition.start_offset:,} to {partition.high_watermark:,} (exclusive)",
            ),
            ("", f"on disk up to {partition.synced_offset:,}, written up to "
             f"{partition.end_offset:,}"),
            ("", f"{bytes_text(partition.bytes)}, leader epoch {partition.leader_epoch}"),
        ]  # fmt: skip
        if partition.failure:
            rows.append(("", f"[red]stopped: {partition.failure}"))
    for row in rows:
        table.add_row(*row)
    return table


def _sync_text(sync: str, interval_ms: int) -> str:
    return f"{sync}, every {duration_text(interval_ms)}" if sync == "interval" else sync
