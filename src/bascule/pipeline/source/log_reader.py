"""Reads ranges of a log as Arrow batches, straight from the broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from bascule.client import StreamReader
from bascule.errors import Broken, DataLoss, OffsetOutOfRange, UnknownStream
from bascule.pipeline.clients import client_of
from bascule.pipeline.retries import RETRY_TIMEOUT_MS, Retries
from bascule.pipeline.source.columns import ROWS_PER_BATCH_MAX, RowProjector
from bascule.pipeline.source.extents import extent_client_of
from bascule.pipeline.source.filters import ALL, Predicate
from bascule.pipeline.source.payloads import with_contents
from bascule.pipeline.source.positions import Range

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.pipeline.source.options import SourceOptions

BATCH_BYTES: Final = 12 << 20
"""About ROWS_PER_BATCH_MAX records of 128 B."""
BATCH_BYTES_MIN: Final = 256 << 10
BYTES_PER_RECORD: Final = 256
"""An estimate. A smaller buffer for a short range saves milliseconds."""
RECONNECT_S: Final = 5.0
"""The client reconnects without a word for so long. After that the retries here take over."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The server, and how to handle its absence and removed records."""

    server: str
    fail_on_data_loss: bool = True
    retry_timeout_ms: int = RETRY_TIMEOUT_MS


def fetched_batches(options: ReadOptions, wanted: Range) -> Iterator[pa.RecordBatch]:
    """The records of a range as they were fetched (`record.columns.SCHEMA`), in order.

    Raises: DataLoss if some were removed, and after the last record if the stream was created again
    since the range was planned. Without `fail_on_data_loss` the remaining ones are read. Broken if
    the node did not answer for `retry_timeout_ms`.
    """
    start, end = wanted.start, wanted.end
    retries = Retries(options.retry_timeout_ms)
    while start < end:
        now = replace(wanted, start=start, end=end)
        try:
            with _open(options.server, now) as batches:
                for batch in batches:
                    retries.succeeded()
                    yield batch
                    start = batch.column(0)[-1].as_py() + 1
            break
        except Broken as error:
            retries.failed(error)
        except OffsetOutOfRange as gone:
            if options.fail_on_data_loss:
                raise DataLoss(wanted.stream, wanted.partition, str(gone)) from gone
            start, end = max(start, gone.start), min(end, gone.end)
    if wanted.id and options.fail_on_data_loss:
        _check_stream(options, wanted)


def _check_stream(options: ReadOptions, wanted: Range) -> None:
    """Check that a range was read from the stream for which it was planned: readers ask by name,
    and an id is never used again. Raises: DataLoss, Broken."""
    try:
        id = extent_client_of(options.server).stream_id(
            wanted.stream, retry_timeout_ms=options.retry_timeout_ms
        )
    except UnknownStream:
        return  # deleted since: the name had no other stream
    if id != wanted.id:
        raise DataLoss(
            wanted.stream,
            wanted.partition,
            f"the read was planned for the stream with id {wanted.id}, and the node's has id {id}: "
            "it was deleted and created again meanwhile",
        )


def _open(server: str, wanted: Range) -> StreamReader:
    likely = wanted.records * BYTES_PER_RECORD
    return client_of(server).read_batches(
        wanted.stream,
        start=wanted.start,
        end=wanted.end,
        partition=wanted.partition,
        batch_bytes=min(BATCH_BYTES, max(BATCH_BYTES_MIN, likely)),
        timeout=RECONNECT_S,
    )


def log_rows(
    options: SourceOptions, wanted: Range, predicate: Predicate = ALL
) -> Iterator[pa.RecordBatch]:
    """The rows of a range of the log that may pass `predicate`, in the source's columns.

    Raises: DataLoss, MalformedValue.
    """
    projector = RowProjector(options, wanted.stream)
    how = ReadOptions(options.server, options.fail_on_data_loss, options.retry_timeout_ms)
    for batch in fetched_batches(how, wanted):
        mask = predicate.mask(batch)
        kept = batch if mask is None else batch.filter(mask)
        for rows in with_contents(options, wanted.stream, wanted.partition, kept):
            if rows.num_rows:
                yield from arrow_slices(projector.project(rows))


def arrow_slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into slices of the best size for Spark."""
    for at in range(0, batch.num_rows, ROWS_PER_BATCH_MAX):
        yield batch.slice(at, ROWS_PER_BATCH_MAX)
