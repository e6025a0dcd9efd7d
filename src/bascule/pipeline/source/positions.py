"""Positions of a streaming query, and how a range of offsets is cut into tasks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bascule.errors import ConfigError, DataLoss
from bascule.pipeline.source.options import EARLIEST, LATEST, OffsetChoice

RECORDS_PER_TASK_MAX: Final = 4_000_000
"""A longer range is cut: about one to two seconds of reading, so a lost task costs little."""

OffsetJson = dict[str, str | int]


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, end) of one partition."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Extent:
    """What a stream holds now: its id, and for each partition [earliest, latest)."""

    stream: str
    id: str
    partitions: Mapping[int, tuple[int, int]]

    def earliest(self) -> dict[int, int]:
        return {partition: start for partition, (start, _) in self.partitions.items()}

    def latest(self) -> dict[int, int]:
        return {partition: end for partition, (_, end) in self.partitions.items()}


def encode_offset(id: str, positions: Mapping[int, int]) -> OffsetJson:
    """The JSON object Spark keeps in its checkpoint; equal positions give equal strings."""
    offset: OffsetJson = {"stream": id}
    for partition in sorted(positions):
        offset[str(partition)] = positions[partition]
    return offset


def decode_offset(offset: Mapping[str, str | int]) -> tuple[str, dict[int, int]]:
    """The stream id and the positions in `offset`."""
    positions = {int(key): int(value) for key, value in offset.items() if key != "stream"}
    return str(offset.get("stream", "")), positions


def resolve(choice: OffsetChoice, extent: Extent, *, option: str) -> dict[int, int]:
    """Turn what a user chose into one offset per partition of the stream.

    Raises: ConfigError where the partitions named are not the stream's.
    """
    chosen = choice if isinstance(choice, dict) else dict.fromkeys(extent.partitions, choice)
    if set(chosen) != set(extent.partitions):
        raise ConfigError(
            f"option {option!r} names partitions {sorted(chosen)}: "
            f"stream {extent.stream!r} has {sorted(extent.partitions)}"
        )
    resolved = {}
    for partition, offset in chosen.items():
        earliest, latest = extent.partitions[partition]
        resolved[partition] = {EARLIEST: earliest, LATEST: latest}.get(offset, offset)
    return resolved


def check_held(
    extent: Extent, id: str, positions: Mapping[int, int], *, fail_on_data_loss: bool
) -> dict[int, int]:
    """Positions from which every record is still held.

    Raises: DataLoss where that is not so and `fail_on_data_loss`; else such a partition starts
    again at the earliest offset it holds. A partition the query has not seen starts there too.
    """
    recreated = bool(id) and id != extent.id
    if recreated and fail_on_data_loss:
        raise DataLoss(extent.stream, None, "it was deleted and created again since the checkpoint")
    held = {}
    for partition, (earliest, latest) in extent.partitions.items():
        position = positions.get(partition, earliest)
        if recreated or not earliest <= position <= latest:
            if fail_on_data_loss:
                raise DataLoss(
                    extent.stream, partition, f"offset {position} is not in [{earliest}, {latest}]"
                )
            position = earliest
        held[partition] = position
    return held


def advance(
    positions: Mapping[int, int], targets: Mapping[int, int], records_max: int | None
) -> dict[int, int]:
    """Move from `positions` towards `targets` by at most `records_max` records in all.

    The limit is shared out in proportion to what each partition has waiting; each that has
    something moves by at least one, so no partition waits for ever.
    """
    waiting = {p: max(0, targets[p] - positions.get(p, 0)) for p in targets}
    total = sum(waiting.values())
    if records_max is None or total <= records_max:
        return {p: positions.get(p, 0) + waiting[p] for p in targets}
    return {
        p: positions.get(p, 0) + (max(1, records_max * n // total) if n else 0)
        for p, n in waiting.items()
    }


def split(ranges: list[Range], *, pieces_min: int = 1) -> list[Range]:
    """Cut ranges into about `pieces_min` pieces or more, none over RECORDS_PER_TASK_MAX.

    The pieces cover exactly the same offsets, in order; empty ranges vanish.
    """
    total = sum(r.end - r.start for r in ranges if r.end > r.start)
    if total == 0:
        return []
    piece = min(RECORDS_PER_TASK_MAX, max(1, total // pieces_min))
    pieces = []
    for r in ranges:
        count = -(-(r.end - r.start) // piece) if r.end > r.start else 0
        for i in range(count):
            start = r.start + (r.end - r.start) * i // count
            end = r.start + (r.end - r.start) * (i + 1) // count
            pieces.append(Range(r.partition, start, end))
    return pieces
