"""The JSON files of a parquet table's manifest. Pure."""

from __future__ import annotations

import base64
from typing import Final, TypeVar

import msgspec
import pyarrow as pa

from bascule.errors import CorruptData, UnsupportedFormat
from bascule.pipeline.lake.commit_plan import TableState
from bascule.pipeline.lake.model import BoundValue, ColumnBounds, DataFile, Span, SpanDigest

FORMAT: Final = 1
Text = TypeVar("Text")


class TableManifest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`_bascule/table.json`."""

    format: int
    id: str
    """Random. Another id means that the table was created again."""
    created_ms: int
    columns: dict[str, str]
    """Name -> Arrow type, for human readers."""
    schema: str
    """The schema as an Arrow IPC message, base64."""
    partition_by: list[str] = msgspec.field(default_factory=list)
    stream: str = ""
    stream_id: str = ""


class FileEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One data file."""

    path: str
    """Path below the table's location."""
    rows: int
    bytes: int
    span: tuple[int, int, int] | None = None
    """Stream partition, least offset, greatest + 1."""
    partition: dict[str, str | None] = msgspec.field(default_factory=dict)
    bounds: dict[str, tuple[int, BoundValue, BoundValue]] = msgspec.field(default_factory=dict)
    """Column -> nulls, minimum, maximum. Times in microseconds, dates in days."""


class CommitEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One commit in a snapshot's file."""

    n: int
    ms: int
    kind: str = "append"
    """`append`, `compact` or `expire`."""
    spans: list[tuple[int, int, int, int, int]] = msgspec.field(default_factory=list)
    """Stream partition, start, end, rows, CRC-32C."""


class SnapshotManifest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`_bascule/snapshots/<n>.json`."""

    format: int
    n: int
    base: int
    """The snapshot that `added` and `removed` apply to; 0 is the empty table."""
    ms: int
    rows: int
    bytes: int
    stream: str = ""
    stream_id: str = ""
    committed: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    tokens: dict[str, int] = msgspec.field(default_factory=dict)
    commits: list[CommitEntry] = msgspec.field(default_factory=list)
    added: list[FileEntry] = msgspec.field(default_factory=list)
    removed: list[str] = msgspec.field(default_factory=list)

    @property
    def state(self) -> TableState:
        committed = {int(number): span for number, span in self.committed.items()}
        return TableState(self.stream, self.stream_id, committed, self.tokens)


def decode_table(data: bytes, file: str) -> TableManifest:
    """Raises: CorruptData, UnsupportedFormat."""
    found = _decode(data, file, TableManifest)
    if found.format != FORMAT:
        raise UnsupportedFormat(file, found.format, FORMAT)
    return found


def decode_snapshot(data: bytes, file: str) -> SnapshotManifest:
    """Raises: CorruptData, UnsupportedFormat."""
    found = _decode(data, file, SnapshotManifest)
    if found.format != FORMAT:
        raise UnsupportedFormat(file, found.format, FORMAT)
    return found


def _decode(data: bytes, file: str, kind: type[Text]) -> Text:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptData(file, 0, f"the JSON of a {kind.__name__}", str(error)) from error


def encode(text: TableManifest | SnapshotManifest) -> bytes:
    return msgspec.json.encode(text) + b"\n"


def schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_of(text: str, file: str) -> pa.Schema:
    """Raises: CorruptData."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (ValueError, OSError) as error:
        raise CorruptData(file, 0, "an Arrow schema in base64", str(error)) from error


def file_entry(file: DataFile, location: str) -> FileEntry:
    assert file.path.startswith(f"{location}/"), f"{file.path} is outside {location}"
    return FileEntry(
        path=file.path[len(location) + 1 :],
        rows=file.rows,
        bytes=file.bytes,
        span=(file.span.partition, file.span.start, file.span.end) if file.span else None,
        partition=dict(file.partition_values),
        bounds={each.path: (each.nulls, each.low, each.high) for each in file.bounds},
    )


def data_file(text: FileEntry, location: str) -> DataFile:
    return DataFile(
        f"{location}/{text.path}",
        text.rows,
        text.bytes,
        Span(*text.span) if text.span else None,
        tuple(text.partition.items()),
        tuple(ColumnBounds(path, *bounds) for path, bounds in text.bounds.items()),
    )


def commit_entry(
    n: int, ms: int, digests: tuple[SpanDigest, ...], kind: str = "append"
) -> CommitEntry:
    spans = [(s.span.partition, s.span.start, s.span.end, s.rows, s.crc) for s in digests]
    return CommitEntry(n=n, ms=ms, kind=kind, spans=spans)


def digests_of(commit: CommitEntry) -> list[SpanDigest]:
    return [SpanDigest(Span(p, start, end), rows, crc) for p, start, end, rows, crc in commit.spans]
