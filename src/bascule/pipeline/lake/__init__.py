"""Lake tables: Parquet files in a table format, with the archived offsets in every snapshot.

    table = open_or_create(parse_address("delta:/lake/flights"), schema, ["day(timestamp)"])
    writer = table.writer().open(stream_partition=3)    # on any machine: a WriterSpec is picklable
    writer.write(batch)
    files = writer.finish()                             # on disk, but in no snapshot
    table.commit(LakeCommit(tuple(files), stream, stream_id, spans))
    for batch in read_files(table.files(table.snapshot()), table.schema, offset_start=1000): ...

One table archives one stream. A data file that Bascule writes holds rows of one stream partition,
with ascending offsets. `foreign` tells how files of other programs are read. Every snapshot records
which offsets of each stream partition the table holds, without gaps. This makes a commit
exactly-once: spans that the table holds change nothing, spans that begin at the table's end are
added, and all others are refused. Committers may run concurrently. Each commit is a
compare-and-swap of the newest snapshot. A committer that loses reads the new snapshot and decides
again.

Three formats implement one contract (tests/pipeline/lake): `iceberg` and `delta`, which other
engines can read, and `parquet`, which is files in folders with Bascule's own manifest. None needs
Spark, a JVM or a server. `model` defines what a table is to the pipeline.
"""

from __future__ import annotations

from bascule.pipeline.lake.address import address_of, parse_address
from bascule.pipeline.lake.checksum import SpanChecksum
from bascule.pipeline.lake.factory import create_table, open_or_create, open_table
from bascule.pipeline.lake.file_reader import read_files
from bascule.pipeline.lake.model import (
    CompactionResult,
    DataFile,
    ExpiryResult,
    FileWriter,
    LakeCommit,
    LakeSnapshot,
    LakeTable,
    SnapshotEntry,
    Span,
    SpanDigest,
    TableAddress,
    WriterOptions,
    WriterSpec,
)

__all__ = [
    "CompactionResult",
    "DataFile",
    "ExpiryResult",
    "FileWriter",
    "LakeCommit",
    "LakeSnapshot",
    "LakeTable",
    "SnapshotEntry",
    "Span",
    "SpanChecksum",
    "SpanDigest",
    "TableAddress",
    "WriterOptions",
    "WriterSpec",
    "address_of",
    "create_table",
    "open_or_create",
    "open_table",
    "parse_address",
    "read_files",
]
