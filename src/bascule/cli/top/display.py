"""Renders a view as a table of at most the terminal's width and height."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bascule.cli.top.samples import GroupLagRow, RateView, StreamRow
from bascule.cli.units import bytes_text, count_text

HEADER_LINES: Final = 5
"""Lines above the first stream, and one below the last; one more in a cluster."""
NAME_WIDTH_MIN: Final = 12
GROUP_LINES: Final = 2
"""Lines above the first group."""
GROUPS_MIN: Final = 3
"""Groups that are shown on however small a terminal, if there are as many."""
FULL_PERCENT: Final = 80
"""A buffer or disk that is fuller is shown in red."""

SORTS: Final = {
    "name": lambda row: row.name,
    "in": lambda row: -row.records_per_s,
    "bytes": lambda row: -row.bytes_in_per_s,
    "out": lambda row: -row.bytes_out_per_s,
    "size": lambda row: -row.bytes,
    "lag": lambda row: -row.sync_lag_s,
}


def render_view(
    view: RateView,
    rows: Sequence[StreamRow],
    *,
    height: int | None,
    news: str = "",
    cut: bool = True,
) -> RenderableType:
    """Render the node and its cluster, then the streams and groups that fit into `height` lines;
    None: all. Groups get a third of them at least, if they need it.

    Without `cut`, for a pipe or a file, lines are as long as names and numbers need.
    """
    above = HEADER_LINES + _is_in_cluster(view) + bool(news)
    groups = view.groups
    room, group_room = len(rows), len(groups)
    if height is not None:
        room, group_room = _rooms(max(height - above, 1), len(rows), len(groups))
    shown = rows[:room] if len(rows) <= room else rows[: room - 1]
    parts: list[RenderableType] = [_node(view, live=height is not None), _streams(shown, cut=cut)]
    if len(rows) > len(shown):
        parts.append(Text(f"and {len(rows) - len(shown):,} more streams", style="dim"))
    if not rows:
        parts.append(Text("no streams yet", style="dim"))
    if groups:
        shown_groups = (
            groups[:group_room] if len(groups) <= group_room else groups[: group_room - 1]
        )
        parts += [Text(""), _groups(shown_groups, cut=cut)]
        if len(groups) > len(shown_groups):
            more = f"and {len(groups) - len(shown_groups):,} more groups, with less lag"
            parts.append(Text(more, style="dim"))
    if news:
        parts.append(Text(news, style="red", overflow="ellipsis", no_wrap=True))
    return Group(*parts)


def _rooms(height: int, streams: int, groups: int) -> tuple[int, int]:
    """The lines of `height` for streams and for groups."""
    if not groups:
        return height, 0
    height -= GROUP_LINES
    wanted = max(height // 3, GROUPS_MIN, height - max(streams, 1))
    for_groups = min(groups, wanted)
    return max(height - for_groups, 1), for_groups


def _node(view: RateView, *, live: bool) -> Text:
    node = view.node
    buffer = 100 * node.buffer_bytes / node.buffer_bytes_max if node.buffer_bytes_max else 0.0
    used = 100 - 100 * node.disk_free_bytes / node.disk_size_bytes if node.disk_size_bytes else 0.0
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"bascule {node.version}", style="bold")
    text.append(" ready" if node.ready else " not ready", style="green" if node.ready else "red")
    text.append(f"  up {_uptime(node.uptime_s)}  cpu {view.cpu_percent:.0f} %")
    text.append(f"  memory {bytes_text(node.memory_bytes)}  clients {node.connections:.0f}")
    text.append("  q quits\n" if live else "\n", style="dim")
    up = bool(node.nats_connected)
    text.append("NATS connected" if up else "NATS gone", style="green" if up else "red")
    text.append("  buffer ")
    text.append(f"{buffer:.0f} %", style="red" if buffer >= FULL_PERCENT else "")
    text.append("  stalled ")
    text.append(f"{view.stalled_percent:.0f} %", style="red" if view.stalled_percent >= 1 else "")
    text.append("  disk free ")
    text.append(bytes_text(node.disk_free_bytes), style="red" if used >= FULL_PERCENT + 15 else "")
    text.append(f" of {bytes_text(node.disk_size_bytes)}\n")
    if _is_in_cluster(view):
        _append_cluster(text, view)
    return text


def _is_in_cluster(view: RateView) -> bool:
    return view.node.nodes > 1


def _append_cluster(text: Text, view: RateView) -> None:
    node = view.node
    text.append(f"node {node.node_id}  nodes ")
    is_whole = node.nodes_alive == node.nodes
    text.append(f"{node.nodes_alive} of {node.nodes}", style="" if is_whole else "red")
    text.append("  controller ")
    if node.controller:
        text.append(f"{node.controller:.0f}")
    else:
        text.append("none", style="red")
    for title, count in (
        ("no leader", node.leaderless),
        ("below min_isr", node.under_min_isr),
        ("few copies", node.under_replicated),
    ):
        text.append(f"  {title} ")
        text.append(f"{count:.0f}", style="red" if count else "")
    text.append("\n")


def _streams(rows: Sequence[StreamRow], *, cut: bool) -> Table:
    padding = (0, 1 if cut else 2, 0, 0)
    table = Table(box=None, pad_edge=False, padding=padding, header_style="bold", expand=cut)
    ratio = 1 if cut else None
    table.add_column(
        "stream", ratio=ratio, min_width=NAME_WIDTH_MIN, no_wrap=True, overflow="ellipsis"
    )
    for title, width in (
        ("in/s", 6), ("in B/s", 9), ("out B/s", 9), ("end", 11), ("lag", 7), ("size", 9)
    ):  # fmt: skip
        table.add_column(
            title, justify="right", width=width if cut else None, min_width=width, no_wrap=True
        )
    table.add_column("state", min_width=9, no_wrap=True)
    for row in rows:
        table.add_row(
            escape(row.name),
            count_text(row.records_per_s),
            bytes_text(row.bytes_in_per_s),
            bytes_text(row.bytes_out_per_s),
            _whole(row.end_offset),
            _lag(row.sync_lag_s),
            bytes_text(row.bytes),
            _state(row),
        )
    return table


def _groups(rows: Sequence[GroupLagRow], *, cut: bool) -> Table:
    padding = (0, 1 if cut else 2, 0, 0)
    table = Table(box=None, pad_edge=False, padding=padding, header_style="bold", expand=cut)
    table.add_column(
        "group", ratio=1 if cut else None, min_width=NAME_WIDTH_MIN, no_wrap=True,
        overflow="ellipsis",
    )  # fmt: skip
    for title, width in (("members", 7), ("partitions", 10), ("lag", 11), ("lag/s", 7)):
        table.add_column(
            title, justify="right", width=width if cut else None, min_width=width, no_wrap=True
        )
    table.add_column("state", min_width=9, no_wrap=True)
    for row in rows:
        table.add_row(
            escape(row.name),
            f"{row.members:,}",
            f"{row.partitions:,}",
            _whole(row.lag),
            _change(row.lag_per_s),
            Text(row.state, style={"Stable": "green", "Empty": "dim"}.get(row.state, "yellow")),
        )
    return table


def _change(per_s: float) -> Text:
    """Red where the lag grows."""
    text = count_text(abs(per_s))
    if text == "0":
        return Text("0")
    return Text(f"+{text}", style="red") if per_s > 0 else Text(f"-{text}", style="green")


def _state(row: StreamRow) -> Text:
    if row.state == "ok" and row.refused_per_s:
        return Text("refusing", style="yellow")
    return Text(
        row.state,
        style={"ok": "green", "paused": "yellow", "lagging": "yellow"}.get(row.state, "red"),
    )


def _whole(number: int) -> str:
    text = f"{number:,}"
    return text if len(text) <= 11 else count_text(number)


def _lag(seconds: float) -> str:
    if seconds < 0.000_5:
        return "-"
    return f"{seconds * 1_000:.0f} ms" if seconds < 10 else _uptime(seconds)


def _uptime(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
