"""Positions of a query, how they are written, checked and moved; ranges, cut into tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from bascule.errors import ConfigError, DataLoss

OffsetJson: TypeAlias = dict[str, dict[str, str | int]]
"""Stream -> {"id": hex, "0": next offset of partition 0, ...}, all names in order."""

Positions: TypeAlias = dict[str, "Position"]


RECORDS_PER_TASK_MAX: Final = 5_000_000
"""A longer range is cut: some three seconds of reading, so that a lost task costs little. One
costs 50 ms of CPU; `minPartitions` asks for as many as there are cores."""


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


@dataclass(frozen=True, slots=True)
class Position:
    """How far one stream was read: its id then, and the next offset of each partition."""

    id: str
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, end) of one partition of a stream."""

    stream: str
    partition: int
    start: int
    end: int

    @property
    def records(self) -> int:
        """Offsets in it, and records where none was compacted away."""
        return max(0, self.end - self.start)


def encode_positions(positions: Mapping[str, Position]) -> OffsetJson:
    """The JSON object Spark keeps in its checkpoint; equal positions give equal strings."""
    encoded: OffsetJson = {}
    for stream in sorted(positions):
        entry: dict[str, str | int] = {"id": positions[stream].id}
        for partition in sorted(positions[stream].offsets):
            entry[str(partition)] = positions[stream].offsets[partition]
        encoded[stream] = entry
    return encoded


def decode_positions(offset: Mapping[str, Any]) -> Positions:
    """Raises: ConfigError for JSON that `encode_positions` does not write."""
    try:
        return {
            stream: Position(
                id=str(entry["id"]),
                offsets={int(key): int(value) for key, value in entry.items() if key != "id"},
            )
            for stream, entry in offset.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the checkpoint holds position {offset!r}, which this source does not write: is it "
            "another source's? A new query needs a checkpoint location of its own"
        ) from error


def check_available(
    extent: Extent, position: Position | None, *, fail_on_data_loss: bool
) -> dict[int, int]:
    """Offsets, one for each partition of the stream, from which every record is still held.

    A partition without position was added since, and is read from offset 0. Raises: DataLoss
    where records from a position on are gone and `fail_on_data_loss`; else such a partition
    starts at the earliest offset that is held.
    """
    known: Mapping[int, int] = {} if position is None else position.offsets
    recreated = position is not None and bool(position.id) and position.id != extent.id
    if recreated and fail_on_data_loss:
        raise DataLoss(extent.stream, None, "it was deleted and created again since the checkpoint")
    held = {}
    for partition, (earliest, latest) in extent.partitions.items():
        offset = known.get(partition, 0)
        if recreated or not earliest <= offset <= latest:
            if fail_on_data_loss:
                raise DataLoss(
                    extent.stream, partition, f"offset {offset} is not in [{earliest}, {latest}]"
                )
            offset = earliest
        held[partition] = offset
    return held


def backlog(
    positions: Mapping[str, Mapping[int, int]], targets: Mapping[str, Mapping[int, int]]
) -> int:
    """Records between the positions and the targets, in all."""
    return sum(
        max(0, end - positions[stream][partition])
        for stream, ends in targets.items()
        for partition, end in ends.items()
    )


def advance(
    positions: Mapping[str, Mapping[int, int]],
    targets: Mapping[str, Mapping[int, int]],
    records_max: int | None,
) -> dict[str, dict[int, int]]:
    """Move from `positions` towards `targets` by about `records_max` records in all.

    The limit is shared out in proportion to what each partition has waiting; each that has
    something moves by at least one, so no partition waits for ever, and one more for each of
    them is the most.
    """
    total = backlog(positions, targets)
    moved: dict[str, dict[int, int]] = {}
    for stream, ends in targets.items():
        moved[stream] = {}
        for partition, end in ends.items():
            at = positions[stream][partition]
            step = max(0, end - at)
            if records_max is not None and total > records_max and step:
                step = max(1, records_max * step // total)
            moved[stream][partition] = at + step
    return moved


def split_ranges(
    ranges: Iterable[Range], *, pieces_min: int = 1, records_max: int | None = None
) -> list[Range]:
    """Cut ranges into about `pieces_min` pieces or more, none over `records_max`.

    The pieces cover exactly the same offsets, in order; empty ranges vanish.
    """
    ranges = [r for r in ranges if r.records]
    total = sum(r.records for r in ranges)
    if total == 0:
        return []
    piece = min(records_max or RECORDS_PER_TASK_MAX, max(1, total // pieces_min))
    arrow_slices = []
    for r in ranges:
        count = -(-r.records // piece)
        for i in range(count):
            start = r.start + r.records * i // count
            end = r.start + r.records * (i + 1) // count
            arrow_slices.append(Range(r.stream, r.partition, start, end))
    return arrow_slices
