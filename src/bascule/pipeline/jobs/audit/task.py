"""One task of an audit: some spans of one partition, the log's records against the table's rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa

from bascule.errors import Broken, CorruptData, DataLoss
from bascule.pipeline.jobs.archive.endpoints import held_of
from bascule.pipeline.jobs.archive.task import read_log
from bascule.pipeline.jobs.audit.compare import Comparison, Fault, Found
from bascule.pipeline.jobs.offset_cursor import Cursor
from bascule.pipeline.jobs.rows import MALFORMED_SCHEMA, RowMaker
from bascule.pipeline.lake.checksum import SpanChecksum
from bascule.pipeline.lake.file_reader import clusters, read_files
from bascule.pipeline.lake.model import DataFile, Span, SpanSum
from bascule.pipeline.values.spec import ValueSpec

WINDOW_ROWS: Final = 65_536
"""Compared at a time where there is no log to say how much."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What every task of an audit is told. Picklable."""

    server: str
    stream: str
    value: ValueSpec
    raw: bool
    compacted: bool
    """Records may be gone from the log that the table still holds."""
    faults_max: int


@dataclass(frozen=True, slots=True)
class Part:
    """Some spans of one partition, one behind the other, and the files that may hold rows of them.

    `sums` tells what of `spans` was recorded when it was archived.
    """

    spans: tuple[Span, ...]
    sums: tuple[SpanSum | None, ...]
    log_start: int
    """Offsets below are in the log no more."""
    log_end: int
    """The log's watermark when the audit began."""
    files: tuple[DataFile, ...]
    malformed_files: tuple[DataFile, ...]


class _Side:
    """One of the two tables within one span: the rows it should hold and those it does."""

    def __init__(
        self,
        comparison: Comparison,
        schema: pa.Schema,
        rows: Cursor,
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
        """Rows that the log holds no more."""
        self._comparison.check_duplicates(self._take(bound))

    def _take(self, bound: int) -> pa.Table:
        lake = self._rows.until(bound)
        self.count += lake.num_rows
        for batch in lake.to_batches():
            self._checksum.update(batch)
        return lake


def check_part(subject: Subject, part: Part) -> str:
    """What is wrong in one part, as the JSON of a `Found`."""
    partition = part.spans[0].partition
    found = Found(partition)
    comparison = Comparison(found, compacted=subject.compacted, faults_max=subject.faults_max)
    rows = RowMaker(subject.value, raw=subject.raw)
    start, end = part.spans[0].start, part.spans[-1].end

    def cursor(files: tuple[DataFile, ...], schema: pa.Schema) -> Cursor:
        return Cursor(_rows_of(files, schema, (start, end), found), schema)

    main_rows = cursor(part.files, rows.schema)
    side_rows = cursor(part.malformed_files, MALFORMED_SCHEMA)
    for span, recorded in zip(part.spans, part.sums, strict=True):
        checksum = SpanChecksum()
        main = _Side(comparison, rows.schema, main_rows, checksum)
        side = _Side(comparison, MALFORMED_SCHEMA, side_rows, SpanChecksum())
        _check_span(subject, span, (part.log_start, part.log_end), rows, main, side, found)
        found.lake_rows += main.count + side.count
        found.malformed += side.count
        if recorded is not None:
            comparison.check_span(
                span, rows=(main.count, recorded.rows), crc=(checksum.value, recorded.crc)
            )
    return msgspec.json.encode(found).decode()


def _rows_of(
    files: Sequence[DataFile], schema: pa.Schema, offsets: tuple[int, int], found: Found
) -> Iterator[pa.RecordBatch]:
    """The rows of files in the order of offsets; a file that cannot be read is a fault."""
    for cluster in clusters(files):
        try:
            yield from read_files(cluster, schema, offset_start=offsets[0], offset_end=offsets[1])
        except (Broken, CorruptData, OSError) as error:
            found.spans_wrong += 1
            start = min(file.span.start for file in cluster if file.span is not None)
            found.faults.insert(0, Fault(found.partition, start, "unreadable", str(error)))


def _check_span(
    subject: Subject,
    span: Span,
    log: tuple[int, int],
    rows: RowMaker,
    main: _Side,
    side: _Side,
    found: Found,
) -> None:
    """The span's offsets that the log holds no more, then the others; `log` is its extent."""
    at = span.start
    log_start, end = log[0], min(log[1], span.end)
    for attempt in range(3):
        begin = min(span.end, max(at, log_start))
        while at < begin:
            at = min(begin, at + WINDOW_ROWS)
            main.pass_over(at)
            side.pass_over(at)
        try:
            for batch in read_log(subject.server, subject.stream, span.partition, at, end):
                found.log_rows += batch.num_rows
                at = batch.column("offset")[-1].as_py() + 1
                good, bad = rows.split(batch)
                main.compare([good], at)
                side.compare([] if bad is None else [bad], at)
            break
        except DataLoss:
            # Retention goes on while an audit runs.
            held = held_of(subject.server, subject.stream).partitions
            log_start = held.get(span.partition, (span.end, span.end))[0]
            if attempt == 2 or log_start <= at:
                raise
    # Behind the log's last record of the span: offsets that compaction removed, or strangers.
    main.compare([], span.end)
    side.compare([], span.end)
