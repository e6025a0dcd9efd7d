"""`archive`: reads a lake table and the log of its stream as one sequence of offsets.

    offsets   archive start            H = committed end        watermark
              |--- lake table ---------|                        |
                          |--- log ----+------------------------|
    read from |--- files --------------|--- log ----------------|

Each offset is read from one place. H is the end of the partition in the lake table's snapshot.
Offsets below H come from its files, offsets from H on come from the log. H is fixed when a read or
a micro-batch is planned and is part of its tasks. The rows are the same from either place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from bascule.errors import ConfigError, DataLoss, UnknownTable
from bascule.pipeline.lake.model import DataFile, Span
from bascule.pipeline.source.columns import RowProjector
from bascule.pipeline.source.filters import ALL, Predicate
from bascule.pipeline.source.log_reader import arrow_slices
from bascule.pipeline.source.positions import Extent, Range
from bascule.record.columns import SCHEMA as FETCHED

if TYPE_CHECKING:
    from bascule.pipeline.lake.model import LakeSnapshot, TableAddress
    from bascule.pipeline.source.options import SourceOptions
    from bascule.pipeline.values import ValueSpec


@dataclass(frozen=True, slots=True)
class ArchiveFiles:
    """The files of a range, and the type of their value column."""

    main: tuple[DataFile, ...]
    malformed: tuple[DataFile, ...] = ()
    """Files of malformed records. Their values are bytes."""
    value_column: str = "value"
    is_typed: bool = False
    """Whether the column holds typed values and not bytes."""

    def overlapping(self, wanted: Range) -> ArchiveFiles:
        """The files that may hold offsets of a range."""
        span = Span(wanted.partition, wanted.start, wanted.end)
        return replace(
            self,
            main=tuple(file for file in self.main if file.may_hold(span)),
            malformed=tuple(file for file in self.malformed if file.may_hold(span)),
        )


@dataclass(frozen=True, slots=True)
class ArchiveHistory:
    """The part of a stream that one snapshot of a lake table holds."""

    stream: str
    stream_id: str
    committed: Mapping[int, tuple[int, int]]
    """Partition -> [start, end) without gap."""
    files: ArchiveFiles

    @classmethod
    def of(cls, address: TableAddress, stream: str, values: ValueSpec) -> ArchiveHistory:
        """Read the table's current snapshot.

        Raises: ConfigError if it archives another stream or values of another type; UnknownTable.
        """
        from bascule.pipeline.lake import open_table

        table = open_table(address)
        snapshot = table.snapshot()
        if snapshot is None:
            return cls(stream, "", {}, ArchiveFiles(()))
        if snapshot.stream != stream:
            raise ConfigError(
                f"the archive holds stream {snapshot.stream!r}, and {stream!r} is read"
            )
        files = _files_for(table.schema, values)
        files = replace(
            files,
            main=tuple(table.files(snapshot)),
            malformed=_malformed_files(address, snapshot, table.schema),
        )
        return cls(stream, snapshot.stream_id, snapshot.committed, files)

    def extended(self, extent: Extent) -> Extent:
        """The combined extent of the archive and the log.

        Raises: DataLoss if there is a gap between the archive and the log, or the log is another
        stream.
        """
        if self.stream_id and self.stream_id != extent.id:
            raise DataLoss(
                extent.stream,
                None,
                f"the archive is of a stream of this name with id {self.stream_id}, and the node's "
                f"has id {extent.id}: it was deleted and created again since it was archived, or "
                "it is on another node",
            )
        partitions = dict(extent.partitions)
        for partition, (start, end) in self.committed.items():
            log_start, latest = partitions.get(partition, (0, 0))
            if end < log_start or end > latest:
                raise DataLoss(
                    extent.stream,
                    partition,
                    f"the archive holds [{start}, {end}) and the log [{log_start}, {latest})",
                )
            partitions[partition] = (min(start, log_start), latest)
        return replace(extent, partitions=partitions)

    def find_offset(self, partition: int, time_ms: int) -> int | None:
        """The first archived offset at or after a Unix time; None if there is none."""
        found = [
            offset
            for files in (self.files.main, self.files.malformed)
            if (offset := _first_at(files, partition, time_ms)) is not None
        ]
        return min(found, default=None)

    def cut(self, wanted: Range) -> tuple[Range, Range]:
        """Split a range into the part for the archive and the part for the log."""
        start, end = self.committed.get(wanted.partition, (0, 0))
        if wanted.start < start:  # The log holds the whole range.
            return replace(wanted, end=wanted.start), wanted
        middle = min(max(wanted.start, end), wanted.end)
        return replace(wanted, end=middle), replace(wanted, start=middle)


def _first_at(files: tuple[DataFile, ...], partition: int, time_ms: int) -> int | None:
    """Timestamps never decrease within a partition, so the first row at or after the time has the
    offset."""
    from bascule.pipeline.lake.file_reader import read_files

    moment = pa.scalar(time_ms * 1000, pa.timestamp("us", tz="UTC"))
    columns = pa.schema([FETCHED.field("offset"), FETCHED.field("timestamp")])
    chosen = [
        file
        for file in files
        if file.span is not None
        and file.span.partition == partition
        and _ends_at(file, time_ms * 1000)
    ]
    for batch in read_files(chosen, columns):
        later = batch.filter(pc.greater_equal(batch.column("timestamp"), moment))
        if later.num_rows:
            return int(later.column("offset")[0].as_py())
    return None


def _ends_at(file: DataFile, moment_us: int) -> bool:
    """Whether a file may have rows at or after a time (Unix microseconds)."""
    for bounds in file.bounds:
        if bounds.path == "timestamp" and isinstance(bounds.high, int):
            return bounds.high >= moment_us
    return True


def _files_for(held: pa.Schema, values: ValueSpec) -> ArchiveFiles:
    """The column from which values are read. Raises: ConfigError if no column has the requested
    type."""
    found, wanted = held.field("value").type, values.arrow_type()
    if found == pa.binary():
        return ArchiveFiles(())
    if found == wanted:
        return ArchiveFiles((), is_typed=True)
    if "raw" in held.names:
        return ArchiveFiles((), value_column="raw")
    raise ConfigError(
        f"the archive holds values of type {found}, and the options ask for {wanted}: give the "
        "valueFormat and valueSchema that it was written with, or archive with raw = true"
    )


def _malformed_files(
    address: TableAddress, snapshot: LakeSnapshot, held: pa.Schema
) -> tuple[DataFile, ...]:
    """The files of the table of malformed records. The archive commits it first, so it may be
    ahead."""
    from bascule.pipeline.lake import open_table
    from bascule.pipeline.lake.address import malformed_address

    if held.field("value").type == pa.binary():
        return ()
    try:
        side = open_table(malformed_address(address))
    except UnknownTable:
        return ()
    found = side.snapshot()
    return () if found is None else tuple(side.files(found))


def history_rows(
    options: SourceOptions, wanted: Range, files: ArchiveFiles, predicate: Predicate = ALL
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a range from files, in the source's columns. Only needed columns are read.

    Raises: MalformedValue; Broken if a file was deleted because its snapshot expired.
    """
    projector = RowProjector(options, wanted.stream)
    needed = projector.needed | predicate.needed or {"offset"}
    for source, column, is_typed in (
        (files.main, files.value_column, files.is_typed),
        (files.malformed, "value", False),
    ):
        for batch in _read(options, source, wanted, needed, column, is_typed):
            mask = predicate.mask(batch)
            kept = batch if mask is None else batch.filter(mask)
            if kept.num_rows:
                yield from arrow_slices(projector.project(kept, is_typed=is_typed))


def _read(
    options: SourceOptions,
    files: tuple[DataFile, ...],
    wanted: Range,
    needed: set[str],
    column: str,
    is_typed: bool,
) -> Iterator[pa.RecordBatch]:
    """Batches with the needed columns of a fetched batch."""
    from bascule.pipeline.lake.file_reader import read_files

    value = options.values.arrow_type() if is_typed else pa.binary()
    names = [name for name in FETCHED.names if name in needed]
    stored = pa.schema(
        [pa.field(column, value) if n == "value" else FETCHED.field(n) for n in names]
    )
    for batch in read_files(files, stored, offset_start=wanted.start, offset_end=wanted.end):
        yield batch.rename_columns(names)
