"""Positions of a query and ranges of offsets: encoding, checks, advance, split. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from bascule.errors import ConfigError, DataLoss

OffsetJson: TypeAlias = dict[str, dict[str, str | int]]
"""Stream -> {"id": hex, "0": next offset of partition 0, ...}, with ordered names."""

Positions: TypeAlias = dict[str, "Position"]


RECORDS_PER_TASK_MAX: Final = 5_000_000
"""A longer range is cut. It is about three seconds of reading, so a lost task costs little. A task
costs 50 ms of CPU. `minPartitions` sets a minimum number of tasks."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a stream: its id, and [earliest, latest) of each partition."""

    stream: str
    id: str
    partitions: Mapping[int, tuple[int, int]]

    def earliest(self) -> dict[int, int]:
        return {partition: start for partition, (start, _) in self.partitions.items()}

    def latest(self) -> dict[int, int]:
        return {partition: end for partition, (_, end) in self.partitions.items()}


@dataclass(frozen=True, slots=True)
class Position:
    """The position in one stream: its id, and the next offset of each partition."""

    id: str
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, end) of one partition of a stream."""

    stream: str
    partition: int
    start: int
    end: int
    id: str = field(default="", compare=False)
    """Id of the stream when the range was planned; empty: not known."""

    @property
    def records(self) -> int:
        """Number of offsets; equal to the number of records unless the log was compacted."""
        return max(0, self.end - self.start)


def encode_positions(positions: Mapping[str, Position]) -> OffsetJson:
    """Encode the JSON object for Spark's checkpoint. Equal positions give equal texts."""
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
            "another source's checkpoint? A new query needs a new checkpoint location"
        ) from error


def check_available(
    extent: Extent, position: Position | None, *, fail_on_data_loss: bool
) -> dict[int, int]:
    """Check a position. Return the start offset of each partition.

    A partition without a position was added later and is read from offset 0. Raises: DataLoss if
    records after a position were removed and `fail_on_data_loss` is set. Otherwise such a partition
    starts at its earliest offset.
    """
    known: Mapping[int, int] = {} if position is None else position.offsets
    recreated = position is not None and bool(position.id) and position.id != extent.id
    if recreated and fail_on_data_loss:
        assert position is not None
        raise DataLoss(
            extent.stream,
            None,
            f"the checkpoint is of a stream of this name with id {position.id}, and the node's has "
            f"id {extent.id}: it was deleted and created again, or it is on another node",
        )
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
    """Total number of records between the positions and the targets."""
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
    """Advance from `positions` towards `targets` by about `records_max` records in total.

    Each partition gets a share in proportion to its backlog, and at least one record. So no
    partition starves, and the total exceeds the limit by at most one record per partition.
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
    """Cut ranges into about `pieces_min` or more ranges of at most `records_max` offsets.

    The result covers exactly the same offsets, in order. Empty ranges are left out.
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
            arrow_slices.append(replace(r, start=start, end=end))
    return arrow_slices
