"""Plans the offsets of a micro-batch and cuts them into tasks. Pure.

The lake table is the authority on positions. A batch starts where the table ends, whatever Spark's
checkpoint contains. A lost, older or newer checkpoint changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from bascule.errors import DataLoss
from bascule.pipeline.source import positions

ROWS_PER_TASK_MIN: Final = 100_000
"""Fewer rows do not justify a file and a task: they are about 50 ms of work."""

Position = dict[str, str | int]
Committed = Mapping[int, tuple[int, int]]
"""Stream partition -> [start, end) that a table holds."""


@dataclass(frozen=True, slots=True)
class LogExtent:
    """The extent of the log: the stream's id, and [start, high watermark) of each partition."""

    stream: str
    id: str
    partitions: Mapping[int, tuple[int, int]]
    bytes: int = 0
    """Bytes of the segments; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class ArchiveRange:
    """Offsets [start, end) of one partition for one task."""

    partition: int
    start: int
    end: int
    side: bool = True
    """Whether the side table still lacks the malformed records of this range."""


def encode_position(id: str, positions: Mapping[int, int]) -> Position:
    """Encode the JSON object for Spark's checkpoint. Keys are ordered, because Spark compares
    text."""
    position: Position = {"id": id}
    for partition in sorted(positions):
        position[str(partition)] = positions[partition]
    return position


def decode_position(position: Mapping[str, str | int]) -> dict[int, int]:
    """Partition -> next offset."""
    return {int(name): int(offset) for name, offset in position.items() if name != "id"}


def latest_begin(held: LogExtent, committed: Committed, known: Mapping[int, int]) -> dict[int, int]:
    """Where each partition begins with `starting_offsets = latest`: at its end when the first run
    began.

    `known` has the offsets that the consumer has committed: the first run commits all of them. So a
    partition that later runs do not find there was added since, and begins at its log start.
    """
    is_first = not known and not committed
    return {
        partition: known.get(partition, end if is_first else start)
        for partition, (start, end) in held.partitions.items()
    }


def starts_of(
    held: LogExtent, committed: Committed, begin: Mapping[int, int], *, fail_on_data_loss: bool
) -> dict[int, int]:
    """The start offset of each partition: the table's end, or `begin` if the table has nothing of
    it.

    A partition in neither starts at the log start. Raises: DataLoss if the log does not hold the
    offset. Without `fail_on_data_loss` the partition continues at the nearest offset that the log
    holds.
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
    """Advance from `starts` towards `targets` by about `rows_max` offsets in total.

    Each partition gets a share in proportion to its backlog. Every partition with a backlog
    advances.
    """
    ends = {p: targets.get(p, start) for p, start in starts.items()}
    return positions.advance({"": starts}, {"": ends}, rows_max)[""]


def rows_max_of(held: LogExtent, *, rows_max: int, bytes_max: int) -> int:
    """The number of offsets that keeps a batch within both limits.

    The record size is the average of the log. The log counts compressed bytes.
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
    """Cut [starts, ends) into about `tasks` ranges; none has much fewer than `rows_min` rows.

    The ranges cover exactly these offsets, ordered by partition and offset. If the side table ends
    inside a partition's range (`side`: partition -> its end), a range ends there too, so that the
    side table does not get the same records again.
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
