"""Lake tables: Parquet files under a table format, with the offsets they hold in every snapshot.

    table = open_or_create(parse_address("delta:/lake/flights"), schema, ["day(timestamp)"])
    writer = table.writer().open(stream_partition=3)    # on any machine: a WriterSpec is picklable
    writer.write(batch)
    files = writer.finish()                             # on disk, and in no snapshot
    table.commit(LakeCommit(tuple(files), stream, stream_id, spans))
    for batch in read_files(table.files(table.snapshot()), table.schema, offset_start=1000): ...

One table archives one stream. Every data file holds rows of one stream partition, offsets
ascending; every snapshot says which offsets of each stream partition the table holds, without gap,
so that a commit is exactly-once whatever happened to whoever commits: spans that are held change
nothing, spans that begin where the table ends are added, anything else is refused. Committers may
race: each commit is a compare-and-swap of the table's newest snapshot, and whoever loses looks at
the new one and decides again.

Three formats keep to the same contract (tests/pipeline/lake): `iceberg` and `delta`, which other
engines know as tables, and `parquet`, files in folders under a manifest of our own. None needs
Spark, a JVM or a server. What a table is to the pipeline is in `model`.
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
