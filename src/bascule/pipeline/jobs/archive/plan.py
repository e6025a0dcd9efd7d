"""Which offsets a micro-batch archives, and how its tasks share them. Pure.

The lake is the position of record: what a batch archives begins where the lake ends, whatever
Spark's checkpoint says. A checkpoint that is lost, older or newer than the lake changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from bascule.errors import DataLoss
from bascule.pipeline.source import positions

ROWS_PER_TASK_MIN: Final = 100_000
"""Fewer are not worth a file and a task of their own: some 50 ms of work."""

Position = dict[str, str | int]
Committed = Mapping[int, tuple[int, int]]
"""Stream partition -> [start, end) that a table holds."""


@dataclass(frozen=True, slots=True)
class LogExtent:
    """What the log holds now: the stream's id, and [start, watermark) of each partition."""

    stream: str
    id: str
    partitions: Mapping[int, tuple[int, int]]
    bytes: int = 0
    """Of the records in segments; 0 where it is not known."""


@dataclass(frozen=True, slots=True)
class ArchiveRange:
    """Offsets [start, end) of one partition, for one task."""

    partition: int
    start: int
    end: int
    side: bool = True
    """Whether its malformed records are still to be put into the side table."""


def encode_position(id: str, positions: Mapping[int, int]) -> Position:
    """The JSON object in Spark's checkpoint; keys always in one order, for Spark compares text."""
    position: Position = {"id": id}
    for partition in sorted(positions):
        position[str(partition)] = positions[partition]
    return position


def decode_position(position: Mapping[str, str | int]) -> dict[int, int]:
    """Partition -> next offset."""
    return {int(name): int(offset) for name, offset in position.items() if name != "id"}


def starts_of(
    held: LogExtent, committed: Committed, begin: Mapping[int, int], *, fail_on_data_loss: bool
) -> dict[int, int]:
    """Where each partition goes on: the lake's end, or `begin` where the lake has nothing of it.

    A partition that is in neither begins with its first record. Raises: DataLoss where the log no
    longer holds the offset, or does not reach it any more; without `fail_on_data_loss` a partition
    goes on at the first offset held, as far as the table takes a gap.
    """
    starts = {}
    for partition, (first, end) in held.partitions.items():
        start = begin.get(partition, first)
        if partition in committed:
            start = committed[partition][1]
        if not first <= start <= end:
            if fail_on_data_loss:
                raise DataLoss(
                    held.stream,
                    partition,
                    f"the archive goes on at offset {start}, the log holds [{first}, {end})",
                )
            start = max(first, min(start, end))
        starts[partition] = start
    return starts


def advance(starts: Mapping[int, int], targets: Mapping[int, int], rows_max: int) -> dict[int, int]:
    """From `starts` towards `targets` by about `rows_max` offsets in all.

    Shared in proportion to what each partition has waiting; each that has something moves.
    """
    ends = {p: targets.get(p, start) for p, start in starts.items()}
    return positions.advance({"": starts}, {"": ends}, rows_max)[""]


def rows_max_of(held: LogExtent, *, rows_max: int, bytes_max: int) -> int:
    """How many offsets a batch may have so that it stays within both limits.

    The size of a record is what the log's records have on average; compressed ones count less.
    """
    rows = sum(end - start for start, end in held.partitions.values())
    if rows == 0 or held.bytes == 0:
        return rows_max
    return max(1, min(rows_max, bytes_max * rows // held.bytes))


def split_ranges(
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    *,
    tasks: int,
    rows_min: int = ROWS_PER_TASK_MIN,
    side: Mapping[int, int] | None = None,
) -> list[ArchiveRange]:
    """Cut [starts, ends) into ranges: about `tasks` in all, none much below `rows_min` rows.

    They cover exactly these offsets, in order of partition and offset. Where the side table ends
    within a partition's range (`side`: partition -> its end), a piece ends there too, for what the
    side table holds is not written to it again.
    """
    waiting = {p: ends[p] - start for p, start in starts.items() if ends.get(p, start) > start}
    total = sum(waiting.values())
    ranges = []
    for partition in sorted(waiting):
        start, rows = starts[partition], waiting[partition]
        count = max(1, min(-(-tasks * rows // total), rows // rows_min))
        marks = [start + rows * i // count for i in range(count + 1)]
        held = (side or {}).get(partition, start)
        if start < held < marks[-1]:
            marks = sorted({*marks, held})
        ranges += [ArchiveRange(partition, a, b, side=a >= held) for a, b in pairwise(marks)]
    return ranges
