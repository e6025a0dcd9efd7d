"""Types of lake tables: addresses, data files, spans, commits, snapshots. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

TableFormat: TypeAlias = Literal["iceberg", "delta", "parquet"]


BoundValue: TypeAlias = bool | int | float | str | None

Positions: TypeAlias = bytes
"""Positions of rows in a file: 8 bytes each, little-endian, ascending."""

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TableAddress:
    """The address of a table. Picklable: executors open tables too."""

    format: TableFormat
    location: str = ""
    """Directory or URI of a delta or parquet table; warehouse of an iceberg table."""
    name: str = ""
    """`namespace.table` of an iceberg table."""
    catalog: Mapping[str, str] = field(default_factory=dict)
    """Properties of the iceberg catalog. Empty: SQLite in the warehouse."""

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
    """Row count and checksum of a span when it was archived. The audit recomputes them."""

    span: Span
    rows: int
    """Records in the span; fewer than its offsets if the log was compacted."""
    crc: int
    """CRC-32C over the records in offset order, as defined in `lake.checksum`."""


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """Statistics of one leaf column of a data file, for pruning."""

    path: str
    """Names joined by dots: `value.carrier`."""
    nulls: int
    low: BoundValue
    """Minimum; timestamps in microseconds, dates in days since 1970. None: unknown."""
    high: BoundValue


@dataclass(frozen=True, slots=True)
class DataFile:
    """One closed data file, committed or not."""

    path: str
    """Absolute path or URI."""
    rows: int
    bytes: int
    span: Span | None = None
    """The stream partition of its rows, and [least, greatest + 1) of their offsets. None in a table
    without offsets."""
    partition_values: tuple[tuple[str, str | None], ...] = ()
    """Name and text value of each lake partition field."""
    bounds: tuple[ColumnBounds, ...] = ()
    """Bounds of the columns of numbers, times and short texts."""
    is_shared: bool = False
    """The file holds rows of several stream partitions, because another program joined files. Then
    `files` has one entry for each of them. `rows` and the offsets of `span` are those of the whole
    file, and readers filter by the column `partition`."""
    deleted_rows: Positions = b""
    """Rows that another program deleted without rewriting the file."""

    def may_hold(self, wanted: Span) -> bool:
        """Whether the file may hold rows of these offsets."""
        span = self.span
        return (
            span is not None
            and span.partition == wanted.partition
            and span.start < wanted.end
            and wanted.start < span.end
        )


@dataclass(frozen=True, slots=True)
class LakeCommit:
    """Files to add in one step, and the key that makes a repetition harmless.

    Either `spans` (a table that archives a stream) or `token` is given.
    """

    files: tuple[DataFile, ...]
    stream: str = ""
    stream_id: str = ""
    """Hex. A stream id other than the table's is refused: the stream was created again."""
    spans: tuple[SpanDigest, ...] = ()
    token: tuple[str, int] | None = None
    """(Writer, batch number). A batch that is not above the writer's last batch is in the table
    already."""
    replaces: bool = False
    """The files replace all rows of the table. Only with a token."""


@dataclass(frozen=True, slots=True)
class LakeSnapshot:
    """One committed state of a table. Immutable."""

    id: str
    committed_ms: int
    """Unix time of the commit."""
    stream: str = ""
    stream_id: str = ""
    committed: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Stream partition -> [start, end) of the archived offsets, without gaps."""
    rows: int = 0
    bytes: int = 0
    number: int = 0
    """Ascends with each commit to the table, whatever the clock says."""


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """One snapshot in a table's history."""

    id: str
    committed_ms: int
    operation: str
    """As the format names it: `append`, `replace`, `DELETE`, ..."""
    is_own: bool
    """Bascule committed it. Its own commits remove no rows of an archive."""


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The result of a compaction of small files."""

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class ExpiryResult:
    """The result of an expiry of snapshots."""

    snapshots: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """Options for writing data files. docs/pipelines/lake-tables.md has the measurements of the
    defaults."""

    compression: Literal["zstd", "lz4", "snappy", "none"] = "zstd"
    compression_level: int | None = None
    """None: 1 for zstd."""
    file_bytes: int = 256 * MIB
    """A file is closed when it reaches this size."""
    row_group_rows: int = 1_000_000
    row_group_bytes: int = 64 * MIB
    """Size in memory. A row group is written when it reaches either limit."""
    open_files: int = 32
    """Open lake partitions. Beyond the limit, the one that was idle longest is closed."""
    buffer_bytes: int = 256 * MIB
    """Memory for all open row groups. Beyond the limit, the largest one is written early."""


class FileWriter(Protocol):
    """Writes the rows of one task into data files, split by the table's partitioning."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows of the table's schema with ascending offsets."""

    def finish(self) -> list[DataFile]:
        """Close the files. They are in no snapshot before a commit."""

    def abort(self) -> None:
        """Delete the written files. Idempotent."""


class WriterSpec(Protocol):
    """A picklable factory of writers, for executors. It needs no catalog."""

    def open(self, *, stream_partition: int | None = None) -> FileWriter: ...


class LakeTable(Protocol):
    """One lake table, from `lake.open_table` or `lake.create_table`."""

    address: TableAddress

    @property
    def schema(self) -> pa.Schema:
        """Columns of the records, without columns that exist only for partitioning."""

    @property
    def partitioning(self) -> tuple[str, ...]:
        """Such as ("day(timestamp)", "value.carrier")."""

    def snapshot(self, id: str | None = None) -> LakeSnapshot | None:
        """The current snapshot, or the one with `id`. None before the first commit.

        Raises: UnknownSnapshot.
        """

    def snapshots(self) -> list[SnapshotEntry]:
        """The current snapshot and those that led to it and have not expired, oldest first."""

    def files(self, snapshot: LakeSnapshot) -> list[DataFile]:
        """The data files of a snapshot, ordered by stream partition and offset. A shared file has
        one entry for each stream partition."""

    def history(self) -> list[SpanDigest]:
        """The digests that the remaining snapshots recorded, oldest first."""

    def writer(
        self, options: WriterOptions | None = None, *, columns: Sequence[str] | None = None
    ) -> WriterSpec:
        """`columns` leaves out columns that another program added to the table."""

    def commit(self, commit: LakeCommit) -> LakeSnapshot:
        """Add files atomically. A repetition changes nothing and deletes its files.

        Raises: LakeConflict for a gap or a partial overlap of offsets, or another stream id.
        """

    def compact(self, *, file_bytes: int) -> CompactionResult:
        """Compact small files of one stream partition and lake partition. Offsets stay
        ascending."""

    def expire(self, *, older_than_ms: int, keep: int = 1) -> ExpiryResult:
        """Expire snapshots committed before a Unix time, except the last `keep`. Then delete older
        data files that no snapshot holds."""
