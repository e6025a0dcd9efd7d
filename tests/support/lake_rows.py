"""Tables of every format, and rows for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from bascule.errors import LakeConflict
from bascule.pipeline.lake import (
    DataFile,
    LakeCommit,
    LakeTable,
    Span,
    SpanChecksum,
    SpanDigest,
    TableAddress,
    WriterOptions,
    create_table,
    open_table,
    parse_address,
    read_files,
)

FORMATS = ("parquet", "iceberg", "delta")
HOUR_US = 3_600_000_000
NOON = 1_795_262_400_000_000
"""2026-11-21T12:00:00Z in microseconds."""

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("subject", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
OFFSETS = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])


def records(
    partition: int, start: int, end: int, *, step_us: int = 60_000_000, schema: pa.Schema = SCHEMA
) -> pa.RecordBatch:
    """Offsets [start, end), a minute apart."""
    rows = [
        {
            "key": None if n % 5 == 0 else b"k%d" % n,
            "value": None if n % 7 == 0 else b"v%d" % n * 3,
            "subject": f"flights.{n % 3}",
            "partition": partition,
            "offset": n,
            "timestamp": NOON + n * step_us,
            "headers": None if n % 4 == 0 else [{"key": "h", "value": b"%d" % n}] * (n % 3),
        }
        for n in range(start, end)
    ]
    return pa.RecordBatch.from_pylist(rows, schema)


@dataclass
class Lake:
    """A format, and a folder for its tables."""

    format: str
    folder: Path

    def address(self, name: str = "flights") -> TableAddress:
        location = self.folder / (self.format if self.format == "iceberg" else name)
        return parse_address(
            f"{self.format}:{location}" + (f"#lake.{name}" if self.format == "iceberg" else "")
        )

    def create(
        self,
        partitioning: Sequence[str] = (),
        *,
        schema: pa.Schema = SCHEMA,
        name: str = "flights",
        stream: str = "",
        stream_id: str = "",
    ) -> LakeTable:
        return create_table(
            self.address(name), schema, partitioning, stream=stream, stream_id=stream_id
        )


def written(
    table: LakeTable, *batches: pa.RecordBatch, options: WriterOptions | None = None
) -> list[DataFile]:
    """Write batches of one stream partition to files without a commit."""
    writer = table.writer(options).open(stream_partition=batches[0].column("partition")[0].as_py())
    for batch in batches:
        writer.write(batch)
    return writer.finish()


def summed(*batches: pa.RecordBatch) -> SpanDigest:
    checksum = SpanChecksum()
    for batch in batches:
        checksum.update(batch)
    first, last = batches[0].column("offset")[0].as_py(), batches[-1].column("offset")[-1].as_py()
    number = batches[0].column("partition")[0].as_py()
    return SpanDigest(Span(number, first, last + 1), checksum.rows, checksum.value)


def commit_of(
    table: LakeTable, *batches: pa.RecordBatch, stream: str = "flights", stream_id: str = "ab12"
) -> LakeCommit:
    """A commit with one span for each batch; its files are written."""
    files = [file for batch in batches for file in written(table, batch)]
    return LakeCommit(tuple(files), stream, stream_id, tuple(summed(batch) for batch in batches))


def offsets_in(table: LakeTable, id: str | None = None) -> dict[int, list[int]]:
    """Stream partition -> the offsets in the files of a snapshot, in reading order."""
    snapshot = table.snapshot(id)
    found: dict[int, list[int]] = {}
    for batch in read_files(table.files(snapshot), OFFSETS) if snapshot else ():
        for number, offset in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            found.setdefault(number, []).append(offset)
    return found


def rows_of(table: LakeTable, schema: pa.Schema | None = None) -> pa.Table:
    snapshot = table.snapshot()
    assert snapshot is not None
    wanted = schema or table.schema
    return pa.Table.from_batches(read_files(table.files(snapshot), wanted), wanted)


def data_files(folder: Path) -> set[Path]:
    """Parquet files with rows below a folder, without the checkpoints of a table's log."""
    return {path for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}


STEPS = 8
SPAN = 3


def archive(table: LakeTable) -> int:
    """One of several independent archives of the same stream."""
    conflicts = 0
    while True:
        snapshot = table.snapshot()
        end = snapshot.committed.get(0, (0, 0))[1] if snapshot else 0
        if end >= STEPS * SPAN:
            return conflicts
        try:
            table.commit(commit_of(table, records(0, end, end + SPAN)))
        except LakeConflict:
            conflicts += 1


def archive_elsewhere(address: TableAddress) -> None:
    archive(open_table(address))
