"""One task of an audit: compares the log's records with the table's rows for some spans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa

from bascule.errors import Broken, CorruptData, DataLoss
from bascule.pipeline.jobs.archive.endpoints import log_extent_of
from bascule.pipeline.jobs.archive.task import read_log
from bascule.pipeline.jobs.audit.compare import AuditFault, AuditFindings, RowComparison
from bascule.pipeline.jobs.offset_cursor import OffsetCursor
from bascule.pipeline.jobs.rows import MALFORMED_SCHEMA, RowBuilder
from bascule.pipeline.lake.checksum import SpanChecksum
from bascule.pipeline.lake.file_reader import overlapping_groups, read_files
from bascule.pipeline.lake.model import DataFile, Span, SpanDigest
from bascule.pipeline.values.spec import ValueSpec

WINDOW_ROWS: Final = 65_536
"""Rows compared at a time where the log no longer holds the offsets."""


@dataclass(frozen=True, slots=True)
class AuditTaskSpec:
    """Description of every task of an audit. Picklable."""

    server: str
    stream: str
    value: ValueSpec
    raw: bool
    compacted: bool
    """Compaction may have removed records from the log that the table still holds."""
    faults_max: int


@dataclass(frozen=True, slots=True)
class SpanGroup:
    """Consecutive spans of one partition, and the files that may hold rows of them.

    `digests` holds the digest recorded for each span when it was archived, or None.
    """

    spans: tuple[Span, ...]
    digests: tuple[SpanDigest | None, ...]
    log_start: int
    """The log holds no offsets below this."""
    log_end: int
    """High watermark of the log when the audit began."""
    files: tuple[DataFile, ...]
    malformed_files: tuple[DataFile, ...]


class _Side:
    """One of the two tables within one span: the rows it should hold and the rows it holds."""

    def __init__(
        self,
        comparison: RowComparison,
        schema: pa.Schema,
        rows: OffsetCursor,
        checksum: SpanChecksum,
    ) -> None:
        self.schema = schema
        self._comparison = comparison
        self._rows = rows
        self._checksum = checksum
        self.count = 0

    def compare(self, log: Sequence[pa.RecordBatch], bound: int) -> None:
        lake = self._take(bound)
        self._comparison.compare(pa.Table.from_batches(log, self.schema), lake)

    def pass_over(self, bound: int) -> None:
        """Check rows that the log no longer holds."""
        self._comparison.check_duplicates(self._take(bound))

    def _take(self, bound: int) -> pa.Table:
        lake = self._rows.until(bound)
        self.count += lake.num_rows
        for batch in lake.to_batches():
            self._checksum.update(batch)
        return lake


def check_span_group(task_spec: AuditTaskSpec, group: SpanGroup) -> str:
    """Check one group. Return the JSON of its `AuditFindings`."""
    partition = group.spans[0].partition
    found = AuditFindings(partition)
    comparison = RowComparison(
        found, compacted=task_spec.compacted, faults_max=task_spec.faults_max
    )
    rows = RowBuilder(task_spec.value, raw=task_spec.raw)
    start, end = group.spans[0].start, group.spans[-1].end

    def cursor(files: tuple[DataFile, ...], schema: pa.Schema) -> OffsetCursor:
        return OffsetCursor(_rows_of(files, schema, (start, end), found), schema)

    main_rows = cursor(group.files, rows.schema)
    side_rows = cursor(group.malformed_files, MALFORMED_SCHEMA)
    for span, recorded in zip(group.spans, group.digests, strict=True):
        checksum = SpanChecksum()
        main = _Side(comparison, rows.schema, main_rows, checksum)
        side = _Side(comparison, MALFORMED_SCHEMA, side_rows, SpanChecksum())
        _check_span(task_spec, span, (group.log_start, group.log_end), rows, main, side, found)
        found.lake_rows += main.count + side.count
        found.malformed += side.count
        if recorded is not None:
            comparison.check_span(
                span, rows=(main.count, recorded.rows), crc=(checksum.value, recorded.crc)
            )
    return msgspec.json.encode(found).decode()


def _rows_of(
    files: Sequence[DataFile], schema: pa.Schema, offsets: tuple[int, int], found: AuditFindings
) -> Iterator[pa.RecordBatch]:
    """The rows of files in offset order. A file that cannot be read is a fault."""
    for cluster in overlapping_groups(files):
        try:
            yield from read_files(cluster, schema, offset_start=offsets[0], offset_end=offsets[1])
        except (Broken, CorruptData, OSError) as error:
            found.spans_wrong += 1
            start = min(file.span.start for file in cluster if file.span is not None)
            found.faults.insert(0, AuditFault(found.partition, start, "unreadable", str(error)))


def _check_span(
    task_spec: AuditTaskSpec,
    span: Span,
    log: tuple[int, int],
    rows: RowBuilder,
    main: _Side,
    side: _Side,
    found: AuditFindings,
) -> None:
    """Check first the offsets that the log no longer holds, then the others. `log` is the log's
    extent."""
    at = span.start
    log_start, end = log[0], min(log[1], span.end)
    for attempt in range(3):
        begin = min(span.end, max(at, log_start))
        while at < begin:
            at = min(begin, at + WINDOW_ROWS)
            main.pass_over(at)
            side.pass_over(at)
        try:
            for batch in read_log(task_spec.server, task_spec.stream, span.partition, at, end):
                found.log_rows += batch.num_rows
                at = batch.column("offset")[-1].as_py() + 1
                good, bad = rows.split(batch)
                main.compare([good], at)
                side.compare([] if bad is None else [bad], at)
            break
        except DataLoss:
            # Retention continues during an audit.
            held = log_extent_of(task_spec.server, task_spec.stream).partitions
            log_start = held.get(span.partition, (span.end, span.end))[0]
            if attempt == 2 or log_start <= at:
                raise
    # After the last record of the span: offsets removed by compaction, or rows that never were in
    # the log.
    main.compare([], span.end)
    side.compare([], span.end)
