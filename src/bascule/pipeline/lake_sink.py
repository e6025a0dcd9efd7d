"""Any frame into a lake table: `writeStream.format("bascule_lake")` and `write`, append only.

    counts.writeStream.format("bascule_lake").options(format="delta", location="lake/counts")

Options name the table as `lake.address_of` takes them (`format`, `location`, `name`, `catalog.*`,
or `table`); `partitionBy` is for a table that is created here (`day(window_start), carrier`);
`batchColumn` names a bigint column, added to the rows, that tells the micro-batch.

Tasks write data files, the driver adds all of a micro-batch in one commit under the token (id of
the query, number of the batch). Spark repeats a batch after a crash under the same two, and the
table takes a token once: each batch is in it exactly once. A lost checkpoint is another query to
Spark, and to the table: its batches are new ones. A batch write is a token of its own, unless
`tokenWriter` and `tokenBatch` give it one, as `in_batches` does within `foreachBatch`: Spark has no
output mode `update` for a Python sink.

The table keeps no offsets; what archives a stream is `bascule.pipeline.jobs.archive`.
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
from bascule.pipeline.lake.model import Commit, DataFile, LakeTable, TableAddress, WriterSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import WriterCommitMessage as Message

NAME: Final = "bascule_lake"
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of a task: `write` is told neither in any other way."""
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
class Written(WriterCommitMessage):
    """What one task wrote, and for which query."""

    query: str
    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class Target:
    """The table, and how its rows are made; picklable."""

    address: TableAddress
    partition_by: tuple[str, ...] = ()
    batch_column: str = ""
    token: tuple[str, int] | None = None
    """Of a batch write."""

    @classmethod
    def parse(cls, options: MutableMapping[str, str]) -> Target:
        """Raises: ConfigError for an unknown option, or an address that is none."""
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
        """The table, created where there is none.

        Raises: ConfigError where there is one with other columns; ForeignTable; OSError.
        """
        from bascule.pipeline.lake import open_or_create

        return open_or_create(self.address, self.schema(frame), self.partition_by)


@dataclass
class Files:
    """Writes the rows of one task; on an executor."""

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
    """All files of a batch in one step, once. A batch without rows leaves no snapshot."""
    files = tuple(file for message in messages if message for file in message.files)
    if files:
        table.commit(Commit(files=files, token=token))


class LakeStreamWriter(DataSourceStreamArrowWriter):
    """Made on the driver twice a micro-batch, once to plan and once to commit."""

    def __init__(self, target: Target, frame: StructType) -> None:
        self._target = target
        self._frame = frame
        self._table: LakeTable | None = target.open(frame)
        self._files = Files(self._table.writer(), target.schema(frame), target.batch_column)

    def __getstate__(self) -> dict[str, Any]:
        """Tasks need no table, and a catalog does not travel."""
        return {**self.__dict__, "_table": None}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None, "write runs in a task"
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        assert query is not None, "Spark names the query"
        return Written(query, self._files.write(iterator, int(batch or 0)))

    def commit(self, messages: list[Message | None], batchId: int) -> None:  # noqa: N803
        """Raises: LakeBusy; a token that the table has changes nothing."""
        written = [message for message in messages if isinstance(message, Written)]
        if written:
            table = self._table or self._target.open(self._frame)
            commit(table, written, (written[0].query, batchId))

    def abort(self, messages: list[Message | None], batchId: int) -> None:  # noqa: N803
        """Nothing: files that no snapshot holds go when snapshots expire."""


class LakeBatchWriter(DataSourceArrowWriter):
    """One write of a whole frame; the same object plans, writes and commits."""

    def __init__(self, target: Target, frame: StructType) -> None:
        self._target = target
        self._frame = frame
        self._token = target.token or (uuid4().hex, 0)
        table = target.open(frame)
        self._files = Files(table.writer(), target.schema(frame), target.batch_column)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        writer, batch = self._token
        return Written(writer, self._files.write(iterator, batch))

    def commit(self, messages: list[Message | None]) -> None:
        """Raises: LakeBusy; a token that the table has changes nothing."""
        commit(self._target.open(self._frame), messages, self._token)

    def abort(self, messages: list[Message | None]) -> None:
        """Nothing: files that no snapshot holds go when snapshots expire."""


def in_batches(options: Mapping[str, str]) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that writes each batch once, in any output mode."""

    def write(frame: DataFrame, batch: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        assert query is not None, "Spark names the query to the thread of the batch"
        token = {"tokenWriter": query, "tokenBatch": str(batch)}
        frame.write.format(NAME).options(**{**options, **token}).mode("append").save()

    return write


class LakeDataSource(DataSource):
    """`spark.dataSource.register(LakeDataSource)`, then `format("bascule_lake")`; writes only."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> LakeBatchWriter:
        _refuse(overwrite)
        target = Target.parse(self.options)
        if target.batch_column and target.token is None:
            raise ConfigError('option "batchColumn" is for writeStream, not for write')
        return LakeBatchWriter(target, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LakeStreamWriter:  # noqa: N802
        _refuse(overwrite)
        return LakeStreamWriter(Target.parse(self.options), schema)


def _refuse(overwrite: bool) -> None:
    if overwrite:
        raise ConfigError(f"format {NAME!r} only appends: mode append")
