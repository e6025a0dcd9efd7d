"""What goes wrong between streams, Spark and lake tables."""

from __future__ import annotations

from bascule.errors.system import BasculeError


class RowRefused(BasculeError):
    """A row of an Arrow batch cannot be a message; `row` counts from the first batch's first."""

    def __init__(self, row: int, subject: str | None, why: str) -> None:
        where = "" if subject is None else f" (subject {subject!r})"
        super().__init__(f"row {row}{where} cannot be published: {why}")
        self.row = row
        self.subject = subject
        self.why = why


class ColumnMismatch(BasculeError):
    """A column is missing, unknown or of a type that cannot be published."""

    def __init__(self, column: str, found: str, expected: str) -> None:
        super().__init__(f"column {column!r}: found {found}, expected {expected}")
        self.column = column
        self.found = found
        self.expected = expected


class DataLoss(BasculeError):
    """Records that a query has yet to read are gone; `partition` is None for the whole stream."""

    def __init__(self, stream: str, partition: int | None, why: str) -> None:
        where = f"stream {stream!r}" + ("" if partition is None else f" partition {partition}")
        super().__init__(
            f"records of {where} are lost to this query: {why}; "
            "with option failOnDataLoss=false it goes on with what is held"
        )
        self.stream = stream
        self.partition = partition
        self.why = why


class LakeConflict(BasculeError):
    """A commit does not continue what the lake table holds; nothing of it was added."""

    def __init__(self, table: str, why: str) -> None:
        super().__init__(f"{table} does not take this commit: {why}")
        self.table = table
        self.why = why


class LakeBusy(BasculeError):
    """Other committers were faster at every attempt; nothing was added."""

    retriable = True

    def __init__(self, table: str, attempts: int) -> None:
        super().__init__(f"{table} was changed by others during each of {attempts} attempts")
        self.table = table
        self.attempts = attempts


class UnknownTable(BasculeError):
    """There is no lake table at this address."""

    def __init__(self, table: str) -> None:
        super().__init__(f"there is no table {table}")
        self.table = table


class TableExists(BasculeError):
    """A lake table is at this address already."""

    def __init__(self, table: str) -> None:
        super().__init__(f"{table} exists already")
        self.table = table


class ForeignTable(BasculeError):
    """What is at the address is no table that Bascule wrote; `why` says what is amiss."""

    def __init__(self, table: str, why: str) -> None:
        super().__init__(f"{table} is not a table that Bascule can use: {why}")
        self.table = table
        self.why = why


class UnknownSnapshot(BasculeError):
    """The lake table holds no snapshot of this id: it expired, or never was."""

    def __init__(self, table: str, snapshot: str) -> None:
        super().__init__(f"{table} holds no snapshot {snapshot!r}")
        self.table = table
        self.snapshot = snapshot


class MalformedValue(BasculeError):
    """The value of a record does not parse as it was declared, and was not to be passed over."""

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
    """A row of a frame was not published; `write` is the batch or query, `why` says what to do.

    `row` counts within the task's partition; it and `subject` are None where no row is at fault.
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
    """A stream does not remember message ids for as long as a repeated batch needs."""

    def __init__(self, stream: str, why: str) -> None:
        super().__init__(why)
        self.stream = stream
        self.why = why
