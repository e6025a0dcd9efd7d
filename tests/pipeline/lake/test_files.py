"""Data files: how they are cut while written, and what is left out while read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from bascule.errors import Broken, CorruptData
from bascule.host.real import RealFiles
from bascule.pipeline.lake import WriterOptions, read_files, storage
from bascule.pipeline.lake.file_reader import overlapping_groups
from support.lake_rows import (
    OFFSETS,
    SCHEMA,
    Lake,
    commit_of,
    data_files,
    offsets_in,
    records,
    written,
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake("parquet", tmp_path)


def offsets(batches: object) -> list[int]:
    return [n for batch in batches for n in batch.column("offset").to_pylist()]  # type: ignore[attr-defined]


def test_row_groups_and_files_have_their_sizes(lake: Lake) -> None:
    table = lake.create()
    batches = [records(0, start, start + 100) for start in range(0, 1000, 100)]
    options = WriterOptions(row_group_rows=200, file_bytes=3_000)
    files = written(table, *batches, options=options)
    assert len(files) > 1
    assert offsets(read_files(files, OFFSETS)) == [*range(1000)]
    for file in files:
        metadata = pq.read_metadata(file.path)
        assert {metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)} == {200}
        assert file.bytes == Path(file.path).stat().st_size


def test_names_of_new_folders_are_on_the_disk(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create(["hour(timestamp)", "subject"])
    synced: set[Path] = set()
    sync_dir = RealFiles.sync_dir

    def note(files: RealFiles, path: str) -> None:
        synced.add(Path(path))
        sync_dir(files, path)

    monkeypatch.setattr(RealFiles, "sync_dir", note)
    location = lake.folder / "flights"
    for file in written(table, records(0, 0, 120)):
        folder = Path(file.path).parent
        assert location / "data" in folder.parents
        while folder != location.parent:
            assert folder in synced
            folder = folder.parent


def test_open_files_and_memory_are_bounded(lake: Lake) -> None:
    table = lake.create(["hour(timestamp)"])
    batches = [records(0, start, start + 120) for start in range(0, 1200, 120)]
    options = WriterOptions(open_files=2, buffer_bytes=1)
    files = written(table, *batches, options=options)
    assert len({file.partition_values for file in files}) == 20
    assert offsets(read_files(files, OFFSETS)) == [*range(1200)]
    assert len(written(table, *batches)) == 20


@pytest.mark.parametrize("compression", ["zstd", "lz4", "snappy", "none"])
def test_compressions(lake: Lake, compression: str) -> None:
    table = lake.create()
    options = WriterOptions(compression=compression)  # type: ignore[arg-type]
    (file,) = written(table, records(0, 0, 100), options=options)
    column = pq.read_metadata(file.path).row_group(0).column(1)
    assert column.compression == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())
    assert pa.Table.from_batches(read_files([file], SCHEMA)).num_rows == 100


def test_offsets_have_to_ascend(lake: Lake) -> None:
    writer = lake.create().writer().open(stream_partition=0)
    writer.write(records(0, 10, 20))
    with pytest.raises(AssertionError, match="comes behind"):
        writer.write(records(0, 19, 30))
    writer.abort()


def test_files_and_row_groups_outside_are_not_read(lake: Lake) -> None:
    table = lake.create()
    batches = [records(0, start, start + 100) for start in range(0, 500, 100)]
    files = [
        *written(table, *batches, options=WriterOptions(row_group_rows=100)),
        *written(table, records(0, 500, 600)),
    ]
    damaged = Path(files[1].path)
    damaged.write_bytes(b"nonsense")
    assert offsets(read_files(files, OFFSETS, offset_start=150, offset_end=350)) == [
        *range(150, 350)
    ]
    # The first row group of the first file is broken where its pages are.
    first = Path(files[0].path)
    data = bytearray(first.read_bytes())
    data[10:200] = bytes(190)
    first.write_bytes(data)
    assert offsets(read_files(files, OFFSETS, offset_start=300, offset_end=301)) == [300]
    with pytest.raises(CorruptData, match="a Parquet file"):
        offsets(read_files(files, OFFSETS, offset_start=550))


def test_a_file_that_is_gone_is_named(lake: Lake) -> None:
    (file,) = written(lake.create(), records(0, 0, 5))
    Path(file.path).unlink()
    with pytest.raises(Broken, match="has expired"):
        offsets(read_files([file], OFFSETS))


def test_columns_are_exactly_those_asked_for(lake: Lake) -> None:
    (file,) = written(lake.create(), records(0, 0, 50))
    wanted = pa.schema(
        [("subject", pa.large_string()), ("absent", pa.int8()), ("offset", pa.int32())]
    )
    for start, rows in ((None, 50), (20, 30)):
        batches = list(read_files([file], wanted, offset_start=start, batch_rows=8))
        assert all(batch.schema.equals(wanted) for batch in batches)
        assert max(batch.num_rows for batch in batches) <= 8
        assert sum(batch.num_rows for batch in batches) == rows
        assert batches[0].column("absent").null_count == batches[0].num_rows
    assert sum(b.num_rows for b in read_files([file], pa.schema([("absent", pa.int8())]))) == 50


def test_fields_of_a_struct_can_be_chosen(lake: Lake) -> None:
    value = pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string()), ("d", pa.int8())]))])
    schema = SCHEMA.set(1, pa.field("value", value))
    rows = [
        {"offset": 0, "partition": 0, "value": {"a": 1, "b": {"c": "x", "d": 2}}},
        {"offset": 1, "partition": 0, "value": None},
        {"offset": 2, "partition": 0, "value": {"a": None, "b": None}},
    ]
    (file,) = written(lake.create(schema=schema), pa.RecordBatch.from_pylist(rows, schema))
    wanted = pa.schema(
        [("value", pa.struct([("b", pa.struct([("d", pa.int64())])), ("new", pa.string())]))]
    )
    (batch,) = read_files([file], wanted)
    assert batch.schema.equals(wanted)
    assert batch.column("value").to_pylist() == [
        {"b": {"d": 2}, "new": None},
        None,
        {"b": None, "new": None},
    ]


def test_clusters_are_files_that_interleave(lake: Lake) -> None:
    table = lake.create()
    (file,) = written(table, records(0, 0, 1))
    assert file.span is not None

    def at(start: int, end: int) -> object:
        return dataclasses.replace(file, span=dataclasses.replace(file.span, start=start, end=end))

    files = [at(5, 9), at(0, 3), at(2, 5), at(9, 20), at(10, 11), at(12, 15), at(20, 21)]
    found = [
        [(f.span.start, f.span.end) for f in group if f.span] for group in overlapping_groups(files)
    ]  # type: ignore[arg-type]
    assert found == [
        [(0, 3), (2, 5)],
        [(5, 9)],
        [(9, 20), (10, 11), (12, 15)],
        [(20, 21)],
    ]


def test_a_folder_that_appears_while_it_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow finds no folder, then looks whether there is one: a committer made it in between."""
    lake = Lake("parquet", tmp_path)
    table = lake.create()
    filesystem_of = storage.filesystem_of
    refused = []

    class AppearingFolder:
        def get_file_info(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
            if not refused:
                refused.append(selector.base_dir)
                table.commit(commit_of(table, records(0, 0, 10)))
                raise FileNotFoundError(2, f"Cannot list directory '{selector.base_dir}'")
            found: list[pafs.FileInfo] = pafs.LocalFileSystem().get_file_info(selector)
            return found

    monkeypatch.setattr(
        storage,
        "filesystem_of",
        lambda path: (AppearingFolder(), path) if path.endswith("/data") else filesystem_of(path),
    )
    table.expire(older_than_ms=0)
    assert refused == [f"{tmp_path}/flights/data"]
    assert [found.path for found in storage.files_below(refused[0])] == [
        str(path) for path in data_files(lake.folder)
    ]
    assert offsets_in(table) == {0: [*range(10)]}
