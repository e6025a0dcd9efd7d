"""Reads rows of data files in offset order. Runs on executors, without catalog or manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from bascule.errors import Broken, CorruptData
from bascule.pipeline.lake import storage
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
                yield from _merged(cluster, schema, batch_rows, (start, end))


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
    """The rows of one file. With `offsets`, only these, in ascending order."""
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
        with source, pq.ParquetFile(source, pre_buffer=False) as opened:
            if offsets and not _is_sorted(opened.metadata):
                yield from _sorted_rows(opened, schema, batch_rows, offsets, values)
                return
            for batch in opened.iter_batches(
                batch_size=batch_rows,
                row_groups=_row_groups(opened.metadata, cut),
                columns=_columns(opened.schema_arrow, wanted),
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


def _sorted_rows(
    file: pq.ParquetFile,
    schema: pa.Schema,
    batch_rows: int,
    offsets: tuple[int, int],
    values: Mapping[str, str | None],
) -> Iterator[pa.RecordBatch]:
    """The rows of a file that another program wrote (a compaction of Delta), in offset order."""
    wanted = schema if OFFSET in schema.names else schema.append(OFFSET_FIELD)
    table = file.read(columns=_columns(file.schema_arrow, wanted), use_threads=False)
    ordered = table.take(pc.sort_indices(table.column(OFFSET))).combine_chunks()
    for batch in ordered.to_batches(max_chunksize=batch_rows):
        rows = _within(batch, offsets)
        if rows.num_rows:
            yield with_schema(rows, schema, values)


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


def _columns(held: pa.Schema, wanted: pa.Schema) -> list[str]:
    """Paths of the columns to read; only the requested fields of a struct."""
    paths: list[str] = []

    def add(path: str, have: pa.DataType, want: pa.DataType) -> None:
        if not (pa.types.is_struct(have) and pa.types.is_struct(want)):
            paths.append(path)
            return
        shared = [f for f in want if have.get_field_index(f.name) >= 0]
        if not shared:
            paths.append(path)
        for f in shared:
            add(f"{path}.{f.name}", have.field(f.name).type, f.type)

    for field in wanted:
        if held.get_field_index(field.name) >= 0:
            add(field.name, held.field(field.name).type, field.type)
    if not paths:
        # A batch without columns has no row count.
        paths.append(min(held.names, key=lambda name: (name != OFFSET, name)))
    return paths


def with_schema(
    batch: pa.RecordBatch, schema: pa.Schema, values: Mapping[str, str | None] | None = None
) -> pa.RecordBatch:
    """Convert a batch to `schema`. Missing columns are null.

    `values` are those of the file's lake partition. Files of other programs in a Delta table do not
    contain the partition columns.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    arrays = []
    for field in schema:
        if batch.schema.get_field_index(field.name) < 0:
            text = (values or {}).get(field.name)
            arrays.append(pa.repeat(pa.scalar(text).cast(field.type), batch.num_rows))
        else:
            arrays.append(_as_type(batch.column(field.name), field.type))
    if not arrays:
        return batch.select([])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _as_type(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if array.type.equals(wanted):
        return array
    if pa.types.is_struct(wanted) and pa.types.is_struct(array.type):
        children = [
            _as_type(pc.struct_field(array, f.name), f.type)
            if array.type.get_field_index(f.name) >= 0
            else pa.nulls(len(array), f.type)
            for f in wanted
        ]
        mask = pc.is_null(array) if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask)
    return pc.cast(array, wanted)


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
    files: list[DataFile], schema: pa.Schema, batch_rows: int, offsets: tuple[int, int]
) -> Iterator[pa.RecordBatch]:
    """Merge interleaved files into one ascending sequence. A file is opened when its first row is
    due."""
    with_offset = schema if OFFSET in schema.names else schema.append(OFFSET_FIELD)
    pending = sorted(files, key=_start)
    heads: list[_MergeInput] = []
    while pending or heads:
        limit = min((int(head.offsets[-1]) for head in heads), default=-1)
        while pending and (not heads or _start(pending[0]) <= limit):
            head = _MergeInput(_rows_of(pending.pop(0), with_offset, batch_rows, offsets))
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
        for first in range(0, rows.num_rows, batch_rows):
            yield with_schema(rows.slice(first, batch_rows), schema)
