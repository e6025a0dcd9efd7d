"""Iceberg tables after other programs deleted, rewrote, expired and rolled back: by pyiceberg."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record
from pyiceberg.types import StringType

from bascule.errors import ForeignTable
from bascule.pipeline.jobs.archive.endpoints import ArchiveEndpoints
from bascule.pipeline.jobs.archive.spec import ArchiveSpec
from bascule.pipeline.jobs.tables import TableSpec, ensure_table
from bascule.pipeline.lake import LakeCommit, LakeTable, open_table
from bascule.pipeline.lake.foreign.removals import find_removals
from bascule.pipeline.values.spec import ValueSpec
from support.lake_rows import SCHEMA, Lake, commit_of, offsets_in, records, rows_of, summed
from support.pyiceberg_tables import load_by_pyiceberg

EQUALITY = DataFileContent.EQUALITY_DELETES


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake("iceberg", tmp_path)


def loaded(lake: Lake) -> Table:
    return load_by_pyiceberg(lake.folder / "iceberg", "lake.flights")


def archived(lake: Lake, *, by: tuple[str, ...] = (), partitions: int = 1) -> LakeTable:
    table = lake.create(by, stream="flights", stream_id="ab12")
    for start in range(0, 40, 20):
        batches = [records(number, start, start + 20) for number in range(partitions)]
        table.commit(commit_of(table, *batches))
    return table


def without(*gone: int) -> list[int]:
    return [n for n in range(40) if n not in gone]


class DeleteFiles(_FastAppendFiles):
    """Adds a manifest of delete files, which pyiceberg does not write."""

    deletes: list[DataFile]

    def _manifests(self) -> list[object]:  # type: ignore[override]
        table = self._transaction.table_metadata

        class Writer(ManifestWriterV2):
            def content(self) -> ManifestContent:
                return ManifestContent.DELETES

        path = f"{table.location}/metadata/{self.commit_uuid}-deletes.avro"
        output = self._io.new_output(path)
        with Writer(table.spec(), table.schema(), output, self._snapshot_id, "null") as writer:
            for file in self.deletes:
                writer.add(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
        return [writer.to_manifest_file(), *self._existing_manifests()]


def add_deletes(lake: Lake, rows: pa.Table, content: DataFileContent) -> None:
    """Commit a delete file, as merge-on-read of other engines does."""
    made = loaded(lake)
    path = lake.folder / "iceberg" / "deletes.parquet"
    pq.write_table(rows, path)
    file = DataFile.from_args(
        content=content,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=path.stat().st_size,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={},
        upper_bounds={},
        key_metadata=None,
        split_offsets=None,
        equality_ids=[5] if content == DataFileContent.EQUALITY_DELETES else None,
        sort_order_id=None,
        spec_id=0,
    )
    with made.transaction() as transaction:
        change = DeleteFiles(Operation.OVERWRITE, transaction, made.io)
        change.deletes = [file]
        change.commit()


def test_compaction_replaces_and_states_the_order_of_rows(lake: Lake) -> None:
    """Streaming readers skip a snapshot that replaces files, and fail at one that overwrites."""
    table = archived(lake)
    table.compact(file_bytes=1 << 20)
    made = loaded(lake)
    operations = [each.summary.operation.value for each in made.snapshots() if each.summary]
    assert operations == ["append", "append", "replace"]
    last = made.current_snapshot()
    assert last is not None
    assert last.summary is not None
    summary = last.summary.additional_properties
    assert summary["added-records"] == summary["deleted-records"] == "40"
    assert summary["total-records"] == "40"
    assert summary["total-data-files"] == "1"
    names = [made.schema().find_column_name(each.source_id) for each in made.sort_order().fields]
    assert names == ["partition", "offset"]
    assert offsets_in(table) == {0: [*range(40)]}
    assert made.scan().to_arrow().num_rows == 40


def test_rows_that_others_deleted_are_gone(lake: Lake) -> None:
    table = archived(lake, by=("subject",), partitions=2)
    loaded(lake).delete("offset in (3, 4, 25) and partition = 1")
    assert offsets_in(table) == {0: [*range(40)], 1: without(3, 4, 25)}
    missing = {0: np.array([], np.int64), 1: np.array([3, 4, 25, 33])}
    [found] = find_removals(table, missing)
    assert (found.partition, found.offsets.tolist()) == (1, [3, 4, 25])
    [by] = found.snapshots
    assert (by.operation, by.is_own) == ("overwrite", False)
    current = table.snapshot()
    assert current is not None
    assert by.id == current.id
    assert (current.rows, current.committed) == (77, {0: (0, 40), 1: (0, 40)})


def test_a_snapshot_that_deletes_whole_files_is_found(lake: Lake) -> None:
    table = archived(lake)
    loaded(lake).delete("offset < 20")
    assert offsets_in(table) == {0: [*range(20, 40)]}
    [found] = find_removals(table, {0: np.arange(20)})
    assert found.snapshots[0].operation == "delete"
    assert found.offsets.tolist() == [*range(20)]


def test_positions_that_others_deleted_are_left_out(lake: Lake) -> None:
    table = archived(lake)
    before = table.snapshot()
    assert before is not None
    first, second = [file.path for file in table.files(before)]
    rows = pa.table({"file_path": [first, first, second], "pos": pa.array([3, 19, 0], pa.int64())})
    add_deletes(lake, rows, DataFileContent.POSITION_DELETES)
    assert offsets_in(table) == {0: without(3, 19, 20)}
    assert rows_of(table).num_rows == 37
    [found] = find_removals(table, {0: np.array([3, 19, 20, 21])})
    assert found.offsets.tolist() == [3, 19, 20]
    assert table.compact(file_bytes=1 << 20).files_before == 0, "Spark applies the deletes"
    table.commit(commit_of(table, records(0, 40, 50)))
    assert offsets_in(table) == {0: [*without(3, 19, 20), *range(40, 50)]}


def test_a_compaction_beside_a_position_delete_brings_nothing_back(lake: Lake) -> None:
    table = archived(lake)
    before = table.snapshot()
    assert before is not None
    path = table.files(before)[0].path
    replace_files = type(table)._replace_files
    deleted = []

    def deletes_first(self: LakeTable, *given: object) -> object:
        if not deleted:
            deleted.append(path)
            rows = pa.table({"file_path": [path], "pos": pa.array([5], pa.int64())})
            add_deletes(lake, rows, DataFileContent.POSITION_DELETES)
        return replace_files(self, *given)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(table), "_replace_files", deletes_first)
        table.compact(file_bytes=1 << 20)
    assert offsets_in(table) == {0: without(5)}


def test_equality_deletes_are_refused_by_name(lake: Lake) -> None:
    table = archived(lake)
    rows = pa.table({"offset": pa.array([3], pa.int64())})
    add_deletes(lake, rows, EQUALITY)
    snapshot = table.snapshot()
    assert snapshot is not None
    with pytest.raises(ForeignTable, match=r"equality deletes.*rewrite_data_files"):
        table.files(snapshot)
    table.commit(commit_of(table, records(0, 40, 50)))
    after = table.snapshot()
    assert after is not None
    assert after.committed == {0: (0, 50)}


def test_an_archive_goes_on_without_compaction(lake: Lake) -> None:
    table = archived(lake)
    add_deletes(lake, pa.table({"offset": pa.array([3], pa.int64())}), EQUALITY)
    before = table.snapshot()
    spec = ArchiveSpec(
        name="a", stream="flights", table=TableSpec(location="/l"), expire_after_ms=0
    )
    ArchiveEndpoints(spec, ValueSpec.from_options({}), table, None).compact_and_expire()
    assert table.snapshot() == before


def test_a_table_that_was_rolled_back_is_continued(lake: Lake) -> None:
    """Also if the snapshot it was rolled back to is of another program, and the one before it has
    expired. The table's properties are newer than both."""
    table = lake.create(stream="flights", stream_id="ab12")
    first = table.commit(commit_of(table, records(0, 0, 20)))
    with loaded(lake).transaction() as transaction, transaction.update_snapshot().fast_append():
        pass
    foreign = loaded(lake).current_snapshot()
    assert foreign is not None
    table.commit(commit_of(table, records(0, 20, 40)))
    with loaded(lake).manage_snapshots() as manage:
        manage.set_current_snapshot(foreign.snapshot_id)
    for is_expired in (False, True):
        if is_expired:
            loaded(lake).maintenance.expire_snapshots().by_id(int(first.id)).commit()
        snapshot = open_table(lake.address()).snapshot()
        assert snapshot is not None
        assert snapshot.committed == {0: (0, 20)}
    table.commit(commit_of(table, records(0, 20, 30)))
    assert offsets_in(table) == {0: [*range(30)]}


def test_a_column_that_others_added_stays_theirs(lake: Lake) -> None:
    archived(lake)
    with loaded(lake).update_schema() as update:
        update.add_column("note", StringType())
    again = ensure_table(lake.address(), SCHEMA)
    assert again.schema.names == [*SCHEMA.names, "note"]
    writer = again.writer(columns=SCHEMA.names).open(stream_partition=0)
    batch = records(0, 40, 50)
    writer.write(batch)
    again.commit(LakeCommit(tuple(writer.finish()), "flights", "ab12", (summed(batch),)))
    assert rows_of(again)["note"].to_pylist() == [None] * 50
    again.compact(file_bytes=1 << 20)
    assert rows_of(again, SCHEMA).equals(pa.Table.from_batches([records(0, 0, 50)]))
    assert loaded(lake).scan().to_arrow().num_rows == 50
