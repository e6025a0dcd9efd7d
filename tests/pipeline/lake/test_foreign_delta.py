"""Delta tables after other programs deleted, rewrote, expired and restored rows: by deltalake."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from bascule.pipeline.jobs.tables import ensure_table
from bascule.pipeline.lake import LakeCommit, LakeTable, Span, open_table
from bascule.pipeline.lake.foreign.removals import find_removals
from support.lake_rows import SCHEMA, Lake, commit_of, offsets_in, records, rows_of, summed


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake("delta", tmp_path)


def loaded(lake: Lake) -> DeltaTable:
    return DeltaTable(str(lake.folder / "flights"))


def expected(*batches: pa.RecordBatch, gone: set[int]) -> pa.Table:
    whole = pa.Table.from_batches(batches)
    keep = [n not in gone for n in whole["offset"].to_pylist()]
    return whole.filter(pa.array(keep))


def archived(lake: Lake, *, by: tuple[str, ...] = (), partitions: int = 1) -> LakeTable:
    table = lake.create(by, stream="flights", stream_id="ab12")
    for start in range(0, 40, 20):
        batches = [records(number, start, start + 20) for number in range(partitions)]
        table.commit(commit_of(table, *batches))
    return table


@pytest.mark.parametrize("by", [(), ("subject",), ("day(timestamp)", "partition")])
def test_rows_that_others_deleted_are_gone_and_the_rest_is_whole(
    lake: Lake, by: tuple[str, ...]
) -> None:
    table = archived(lake, by=by)
    loaded(lake).delete('"offset" in (3, 4, 25)')
    assert rows_of(table).equals(expected(records(0, 0, 40), gone={3, 4, 25}))
    snapshot = table.snapshot()
    assert snapshot is not None
    assert (snapshot.rows, snapshot.committed) == (37, {0: (0, 40)})
    table.commit(commit_of(table, records(0, 40, 50)))
    table.compact(file_bytes=1 << 20)
    assert offsets_in(table) == {0: [n for n in range(50) if n not in (3, 4, 25)]}


@pytest.mark.parametrize("vacuumed", [False, True])
def test_the_version_that_removed_rows_is_found(lake: Lake, vacuumed: bool) -> None:
    table = archived(lake, partitions=2)
    loaded(lake).optimize.compact()
    before = loaded(lake).version()
    loaded(lake).delete('"offset" in (3, 4, 25) and "partition" = 1')
    table.commit(commit_of(table, records(0, 40, 50)))
    loaded(lake).delete('"offset" = 7')
    if vacuumed:
        loaded(lake).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    missing = {0: np.array([7]), 1: np.array([3, 4, 7, 25])}
    found = [
        ([(by.id, by.operation) for by in each.snapshots], each.partition, each.offsets.tolist())
        for each in find_removals(table, missing)
    ]
    first, last = str(before + 1), str(before + 3)
    if vacuumed:  # the files before either deletion are gone, so it may have been either
        both = [(first, "DELETE"), (last, "DELETE")]
        assert found == [(both, 0, [7]), (both, 1, [3, 4, 7, 25])]
    else:
        assert found == [
            ([(first, "DELETE")], 1, [3, 4, 25]),
            ([(last, "DELETE")], 0, [7]),
            ([(last, "DELETE")], 1, [7]),
        ]


def test_a_compaction_beside_a_deletion_brings_nothing_back(lake: Lake) -> None:
    """The rows are deleted between the reading of the old files and the commit of the new ones."""
    table = archived(lake)
    commit = type(table)._replace_files
    deleted = []

    def replace_files(self: LakeTable, *given: object) -> object:
        if not deleted:
            loaded(lake).delete('"offset" = 5')
            deleted.append(5)
        return commit(self, *given)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(table), "_replace_files", replace_files)
        table.compact(file_bytes=1 << 20)
    assert offsets_in(table) == {0: [n for n in range(40) if n != 5]}


def test_files_of_several_partitions_are_read_by_partition(lake: Lake) -> None:
    table = archived(lake, by=("hour(timestamp)",), partitions=3)
    loaded(lake).optimize.z_order(["subject"])
    assert offsets_in(table) == {number: [*range(40)] for number in range(3)}
    for number in range(3):
        snapshot = table.snapshot()
        assert snapshot is not None
        wanted = Span(number, 10, 20)
        files = [file for file in table.files(snapshot) if file.may_hold(wanted)]
        assert files
        assert all(file.is_shared for file in files)
    whole = pa.Table.from_batches([records(number, 0, 40) for number in range(3)])
    assert rows_of(table).equals(whole)
    table.commit(commit_of(table, records(0, 40, 45), records(2, 40, 45)))
    table.commit(commit_of(table, records(0, 45, 50)))
    table.compact(file_bytes=1 << 20)
    assert offsets_in(table) == {0: [*range(50)], 1: [*range(40)], 2: [*range(45)]}


def test_a_restored_version_is_continued(lake: Lake) -> None:
    table = archived(lake)
    loaded(lake).restore(1)
    snapshot = table.snapshot()
    assert snapshot is not None
    assert snapshot.committed == {0: (0, 20)}
    table.commit(commit_of(table, records(0, 20, 30)))
    assert offsets_in(table) == {0: [*range(30)]}


def test_spans_are_derived_where_nothing_records_them(lake: Lake) -> None:
    archived(lake, partitions=2)
    loaded(lake).optimize.compact()
    loaded(lake).restore(1)
    # The log clean-up of the version that was restored.
    loaded(lake).create_checkpoint()
    for version in range(loaded(lake).version()):
        (lake.folder / "flights" / "_delta_log" / f"{version:020d}.json").unlink()
    snapshot = open_table(lake.address()).snapshot()
    assert snapshot is not None
    assert (snapshot.stream_id, snapshot.committed) == ("ab12", {0: (0, 20), 1: (0, 20)})


def test_a_column_that_others_added_stays_theirs(lake: Lake) -> None:
    opened = archived(lake)
    loaded(lake).alter.add_columns([Field("note", PrimitiveType("string"))])
    again = ensure_table(lake.address(), SCHEMA)
    assert again.schema.names == [*SCHEMA.names, "note"]
    writer = again.writer(columns=SCHEMA.names).open(stream_partition=0)
    batch = records(0, 40, 50)
    writer.write(batch)
    again.commit(LakeCommit(tuple(writer.finish()), "flights", "ab12", (summed(batch),)))
    assert rows_of(again)["note"].to_pylist() == [None] * 50
    loaded(lake).update(predicate='"offset" < 20', updates={"note": "'seen'"})
    assert opened.compact(file_bytes=1 << 20).files_before == 3
    assert rows_of(again)["note"].to_pylist() == ["seen"] * 20 + [None] * 30
    assert rows_of(again, SCHEMA).equals(pa.Table.from_batches([records(0, 0, 50)]))
