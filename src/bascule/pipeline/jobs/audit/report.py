"""Builds the result of an audit from its findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bascule.pipeline.jobs.archive.plan import LogExtent
from bascule.pipeline.jobs.audit.compare import AuditFault, AuditFindings
from bascule.pipeline.jobs.audit.deletions import RemovedRows
from bascule.pipeline.jobs.audit.plan import Extents
from bascule.pipeline.jobs.audit.spec import AuditSpec
from bascule.pipeline.jobs.audit.task import SpanGroup
from bascule.pipeline.jobs.model import JobResult, Json, Table
from bascule.pipeline.lake.model import Span

COLUMNS = (
    "partition", "log start", "watermark", "lake start", "lake end", "rows", "malformed",
    "missing", "deleted", "duplicate", "differing", "extra", "crc", "lag",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AuditView:
    """What an audit compares: one snapshot of the tables, and the extent of the log right after
    it."""

    log: LogExtent
    committed: Extents
    groups: list[SpanGroup]

    def lag(self, partition: int) -> int:
        start, end = self.log.partitions.get(partition, (0, 0))
        return max(0, end - self.committed.get(partition, (start, start))[1])

    def late_start(self, partition: int) -> int:
        """Offsets in the log before the table's first offset."""
        if partition not in self.committed:
            return 0
        start, end = self.log.partitions.get(partition, (0, 0))
        return max(0, min(self.committed[partition][0], end) - start)

    def recorded(self, partition: int) -> list[Span]:
        """The spans of a partition whose digests the table still has."""
        return [
            digest.span
            for group in self.groups
            for digest in group.digests
            if digest is not None and digest.span.partition == partition
        ]

    def beyond(self, partition: int) -> int:
        """Offsets in the table after the log's end."""
        end = self.log.partitions.get(partition, (0, 0))[1]
        return max(0, self.committed.get(partition, (0, end))[1] - end)


def result_of(
    spec: AuditSpec,
    view: AuditView,
    found: dict[int, AuditFindings],
    removed: Sequence[RemovedRows],
    seconds: float,
) -> JobResult:
    """Build the result: findings by partition, and the first faults. `ok` is True if there are
    none."""
    faults: list[AuditFault] = []
    ok = True
    for partition, one in found.items():
        more = _faults_of_extent(spec, view, partition)
        one.missing += view.late_start(partition)
        faults += [*more, *one.faults]
        ok = ok and one.is_clean and not more
    faults = faults[: spec.faults_max]
    return JobResult(
        kind="audit",
        name=spec.name,
        ok=ok,
        summary={
            **_summary(spec, view, found, faults, seconds),
            "removals": [each.facts() for each in removed],
        },
        tables=(
            Table("Partitions", COLUMNS, tuple(_row(view, one) for one in found.values())),
            Table(
                "First faults",
                ("partition", "offset", "fault", "detail"),
                tuple((f.partition, f.offset, f.kind, f.detail) for f in faults),
            ),
            *_removal_tables(removed),
        ),
    )


def _removal_tables(removed: Sequence[RemovedRows]) -> tuple[Table, ...]:
    if not removed:
        return ()
    rows = tuple((str(each), each.partition, each.rows) for each in removed)
    return (Table("Removed by other programs", ("by", "partition", "rows"), rows),)


def _faults_of_extent(spec: AuditSpec, view: AuditView, partition: int) -> list[AuditFault]:
    """Faults where the extent of the table differs from that of the log."""
    start, end = view.log.partitions.get(partition, (0, 0))
    low, high = view.committed.get(partition, (start, start))
    faults = []
    if view.late_start(partition):
        faults.append(AuditFault(partition, start, "missing", f"the table begins at {low}"))
    if view.beyond(partition):
        faults.append(AuditFault(partition, end, "extra", f"the table goes on to {high}"))
    if (lag := view.lag(partition)) and not spec.allow_lag:
        faults.append(AuditFault(partition, high, "missing", f"the table lags by {lag}"))
    return faults


def _row(view: AuditView, one: AuditFindings) -> tuple[int | str, ...]:
    start, end = view.log.partitions.get(one.partition, (0, 0))
    low, high = view.committed.get(one.partition, (start, start))
    crc = f"{one.spans_wrong} of {one.spans_checked} wrong" if one.spans_wrong else "ok"
    return (
        one.partition, start, end, low, high, one.lake_rows, one.malformed, one.missing,
        one.deleted, one.duplicate, one.differing, one.extra, crc, view.lag(one.partition),
    )  # fmt: skip


def _summary(
    spec: AuditSpec,
    view: AuditView,
    found: dict[int, AuditFindings],
    faults: list[AuditFault],
    seconds: float,
) -> dict[str, Json]:
    total = AuditFindings(-1)
    for one in found.values():
        total.add(replace(one, faults=[]), faults_max=0)
    return {
        "stream": spec.stream,
        "table": str(spec.table.address()),
        "rows": total.lake_rows,
        "rows_of_log": total.log_rows,
        "malformed": total.malformed,
        "missing": total.missing,
        "deleted": total.deleted,
        "duplicate": total.duplicate,
        "differing": total.differing,
        "extra": total.extra,
        "compacted_since": total.compacted,
        "spans_checked": total.spans_checked,
        "spans_wrong": total.spans_wrong,
        "lag": sum(view.lag(partition) for partition in found),
        "first_faults": [
            {"partition": f.partition, "offset": f.offset, "kind": f.kind, "detail": f.detail}
            for f in faults
        ],
        "seconds": round(seconds, 3),
        "rows_per_s": round(total.lake_rows / seconds) if seconds else 0,
    }
