"""Runs a compaction by key: Spark finds the last record of each key, and tasks write them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from bascule.pipeline.jobs.compact_lake.spec import CompactLakeSpec
from bascule.pipeline.jobs.executors import collect_with_progress
from bascule.pipeline.jobs.model import NO_PROGRESS, JobProgress, JobResult, Table
from bascule.pipeline.jobs.tables import ensure_table, open_if_exists
from bascule.pipeline.lake import open_table, read_files
from bascule.pipeline.lake.columns import select
from bascule.pipeline.lake.file_writer import OWN_FILE
from bascule.pipeline.lake.model import DataFile, FileWriter, LakeCommit, LakeTable, WriterSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES: Final = pa.schema([("file", pa.string())])


def run(
    spark: SparkSession, spec: CompactLakeSpec, progress: JobProgress = NO_PROGRESS
) -> JobResult:
    """Replace the rows of `into` with the last record of each key.

    Within a stream partition the greatest offset is the last. A key can be in several partitions if
    partitions were added or messages are partitioned by subject. Then the latest timestamp decides,
    then the offset. Records without a key and malformed records are left out. If the archive has
    not changed, a run changes nothing. Readers see either the old or the new rows.

    Raises: UnknownTable, ConfigError if `into` has other columns.
    """
    began = time.monotonic()
    source = open_table(spec.table.address())
    into = ensure_into(spec, source.schema)
    snapshot = source.snapshot()
    rows = 0 if snapshot is None else snapshot.rows
    progress.begin(f"compact {spec.table.address()}", rows)
    changed = False
    before = into.snapshot()
    files = [] if snapshot is None else source.files(snapshot)
    # An archive of which all rows were deleted has no files, and leaves no keys.
    if snapshot is not None and (files or (before is not None and before.rows)):
        written = []
        if files:
            last = last_records(
                _read(spark, source, into.schema, files),
                partitions=len(snapshot.committed),
                keep_tombstones=spec.keep_tombstones,
            )
            written = _write(last, into, progress=progress, total=rows)
        # Not the offsets: rows may have been deleted from the archive since. Nor the time, which
        # does not ascend where the clock was set back; an earlier release used it.
        token = (f"compact-lake-of:{spec.name}", snapshot.number)
        after = into.commit(LakeCommit(tuple(written), token=token, replaces=True))
        changed = before is None or before.id != after.id
        progress.say(f"{after.rows} keys of {rows} records")
    return _result(spec, into, rows=rows, changed=changed, seconds=time.monotonic() - began)


def ensure_into(spec: CompactLakeSpec, columns: pa.Schema) -> LakeTable:
    """Open the table `into`; create it with the columns of the archive if it does not exist.

    Raises: ConfigError if it has a column that the archive lacks.
    """
    address = spec.into.address()
    held = open_if_exists(address)
    if held is not None and set(held.schema.names) < set(columns.names):
        # Another program added columns to the archive since.
        columns = select(columns, held.schema.names)
    return ensure_table(address, columns, spec.into.partition_by)


def _read(
    spark: SparkSession, table: LakeTable, schema: pa.Schema, files: list[DataFile]
) -> DataFrame:
    """Read the rows of data files: those that Bascule wrote with Spark, those of other programs
    with `read_files`."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = schema.remove_metadata()
    columns = from_arrow_schema(schema)
    # The files are listed one by one, because folders also contain files that are in no snapshot.
    plain = [file.path for file in files if not _needs_reader(file)]
    other = [file for file in files if _needs_reader(file)]
    reader = spark.read.schema(columns).option("recursiveFileLookup", "true")
    frame = reader.parquet(*plain) if plain else spark.createDataFrame([], columns)
    if not other:
        return frame

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_files([other[number]], schema)

    numbers = spark.range(0, len(other), 1, len(other))
    return frame.unionByName(numbers.mapInArrow(rows, columns))


def _needs_reader(file: DataFile) -> bool:
    """Whether Spark alone would misread a file: rows were deleted, several stream partitions have
    one entry each, or another program wrote it and may have left out the columns of its folder."""
    name = file.path.rpartition("/")[2]
    return bool(file.deleted_rows or file.is_shared or OWN_FILE.fullmatch(name) is None)


def last_records(rows: DataFrame, *, partitions: int, keep_tombstones: bool) -> DataFrame:
    """The last record of each key, with the columns of `rows`."""
    from pyspark.sql import functions as f

    rest = [name for name in rows.columns if name != "key"]
    keyed = rows.where(f.col("key").isNotNull()).select("key", f.struct(*rest).alias("last"))
    last = keyed.groupBy("key", f.col("last.partition").alias("p")).agg(
        f.max_by("last", f.col("last.offset")).alias("last")
    )
    if partitions > 1:
        order = f.struct("last.timestamp", "last.offset", "last.partition")
        last = last.groupBy("key").agg(f.max_by("last", order).alias("last"))
    if not keep_tombstones:
        last = last.where(f.col("last.value").isNotNull())
    return last.select("key", "last.*").select(*rows.columns)


def _write(
    rows: DataFrame, into: LakeTable, *, progress: JobProgress, total: int
) -> list[DataFile]:
    """Write the rows in tasks. The files are not committed."""
    ordered = rows.sortWithinPartitions("partition", "offset")
    frame = ordered.mapInArrow(_partition_writer(into.writer(), into.schema), "file string")
    return [
        msgspec.json.decode(row.file, type=DataFile)
        for row in collect_with_progress(frame, progress=progress, total=total)
    ]


def _partition_writer(
    writer_spec: WriterSpec, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Write separate files for each stream partition, because offsets must ascend within a file.

    Rows come ordered by stream partition, so only the files of one of them are open, and only its
    rows are buffered."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writers: list[FileWriter] = []
        files: list[DataFile] = []
        current = None
        try:
            for batch in batches:
                for partition in pc.unique(batch.column("partition")).to_pylist():
                    mine = batch.filter(pc.equal(batch.column("partition"), partition))
                    if not writers or partition != current:
                        if writers:
                            files += writers[-1].finish()
                        writers.append(writer_spec.open())
                        current = partition
                    writers[-1].write(mine.cast(schema))
            if writers:
                files += writers[-1].finish()
        except BaseException:
            for writer in writers:
                writer.abort()
            raise
        texts = [msgspec.json.encode(file).decode() for file in files]
        yield pa.record_batch([pa.array(texts, pa.string())], _FILES)

    return write


def _result(
    spec: CompactLakeSpec, into: LakeTable, *, rows: int, changed: bool, seconds: float
) -> JobResult:
    snapshot = into.snapshot()
    keys = 0 if snapshot is None else snapshot.rows
    return JobResult(
        kind="compact-lake",
        name=spec.name,
        ok=True,
        summary={
            "table": str(spec.table.address()),
            "into": str(spec.into.address()),
            "rows": rows,
            "keys": keys,
            "bytes": 0 if snapshot is None else snapshot.bytes,
            "changed": changed,
            "seconds": round(seconds, 3),
            "rows_per_s": round(rows / seconds) if seconds else 0,
        },
        tables=(Table("Compaction", ("records", "keys"), ((rows, keys),)),),
    )
