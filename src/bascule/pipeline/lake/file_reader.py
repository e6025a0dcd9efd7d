"""Reads rows of data files in offset order. Runs on executors, without catalog or manifest."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from bascule.errors import Broken, CorruptData
from bascule.pipeline.lake import storage
from bascule.pipeline.lake.columns import stored_paths, with_schema
from bascule.pipeline.lake.foreign.rows import RowSource, row_group_sources
from bascule.pipeline.lake.model import DataFile

BATCH_ROWS_MAX: Final = 65_536
OFFSET: Final = "offset"
OFFSET_FIELD: Final = pa.field(OFFSET, pa.int64())
END_MAX: Final = 2**63 - 1


def read_files(
    files: Sequence[DataFile],
    schema: pa.Schema,
    *,
    offset_start: int | None = None,
    offset_end: int | None = None,
    batch_rows: int = BATCH_ROWS_MAX,
) -> Iterator[pa.RecordBatch]:
    """Read the rows of `files`, ordered by stream partition and offset.

    `schema` selects the columns; struct columns may have only some of their fields. A column that a
    file lacks is null. Only offsets in [offset_start, offset_end) are returned, and files and row
    groups outside are not read. Batches have at most `batch_rows` rows and exactly `schema`. Files
    without a span come first, in their own row order.

    Raises: Broken if a file does not exist (its snapshot expired); CorruptData; OSError.
    """
    start = 0 if offset_start is None else offset_start
    end = END_MAX if offset_end is None else offset_end
    by_partition: dict[int, list[DataFile]] = {}
    for file in files:
        if file.span is None:
            yield from _rows_of(file, schema, batch_rows)
        elif file.span.start < end and file.span.end > start:
            by_partition.setdefault(file.span.partition, []).append(file)
    for _, chosen in sorted(by_partition.items()):
        for cluster in overlapping_groups(chosen):
            if len(cluster) == 1:
                yield from _rows_of(cluster[0], schema, batch_rows, (start, end))
            else:
                sources = _sources(cluster, schema, batch_rows, (start, end))
                yield from _merged(sources, schema, batch_rows)


def _sources(
    files: Sequence[DataFile], schema: pa.Schema, batch_rows: int, offsets: tuple[int, int]
) -> list[RowSource]:
    """One source for each file, with the offset among its columns."""
    wanted = schema if OFFSET in schema.names else schema.append(OFFSET_FIELD)
    return [
        RowSource(_start(file), partial(_rows_of, file, wanted, batch_rows, offsets))
        for file in files
    ]


def overlapping_groups(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Group the files of one stream partition so that spans of different groups do not overlap.

    Files of one group interleave: their rows belong to one span and to several lake partitions.
    """
    found: list[list[DataFile]] = []
    reach = -1
    for file in sorted(files, key=_start):
        assert file.span is not None, "files of a stream partition have spans"
        if not found or file.span.start >= reach:
            found.append([])
        found[-1].append(file)
        reach = max(reach, file.span.end)
    return found


def _start(file: DataFile) -> int:
    return file.span.start if file.span else 0


def _rows_of(
    file: DataFile,
    schema: pa.Schema,
    batch_rows: int,
    offsets: tuple[int, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of one file that belong to its span. With `offsets`, only these, in ascending
    order."""
    span = file.span
    cut = None
    if offsets and span and not (offsets[0] <= span.start and span.end <= offsets[1]):
        cut = offsets
    wanted = schema if cut is None or OFFSET in schema.names else schema.append(OFFSET_FIELD)
    values = dict(file.partition_values)
    filesystem, inner = storage.filesystem_of(file.path)
    try:
        if isinstance(filesystem, pafs.LocalFileSystem):
            source = pa.memory_map(inner)
        else:
            source = filesystem.open_input_file(inner)
        # Spark writes times as INT96. Nanoseconds, Arrow's default for these, end in the year 2262.
        with (
            source,
            pq.ParquetFile(source, pre_buffer=False, coerce_int96_timestamp_unit="us") as opened,
        ):
            if file.deleted_rows or file.is_shared or (offsets and not _is_sorted(opened.metadata)):
                yield from _foreign_rows(opened, file, schema, batch_rows, offsets)
                return
            for batch in opened.iter_batches(
                batch_size=batch_rows,
                row_groups=_row_groups(opened.metadata, cut),
                columns=stored_paths(opened.schema_arrow, wanted),
                use_threads=False,
            ):
                rows = batch if cut is None else _within(batch, cut)
                if rows.num_rows:
                    yield with_schema(rows, schema, values)
    except FileNotFoundError as error:
        raise Broken(
            f"{file.path} does not exist: the snapshot that names it has expired; use a newer one"
        ) from error
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CorruptData(file.path, 0, "a Parquet file", str(error)) from error


def _is_sorted(metadata: pq.FileMetaData) -> bool:
    """Whether the file's metadata declares that its rows are in offset order."""
    for group in range(metadata.num_row_groups):
        order = metadata.row_group(group).sorting_columns
        if not order or metadata.schema.column(order[0].column_index).path != OFFSET:
            return False
    return True


def _foreign_rows(
    opened: pq.ParquetFile,
    file: DataFile,
    schema: pa.Schema,
    batch_rows: int,
    offsets: tuple[int, int] | None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a file that another program wrote or deleted rows of. Each row group is sorted by
    itself, and row groups are merged, so a file whose groups do not overlap is never in memory as a
    whole."""
    if offsets is None:
        for source in row_group_sources(opened, file, schema, None):
            for batch in source.open():
                yield from _slices(batch, schema, batch_rows)
        return
    wanted = schema if OFFSET in schema.names else schema.append(OFFSET_FIELD)
    yield from _merged(row_group_sources(opened, file, wanted, offsets), schema, batch_rows)


def _within(batch: pa.RecordBatch, offsets: tuple[int, int]) -> pa.RecordBatch:
    held = batch.column(OFFSET).to_numpy()
    first, last = np.searchsorted(held, offsets)
    return batch.slice(int(first), int(last - first))


def _row_groups(metadata: pq.FileMetaData, offsets: tuple[int, int] | None) -> list[int]:
    every = range(metadata.num_row_groups)
    if offsets is None or not every:
        return list(every)
    number = next(
        (n for n in range(metadata.num_columns) if metadata.schema.column(n).path == OFFSET), None
    )
    if number is None:
        return list(every)
    chosen = []
    for group in every:
        statistics = metadata.row_group(group).column(number).statistics
        known = statistics is not None and statistics.has_min_max
        if not known or (statistics.min < offsets[1] and statistics.max >= offsets[0]):
            chosen.append(group)
    return chosen


class _MergeInput:
    """One input of a merge, with its pending rows."""

    def __init__(self, rows: Iterator[pa.RecordBatch]) -> None:
        self._rows = rows
        self.waiting: pa.RecordBatch | None = None
        self.offsets = np.empty(0, np.int64)
        self.advance()

    def advance(self) -> None:
        self.waiting = next(self._rows, None)
        if self.waiting is not None:
            self.offsets = self.waiting.column(OFFSET).to_numpy()

    def take_until(self, last: int) -> pa.RecordBatch | None:
        """Take the pending rows with offsets up to `last`."""
        assert self.waiting is not None, "a head that is at its end is dropped"
        count = int(np.searchsorted(self.offsets, last, side="right"))
        taken = self.waiting.slice(0, count)
        if count == self.waiting.num_rows:
            self.advance()
        else:
            self.waiting = self.waiting.slice(count)
            self.offsets = self.offsets[count:]
        return taken if count else None


def _merged(
    sources: Sequence[RowSource], schema: pa.Schema, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Merge sources of ascending rows into one. A source is opened when its first row is due."""
    pending = deque(sorted(sources, key=lambda source: source.start))
    heads: list[_MergeInput] = []
    while pending or heads:
        limit = min((int(head.offsets[-1]) for head in heads), default=-1)
        while pending and (not heads or pending[0].start <= limit):
            head = _MergeInput(pending.popleft().open())
            if head.waiting is not None:
                heads.append(head)
                limit = min(int(each.offsets[-1]) for each in heads)
        parts = [part for head in heads if (part := head.take_until(limit)) is not None]
        heads = [head for head in heads if head.waiting is not None]
        if not parts:
            continue
        rows = parts[0]
        if len(parts) > 1:
            rows = pa.concat_batches(parts)
            rows = rows.take(pc.sort_indices(rows.column(OFFSET)))
        yield from _slices(rows, schema, batch_rows)


def _slices(rows: pa.RecordBatch, schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, rows.num_rows, batch_rows):
        yield with_schema(rows.slice(first, batch_rows), schema)
