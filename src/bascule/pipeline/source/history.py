"""`archive`: one view of a lake table's history and the log's tail.

    offsets   archive start            H = committed end        watermark
              |--- lake table ---------|                        |
                          |--- log ----+------------------------|
    read from |--- files --------------|--- log ----------------|

Each offset comes from one place: below H, which the snapshot of the lake table says for each
partition, from its files; from H on from the log. H is fixed when a read, or a micro-batch, is
planned, and travels with its tasks; whichever way an offset is read, the row is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from bascule.errors import ConfigError, DataLoss
from bascule.pipeline.lake.model import DataFile
from bascule.pipeline.source.columns import Shaper
from bascule.pipeline.source.filters import ALL, Predicate
from bascule.pipeline.source.positions import Extent, Range
from bascule.pipeline.source.reading import pieces
from bascule.record.columns import SCHEMA as FETCHED

if TYPE_CHECKING:
    from bascule.pipeline.lake.model import Snapshot, TableAddress
    from bascule.pipeline.source.options import SourceOptions


@dataclass(frozen=True, slots=True)
class History:
    """What one snapshot of a lake table holds of a stream."""

    stream: str
    stream_id: str
    committed: Mapping[int, tuple[int, int]]
    """Partition -> [start, end) without gap."""
    files: tuple[DataFile, ...] = ()

    @classmethod
    def of(cls, address: TableAddress, stream: str) -> History:
        """The table's current snapshot. Raises: ConfigError where it archives another stream."""
        from bascule.pipeline.lake import open_table

        table = open_table(address)
        snapshot: Snapshot | None = table.snapshot()
        if snapshot is None:
            return cls(stream, "", {})
        if snapshot.stream != stream:
            raise ConfigError(
                f"the archive holds stream {snapshot.stream!r}, and {stream!r} is read"
            )
        files = tuple(table.files(snapshot))
        return cls(stream, snapshot.stream_id, snapshot.committed, files)

    def widened(self, extent: Extent) -> Extent:
        """The extent of history and log together.

        Raises: DataLoss where the log begins beyond the archive's end, or is of another stream.
        """
        if self.stream_id and self.stream_id != extent.id:
            raise DataLoss(
                extent.stream, None, "it was deleted and created again since it was archived"
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

    def cut(self, wanted: Range) -> tuple[Range, Range]:
        """The part of a range that is history, and the part that the log holds."""
        _, end = self.committed.get(wanted.partition, (0, 0))
        middle = min(max(wanted.start, end), wanted.end)
        return replace(wanted, end=middle), replace(wanted, start=middle)

    def files_of(self, wanted: Range) -> tuple[DataFile, ...]:
        """The files that may hold offsets of a range."""
        return tuple(
            file
            for file in self.files
            if file.span is not None
            and file.span.partition == wanted.partition
            and file.span.start < wanted.end
            and file.span.end > wanted.start
        )


def history_rows(
    options: SourceOptions,
    wanted: Range,
    files: tuple[DataFile, ...],
    predicate: Predicate = ALL,
) -> Iterator[pa.RecordBatch]:
    """The rows of a range that the files hold, in the source's columns; only these are read.

    Raises: MalformedValue, Broken where a file is gone because its snapshot expired.
    """
    from bascule.pipeline.lake.reading import read_files

    shaper = Shaper(options, wanted.stream)
    needed = shaper.needed | predicate.needed or {"offset"}
    stored = pa.schema([field for field in FETCHED if field.name in needed])
    for batch in read_files(files, stored, offset_start=wanted.start, offset_end=wanted.end):
        mask = predicate.mask(batch)
        kept = batch if mask is None else batch.filter(mask)
        if kept.num_rows:
            yield from pieces(shaper.shape(kept))
