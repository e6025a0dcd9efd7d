"""Any frame into a lake table: `writeStream.format("bascule_lake")` and `write`, append only.

    counts.writeStream.format("bascule_lake").options(format="delta", location="lake/counts")

Options name the table as `lake.address_of` takes them (`format`, `location`, `name`, `catalog.*`,
or `table`); `partitionBy` is for a table that is created here (`day(window_start), carrier`);
`batchColumn` names a bigint column, added to the rows, that tells the micro-batch.

Tasks write data files, the driver adds all of a micro-batch in one commit under the token (id of
the query, number of the batch). Spark repeats a batch after a crash under the same two, and the
table takes a token once: each batch is in it exactly once. A lost checkpoint is another query to
Spark, and to the table: its batches are new ones. A batch write is a token of its own.

The table keeps no offsets; what archives a stream is `bascule.pipeline.jobs.archive`.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
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

from bascule.errors import ConfigError, UnknownTable
from bascule.pipeline.lake.address import CATALOG_PREFIX, address_of
from bascule.pipeline.lake.model import Commit, DataFile, LakeTable, TableAddress, WriterSpec

if TYPE_CHECKING:
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
        "path",
        "checkpointlocation",
    }
)


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

    @classmethod
    def parse(cls, options: MutableMapping[str, str]) -> Target:
        """Raises: ConfigError for an unknown option, or an address that is none."""
        given = dict(options.items())
        for name in given:
            if name.lower() not in _OPTIONS and not name.lower().startswith(CATALOG_PREFIX):
                raise ConfigError(f"option {name!r} is unknown to format {NAME!r}")
        lowered = {name.lower(): text for name, text in given.items()}
        fields = [part.strip() for part in lowered.get("partitionby", "").split(",")]
        return cls(
            address_of(given),
            tuple(part for part in fields if part),
            lowered.get("batchcolumn", ""),
        )

    def schema(self, frame: StructType) -> pa.Schema:
        schema = to_arrow_schema(frame, timezone="UTC")
        if self.batch_column:
            schema = schema.append(pa.field(self.batch_column, pa.int64()))
        return schema

    def open(self, frame: StructType) -> LakeTable:
        """The table, created where there is none. Raises: ForeignTable, OSError."""
        from bascule.pipeline import lake

        try:
            return lake.open_table(self.address)
        except UnknownTable:
            return lake.create_table(
                self.address, self.schema(frame), partition_by=self.partition_by
            )


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


@dataclass
class LakeBatchWriter(DataSourceArrowWriter):
    """One write of a whole frame."""

    target: Target
    frame: StructType
    token: str = field(default_factory=lambda: uuid4().hex)

    def __post_init__(self) -> None:
        table = self.target.open(self.frame)
        self.files = Files(table.writer(), self.target.schema(self.frame))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return Written("", self.files.write(iterator, 0))

    def commit(self, messages: list[Message | None]) -> None:
        commit(self.target.open(self.frame), messages, (self.token, 0))

    def abort(self, messages: list[Message | None]) -> None:
        """Nothing: files that no snapshot holds go when snapshots expire."""


class LakeDataSource(DataSource):
    """`spark.dataSource.register(LakeDataSource)`, then `format("bascule_lake")`; writes only."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> LakeBatchWriter:
        _refuse(overwrite)
        target = Target.parse(self.options)
        if target.batch_column:
            raise ConfigError('option "batchColumn" is for writeStream, not for write')
        return LakeBatchWriter(target, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LakeStreamWriter:  # noqa: N802
        _refuse(overwrite)
        return LakeStreamWriter(Target.parse(self.options), schema)


def _refuse(overwrite: bool) -> None:
    if overwrite:
        raise ConfigError(f"format {NAME!r} only appends: mode append (or, of a query, update)")
