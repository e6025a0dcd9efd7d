"""The data source `bascule` for Spark's Python data source API (pyspark 4.3).

Spark pickles readers to planner processes of the driver and, with every task, to executors. So
readers hold only options and offsets. Connections belong to `pipeline.clients` and
`source.extents`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from bascule.errors import ConfigError, DataLoss
from bascule.pipeline.source.columns import schema_arrow, schema_ddl
from bascule.pipeline.source.filters import ALL, Predicate, predicate_of
from bascule.pipeline.source.options import SourceOptions
from bascule.pipeline.source.planning import ReadPlan, ReadTask, plan_batch_read, run_task
from bascule.pipeline.source.positions import (
    Position,
    Positions,
    advance,
    backlog,
    decode_positions,
    encode_positions,
)

if TYPE_CHECKING:
    import pyarrow as pa

PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""The module of the Spark process that pushes filters to a reader. It runs only in a session with
`spark.sql.python.filterPushdown.enabled`. In other sessions a reader with `pushFilters` is an
error."""


class SourcePartition(InputPartition):
    """One Spark task."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(None)
        self.task = task


def _partitions(tasks: list[ReadTask]) -> Sequence[SourcePartition]:
    """At least one task, because Spark invents a task without a range if there is none."""
    return [SourcePartition(task) for task in tasks or [ReadTask.nothing()]]


class BasculeReader(DataSourceReader):
    """A batch read. Its start and end are fixed when the read is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._predicate: Predicate = ALL

    def partitions(self) -> Sequence[SourcePartition]:
        return _partitions(plan_batch_read(self._options, self._predicate))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SourcePartition)
        return run_task(self._options, partition.task, self._predicate)


class FilteringReader(BasculeReader):
    """A batch reader that uses the query's filters to skip records.

    Spark 4.3 keeps the plan with the frame, so a second query on the frame with other filters would
    miss rows. So this reader needs `pushdown = true` and a new frame for each filter.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        """Return every filter, because Spark must apply them to the rows."""
        self._predicate = predicate_of(filters)
        return iter(filters)


class BasculeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches over streams. An offset is final once Spark has logged it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._initial: dict[str, Any] | None = None
        self._targets: dict[str, dict[int, int]] | None = None
        self._latest: dict[str, Any] | None = None
        self._advanced_at: float | None = None
        self._planned: ReadPlan | None = None
        self._is_past_history = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The start of a new query. Spark calls it twice; the first result is kept."""
        if self._initial is None:
            self._initial = encode_positions(ReadPlan.now(self._options).initial())
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.records_per_trigger_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of an AvailableNow run at the currently committed end."""
        self._targets = ReadPlan.now(self._options).latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch, or `start` while there are too few records.

        Raises: DataLoss if records after `start` were removed.
        """
        plan, held = self._look(decode_positions(start))
        self._planned = plan
        latest = plan.latest()
        ids = plan.ids()
        self._latest = encode_positions({s: Position(ids[s], ends) for s, ends in latest.items()})
        targets = latest if self._targets is None else _lesser(latest, self._targets, held)
        if self._targets is None and self._waits_for_more(backlog(held, targets)):
            return start
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends = advance(held, targets, rows_max)
        return encode_positions({s: Position(ids[s], ends[s]) for s in ends})

    def _look(self, positions: Positions) -> tuple[ReadPlan, dict[str, dict[int, int]]]:
        """The current plan, and the start of the next batch.

        After a query has passed the end of the archive, the archive is not read again unless
        retention has removed unread records.
        """
        if self._is_past_history:
            try:
                plan = ReadPlan.now(self._options, history=False)
                return plan, plan.held(positions)
            except DataLoss:
                if self._options.archive is None:
                    raise
        plan = ReadPlan.now(self._options)
        held = plan.held(positions)
        self._is_past_history = plan.is_past_history(held)
        return plan, held

    def _waits_for_more(self, count: int) -> bool:
        """Whether a batch of `count` records waits for minOffsetsPerTrigger."""
        fewest = self._options.records_per_trigger_min
        if fewest is None:
            return False
        now = monotonic()
        if self._advanced_at is None:
            self._advanced_at = now
        overdue = (now - self._advanced_at) * 1000 >= self._options.trigger_delay_ms_max
        if count < fewest and not overdue:
            return True
        self._advanced_at = now
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The end of the streams, for the progress report."""
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[SourcePartition]:
        """Tasks for [start, end), which may come from a checkpoint."""
        ends = decode_positions(end)
        plan, self._planned = self._planned, None
        if plan is None or not plan.reaches(ends):
            plan = ReadPlan.now(self._options)
        return _partitions(plan.tasks(decode_positions(start), ends))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SourcePartition)
        return run_task(self._options, partition.task, ALL)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: Spark's checkpoint holds the position."""

    def stop(self) -> None:
        """Does nothing: clients belong to the process."""


def _lesser(
    latest: dict[str, dict[int, int]],
    targets: dict[str, dict[int, int]],
    held: dict[str, dict[int, int]],
) -> dict[str, dict[int, int]]:
    """The smaller of the fixed targets and the current ends. Partitions added later stay at their
    start."""
    return {
        stream: {
            p: min(end, targets.get(stream, {}).get(p, held[stream][p])) for p, end in ends.items()
        }
        for stream, ends in latest.items()
    }


def _check_schema(schema: StructType, options: SourceOptions) -> None:
    """Refuse columns that the rows will not have. Spark compares them only in a worker.

    Raises: ConfigError.
    """
    if not to_arrow_schema(schema, timezone="UTC").equals(schema_arrow(options)):
        raise ConfigError(
            "format 'bascule' takes no .schema(...): its columns are "
            f'{schema_ddl(options).replace("`", "")}; option "columns" selects some of them, and '
            'options "valueFormat" and "valueSchema" decode the value'
        )


class BasculeDataSource(DataSource):
    """The data source `bascule`. Register it with `spark.dataSource.register`."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        return "bascule"

    def schema(self) -> str:
        return schema_ddl(SourceOptions.parse(self.options))

    def reader(self, schema: StructType) -> BasculeReader:
        options = SourceOptions.parse(self.options).for_batch()
        _check_schema(schema, options)
        if options.pushdown and PUSHDOWN_WORKER in sys.modules:
            return FilteringReader(options)
        return BasculeReader(options)

    def streamReader(self, schema: StructType) -> BasculeStreamReader:  # noqa: N802
        options = SourceOptions.parse(self.options).for_stream()
        _check_schema(schema, options)
        return BasculeStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from bascule.pipeline.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from bascule.pipeline.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
