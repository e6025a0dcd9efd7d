"""Attributes missing rows to the snapshots that removed them, and decides which of them are faults.

A row is missing if the log holds it and the table does not, or if fewer rows are in a span than
were archived. Other programs delete rows on purpose, for privacy requests. With `deletions =
"allowed"` a missing row is no fault if a snapshot of another program removed it, or if that cannot
be told because the snapshot that archived the row has expired.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bascule.pipeline.jobs.audit.compare import (
    AuditFault,
    AuditFindings,
    Runs,
    extend_runs,
    offsets_of,
)
from bascule.pipeline.jobs.audit.spec import AuditSpec
from bascule.pipeline.jobs.model import Json
from bascule.pipeline.lake.foreign.removals import Removal, find_removals
from bascule.pipeline.lake.model import LakeTable, SnapshotEntry, Span

Offsets = npt.NDArray[np.int64]
RUNS_MAX: Final = 1_000
"""Runs of offsets that a result lists of one removal."""


@dataclass(frozen=True, slots=True)
class RemovedRows:
    """The rows of one partition that one snapshot removed, or one of several."""

    snapshots: tuple[SnapshotEntry, ...]
    partition: int
    rows: int
    runs: Runs

    def __str__(self) -> str:
        return " or ".join(
            f"snapshot {each.id} ({each.operation}) of {_utc(each.committed_ms)}"
            for each in self.snapshots
        )

    def facts(self) -> dict[str, Json]:
        return {
            "snapshots": [
                {
                    "id": each.id,
                    "committed": _utc(each.committed_ms),
                    "operation": each.operation,
                }
                for each in self.snapshots
            ],
            "partition": self.partition,
            "rows": self.rows,
            "offsets": [list(run) for run in self.runs[:RUNS_MAX]],
        }


def find_deletions(
    tables: Sequence[LakeTable], found: dict[int, AuditFindings]
) -> list[RemovedRows]:
    """Find the snapshots that removed the missing rows, oldest first."""
    sought = {
        partition: np.unique(offsets_of([*one.missing_runs, *one.absent_runs]))
        for partition, one in found.items()
        if one.missing
    }
    removals: list[Removal] = []
    for table in tables:
        removals += find_removals(table, sought)
    rows = []
    for each in removals:
        runs: Runs = []
        extend_runs(runs, each.offsets)
        rows.append(RemovedRows(each.snapshots, each.partition, len(each.offsets), runs))
    return rows


def settle(
    spec: AuditSpec,
    one: AuditFindings,
    removed: Sequence[RemovedRows],
    recorded: Sequence[Span],
) -> None:
    """Turn the missing rows of a partition into faults, or count them as deleted.

    `recorded` has the spans of the partition whose snapshots have not expired.
    """
    mine = [each for each in removed if each.partition == one.partition]
    known = _joined([offsets_of(each.runs) for each in mine])
    rest = np.setdiff1d(offsets_of(one.missing_runs), known)
    allowed = np.empty(0, np.int64)
    if spec.deletions == "allowed":
        covered = _joined([rest[(rest >= s.start) & (rest < s.end)] for s in recorded])
        allowed = _joined([known, np.setdiff1d(rest, covered)])
        rest = covered
        mine = []
    for short in one.short_spans:
        excused = int(np.count_nonzero((allowed >= short.start) & (allowed < short.end)))
        if excused < short.lacking:
            one.spans_wrong += 1
            fault = AuditFault(one.partition, short.start, "rows", short.detail)
            one.faults.insert(0, fault)
    one.deleted = len(allowed)
    one.missing = max(len(rest), one.missing - len(allowed))
    faults = [
        AuditFault(one.partition, start, "missing", f"{_text(start, end)}, removed by {each}")
        for each in mine
        for start, end in each.runs[: spec.faults_max]
    ]
    unknown: Runs = []
    extend_runs(unknown, rest)
    faults += [
        AuditFault(one.partition, start, "missing", _text(start, end))
        for start, end in unknown[: spec.faults_max]
    ]
    one.faults = [*one.faults, *sorted(faults)][: spec.faults_max]


def _joined(parts: Sequence[Offsets]) -> Offsets:
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)


def _text(start: int, end: int) -> str:
    return f"offset {start}" if end == start + 1 else f"offsets [{start}, {end})"


def _utc(ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(ms / 1_000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
