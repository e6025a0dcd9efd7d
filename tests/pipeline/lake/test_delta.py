"""Delta tables as deltalake itself sees them, and what other programs do to them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from bascule.errors import ConfigError, ForeignTable, LakeConflict, UnknownTable
from bascule.pipeline.lake import LakeCommit, open_table, storage
from bascule.pipeline.lake.delta.log import DeltaLog
from support.lake_rows import NOON, SCHEMA, Lake, commit_of, offsets_in, records


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake("delta", tmp_path)


def loaded(lake: Lake) -> DeltaTable:
    return DeltaTable(str(lake.folder / "flights"))


def test_deltalake_reads_the_rows(lake: Lake) -> None:
    table = lake.create(["hour(timestamp)", "subject", "year(timestamp)"])
    batch = records(0, 0, 200)
    table.commit(commit_of(table, batch))
    read = loaded(lake).to_pyarrow_table().sort_by("offset")
    assert read.column_names == [*SCHEMA.names, "timestamp_hour", "timestamp_year"]
    assert read.select(SCHEMA.names).cast(SCHEMA).equals(pa.Table.from_batches([batch]))
    assert set(read["timestamp_year"].to_pylist()) == {2026}
    assert read["timestamp_hour"].to_pylist()[0] == "2026-11-21-12"
    counted = loaded(lake)
    assert counted.count() == 200
    scanned = pa.table(counted.scan(columns=["offset"], predicate="subject = 'flights.1'"))
    assert scanned.num_rows == 67


def test_deltalake_prunes_by_offset_time_and_partition(lake: Lake) -> None:
    table = lake.create(["hour(timestamp)"])
    for start in range(0, 240, 60):
        table.commit(commit_of(table, records(0, start, start + 60)))
    dataset = loaded(lake).to_pyarrow_dataset()
    import pyarrow.dataset as ds

    assert len(list(dataset.get_fragments(ds.field("offset") >= 120))) == 2
    late = pa.scalar(NOON + 3 * 3_600_000_000, pa.timestamp("us", "UTC"))
    assert len(list(dataset.get_fragments(ds.field("timestamp") >= late))) == 1
    assert (
        len(
            loaded(lake).file_uris(
                file_pruning_predicate=[("timestamp_hour", "=", "2026-11-21-13")]
            )
        )
        == 1
    )


class Synced:
    """Notes what is synced and removed, in order, below a folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        sync_files, remove_before = storage.sync_files, DeltaLog.remove_before

        def note(paths: Iterable[str], *, root: str = "") -> None:
            chosen = list(paths)
            self.names += [Path(path).name for path in chosen]
            sync_files(chosen, root=root)

        def note_removal(log: DeltaLog, version: int) -> None:
            self.names.append(f"remove before {version}")
            remove_before(log, version)

        monkeypatch.setattr(storage, "sync_files", note)
        monkeypatch.setattr(DeltaLog, "remove_before", note_removal)


def test_a_table_and_its_checkpoints_are_on_the_disk_first(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = Synced(monkeypatch)
    table = lake.create()
    assert synced.names == [f"{0:020d}.json"]
    for start in (0, 10, 20):
        table.commit(commit_of(table, records(0, start, start + 10)))
    synced.names.clear()
    assert table.expire(older_than_ms=2**52).snapshots == 2
    assert synced.names[-1] == "remove before 3"
    assert {f"{3:020d}.checkpoint.parquet", "_last_checkpoint"} <= set(synced.names[:-1])
    assert offsets_in(table) == {0: [*range(30)]}


def test_a_commit_of_a_process_that_was_killed_is_on_the_disk_before_it_counts(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a repetition, or by the next commit."""
    table = lake.create()
    commits = [commit_of(table, records(0, start, start + 10)) for start in (0, 10, 20)]
    with monkeypatch.context() as killed:
        killed.setattr(DeltaLog, "sync", lambda log, version: None)
        for commit in commits[:2]:
            table.commit(commit)
    synced = Synced(monkeypatch)
    open_table(lake.address()).commit(commits[1])
    names = {f"{version:020d}.json" for version in (1, 2)}
    assert names <= set(synced.names)
    synced.names.clear()
    again = open_table(lake.address())
    again.commit(commits[2])
    assert names | {f"{3:020d}.json"} <= set(synced.names)
    synced.names.clear()
    again.commit(commits[2])
    assert synced.names == [], "it has synced them"


def test_its_history_says_what_was_committed(lake: Lake) -> None:
    table = lake.create(stream="flights", stream_id="ab12")
    table.commit(commit_of(table, records(0, 0, 10), records(2, 5, 9)))
    table.commit(commit_of(table, records(0, 10, 20)))
    last, first, _ = loaded(lake).history()
    assert json.loads(last["bascule"]["committed"]) == {"0": [0, 20], "2": [5, 9]}
    assert [row[:4] for row in json.loads(first["bascule"]["spans"])] == [
        [0, 0, 10, 10],
        [2, 5, 9, 4],
    ]
    version = loaded(lake).transaction_version
    assert [version(f"bascule:{name}") for name in ("start:0", "end:0", "start:2", "end:2")] == [
        0,
        20,
        5,
        9,
    ]
    assert version("bascule:partitions") == 3


def test_commits_by_other_programs_change_no_spans(lake: Lake) -> None:
    table = lake.create()
    for start in range(0, 40, 10):
        table.commit(commit_of(table, records(0, start, start + 10)))
    loaded(lake).optimize.compact()
    loaded(lake).vacuum(
        retention_hours=0, enforce_retention_duration=False, dry_run=False, full=False
    )
    snapshot = table.snapshot()
    assert snapshot is not None
    assert snapshot.committed == {0: (0, 40)}
    assert snapshot.rows == 40
    assert offsets_in(table) == {0: [*range(40)]}
    with pytest.raises(LakeConflict):
        table.commit(commit_of(table, records(0, 42, 50)))
    table.commit(commit_of(table, records(0, 40, 50)))
    assert offsets_in(table) == {0: [*range(50)]}


def test_a_compaction_may_join_stream_partitions(lake: Lake) -> None:
    table = lake.create()
    table.commit(commit_of(table, records(0, 0, 10), records(1, 0, 10)))
    loaded(lake).optimize.compact()
    assert offsets_in(table) == {0: [*range(10)], 1: [*range(10)]}
    apart = lake.create(["partition"], name="apart")
    apart.commit(commit_of(apart, records(0, 0, 10), records(1, 0, 10)))
    apart.commit(commit_of(apart, records(0, 10, 20), records(1, 10, 20)))
    DeltaTable(str(lake.folder / "apart")).optimize.compact()
    assert offsets_in(apart) == {0: [*range(20)], 1: [*range(20)]}


def test_spans_outlive_the_log(lake: Lake) -> None:
    """Delta drops commits older than a month at a checkpoint, with what they said."""
    schema = SCHEMA
    table = lake.create(schema=schema, stream="flights", stream_id="ab12")
    table.commit(commit_of(table, records(0, 5, 10), records(2, 0, 3)))
    made = table.writer().open()
    made.write(records(0, 0, 0))
    table.commit(LakeCommit(tuple(made.finish()), token=("writer", 0)))
    loaded(lake).alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    loaded(lake).create_checkpoint()
    log = lake.folder / "flights" / "_delta_log"
    for version in range(3):
        (log / f"{version:020d}.json").unlink(missing_ok=True)
    snapshot = open_table(lake.address()).snapshot()
    assert snapshot is not None
    assert snapshot.stream_id == "ab12"
    assert snapshot.committed == {0: (5, 10), 2: (0, 3)}
    again = open_table(lake.address())
    before = again.snapshot()
    again.commit(commit_of(again, records(0, 5, 10)))
    again.commit(LakeCommit((), token=("writer", 0)))
    assert again.snapshot() == before
    again.commit(commit_of(again, records(0, 10, 20)))
    assert offsets_in(again) == {0: [*range(5, 20)], 2: [0, 1, 2]}


def test_a_wide_value_does_not_hide_the_offsets(lake: Lake) -> None:
    """Delta keeps statistics of the first 32 columns alone, unless told otherwise."""
    value = pa.struct([(f"f{n}", pa.int64()) for n in range(50)])
    schema = SCHEMA.set(1, pa.field("value", value))
    table = lake.create(schema=schema)
    base = records(0, 0, 10).drop_columns(["value"])
    columns = [pa.nulls(10, value) if n == "value" else base.column(n) for n in schema.names]
    table.commit(commit_of(table, pa.RecordBatch.from_arrays(columns, schema=schema)))
    for _ in range(2):
        assert offsets_in(open_table(lake.address())) == {0: [*range(10)]}
        loaded(lake).create_checkpoint()


def test_a_table_that_is_not_ours(lake: Lake) -> None:
    folder = str(lake.folder / "flights")
    write_deltalake(folder, pa.table({"a": [1]}))
    with pytest.raises(ForeignTable, match=r"lacks the property bascule\.format"):
        open_table(lake.address())
    for path in (lake.folder / "flights" / "_delta_log").iterdir():
        path.write_text("nonsense")
    with pytest.raises(ForeignTable):
        open_table(lake.address())


def test_a_folder_of_something_else(lake: Lake) -> None:
    folder = lake.folder / "flights"
    folder.mkdir()
    with pytest.raises(UnknownTable):
        open_table(lake.address())
    (folder / "notes.txt").write_text("mine")
    for attempt in (lake.create, lambda: open_table(lake.address())):
        with pytest.raises(ForeignTable, match=r"holds 'notes\.txt'"):
            attempt()
    parquet = Lake("parquet", lake.folder)
    parquet.create(name="own")
    with pytest.raises(ForeignTable, match="it is a parquet table"):
        open_table(lake.address("own"))


def test_a_type_that_delta_lacks(lake: Lake) -> None:
    with pytest.raises(ConfigError, match="a delta table does not support"):
        lake.create(schema=pa.schema([("a", pa.month_day_nano_interval())]))
