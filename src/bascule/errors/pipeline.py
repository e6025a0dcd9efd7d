"""Errors of Spark jobs, Arrow batches and lake tables."""

from __future__ import annotations

from collections.abc import Sequence

from bascule.errors.system import BasculeError, ConfigError


class InvalidDeclaration(ConfigError):
    """A declaration or the spec of a job is wrong; `faults` has a text for each fault."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


class UnsupportedSpark(ConfigError):
    """The installed Spark is too old for this package."""

    def __init__(self, found: str, needed: str) -> None:
        super().__init__(
            f"bascule needs Spark {needed} (pip install 'bascule[spark]'), found pyspark {found}; "
            "an older Spark reads streams over its Kafka connector: "
            "docs/pipelines/kafka-connector.md"
        )
        self.found = found
        self.needed = needed


class RowRefused(BasculeError):
    """A row of an Arrow batch cannot be published; `row` counts from the first row of the first
    batch."""

    def __init__(self, row: int, subject: str | None, why: str) -> None:
        where = "" if subject is None else f" (subject {subject!r})"
        super().__init__(f"row {row}{where} cannot be published: {why}")
        self.row = row
        self.subject = subject
        self.why = why


class ColumnMismatch(BasculeError):
    """A column is missing, unknown, or has a type that cannot be published."""

    def __init__(self, column: str, found: str, expected: str) -> None:
        super().__init__(f"column {column!r}: found {found}, expected {expected}")
        self.column = column
        self.found = found
        self.expected = expected


class DataLoss(BasculeError):
    """Records that a query has not read yet are gone; `partition` is None for the whole stream."""

    def __init__(self, stream: str, partition: int | None, why: str) -> None:
        where = f"stream {stream!r}" + ("" if partition is None else f" partition {partition}")
        super().__init__(
            f"records of {where} are lost to this query: {why}; "
            "with option failOnDataLoss=false the query continues with the remaining records"
        )
        self.stream = stream
        self.partition = partition
        self.why = why


class LakeConflict(BasculeError):
    """A commit does not continue the offsets of the lake table; nothing was added."""

    def __init__(self, table: str, why: str) -> None:
        super().__init__(f"{table} refuses this commit: {why}")
        self.table = table
        self.why = why


class LakeBusy(BasculeError):
    """Another writer committed first at every attempt; nothing was added."""

    retriable = True

    def __init__(self, table: str, attempts: int) -> None:
        super().__init__(f"{table} was changed by other writers during each of {attempts} attempts")
        self.table = table
        self.attempts = attempts


class UnknownTable(BasculeError):
    """There is no lake table at the address."""

    def __init__(self, table: str) -> None:
        super().__init__(f"there is no table {table}")
        self.table = table


class TableExists(BasculeError):
    """There is a lake table at the address already."""

    def __init__(self, table: str) -> None:
        super().__init__(f"{table} exists already")
        self.table = table


class ForeignTable(BasculeError):
    """Bascule did not write the table at the address, or cannot use it; `why` says why."""

    def __init__(self, table: str, why: str) -> None:
        super().__init__(f"{table} is not a table that Bascule can use: {why}")
        self.table = table
        self.why = why


class UnknownSnapshot(BasculeError):
    """The lake table has no snapshot of this id: it expired, or never existed."""

    def __init__(self, table: str, snapshot: str) -> None:
        super().__init__(f"{table} holds no snapshot {snapshot!r}")
        self.table = table
        self.snapshot = snapshot


class MalformedValue(BasculeError):
    """The value of a record cannot be parsed as declared, and the mode does not allow that."""

    def __init__(self, stream: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(
            f"the value at offset {offset} of stream {stream!r} partition {partition} is "
            f"malformed: {reason}; mode PERMISSIVE keeps such records in column _corrupt_record"
        )
        self.stream = stream
        self.partition = partition
        self.offset = offset
        self.reason = reason


class RowNotPublished(BasculeError):
    """A row of a data frame was not published; `write` is the batch or query, `why` says what to
    do.

    `row` counts within the task's partition. `row` and `subject` are None if no row caused the
    error.
    """

    def __init__(
        self, write: str, partition: int, row: int | None, subject: str | None, why: str
    ) -> None:
        where = f"{write}, partition {partition}"
        if row is not None:
            where += f", row {row}"
        if subject is not None:
            where += f" (subject {subject!r})"
        super().__init__(f"{where}: {why}")
        self.write = write
        self.partition = partition
        self.row = row
        self.subject = subject
        self.why = why


class DedupeTooSmall(BasculeError):
    """A stream's dedupe window is too short or too small for batches that are published again."""

    def __init__(self, stream: str, why: str) -> None:
        super().__init__(why)
        self.stream = stream
        self.why = why
