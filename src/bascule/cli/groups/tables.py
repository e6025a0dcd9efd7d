"""The tables of `bascule group`, and its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from typing import Any

from rich.markup import escape
from rich.table import Table

from bascule.cli.units import UNKNOWN_MARK, moment_text
from bascule.group_results import (
    GroupInfo,
    GroupListing,
    GroupMemberInfo,
    GroupOffset,
    OffsetReset,
)


def listing_as_json(group: GroupListing) -> dict[str, Any]:
    """As in the HTTP API."""
    return asdict(group)


def group_as_json(group: GroupInfo, stream: str | None) -> dict[str, Any]:
    """As in the HTTP API; with `stream` only the offsets for this stream."""
    shown = [each for each in group.offsets if stream in (None, each.stream)]
    return {
        **asdict(group),
        "lag": group.lag,
        "offsets": [{**asdict(each), "lag": each.lag} for each in shown],
    }


def reset_as_json(reset: OffsetReset) -> dict[str, Any]:
    """As in the HTTP API."""
    return {**asdict(reset), "lag": reset.lag}


def groups_table(groups: Sequence[GroupListing]) -> Table:
    """One row per group."""
    table = _table("group", "type", "state")
    for title in ("members", "partitions", "lag"):
        table.add_column(title, justify="right")
    for each in groups:
        table.add_row(
            shown_text(each.name),
            each.type,
            _state(each.state),
            f"{each.members:,}",
            f"{each.partitions:,}",
            _number(each.lag),
        )
    return table


def summary_grid(group: GroupInfo) -> Table:
    """What is said of the group as a whole."""
    table = Table.grid(padding=(0, 2))
    protocol = group.protocol or "-"
    if group.protocol_type not in ("", "consumer"):
        protocol += f" ({group.protocol_type})"
    for title, text in (
        ("group", shown_text(group.name)),
        ("type", group.type),
        ("state", _state(group.state)),
        ("protocol", shown_text(protocol)),
        ("coordinator", f"node {group.coordinator}"),
        ("members", f"{len(group.members):,}"),
        ("lag", _number(group.lag)),
    ):
        table.add_row(title, text)
    return table


def members_table(members: Sequence[GroupMemberInfo]) -> Table:
    """One row per member."""
    table = _table("member", "client", "host", "partitions")
    for each in members:
        table.add_row(
            shown_text(_member(each)),
            shown_text(each.client_id),
            each.host,
            _owned(each.partitions),
        )
    return table


def offsets_table(offsets: Sequence[GroupOffset], members: Sequence[GroupMemberInfo]) -> Table:
    """One row per partition."""
    owners = {each.member_id: _member(each) for each in members}
    has_metadata = any(each.metadata for each in offsets)
    table = _table("stream")
    for title in ("partition", "offset", "end", "lag"):
        table.add_column(title, justify="right")
    table.add_column("committed", no_wrap=True)
    if owners:
        table.add_column("owner", overflow="fold")
    if has_metadata:
        table.add_column("metadata", overflow="fold")
    for each in offsets:
        row = [
            shown_text(each.stream),
            str(each.partition),
            UNKNOWN_MARK if each.offset is None else f"{each.offset:,}",
            UNKNOWN_MARK if each.high_watermark is None else f"{each.high_watermark:,}",
            _lag(each),
            moment_text(each.committed_ms) if each.committed_ms else UNKNOWN_MARK,
        ]
        if owners:
            row.append(shown_text(owners.get(each.member_id, "")) or UNKNOWN_MARK)
        if has_metadata:
            row.append(shown_text(each.metadata))
        table.add_row(*row)
    return table


def resets_table(resets: Sequence[OffsetReset]) -> Table:
    """One row per partition: the offset before and after."""
    table = _table("stream")
    for title in ("partition", "before", "after", "change", "end", "lag"):
        table.add_column(title, justify="right")
    for each in resets:
        change = None if each.before is None else each.offset - each.before
        table.add_row(
            each.stream,
            str(each.partition),
            UNKNOWN_MARK if each.before is None else f"{each.before:,}",
            f"[bold]{each.offset:,}",
            UNKNOWN_MARK if change is None else f"{change:+,}" if change else "0",
            f"{each.high_watermark:,}",
            f"{each.lag:,}",
        )
    return table


def shown_text(text: str) -> str:
    """Text that a client has chosen, as markup: it controls neither the table nor the terminal."""
    return escape("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))


def _table(*texts: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in texts:
        table.add_column(title, overflow="fold")
    return table


def _state(state: str) -> str:
    colour = {"Stable": "green", "Empty": "dim"}.get(state, "yellow")
    return f"[{colour}]{shown_text(state)}[/{colour}]"


def _member(member: GroupMemberInfo) -> str:
    """The instance id of a static member, which stays when it starts again; else its id."""
    return member.instance_id or member.member_id


def _number(number: int | None) -> str:
    if number is None:
        return UNKNOWN_MARK
    return f"{number:,}" if number else "[green]0"


def _lag(entry: GroupOffset) -> str:
    gone = 0
    if entry.offset is not None and entry.start_offset is not None:
        gone = entry.start_offset - entry.offset
    if entry.lag is not None and gone > 0:
        return f"[red]{entry.lag:,}, {gone:,} of them gone"
    return _number(entry.lag)


def _owned(partitions: Iterable[tuple[str, int]] | None) -> str:
    """`flights 0-3,7  orders 1`."""
    if partitions is None:
        return "[dim]not readable"
    parts = [
        f"{shown_text(stream)} {_ranges([index for _, index in owned])}"
        for stream, owned in groupby(sorted(partitions), itemgetter(0))
    ]
    return "  ".join(parts) or UNKNOWN_MARK


def _ranges(indexes: Sequence[int]) -> str:
    """`0-3,7` of sorted numbers."""
    runs: list[tuple[int, int]] = []
    for index in indexes:
        if runs and runs[-1][1] == index - 1:
            runs[-1] = runs[-1][0], index
        else:
            runs.append((index, index))
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)
