"""The data source `bascule` for Spark's Python data source API (pyspark 4.3).

Readers are pickled: to planner processes of the driver, and with every task to the executors. So
they hold options and offsets only; connections live in `pipeline.clients`.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from bascule.client import BatchReader
from bascule.errors import DataLoss, OffsetOutOfRange
from bascule.model import StreamInfo
from bascule.pipeline.clients import client_of, is_known, patiently
from bascule.pipeline.source.options import EARLIEST, LATEST, SourceOptions
from bascule.pipeline.source.positions import (
    Extent,
    Range,
    advance,
    check_held,
    decode_offset,
    encode_offset,
    resolve,
    split,
)

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA: Final = (
    "offset bigint, partition int, timestamp timestamp, key binary, value binary, "
    "subject string, headers array<struct<key:string,value:binary>>"
)
ROWS_PER_BATCH_MAX: Final = 65_536
"""Rows of one Arrow batch handed to Spark; larger and smaller ones measured slower."""
BATCH_BYTES: Final = 8 << 20
"""About ROWS_PER_BATCH_MAX records of 128 B."""


def extent_of(options: SourceOptions) -> Extent:
    """What the stream holds now.

    Raises: UnknownStream; Broken at once where the node was never there, later where it stays away.
    """
    known = is_known(options.server)
    client = client_of(options.server)

    def ask() -> StreamInfo:
        return client.stream(options.stream)

    info = patiently(ask) if known else ask()
    return Extent(
        stream=options.stream,
        id=info.definition.id.hex(),
        partitions={p.partition: (p.start_offset, p.high_watermark) for p in info.partitions},
    )


@dataclass
class OffsetRange(InputPartition):
    """One task: offsets [start, end) of one partition."""

    partition: int
    start: int
    end: int


def _tasks(ranges: list[Range], pieces_min: int) -> list[OffsetRange]:
    """At least one task: for none at all Spark would make one up, without a range."""
    pieces = split(ranges, pieces_min=pieces_min) or [Range(0, 0, 0)]
    return [OffsetRange(r.partition, r.start, r.end) for r in pieces]


def read_range(options: SourceOptions, task: InputPartition) -> Iterator[pa.RecordBatch]:
    """The records of one task as Arrow batches of Spark's own schema.

    Raises: DataLoss where some of them are gone, or, without failOnDataLoss, reads what is left.
    """
    assert isinstance(task, OffsetRange)
    start, end = task.start, task.end
    while start < end:
        try:
            with patiently(partial(_open, options, task.partition, start, end)) as batches:
                for batch in batches:
                    for at in range(0, batch.num_rows, ROWS_PER_BATCH_MAX):
                        yield batch.slice(at, ROWS_PER_BATCH_MAX)
                    start = batch.column(0)[-1].as_py() + 1
            return
        except OffsetOutOfRange as gone:
            if options.fail_on_data_loss:
                raise DataLoss(options.stream, task.partition, str(gone)) from gone
            start, end = max(start, gone.start), min(end, gone.end)


def _open(options: SourceOptions, partition: int, start: int, end: int) -> BatchReader:
    return client_of(options.server).read_batches(
        options.stream, start=start, end=end, partition=partition, batch_bytes=BATCH_BYTES
    )


class BasculeReader(DataSourceReader):
    """Batch read of [startingOffsets, endingOffsets), both fixed when the read is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[OffsetRange]:
        options = self._options
        extent = extent_of(options)
        starts = resolve(
            EARLIEST if options.starting_offsets is None else options.starting_offsets,
            extent,
            option="startingOffsets",
        )
        ends = resolve(
            LATEST if options.ending_offsets is None else options.ending_offsets,
            extent,
            option="endingOffsets",
        )
        loss = options.fail_on_data_loss
        starts = check_held(extent, extent.id, starts, fail_on_data_loss=loss)
        latest = extent.latest()
        for partition, end in ends.items():
            if end > latest[partition] and loss:
                raise DataLoss(
                    options.stream,
                    partition,
                    f"endingOffsets is {end}, the partition ends at {latest[partition]}",
                )
        ranges = [Range(p, starts[p], min(ends[p], latest[p])) for p in sorted(ends)]
        return _tasks(ranges, options.partitions_min)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition)


class BasculeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches over a stream; every offset handed out is final once Spark has logged it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._initial: dict[str, Any] | None = None
        self._targets: dict[int, int] | None = None
        self._latest: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query starts. Spark asks twice: the first answer is kept."""
        if self._initial is None:
            options = self._options
            extent = extent_of(options)
            starts = resolve(
                LATEST if options.starting_offsets is None else options.starting_offsets,
                extent,
                option="startingOffsets",
            )
            loss = options.fail_on_data_loss
            starts = check_held(extent, extent.id, starts, fail_on_data_loss=loss)
            self._initial = encode_offset(extent.id, starts)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.records_per_trigger_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of an AvailableNow run: what is committed now, and not a record more."""
        self._targets = extent_of(self._options).latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch.

        Raises: DataLoss where records between `start` and it are gone.
        """
        extent = extent_of(self._options)
        id, positions = decode_offset(start)
        loss = self._options.fail_on_data_loss
        held = check_held(extent, id, positions, fail_on_data_loss=loss)
        latest = extent.latest()
        self._latest = encode_offset(extent.id, latest)
        targets = latest
        if self._targets is not None:
            targets = {p: min(end, self._targets.get(p, 0)) for p, end in latest.items()}
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return encode_offset(extent.id, advance(held, targets, rows_max))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The end of the stream, for the progress report."""
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[OffsetRange]:
        """Tasks for [start, end), which may come from a checkpoint."""
        extent = extent_of(self._options)
        id, positions = decode_offset(start)
        loss = self._options.fail_on_data_loss
        held = check_held(extent, id, positions, fail_on_data_loss=loss)
        end_id, ends = decode_offset(end)
        if end_id != extent.id or any(ends[p] > extent.partitions[p][1] for p in ends):
            if loss:
                raise DataLoss(extent.stream, None, f"it no longer reaches offsets {ends}")
            ends = {p: min(n, extent.partitions[p][1]) for p, n in ends.items()}
        ranges = [Range(p, held[p], ends[p]) for p in sorted(ends)]
        return _tasks(ranges, self._options.partitions_min)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the position of record is Spark's checkpoint."""

    def stop(self) -> None:
        """Nothing to release here: clients belong to the process."""


class BasculeDataSource(DataSource):
    """`spark.dataSource.register(BasculeDataSource)`, then `format("bascule")`."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        return "bascule"

    def schema(self) -> str:
        SourceOptions.parse(self.options)
        return SCHEMA

    def reader(self, schema: StructType) -> BasculeReader:
        return BasculeReader(SourceOptions.parse(self.options).for_batch())

    def streamReader(self, schema: StructType) -> BasculeStreamReader:  # noqa: N802
        return BasculeStreamReader(SourceOptions.parse(self.options).for_stream())
