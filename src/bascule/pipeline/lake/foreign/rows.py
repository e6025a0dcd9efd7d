"""Reads the rows of a file that another program wrote, or deleted rows of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bascule.pipeline.lake.columns import stored_paths, with_schema
from bascule.pipeline.lake.model import DataFile

OFFSET: Final = "offset"
PARTITION: Final = "partition"
PARTITION_FIELD: Final = pa.field(PARTITION, pa.int32())


@dataclass(frozen=True, slots=True)
class RowSource:
    """Rows with ascending offsets, read when they are due."""

    start: int
    """No row has a lesser offset."""
    open: Callable[[], Iterator[pa.RecordBatch]]


def row_group_sources(
    opened: pq.ParquetFile, file: DataFile, schema: pa.Schema, offsets: tuple[int, int] | None
) -> list[RowSource]:
    """One source for each row group, with the columns of `schema` and perhaps the partition.

    Only rows of the file's span, and of `offsets`, that are not deleted. With `offsets`, `schema`
    has the column of offsets. Without, rows keep their order.
    """
    metadata = opened.metadata
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    firsts = accumulate(sizes, initial=0)
    sources = []
    for group, first in zip(range(metadata.num_row_groups), firsts, strict=False):
        low, high = _bounds(metadata, group, OFFSET) or (0, None)
        if offsets and ((high is not None and high < offsets[0]) or low >= offsets[1]):
            continue
        number = file.span.partition if file.is_shared and file.span else None
        numbers = None if number is None else _bounds(metadata, group, PARTITION)
        if number is not None and numbers and not numbers[0] <= number <= numbers[1]:
            continue
        rows = partial(_group_rows, opened, file, schema, offsets, group=group, first=first)
        sources.append(RowSource(low, rows))
    return sources


def _bounds(metadata: pq.FileMetaData, group: int, name: str) -> tuple[int, int] | None:
    """The statistics of a column in a row group; None if the file has none."""
    for number in range(metadata.num_columns):
        column = metadata.row_group(group).column(number)
        if column.path_in_schema == name:
            found = column.statistics
            return (found.min, found.max) if found is not None and found.has_min_max else None
    return None


def _group_rows(
    opened: pq.ParquetFile,
    file: DataFile,
    schema: pa.Schema,
    offsets: tuple[int, int] | None,
    *,
    group: int,
    first: int,
) -> Iterator[pa.RecordBatch]:
    """`first` is the position of the group's first row in the file."""
    wanted = schema
    if file.is_shared and PARTITION not in schema.names:
        wanted = wanted.append(PARTITION_FIELD)
    paths = stored_paths(opened.schema_arrow, wanted)
    read = opened.read_row_group(group, columns=paths, use_threads=False)
    values = dict(file.partition_values)
    # Sorting and filtering have no kernels for the view types of some writers.
    batches = [with_schema(batch, wanted, values) for batch in read.to_batches()]
    rows = pa.Table.from_batches(batches, wanted)
    if (mask := _mask(rows, file, offsets, first)) is not None:
        rows = rows.filter(pa.array(mask))
    rows = rows.select(schema.names)
    if offsets and rows.num_rows:
        held = rows.column(OFFSET)
        if (np.diff(held.to_numpy()) < 0).any():
            rows = rows.take(pc.sort_indices(held))
    yield from (batch for batch in rows.to_batches() if batch.num_rows)


def _mask(
    rows: pa.Table, file: DataFile, offsets: tuple[int, int] | None, first: int
) -> npt.NDArray[np.bool_] | None:
    """The rows to keep; None for all."""
    mask = np.ones(rows.num_rows, np.bool_)
    if file.deleted_rows:
        positions = np.frombuffer(file.deleted_rows, "<i8") - first
        low, high = np.searchsorted(positions, (0, rows.num_rows))
        mask[positions[low:high]] = False
    if file.is_shared:
        assert file.span is not None, "a shared file has spans"
        mask &= rows.column(PARTITION).to_numpy() == file.span.partition
    if offsets:
        held = rows.column(OFFSET).to_numpy()
        mask &= (held >= offsets[0]) & (held < offsets[1])
    return None if mask.all() else mask
