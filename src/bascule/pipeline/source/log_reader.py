"""Reads ranges of a log as Arrow batches, straight from the broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from bascule.client import BatchReader
from bascule.errors import DataLoss, OffsetOutOfRange
from bascule.pipeline.clients import client_of, with_retries
from bascule.pipeline.source.columns import ROWS_PER_BATCH_MAX, RowProjector
from bascule.pipeline.source.filters import ALL, Predicate
from bascule.pipeline.source.positions import Range

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.pipeline.source.options import SourceOptions

BATCH_BYTES: Final = 12 << 20
"""About ROWS_PER_BATCH_MAX records of 128 B."""
BATCH_BYTES_MIN: Final = 256 << 10
BYTES_PER_RECORD: Final = 256
"""An estimate. A smaller buffer for a short range saves milliseconds."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The server, and how to handle removed records."""

    server: str
    fail_on_data_loss: bool = True


def fetched_batches(options: ReadOptions, wanted: Range) -> Iterator[pa.RecordBatch]:
    """The records of a range as they were fetched (`record.columns.SCHEMA`), in order.

    Raises: DataLoss if some were removed. Without `fail_on_data_loss` the remaining ones are read.
    """
    start, end = wanted.start, wanted.end
    while start < end:
        now = Range(wanted.stream, wanted.partition, start, end)
        try:
            with with_retries(partial(_open, options.server, now)) as batches:
                for batch in batches:
                    yield batch
                    start = batch.column(0)[-1].as_py() + 1
            return
        except OffsetOutOfRange as gone:
            if options.fail_on_data_loss:
                raise DataLoss(wanted.stream, wanted.partition, str(gone)) from gone
            start, end = max(start, gone.start), min(end, gone.end)


def _open(server: str, wanted: Range) -> BatchReader:
    likely = wanted.records * BYTES_PER_RECORD
    return client_of(server).read_batches(
        wanted.stream,
        start=wanted.start,
        end=wanted.end,
        partition=wanted.partition,
        batch_bytes=min(BATCH_BYTES, max(BATCH_BYTES_MIN, likely)),
    )


def log_rows(
    options: SourceOptions, wanted: Range, predicate: Predicate = ALL
) -> Iterator[pa.RecordBatch]:
    """The rows of a range of the log that may pass `predicate`, in the source's columns.

    Raises: DataLoss, MalformedValue.
    """
    projector = RowProjector(options, wanted.stream)
    how = ReadOptions(options.server, options.fail_on_data_loss)
    for batch in fetched_batches(how, wanted):
        mask = predicate.mask(batch)
        kept = batch if mask is None else batch.filter(mask)
        if kept.num_rows:
            yield from arrow_slices(projector.project(kept))


def arrow_slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into slices of the best size for Spark."""
    for at in range(0, batch.num_rows, ROWS_PER_BATCH_MAX):
        yield batch.slice(at, ROWS_PER_BATCH_MAX)
