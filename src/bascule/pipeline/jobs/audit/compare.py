"""Compares rows of the log with rows of a lake table, offset by offset. No Spark, no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from bascule.pipeline.lake.model import Span

AuditFaultKind: TypeAlias = Literal[
    "missing", "duplicate", "differing", "extra", "rows", "crc", "unreadable"
]


@dataclass(frozen=True, slots=True, order=True)
class AuditFault:
    """One fault."""

    partition: int
    offset: int
    """Offset of the record; the start of the span for a fault of a whole span."""
    kind: AuditFaultKind
    detail: str = ""


OFFSETS_MAX: Final = 20_000_000
"""Missing offsets of a partition that are looked up one by one: 160 MB."""
Runs: TypeAlias = list[tuple[int, int]]
"""Ranges [start, end) of offsets, ascending."""


@dataclass(frozen=True, slots=True)
class ShortSpan:
    """A span with fewer rows than were archived, and without other faults."""

    start: int
    end: int
    lacking: int
    """Rows."""
    detail: str


@dataclass(slots=True)
class AuditFindings:
    """Findings for some offsets of one partition. Counts are numbers of records."""

    partition: int
    log_rows: int = 0
    """Read from the log."""
    lake_rows: int = 0
    """Read from the table, including malformed records."""
    malformed: int = 0
    missing: int = 0
    """In the log but not in the table, or archived and no longer in the table."""
    deleted: int = 0
    """Missing, and deleted by another program, which the audit allows."""
    duplicate: int = 0
    """Surplus copies in the table."""
    differing: int = 0
    extra: int = 0
    """In the table but never in the log."""
    compacted: int = 0
    """In the table, and removed from the log by compaction."""
    spans_wrong: int = 0
    """Spans whose row count or checksum differs from the digest recorded by the archive."""
    spans_checked: int = 0
    faults: list[AuditFault] = field(default_factory=list)
    """The first faults, with their offsets, but for missing rows."""
    missing_runs: Runs = field(default_factory=list)
    """Offsets of missing rows."""
    absent_runs: Runs = field(default_factory=list)
    """Offsets below the log start without a row, where fewer rows are missing than offsets are
    absent: the log was compacted before it was archived."""
    short_spans: list[ShortSpan] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (
            self.missing or self.duplicate or self.differing or self.extra or self.spans_wrong
        )

    def add(self, other: AuditFindings, *, faults_max: int) -> None:
        """Add the findings of another group of the same partition."""
        for name in (*_COUNTS, "missing_runs", "absent_runs", "short_spans"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults = sorted([*self.faults, *other.faults])[:faults_max]


_COUNTS = (
    "log_rows", "lake_rows", "malformed", "missing", "deleted", "duplicate", "differing",
    "extra", "compacted", "spans_wrong", "spans_checked",
)  # fmt: skip


class RowComparison:
    """Compares consecutive windows of offsets and collects findings."""

    def __init__(self, found: AuditFindings, *, compacted: bool, faults_max: int) -> None:
        self._found = found
        self._compacted = compacted
        self._faults_max = faults_max

    def compare(self, log: pa.Table, lake: pa.Table) -> int:
        """Compare one window. Return the number of missing rows. Both tables have the same schema.
        Offsets ascend strictly in `log` and do not descend in `lake`."""
        if log.num_rows == lake.num_rows and _equal(log, lake):
            return 0
        expected, there = _offsets(log), _offsets(lake)
        unique, first, counts = np.unique(there, return_index=True, return_counts=True)
        missing = np.setdiff1d(expected, unique, assume_unique=True)
        self._found.missing += len(missing)
        extend_runs(self._found.missing_runs, missing)
        extra = np.setdiff1d(unique, expected, assume_unique=True)
        if self._compacted:
            self._found.compacted += len(extra)
        else:
            self._count("extra", extra)
        repeated = counts > 1
        self._count("duplicate", unique[repeated], int((counts[repeated] - 1).sum()))
        _, at_log, at_lake = np.intersect1d(
            expected, unique, assume_unique=True, return_indices=True
        )
        self._differences(log.take(at_log), lake.take(first[at_lake]))
        return len(missing)

    def check_duplicates(self, lake: pa.Table) -> npt.NDArray[np.int64]:
        """Check that each offset occurs once, in a window that the log no longer holds. Return the
        offsets."""
        unique, counts = np.unique(_offsets(lake), return_counts=True)
        repeated = counts > 1
        self._count("duplicate", unique[repeated], int((counts[repeated] - 1).sum()))
        return unique

    def check_span(self, span: Span, *, rows: tuple[int, int], crc: tuple[int, int]) -> None:
        """Compare (found, recorded) rows and checksums of a whole span."""
        self._found.spans_checked += 1
        details = []
        if rows[0] != rows[1]:
            details.append(f"{rows[0]} rows, {rows[1]} were archived")
        if crc[0] != crc[1]:
            details.append(f"checksum {crc[0]:08x}, {crc[1]:08x} was archived")
        if not details:
            return
        text = f"offsets [{span.start}, {span.end}): {'; '.join(details)}"
        if rows[0] < rows[1]:
            short = ShortSpan(span.start, span.end, rows[1] - rows[0], text)
            self._found.short_spans.append(short)
            return
        self._found.spans_wrong += 1
        kind: AuditFaultKind = "rows" if rows[0] != rows[1] else "crc"
        # A fault of a whole span is more important than a fault of one record.
        fault = AuditFault(span.partition, span.start, kind, text)
        self._found.faults = [fault, *self._found.faults][: self._faults_max]

    def _differences(self, log: pa.Table, lake: pa.Table) -> None:
        rows: dict[int, list[str]] = {}
        for name in log.column_names:
            ours, theirs = log.column(name), lake.column(name)
            if ours.equals(theirs):
                continue
            pairs = zip(ours.to_pylist(), theirs.to_pylist(), strict=True)
            for row, (a, b) in enumerate(pairs):
                if not _same(a, b):
                    rows.setdefault(row, []).append(name)
        self._found.differing += len(rows)
        offsets = _offsets(log)
        self._add(
            [
                AuditFault(self._found.partition, int(offsets[row]), "differing", ", ".join(names))
                for row, names in sorted(rows.items())[: self._faults_max]
            ]
        )

    def _count(
        self,
        kind: Literal["duplicate", "extra"],
        offsets: npt.NDArray[np.int64],
        count: int | None = None,
    ) -> None:
        total = len(offsets) if count is None else count
        setattr(self._found, kind, getattr(self._found, kind) + total)
        some = offsets[: self._faults_max].tolist()
        self._add([AuditFault(self._found.partition, offset, kind) for offset in some])

    def _add(self, faults: Sequence[AuditFault]) -> None:
        room = self._faults_max - len(self._found.faults)
        self._found.faults += faults[: max(0, room)]


def extend_runs(runs: Runs, offsets: npt.NDArray[np.int64]) -> None:
    """Append ascending offsets to runs that end before them."""
    if not len(offsets):
        return
    edges = np.flatnonzero(np.diff(offsets) > 1) + 1
    starts = offsets[np.concatenate([[0], edges])].tolist()
    ends = (offsets[np.concatenate([edges - 1, [len(offsets) - 1]])] + 1).tolist()
    if runs and runs[-1][1] == starts[0]:
        starts[0] = runs.pop()[0]
    runs += zip(starts, ends, strict=True)


def offsets_of(runs: Runs) -> npt.NDArray[np.int64]:
    """The offsets of runs, but no more than the first `OFFSETS_MAX`."""
    taken = [np.empty(0, np.int64)]
    room = OFFSETS_MAX
    for start, end in runs:
        taken.append(np.arange(start, min(end, start + room), dtype=np.int64))
        room -= len(taken[-1])
        if not room:
            break
    return np.concatenate(taken)


def _offsets(table: pa.Table) -> npt.NDArray[np.int64]:
    offsets: npt.NDArray[np.int64] = table.column("offset").to_numpy()
    return offsets


def _equal(log: pa.Table, lake: pa.Table) -> bool:
    return all(log.column(name).equals(lake.column(name)) for name in log.column_names)


def _same(a: Any, b: Any) -> bool:
    """Equality in which NaN equals NaN, at any depth."""
    return bool(a == b) or repr(a) == repr(b)
