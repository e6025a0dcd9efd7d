"""What a lake table is to the pipeline: addresses, data files, spans, commits, snapshots. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

TableFormat: TypeAlias = Literal["iceberg", "delta", "parquet"]


BoundValue: TypeAlias = bool | int | float | str | None

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TableAddress:
    """Where a table is. Picklable: executors open it too."""

    format: TableFormat
    location: str = ""
    """Directory or URI of a delta or parquet table; of an iceberg table its warehouse."""
    name: str = ""
    """`namespace.table` of an iceberg table."""
    catalog: Mapping[str, str] = field(default_factory=dict)
    """Properties of the iceberg catalog; empty is SQLite in the warehouse."""

    def __str__(self) -> str:
        return f"{self.format}:{self.location}" + (f"#{self.name}" if self.name else "")


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Offsets [start, end) of one partition of the stream."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SpanDigest:
    """What a span held when it was archived: the proof that an audit repeats."""

    span: Span
    rows: int
    """Records in it; fewer than its offsets where the log was compacted."""
    crc: int
    """CRC-32C over its records as `lake.checksum` defines it, in the order of offsets."""


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """What a data file holds of one leaf column, so that readers can leave the file out."""

    path: str
    """Names joined by dots: `value.carrier`."""
    nulls: int
    low: BoundValue
    """Least value; timestamps as microseconds, dates as days since 1970. None: not known."""
    high: BoundValue


@dataclass(frozen=True, slots=True)
class DataFile:
    """One data file, written and closed, perhaps not committed yet."""

    path: str
    """Absolute path or URI."""
    rows: int
    bytes: int
    span: Span | None = None
    """The stream partition that all its rows are of, and [least, greatest + 1) of their offsets;
    None in a table that keeps no offsets."""
    partition_values: tuple[tuple[str, str | None], ...] = ()
    """Name of each lake partition field, and its value as text."""
    bounds: tuple[ColumnBounds, ...] = ()
    """Of the columns of numbers, times and short texts."""

    def may_hold(self, wanted: Span) -> bool:
        """Whether a row of it may be among those offsets."""
        span = self.span
        return (
            span is not None
            and span.partition == wanted.partition
            and span.start < wanted.end
            and wanted.start < span.end
        )


@dataclass(frozen=True, slots=True)
class LakeCommit:
    """Files to be added in one step, and what makes a repetition of it harmless.

    Either `spans` (a table that archives a stream) or `token` is given.
    """

    files: tuple[DataFile, ...]
    stream: str = ""
    stream_id: str = ""
    """Hex; another id than the table's is refused: the stream was created again."""
    spans: tuple[SpanDigest, ...] = ()
    token: tuple[str, int] | None = None
    """(writer, batch number): a batch not above the writer's last is there already."""
    replaces: bool = False
    """The files take the place of all that the table held; only with a token."""


@dataclass(frozen=True, slots=True)
class LakeSnapshot:
    """One committed state of a table; immutable."""

    id: str
    committed_ms: int
    """Unix time of the commit."""
    stream: str = ""
    stream_id: str = ""
    committed: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Stream partition -> [start, end) that the table holds, without gap."""
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a compaction of small files did."""

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class ExpiryResult:
    """What an expiry of snapshots removed."""

    snapshots: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """How data files are written; the defaults are measured, see docs/pipelines/lake-tables.md."""

    compression: Literal["zstd", "lz4", "snappy", "none"] = "zstd"
    compression_level: int | None = None
    """None is 1 for zstd."""
    file_bytes: int = 256 * MIB
    """A file is closed when it has grown to this."""
    row_group_rows: int = 1_000_000
    row_group_bytes: int = 64 * MIB
    """Of rows in memory; a row group is written when it has either."""
    open_files: int = 32
    """Lake partitions that are written at a time; beyond, the one idle longest is closed."""
    buffer_bytes: int = 256 * MIB
    """Rows held in memory over all of them; beyond, the largest row group is written early."""


class FileWriter(Protocol):
    """Writes the rows of one task into data files, split by the table's partitioning."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows of the table's schema, offsets ascending."""

    def finish(self) -> list[DataFile]:
        """Close the files; they exist, but belong to no snapshot before a commit."""

    def abort(self) -> None:
        """Remove what was written; idempotent."""


class WriterSpec(Protocol):
    """Picklable: opened on an executor, without the table's catalog."""

    def open(self, *, stream_partition: int | None = None) -> FileWriter: ...


class LakeTable(Protocol):
    """One table; `lake.open_table` and `lake.create_table` give it."""

    address: TableAddress

    @property
    def schema(self) -> pa.Schema:
        """Columns of the records, without columns that exist only for partitioning."""

    @property
    def partitioning(self) -> tuple[str, ...]:
        """Such as ("day(timestamp)", "value.carrier")."""

    def snapshot(self, id: str | None = None) -> LakeSnapshot | None:
        """The current snapshot, or that of `id`; None while nothing was committed.

        Raises: UnknownSnapshot.
        """

    def files(self, snapshot: LakeSnapshot) -> list[DataFile]:
        """The data files of a snapshot, by stream partition and offset."""

    def history(self) -> list[SpanDigest]:
        """The spans that the snapshots still held committed, oldest first."""

    def writer(self, options: WriterOptions | None = None) -> WriterSpec: ...

    def commit(self, commit: LakeCommit) -> LakeSnapshot:
        """Add files in one atomic step; a repetition changes nothing and removes its files.

        Raises: LakeConflict for a gap or a partial overlap of offsets, or another stream id.
        """

    def compact(self, *, file_bytes: int) -> CompactionResult:
        """Join small files of one stream partition and lake partition; offsets stay ascending."""

    def expire(self, *, older_than_ms: int, keep: int = 1) -> ExpiryResult:
        """Forget snapshots committed before a Unix time, all but the last `keep`, then delete
        data files that no snapshot holds and that are older than that."""
