"""One task of an archive: reads its offsets from the node and writes the data files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bascule.errors import MalformedValue
from bascule.pipeline.jobs.archive.commit import TaskOutput
from bascule.pipeline.jobs.archive.plan import ArchiveRange
from bascule.pipeline.jobs.rows import RowBuilder
from bascule.pipeline.lake.checksum import SpanChecksum
from bascule.pipeline.lake.model import DataFile, FileWriter, Span, SpanDigest, WriterSpec
from bascule.pipeline.retries import RETRY_TIMEOUT_MS
from bascule.pipeline.source.log_reader import ReadOptions, fetched_batches
from bascule.pipeline.source.positions import Range
from bascule.pipeline.values.spec import ValueSpec

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ArchiveTaskSpec:
    """Description of every task of an archive. Picklable."""

    server: str
    stream: str
    stream_id: str
    value: ValueSpec
    raw: bool
    writer: WriterSpec
    side_writer: WriterSpec | None
    retry_timeout_ms: int = RETRY_TIMEOUT_MS


def read_log(
    server: str,
    stream: str,
    partition: int,
    start: int,
    end: int,
    *,
    retry_timeout_ms: int = RETRY_TIMEOUT_MS,
) -> Iterator[pa.RecordBatch]:
    """Records [start, end) of a partition, as the client reads them.

    Raises: DataLoss if some of them were removed.
    """
    options = ReadOptions(server, retry_timeout_ms=retry_timeout_ms)
    return fetched_batches(options, Range(stream, partition, start, end))


class _Output:
    """The output of a task to one table: a writer, opened at the first row, and the checksum."""

    def __init__(self, spec: WriterSpec, task_range: ArchiveRange) -> None:
        self._spec = spec
        self._piece = task_range
        self._writer: FileWriter | None = None
        self._checksum = SpanChecksum()

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        if self._writer is None:
            self._writer = self._spec.open(stream_partition=self._piece.partition)
        self._writer.write(batch)
        self._checksum.update(batch)

    def finish(self) -> tuple[SpanDigest, tuple[DataFile, ...]]:
        files = () if self._writer is None else tuple(self._writer.finish())
        span = Span(self._piece.partition, self._piece.start, self._piece.end)
        return SpanDigest(span, self._checksum.rows, self._checksum.value), files

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.abort()


def archive_range(task_spec: ArchiveTaskSpec, task_range: ArchiveRange) -> TaskOutput:
    """Archive one range. On return its files are closed, but not committed.

    Raises: DataLoss; MalformedValue for a malformed record in mode FAILFAST.
    """
    rows = RowBuilder(task_spec.value, raw=task_spec.raw)
    main = _Output(task_spec.writer, task_range)
    side = (
        _Output(task_spec.side_writer, task_range)
        if task_spec.side_writer and task_range.side
        else None
    )
    try:
        for batch in read_log(
            task_spec.server,
            task_spec.stream,
            task_range.partition,
            task_range.start,
            task_range.end,
            retry_timeout_ms=task_spec.retry_timeout_ms,
        ):
            good, bad = rows.split(batch)
            main.write(good)
            if bad is not None and task_spec.value.mode == "FAILFAST":
                raise MalformedValue(
                    task_spec.stream,
                    task_range.partition,
                    bad.column("offset")[0].as_py(),
                    bad.column("reason")[0].as_py(),
                )
            if bad is not None and side is not None:
                side.write(bad)
        malformed, malformed_files = (None, ()) if side is None else side.finish()
        sum, files = main.finish()
    except BaseException:
        # A killed task leaves its files. They are in no snapshot, and expiry removes them.
        main.abort()
        if side is not None:
            side.abort()
        raise
    return TaskOutput(task_spec.stream_id, sum, files, malformed, malformed_files)
