"""One task of an audit: compares the log's records with the table's rows for some spans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bascule.errors import Broken, CorruptData, DataLoss
from bascule.pipeline.jobs.archive.endpoints import log_extent_of
from bascule.pipeline.jobs.archive.task import read_log
from bascule.pipeline.jobs.audit.compare import (
    AuditFault,
    AuditFindings,
    RowComparison,
    Runs,
    extend_runs,
)
from bascule.pipeline.jobs.offset_cursor import OffsetCursor
from bascule.pipeline.jobs.rows import MALFORMED_SCHEMA, RowBuilder
from bascule.pipeline.lake.checksum import SpanChecksum
from bascule.pipeline.lake.file_reader import overlapping_groups, read_files
from bascule.pipeline.lake.model import DataFile, Span, SpanDigest
from bascule.pipeline.retries import RETRY_TIMEOUT_MS
from bascule.pipeline.values.spec import ValueSpec

WINDOW_ROWS: Final = 65_536
"""Offsets compared at a time, so that few rows of a table are in memory."""


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
    retry_timeout_ms: int = RETRY_TIMEOUT_MS
    deletions_allowed: bool = False


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
    malformed_digests: tuple[tuple[SpanDigest, tuple[DataFile, ...]], ...] = ()
    """Digests of the table of malformed records that end in this group, with the files that may
    hold rows of their spans. These may begin before the group."""


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
        self.missing = 0

    def compare(self, log: Sequence[pa.RecordBatch], bound: int) -> None:
        lake = self._take(bound)
        self.missing += self._comparison.compare(pa.Table.from_batches(log, self.schema), lake)

    def pass_over(self, bound: int) -> npt.NDArray[np.int64]:
        """Check rows that the log no longer holds. Return their offsets."""
        return self._comparison.check_duplicates(self._take(bound))

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
        log = (group.log_start, group.log_end)
        absent = _check_span(task_spec, span, log, rows, main, side, found)
        found.lake_rows += main.count + side.count
        found.malformed += side.count
        if recorded is not None:
            _count_lacking(found, absent, recorded.rows - main.count - main.missing)
            comparison.check_span(
                span, rows=(main.count, recorded.rows), crc=(checksum.value, recorded.crc)
            )
    for recorded, files in group.malformed_digests:
        _check_malformed(task_spec, recorded, files, comparison, found)
    return msgspec.json.encode(found).decode()


def _check_malformed(
    task_spec: AuditTaskSpec,
    recorded: SpanDigest,
    files: tuple[DataFile, ...],
    comparison: RowComparison,
    found: AuditFindings,
) -> None:
    """Compare a span of the table of malformed records with its digest. The log may no longer hold
    these records."""
    span, checksum = recorded.span, SpanChecksum()
    for batch in _rows_of(files, MALFORMED_SCHEMA, (span.start, span.end), found):
        checksum.update(batch)
    if task_spec.deletions_allowed and checksum.rows < recorded.rows:
        return
    comparison.check_span(
        span, rows=(checksum.rows, recorded.rows), crc=(checksum.value, recorded.crc)
    )


def _count_lacking(found: AuditFindings, absent: Runs, lacking: int) -> None:
    """Count the rows that a span lacks below the log start. `absent` has the offsets there that
    neither table holds."""
    if lacking <= 0:
        return
    found.missing += lacking
    is_exact = lacking == sum(end - start for start, end in absent)
    runs = found.missing_runs if is_exact else found.absent_runs
    runs += absent


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
) -> Runs:
    """Check first the offsets that the log no longer holds, then the others. `log` is the log's
    extent. Return the offsets below the log start that neither table holds."""
    server, stream, timeout_ms = task_spec.server, task_spec.stream, task_spec.retry_timeout_ms
    at = span.start
    absent: Runs = []
    log_start, end = log[0], min(log[1], span.end)
    for attempt in range(3):
        begin = min(span.end, max(at, log_start))
        while at < begin:
            bound = min(begin, at + WINDOW_ROWS)
            offsets = np.concatenate([main.pass_over(bound), side.pass_over(bound)])
            if len(offsets) != bound - at:
                extend_runs(absent, np.setdiff1d(np.arange(at, bound), offsets))
            at = bound
        try:
            for batch in read_log(
                server, stream, span.partition, at, end, retry_timeout_ms=timeout_ms
            ):
                found.log_rows += batch.num_rows
                good, bad = rows.split(batch)
                for bound in _bounds(at, batch.column("offset")[-1].as_py() + 1):
                    main.compare([_between(good, at, bound)], bound)
                    side.compare([] if bad is None else [_between(bad, at, bound)], bound)
                    at = bound
            break
        except DataLoss:
            # Retention continues during an audit.
            held = log_extent_of(server, stream, retry_timeout_ms=timeout_ms)
            log_start = held.partitions.get(span.partition, (span.end, span.end))[0]
            if attempt == 2 or log_start <= at:
                raise
    # After the last record of the span: offsets removed by compaction, or rows that never were in
    # the log.
    for bound in _bounds(at, span.end):
        main.compare([], bound)
        side.compare([], bound)
    return absent


def _bounds(start: int, end: int) -> Iterator[int]:
    """The ends of windows of [start, end). A compacted log may hold few records of offsets of which
    the table holds all."""
    while start < end:
        start = min(end, start + WINDOW_ROWS)
        yield start


def _between(batch: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """The rows of a batch with ascending offsets that are in [start, end)."""
    offsets = batch.column("offset").to_numpy()
    first, last = np.searchsorted(offsets, (start, end))
    return batch.slice(int(first), int(last - first))
