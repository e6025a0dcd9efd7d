"""Iceberg tables as pyiceberg itself sees them, and what other programs do to them."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from bascule.errors import ConfigError, ForeignTable, LakeConflict, UnknownTable
from bascule.host.real import RealFiles
from bascule.pipeline.lake import open_table, parse_address, storage
from bascule.pipeline.lake.model import TableAddress
from support.lake_rows import NOON, SCHEMA, Lake, commit_of, offsets_in, records, rows_of
from support.pyiceberg_tables import load_by_pyiceberg


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake("iceberg", tmp_path)


def loaded(lake: Lake, name: str = "flights") -> Table:
    return load_by_pyiceberg(lake.folder / "iceberg", f"lake.{name}")


def test_pyiceberg_reads_the_rows(lake: Lake) -> None:
    table = lake.create(["hour(timestamp)", "subject"])
    batch = records(0, 0, 200)
    table.commit(commit_of(table, batch))
    read = loaded(lake).scan().to_arrow().sort_by("offset")
    # pyiceberg 0.12 reads a list that is null as an empty one.
    expected = pa.Table.from_batches([batch])
    plain = read.drop_columns("headers").cast(SCHEMA.remove(6))
    assert plain.equals(expected.drop_columns("headers"))
    lists = [each or [] for each in expected["headers"].to_pylist()]
    assert read["headers"].to_pylist() == lists


def test_pyiceberg_prunes_by_time_offset_and_partition(lake: Lake) -> None:
    table = lake.create(["hour(timestamp)"])
    for number in (0, 1):
        for start in range(0, 240, 60):
            table.commit(commit_of(table, records(number, start, start + 60)))
    made = loaded(lake)
    assert len(list(made.scan().plan_files())) == 8
    hour = datetime.datetime.fromtimestamp(NOON / 1e6 + 3 * 3600, datetime.UTC).isoformat()
    assert len(list(made.scan(f"timestamp >= '{hour}'").plan_files())) == 2
    assert len(list(made.scan("offset >= 60 and offset < 100").plan_files())) == 2
    assert len(list(made.scan("partition = 1").plan_files())) == 4
    assert made.scan("partition = 1 and offset = 61").to_arrow().num_rows == 1


def test_files_carry_field_ids(lake: Lake) -> None:
    table = lake.create()
    commit = commit_of(table, records(0, 0, 10))
    schema = pq.read_schema(commit.files[0].path.removeprefix("file://"))
    ids = [int(schema.field(name).metadata[b"PARQUET:field_id"]) for name in SCHEMA.names]
    table.commit(commit)
    assert ids == [loaded(lake).schema().find_field(name).field_id for name in SCHEMA.names]


def test_a_renamed_column_is_still_read_by_pyiceberg(lake: Lake) -> None:
    table = lake.create()
    table.commit(commit_of(table, records(0, 0, 10)))
    with loaded(lake).update_schema() as update:
        update.rename_column("subject", "topic")
    assert loaded(lake).scan().to_arrow()["topic"].to_pylist()[:2] == ["flights.0", "flights.1"]


def test_a_commit_by_another_program_changes_no_spans(lake: Lake) -> None:
    table = lake.create()
    first = table.commit(commit_of(table, records(0, 0, 10)))
    with loaded(lake).transaction() as transaction, transaction.update_snapshot().fast_append():
        pass
    foreign = table.snapshot()
    assert foreign is not None
    assert foreign.id != first.id
    assert foreign.committed == {0: (0, 10)}
    with pytest.raises(LakeConflict):
        table.commit(commit_of(table, records(0, 12, 20)))
    table.commit(commit_of(table, records(0, 10, 20)))
    assert offsets_in(table) == {0: [*range(20)]}


def test_spans_outlive_the_snapshots_that_said_them(lake: Lake) -> None:
    table = lake.create()
    first = table.commit(commit_of(table, records(0, 0, 10)))
    made = loaded(lake)
    with made.transaction() as transaction, transaction.update_snapshot().fast_append():
        pass
    loaded(lake).maintenance.expire_snapshots().by_id(int(first.id)).commit()
    left = table.snapshot()
    assert left is not None
    assert (left.stream, left.stream_id, left.committed) == ("flights", "ab12", {0: (0, 10)})


def test_a_retry_of_pyiceberg_is_switched_off_again(lake: Lake) -> None:
    table = lake.create()
    with loaded(lake).transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "4"})
    table.commit(commit_of(table, records(0, 0, 10)))
    assert loaded(lake).properties["commit.retry.num-retries"] == "0"
    assert offsets_in(table) == {0: [*range(10)]}


def test_manifests_stay_few(lake: Lake) -> None:
    table = lake.create()
    with loaded(lake).transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "10"})
    for start in range(0, 72, 3):
        table.commit(commit_of(table, records(0, start, start + 3)))
    made = loaded(lake)
    current = made.current_snapshot()
    assert current is not None
    assert len(current.manifests(made.io)) < 10
    assert offsets_in(table) == {0: [*range(72)]}


def test_what_a_commit_names_is_on_the_disk_first(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def note(paths: Iterable[str], *, root: str = "") -> None:
        synced.extend(paths)

    table = lake.create()
    commit = commit_of(table, records(0, 0, 10))
    monkeypatch.setattr(storage, "sync_files", note)
    table.commit(commit)
    made = loaded(lake)
    snapshot = made.current_snapshot()
    assert snapshot is not None
    manifests = [each.manifest_path for each in snapshot.manifests(made.io)]
    assert {*manifests, snapshot.manifest_list, made.metadata_location} <= set(synced)


def test_names_of_the_folders_of_a_new_table_are_on_the_disk(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[Path] = set()
    sync_dir = RealFiles.sync_dir

    def note(files: RealFiles, path: str) -> None:
        synced.add(Path(path))
        sync_dir(files, path)

    monkeypatch.setattr(RealFiles, "sync_dir", note)
    lake.create()
    folder = Path(str(storage.local_path(loaded(lake).metadata_location))).parent
    warehouse = Path(storage.local_path(lake.address().location))
    assert warehouse in folder.parents
    while folder != warehouse.parent:
        assert folder in synced, folder
        folder = folder.parent


def test_another_catalog_by_its_properties(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/elsewhere.db"
    address = TableAddress(
        "iceberg",
        name="ns.deep.flights",
        catalog={"name": "other", "type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/w"},
    )
    from bascule.pipeline.lake import create_table

    table = create_table(address, SCHEMA, ["day(timestamp)"])
    table.commit(commit_of(table, records(0, 0, 10)))
    assert rows_of(open_table(address)).num_rows == 10
    assert not (tmp_path / "catalog.db").exists()


def test_a_catalog_that_cannot_be(tmp_path: Path) -> None:
    for catalog in ({"type": "nonsense"}, {"type": "sql"}):
        with pytest.raises(ConfigError, match="the catalog of"):
            open_table(TableAddress("iceberg", name="a.b", catalog=catalog))
    with pytest.raises(ConfigError, match="needs the properties of a catalog"):
        open_table(parse_address("iceberg:s3://bucket/warehouse#a.b"))


def test_a_table_that_is_not_ours(lake: Lake) -> None:
    lake.create(name="other")
    catalog = loaded(lake, "other").catalog
    catalog.create_table("lake.flights", pa.schema([("a", pa.int64())]))
    with pytest.raises(ForeignTable, match=r"lacks the property bascule\.format"):
        open_table(lake.address())
    with pytest.raises(UnknownTable):
        open_table(lake.address("nothing"))


def test_a_table_whose_metadata_is_gone(lake: Lake) -> None:
    lake.create()
    for path in (lake.folder / "iceberg").rglob("*.metadata.json"):
        path.unlink()
    with pytest.raises(ForeignTable, match="metadata does not exist"):
        open_table(lake.address())


def test_a_type_that_iceberg_lacks(lake: Lake) -> None:
    with pytest.raises(ConfigError, match="an iceberg table does not support"):
        lake.create(schema=pa.schema([("a", pa.month_day_nano_interval())]))


def test_narrow_integers_are_widened(lake: Lake) -> None:
    schema = SCHEMA.append(pa.field("small", pa.int16()))
    table = lake.create(schema=schema)
    assert table.schema.field("small").type == pa.int32()
    batch = records(0, 0, 5).append_column(
        pa.field("small", pa.int16()), pa.array([1, 2, None, 4, 5], pa.int16())
    )
    table.commit(commit_of(table, batch))
    assert rows_of(table, schema).equals(pa.Table.from_batches([batch]))


def test_a_sorted_table_lists_the_order_of_unsorted_files(lake: Lake) -> None:
    """Spark's z-order writes files of sort order 0, and refuses a table that does not list it."""
    table = lake.create(["hour(timestamp)"])
    for start in (0, 60):
        table.commit(commit_of(table, records(0, start, start + 60)))
    made = loaded(lake)
    assert {order.order_id: [field.source_id for field in order.fields]
            for order in made.metadata.sort_orders} == {
        0: [],
        1: [made.schema().find_field(name).field_id for name in ("partition", "offset")],
    }  # fmt: skip
    assert len(made.metadata.sort_orders) == 2
    assert made.sort_order().order_id == 1
