"""Writes any frame to a lake table: `writeStream.format("bascule_lake")` and `write`, append only.

    counts.writeStream.format("bascule_lake").options(format="delta", location="lake/counts")

The options name the table as in `lake.address_of` (`format`, `location`, `name`, `catalog.*`, or
`table`). `partitionBy` sets the partitioning of a table that the sink creates (`day(window_start),
carrier`). `batchColumn` names a bigint column that the sink adds; it holds the number of the
micro-batch.

Tasks write data files. The driver adds all files of a micro-batch in one commit under a token: the
query's id and the batch number. After a crash Spark repeats a batch under the same token, and the
table accepts a token once, so each batch is in the table exactly once. With a lost checkpoint Spark
starts a new query with a new id, and the table treats its batches as new. A batch write uses a
random token unless the options `tokenWriter` and `tokenBatch` set one. `foreach_batch_writer` sets
them for `foreachBatch`, because Spark has no output mode `update` for a Python sink.

The table records no offsets. `bascule.pipeline.jobs.archive` archives a stream with its offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from bascule.errors import ConfigError
from bascule.pipeline.lake.address import CATALOG_PREFIX, address_of
from bascule.pipeline.lake.commit_plan import ONCE
from bascule.pipeline.lake.model import DataFile, LakeCommit, LakeTable, TableAddress, WriterSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import WriterCommitMessage as Message

NAME: Final = "bascule_lake"
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of a task. Spark passes the query id and batch number to `write` in no other
way."""
_OPTIONS: Final = frozenset(
    {
        "table",
        "format",
        "location",
        "name",
        "partitionby",
        "batchcolumn",
        "tokenwriter",
        "tokenbatch",
    }
)
_FROM_SPARK: Final = frozenset({"path", "checkpointlocation", "queryname"})


@dataclass
class LakeCommitMessage(WriterCommitMessage):
    """The files that one task wrote, and the token's writer."""

    query: str
    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class LakeTarget:
    """The table and its options; picklable."""

    address: TableAddress
    partition_by: tuple[str, ...] = ()
    batch_column: str = ""
    token: tuple[str, int] | None = None
    """Token of a batch write."""

    @classmethod
    def parse(cls, options: MutableMapping[str, str]) -> LakeTarget:
        """Parse Spark's options. Raises: ConfigError for an unknown option or an invalid
        address."""
        given = dict(options.items())
        for name in given:
            if name.lower() not in _OPTIONS | _FROM_SPARK and not name.lower().startswith(
                CATALOG_PREFIX
            ):
                raise ConfigError(f"option {name!r} is unknown to format {NAME!r}")
        lowered = {name.lower(): text for name, text in given.items()}
        fields = [part.strip() for part in lowered.get("partitionby", "").split(",")]
        writer, batch = lowered.get("tokenwriter", ""), lowered.get("tokenbatch", "")
        if bool(writer) != batch.isdecimal():
            raise ConfigError('options "tokenWriter" and "tokenBatch", a number, go together')
        return cls(
            address_of(given),
            tuple(part for part in fields if part),
            lowered.get("batchcolumn", ""),
            (writer, int(batch)) if writer else None,
        )

    def schema(self, frame: StructType) -> pa.Schema:
        schema = to_arrow_schema(frame, timezone="UTC")
        if self.batch_column:
            schema = schema.append(pa.field(self.batch_column, pa.int64()))
        return schema

    def open(self, frame: StructType) -> LakeTable:
        """Open the table, and create it if it does not exist.

        Raises: ConfigError if an existing table has other columns; ForeignTable; OSError.
        """
        from bascule.pipeline.lake import open_or_create

        return open_or_create(self.address, self.schema(frame), self.partition_by)


@dataclass
class TaskFiles:
    """Writes the rows of one task. Runs on an executor."""

    spec: WriterSpec
    schema: pa.Schema
    batch_column: str = ""

    def write(self, batches: Iterator[pa.RecordBatch], batch: int) -> tuple[DataFile, ...]:
        writer = self.spec.open()
        try:
            for rows in batches:
                if not rows.num_rows:
                    continue
                columns = list(rows.columns)
                if self.batch_column:
                    columns.append(pa.repeat(pa.scalar(batch, pa.int64()), rows.num_rows))
                writer.write(pa.record_batch(columns, schema=self.schema))
            return tuple(writer.finish())
        except BaseException:
            writer.abort()
            raise


def commit(table: LakeTable, messages: list[Any], token: tuple[str, int]) -> None:
    """Commit all files of a batch in one step. A batch without rows creates no snapshot."""
    files = tuple(file for message in messages if message for file in message.files)
    if files:
        table.commit(LakeCommit(files=files, token=token))


class LakeStreamWriter(DataSourceStreamArrowWriter):
    """Spark creates it twice per micro-batch on the driver: once to plan and once to commit."""

    def __init__(self, target: LakeTarget, frame: StructType) -> None:
        self._target = target
        self._frame = frame
        self._table: LakeTable | None = target.open(frame)
        self._files = TaskFiles(self._table.writer(), target.schema(frame), target.batch_column)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the table: tasks do not need it and a catalog cannot be pickled."""
        return {**self.__dict__, "_table": None}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LakeCommitMessage:
        context = TaskContext.get()
        assert context is not None, "write runs in a task"
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        assert query is not None, "Spark names the query"
        return LakeCommitMessage(query, self._files.write(iterator, int(batch or 0)))

    def commit(self, messages: list[Message | None], batchId: int) -> None:  # noqa: N803
        """Commit the batch. A token that the table already has changes nothing. Raises:
        LakeBusy."""
        written = [message for message in messages if isinstance(message, LakeCommitMessage)]
        if written:
            table = self._table or self._target.open(self._frame)
            commit(table, written, (written[0].query, batchId))

    def abort(self, messages: list[Message | None], batchId: int) -> None:  # noqa: N803
        """Does nothing. Expiry removes files that no snapshot holds."""


class LakeBatchWriter(DataSourceArrowWriter):
    """The batch write of one frame. One object plans, writes and commits."""

    def __init__(self, target: LakeTarget, frame: StructType) -> None:
        self._target = target
        self._frame = frame
        self._token = target.token or (f"{ONCE}{uuid4().hex}", 0)
        table = target.open(frame)
        self._files = TaskFiles(table.writer(), target.schema(frame), target.batch_column)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LakeCommitMessage:
        writer, batch = self._token
        return LakeCommitMessage(writer, self._files.write(iterator, batch))

    def commit(self, messages: list[Message | None]) -> None:
        """Commit the batch. A token that the table already has changes nothing. Raises:
        LakeBusy."""
        commit(self._target.open(self._frame), messages, self._token)

    def abort(self, messages: list[Message | None]) -> None:
        """Does nothing. Expiry removes files that no snapshot holds."""


def foreach_batch_writer(options: Mapping[str, str]) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that writes each batch once, in any output mode."""

    def write(frame: DataFrame, batch: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        assert query is not None, "Spark names the query to the thread of the batch"
        token = {"tokenWriter": query, "tokenBatch": str(batch)}
        frame.write.format(NAME).options(**{**options, **token}).mode("append").save()

    return write


class LakeDataSource(DataSource):
    """The data source `bascule_lake`, for writing only. Register it with
    `spark.dataSource.register`."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> LakeBatchWriter:
        _refuse(overwrite)
        target = LakeTarget.parse(self.options)
        if target.batch_column and target.token is None:
            raise ConfigError('option "batchColumn" is for writeStream, not for write')
        return LakeBatchWriter(target, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LakeStreamWriter:  # noqa: N802
        _refuse(overwrite)
        return LakeStreamWriter(LakeTarget.parse(self.options), schema)


def _refuse(overwrite: bool) -> None:
    if overwrite:
        raise ConfigError(f"format {NAME!r} only appends: use mode append")
