"""Where a consumer begins, which keys it is for, and what its client has to be sent first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bascule.keyvalue.held_tables import HeldTable
from bascule.keyvalue.messages import BAD_REQUEST, ApiError, not_served
from bascule.keyvalue.requests import ConsumerConfig
from bascule.tables._hot import FORGOTTEN
from bascule.tables.watching import Begin, Change, Start, WatchPosition
from bascule.wire.tables.patterns import KeyPattern

MISSED_CHANGES_MAX: Final = 1_000
MISSED_BYTES_MAX: Final = 1 << 20
"""What a client that begins at a sequence has missed is counted up to these."""


def patterns_of(table: HeldTable, config: ConsumerConfig) -> list[KeyPattern]:
    """The keys that a consumer filters for. Raises: ApiError, InvalidKey, InvalidPattern."""
    subjects = config.filter_subjects or [config.filter_subject or ">"]
    prefix = table.subject_prefix
    found = []
    for subject in subjects:
        if subject == ">":
            text = ">"
        elif subject.startswith(prefix):
            text = subject.removeprefix(prefix)
        else:
            raise ApiError(400, BAD_REQUEST, f"a filter begins with {prefix}, got {subject!r}")
        found.append(KeyPattern.of_subject(text.encode()))
    return found


async def missed(
    table: HeldTable, patterns: Sequence[KeyPattern], start: WatchPosition
) -> tuple[WatchPosition, list[Change]]:
    """What a client at `start` has to be sent first, and where it goes on.

    None of it is known in advance if that is too much: it comes with what follows.
    """
    page = await table.replica.changed_since(
        start.offset, rows_max=MISSED_CHANGES_MAX, bytes_max=MISSED_BYTES_MAX
    )
    if page is None or not page.is_last:
        return start, []
    position = max(page.position, start.offset)
    since = shown_since(table)
    found = [
        Change(*row, -1)
        for row in page.rows
        if matches_one(patterns, row.key)
        and (row.value is not None or (row.timestamp >= since and row.content_type != FORGOTTEN))
    ]
    return WatchPosition(position, table.replica.epoch_of(position - 1)), found


def shown_since(table: HeldTable) -> int:
    """Unix time, ms. Keys that were removed before are shown to no watcher that begins."""
    partition = table.partition
    return max(partition.now_ms() - partition.definition.config.tombstone_retention_ms, 0)


def matches_one(patterns: Sequence[KeyPattern], key: bytes) -> bool:
    return any(one.matches(key) for one in patterns)


def common(patterns: Sequence[KeyPattern]) -> KeyPattern:
    """One pattern that matches whatever one of the patterns does."""
    return patterns[0] if len(patterns) == 1 else KeyPattern(b">")


def start_of(table: HeldTable, config: ConsumerConfig) -> Start:
    """Raises: ApiError."""
    match config.deliver_policy:
        case "all" | "last_per_subject" | "last":
            return Begin.STATE
        case "new":
            position = table.replica.position
            return WatchPosition(position, table.replica.epoch_of(position - 1))
        case "by_start_sequence":
            if (sequence := config.opt_start_seq) is None:
                raise ApiError(400, BAD_REQUEST, "by_start_sequence needs an opt_start_seq")
            return WatchPosition(sequence - 1, table.replica.epoch_of(sequence - 2))
        case policy:
            raise not_served(f"the deliver policy {policy}")
