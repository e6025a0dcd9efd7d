"""The archive's Spark data source: its reader's tasks write data files, its writer commits them.

    driver   plan: end of table .. watermark --> ranges   writer: one commit for all tasks
    tasks    range --> node --> data files --> one row ---^

Record bytes stay in the tasks. The reader and the writer belong to one data source,
`bascule_archive`. The option `spec` holds the archive's spec. Each planning step reads the table's
position and never relies on Spark's offsets alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from bascule.errors import BasculeError, ConfigError, DataLoss
from bascule.pipeline.jobs.archive.commit import decode_task_output, encode_task_output
from bascule.pipeline.jobs.archive.endpoints import ArchiveEndpoints, endpoints_of
from bascule.pipeline.jobs.archive.plan import (
    ArchiveRange,
    LogExtent,
    Position,
    advance,
    decode_position,
    encode_position,
    rows_max_of,
    split_ranges,
    starts_of,
)
from bascule.pipeline.jobs.archive.spec import ArchiveSpec
from bascule.pipeline.jobs.archive.task import ArchiveTaskSpec, archive_range

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

FORMAT = "bascule_archive"
SCHEMA = "written string"
_ARROW_SCHEMA = pa.schema([("written", pa.string())])
AGAIN = "again"
"""Key that is added if Spark's position is not the table's. Spark starts a batch only if the text
differs."""


@dataclass
class ArchiveInputPartition(InputPartition):
    """One Spark task. Without a range it does nothing."""

    task_spec: ArchiveTaskSpec | None
    task_range: ArchiveRange | None


class ArchiveReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches from the end of the table. Lives in one process of the driver."""

    def __init__(self, spec: ArchiveSpec) -> None:
        self._spec = spec
        self._begin: dict[int, int] | None = None
        self._targets: dict[int, int] | None = None
        self._latest: Position | None = None

    def _endpoints_of_spec(self) -> ArchiveEndpoints:
        return endpoints_of(self._spec)

    def _read_state(self, endpoints: ArchiveEndpoints) -> tuple[LogExtent, dict[int, int]]:
        """The extent of the log, and the start offset of each partition."""
        held, committed = endpoints.read_state()
        if self._begin is None:
            self._begin = endpoints.begin(held)
        loss = self._spec.fail_on_data_loss
        return held, starts_of(held, committed, self._begin, fail_on_data_loss=loss)

    def initialOffset(self) -> Position:  # noqa: N802
        """The end of the table."""
        held, starts = self._read_state(self._endpoints_of_spec())
        return encode_position(held.id, starts)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._spec.offsets_per_trigger_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the run at the current end of the stream."""
        held, _ = self._endpoints_of_spec().read_state()
        self._targets = {p: end for p, (_, end) in held.partitions.items()}

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:  # noqa: N802
        """The end of the next batch, computed from the end of the table.

        Raises: DataLoss if the log lost records that the table lacks; ConfigError for a checkpoint
        of another stream.
        """
        held, starts = self._read_state(self._endpoints_of_spec())
        _check_checkpoint(start, held)
        latest = {p: end for p, (_, end) in held.partitions.items()}
        self._latest = encode_position(held.id, latest)
        targets = latest
        if self._targets is not None:
            targets = {p: min(end, self._targets.get(p, 0)) for p, end in latest.items()}
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 1 << 62
        rows_max = rows_max_of(held, rows_max=rows_max, bytes_max=self._spec.bytes_per_trigger_max)
        end = encode_position(held.id, advance(starts, targets, rows_max))
        asked = {p: n for p, n in decode_position(_plain(start)).items() if p in starts}
        if asked != starts and any(targets[p] > starts[p] for p in starts):
            end[AGAIN] = ",".join(str(starts[p]) for p in sorted(starts))
        return end

    def reportLatestOffset(self) -> Position | None:  # noqa: N802
        """The end of the stream, for the progress report."""
        return self._latest

    def partitions(self, start: Position, end: Position) -> Sequence[ArchiveInputPartition]:
        """Tasks for the offsets that the table lacks before `end`. `end` may come from a
        checkpoint."""
        endpoints = self._endpoints_of_spec()
        held, starts = self._read_state(endpoints)
        ends = decode_position(_plain(end))
        _check_checkpoint(end, held)
        for partition, offset in ends.items():
            if offset > held.partitions.get(partition, (0, 0))[1]:
                raise DataLoss(held.stream, partition, f"it no longer reaches offset {offset}")
        starts = {p: n for p, n in starts.items() if p in ends}
        ranges = split_ranges(
            starts, ends, tasks=max(1, self._spec.tasks), side=endpoints.malformed_ends()
        )
        if not ranges:
            # Spark invents a task if there is none.
            return [ArchiveInputPartition(None, None)]
        task_spec = endpoints.task_spec(held.id)
        return [ArchiveInputPartition(task_spec, task_range) for task_range in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ArchiveInputPartition)
        if partition.task_spec is None or partition.task_range is None:
            return
        written = archive_range(partition.task_spec, partition.task_range)
        yield pa.record_batch([pa.array([encode_task_output(written)], pa.string())], _ARROW_SCHEMA)

    def commit(self, end: Position) -> None:
        """Does nothing: the table holds the position."""

    def stop(self) -> None:
        """Does nothing: clients belong to the process."""


def _check_checkpoint(position: Position, held: LogExtent) -> None:
    """Raises: ConfigError if a position of Spark's is one in another stream."""
    if position["id"] != held.id:
        raise ConfigError(
            f"the checkpoint is of a stream with id {position['id']}, and stream {held.stream!r} "
            f"has id {held.id}: it is the checkpoint of another archive, or the stream was deleted "
            "and created again; use a new checkpoint, because the table alone holds the position"
        )


def _plain(position: Position) -> Position:
    return {name: value for name, value in position.items() if name != AGAIN}


@dataclass
class ArchiveCommitMessage(WriterCommitMessage):
    """Rows of `SCHEMA` that one task of the writer received."""

    written: list[str]


class ArchiveCommitWriter(DataSourceStreamArrowWriter):
    """Collects the outputs of the tasks and commits them once per batch."""

    def __init__(self, spec: ArchiveSpec) -> None:
        self._spec = spec

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ArchiveCommitMessage:
        return ArchiveCommitMessage(
            [text for batch in iterator for text in batch.column(0).to_pylist()]
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the tables. Once the batch is durable, commit the consumer's offsets.

        Raises: DataLoss if the stream was created again while the tasks read it; LakeConflict.
        """
        texts = [
            text
            for message in messages
            if isinstance(message, ArchiveCommitMessage)
            for text in message.written
        ]
        if not texts:
            return
        endpoints = endpoints_of(self._spec)
        written = [decode_task_output(text) for text in texts]
        endpoints.check_stream(written[0].stream_id)
        endpoints.committer().commit(written)
        every = self._spec.compact_every
        if every and batchId % every == every - 1:
            endpoints.compact_and_expire()
        if self._spec.commit_offsets:
            try:
                endpoints.commit_offsets()
            except BasculeError as error:
                # The table is safe. The next batch or the end of the run commits the offsets again.
                log.warning("committing the offsets of %s failed: %s", self._spec.name, error)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Does nothing. The files of a failed batch are in no snapshot, and expiry removes them."""


class ArchiveDataSource(DataSource):
    """The archive registers it. Its only option is `spec`."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def _spec(self) -> ArchiveSpec:
        return msgspec.json.decode(self.options["spec"], type=ArchiveSpec)

    def streamReader(self, schema: StructType) -> ArchiveReader:  # noqa: N802
        return ArchiveReader(self._spec())

    def streamWriter(self, schema: StructType, overwrite: bool) -> ArchiveCommitWriter:  # noqa: N802
        return ArchiveCommitWriter(self._spec())


def spec_option(spec: ArchiveSpec) -> dict[str, Any]:
    """The options that pass a spec through Spark."""
    return {"spec": msgspec.json.encode(spec).decode()}
