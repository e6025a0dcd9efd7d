"""Compaction by key where it needs no Spark. `tests/spark/test_compact_lake.py` has the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from bascule.pipeline.jobs.compact_lake.run import _partition_writer, run
from bascule.pipeline.jobs.compact_lake.spec import CompactLakeSpec
from bascule.pipeline.jobs.tables import TableSpec
from bascule.pipeline.lake import FileWriter, LakeCommit, LakeTable, WriterSpec, read_files
from bascule.pipeline.lake.delta.log import CommitInfo, DeltaLog
from bascule.pipeline.lake.model import DataFile
from support.lake_rows import OFFSETS, SCHEMA, Lake, commit_of, records, written


def filled(lake: Lake, name: str, batch: pa.RecordBatch) -> LakeTable:
    """A table of keys, as an earlier run made it."""
    into = lake.create(name=name)
    into.commit(LakeCommit(tuple(written(into, batch)), token=("compact-lake:x", 1), replaces=True))
    return into


def test_an_archive_whose_rows_were_all_deleted_leaves_no_keys(tmp_path: Path) -> None:
    lake = Lake("delta", tmp_path)
    batch = records(0, 0, 20)
    source = lake.create(stream="flights", stream_id="ab12")
    source.commit(commit_of(source, batch))
    into = filled(lake, "into", batch)
    DeltaTable(lake.address().location).delete()
    spec = CompactLakeSpec(
        name="x",
        table=TableSpec(format="delta", location=lake.address().location),
        into=TableSpec(format="delta", location=lake.address("into").location),
    )
    nothing_to_read: Any = None
    for changed in (True, False):
        result = run(nothing_to_read, spec)
        assert (result.summary["keys"], result.summary["changed"]) == (0, changed)
    snapshot = into.snapshot()
    assert snapshot is not None
    assert into.files(snapshot) == []


def test_a_clock_that_was_set_back_keeps_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = DeltaLog.info

    def set_back(log: DeltaLog, version: int) -> CommitInfo | None:
        found = info(log, version)
        return found and msgspec.structs.replace(found, ms=2_000_000_000_000 - version)

    monkeypatch.setattr(DeltaLog, "info", set_back)
    lake = Lake("delta", tmp_path)
    source = lake.create(stream="flights", stream_id="ab12")
    into = filled(lake, "into", records(0, 0, 10))
    spec = CompactLakeSpec(
        name="x",
        table=TableSpec(format="delta", location=lake.address().location),
        into=TableSpec(format="delta", location=lake.address("into").location),
    )
    nothing_to_read: Any = None
    for number in (1, 2):
        source.commit(commit_of(source, records(0, 10 * number, 10 * number + 10)))
        DeltaTable(lake.address().location).delete()
        result = run(nothing_to_read, spec)
        assert (result.summary["keys"], result.summary["changed"]) == (0, True)
        files = tuple(written(into, records(0, 0, 10)))
        into.commit(LakeCommit(files, token=("somebody", number), replaces=True))


@dataclass
class CountedWriters:
    """Counts the writers that are open."""

    spec: WriterSpec
    open_now: int = 0
    open_max: int = 0
    finished: list[DataFile] = field(default_factory=list)

    def open(self, *, stream_partition: int | None = None) -> FileWriter:
        self.open_now += 1
        self.open_max = max(self.open_max, self.open_now)
        return CountedWriter(self, self.spec.open(stream_partition=stream_partition))


@dataclass
class CountedWriter:
    counts: CountedWriters
    writer: FileWriter

    def write(self, batch: pa.RecordBatch) -> None:
        self.writer.write(batch)

    def finish(self) -> list[DataFile]:
        self.counts.open_now -= 1
        return self.writer.finish()

    def abort(self) -> None:
        self.writer.abort()


def test_a_task_buffers_the_rows_of_one_stream_partition(tmp_path: Path) -> None:
    counts = CountedWriters(Lake("parquet", tmp_path).create().writer())
    rows = [records(partition, 0, 30) for partition in range(20)]
    table = pa.Table.from_batches(rows).combine_chunks()
    (texts,) = _partition_writer(counts, SCHEMA)(iter(table.to_batches(max_chunksize=70)))
    files = [msgspec.json.decode(text, type=DataFile) for text in texts.column(0).to_pylist()]
    assert counts.open_max == 1
    found = [batch for file in files for batch in read_files([file], OFFSETS)]
    assert pa.Table.from_batches(found).num_rows == table.num_rows
    assert len(files) == 20
