"""Finds which stream partitions and offsets a data file holds, whoever wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bascule.errors import ForeignTable
from bascule.pipeline.lake import storage
from bascule.pipeline.lake.bounds import bounds_of
from bascule.pipeline.lake.file_reader import read_files
from bascule.pipeline.lake.model import ColumnBounds, DataFile, Span

POSITIONS = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])


def with_spans(table: str, file: DataFile) -> list[DataFile]:
    """The entries of a file: one for each stream partition that it may hold rows of.

    The bounds in the table's metadata decide, or those in the file's footer if the program that
    wrote the file left these columns out.

    Raises: ForeignTable for a file without partitions and offsets; OSError.
    """
    fixed = dict(file.partition_values).get("partition")
    found = _extents(file.bounds, fixed)
    if found is None and file.rows:
        found = _extents(_footer_bounds(table, file), fixed)
    if found is None:
        if not file.rows:
            return []
        raise ForeignTable(
            table, f"its file {file.path} has no statistics for the columns partition and offset"
        )
    (low, high), (first, last) = found
    return [
        replace(file, span=Span(partition, first, last + 1), is_shared=low != high)
        for partition in range(low, high + 1)
    ]


def _extents(
    bounds: Sequence[ColumnBounds], fixed: str | None
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The least and greatest partition and offset. The partition may be that of the folder."""
    known = {each.path: each for each in bounds}
    partitions = (int(fixed), int(fixed)) if fixed is not None else _extent(known.get("partition"))
    offsets = _extent(known.get("offset"))
    return (partitions, offsets) if partitions and offsets else None


def _extent(bounds: ColumnBounds | None) -> tuple[int, int] | None:
    if bounds is None or not isinstance(bounds.low, int) or not isinstance(bounds.high, int):
        return None
    return bounds.low, bounds.high


def _footer_bounds(table: str, file: DataFile) -> tuple[ColumnBounds, ...]:
    filesystem, inner = storage.filesystem_of(file.path)
    try:
        with filesystem.open_input_file(inner) as source:
            return bounds_of(pq.read_metadata(source))
    except pa.ArrowInvalid as error:
        raise ForeignTable(table, f"its file {file.path} is not Parquet: {error}") from error


def committed_by(files: Iterable[DataFile]) -> dict[int, tuple[int, int]]:
    """The span of each stream partition, derived from the rows of a table.

    It serves where no snapshot records the spans any longer. Offsets at the end that had no record,
    or whose rows were deleted, are not known then.
    """
    spans: dict[int, tuple[int, int]] = {}
    for file in files:
        assert file.span is not None, "files of an archive have spans"
        number = file.span.partition
        exact = (file.span.start, file.span.end)
        if file.is_shared or file.deleted_rows:
            exact = _read_extent(file)
        if exact[0] < exact[1]:
            low, high = spans.get(number, exact)
            spans[number] = (min(low, exact[0]), max(high, exact[1]))
    return spans


def _read_extent(file: DataFile) -> tuple[int, int]:
    low, high = 0, 0
    for batch in read_files([file], POSITIONS):
        least, greatest = pc.min_max(batch.column("offset")).as_py().values()
        low, high = (least if low == high else min(low, least)), max(high, greatest + 1)
    return low, high
