"""The minimum and maximum of a data file's columns, read from the footer that was just written."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Final

import pyarrow.parquet as pq

from bascule.pipeline.lake.model import BoundValue, ColumnBounds

TEXT_LENGTH_MAX: Final = 64
"""Longer texts prune little and make manifests large."""
EPOCH_DATE: Final = datetime.date(1970, 1, 1)
MICROSECOND: Final = datetime.timedelta(microseconds=1)


def bounds_of(metadata: pq.FileMetaData) -> tuple[ColumnBounds, ...]:
    """Bounds of every leaf column that has statistics in all row groups. Lists and maps are left
    out."""
    if not metadata.num_row_groups:
        return ()
    found = []
    for number in range(metadata.num_columns):
        column = metadata.schema.column(number)
        if column.max_repetition_level or not metadata.row_group(0).column(number).is_stats_set:
            continue
        statistics = [
            metadata.row_group(group).column(number).statistics
            for group in range(metadata.num_row_groups)
        ]
        if all(each is not None and each.has_null_count for each in statistics):
            low = _joined((each.min if each.has_min_max else None, each) for each in statistics)
            high = _joined(
                ((each.max if each.has_min_max else None, each) for each in statistics),
                greatest=True,
            )
            if low is None or high is None:
                low = high = None
            nulls = sum(each.null_count for each in statistics)
            found.append(ColumnBounds(column.path, nulls, low, high))
    return tuple(found)


def _joined(
    values: Iterable[tuple[object, pq.Statistics]], *, greatest: bool = False
) -> BoundValue:
    """The minimum or maximum over the row groups; None if a row group with values has no
    statistics."""
    best: BoundValue = None
    for value, statistics in values:
        if value is None and statistics.num_values == 0:
            continue  # nothing but nulls
        plain = _plain(value)
        if plain is None:
            return None
        if best is None or (plain > best if greatest else plain < best):  # type: ignore[operator]
            best = plain
    return best


def _plain(value: object) -> BoundValue:
    if isinstance(value, datetime.datetime):
        zone = value.tzinfo
        return (value - datetime.datetime(1970, 1, 1, tzinfo=zone)) // MICROSECOND
    if isinstance(value, datetime.date):
        return (value - EPOCH_DATE).days
    if isinstance(value, str):
        return value if len(value) <= TEXT_LENGTH_MAX else None
    if isinstance(value, bool | int | float):
        return value
    return None
