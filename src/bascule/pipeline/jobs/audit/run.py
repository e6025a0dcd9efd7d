"""Runs an audit: is every record of the stream in the table, once and as it was?"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from bascule.errors import DataLoss
from bascule.pipeline.clients import client_of, patiently
from bascule.pipeline.jobs.archive.place import held_of
from bascule.pipeline.jobs.archive.plan import Held
from bascule.pipeline.jobs.audit.check import Part, Subject, check_part
from bascule.pipeline.jobs.audit.compare import Fault, Found
from bascule.pipeline.jobs.audit.plan import Extents, parts_of
from bascule.pipeline.jobs.model import NO_PROGRESS, JobResult, Progress, Table
from bascule.pipeline.jobs.rows import RAW
from bascule.pipeline.jobs.spread import spread
from bascule.pipeline.jobs.tables import TableSpec, malformed_of, open_if_there, open_there
from bascule.pipeline.values.spec import ValueSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bascule.pipeline.lake.model import LakeTable

FAULTS_MAX: Final = 20
"""Faulty offsets named; all are counted."""


class AuditSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The log against the table that archives it."""

    name: str
    stream: str
    table: TableSpec
    server: str = ""
    value: dict[str, str] = msgspec.field(default_factory=dict)
    """As the archive has it: valueFormat, valueSchema and so on."""
    allow_lag: bool = False
    """Whether the table may end before the stream does, as it does while an archive runs."""
    faults_max: int = FAULTS_MAX


@dataclass(frozen=True, slots=True)
class _View:
    """What is compared: one state of the tables, and the extent of the log right after it."""

    log: Held
    committed: Extents
    parts: list[Part]

    def lag(self, partition: int) -> int:
        start, end = self.log.partitions.get(partition, (0, 0))
        return max(0, end - self.committed.get(partition, (start, start))[1])

    def late_start(self, partition: int) -> int:
        """Offsets of the log before the table's first."""
        if partition not in self.committed:
            return 0
        start, end = self.log.partitions.get(partition, (0, 0))
        return max(0, min(self.committed[partition][0], end) - start)

    def beyond(self, partition: int) -> int:
        """Offsets of the table behind the log's last."""
        end = self.log.partitions.get(partition, (0, 0))[1]
        return max(0, self.committed.get(partition, (0, end))[1] - end)


def run(spark: SparkSession, spec: AuditSpec, progress: Progress = NO_PROGRESS) -> JobResult:
    """Compare every record between the log's start and its watermark with the table's rows; what
    is in the table only, with the rows and checksums recorded when it was archived.

    `ok` is False where a record is missing, more than once there, different or never was in the
    log, where a span's rows or checksum are not the recorded ones, and where the table lags behind
    the watermark unless `allow_lag`.

    Raises: UnknownTable, UnknownStream, DataLoss where the stream was made anew.
    """
    began = time.monotonic()
    value = ValueSpec.from_options({name.lower(): text for name, text in spec.value.items()})
    main = open_there(spec.table.address())
    view = _look(spec, main, None if value.is_raw else open_if_there(malformed_of(main.address)))
    subject = Subject(
        server=spec.server,
        stream=spec.stream,
        value=value,
        raw=RAW in main.schema.names,
        compacted=_is_compacted(spec),
        faults_max=spec.faults_max,
    )
    weights = [part.spans[-1].end - part.spans[0].start for part in view.parts]
    progress.begin(f"audit {spec.stream}", sum(weights))
    answers = spread(
        spark, view.parts, partial(check_part, subject), progress=progress, weights=weights
    )
    found = {p: Found(p) for p in sorted({*view.log.partitions, *view.committed})}
    for answer in answers:
        one = msgspec.json.decode(answer, type=Found)
        found[one.partition].add(one, faults_max=spec.faults_max)
    return _result(spec, view, found, time.monotonic() - began)


def _is_compacted(spec: AuditSpec) -> bool:
    info = patiently(lambda: client_of(spec.server).stream(spec.stream))
    return "compact" in info.definition.config.cleanup


def _look(spec: AuditSpec, main: LakeTable, side: LakeTable | None) -> _View:
    snapshot = main.snapshot()
    log = held_of(spec.server, spec.stream)
    if snapshot is None:
        return _View(log, {}, [])
    if snapshot.stream_id != log.id:
        raise DataLoss(
            spec.stream, None, "the table holds an older stream, deleted since and made again"
        )
    # The table of malformed records is committed first: read last, it has all that belongs here.
    malformed = () if side is None or (held := side.snapshot()) is None else side.files(held)
    parts = parts_of(
        snapshot.committed, log.partitions, main.history(), main.files(snapshot), malformed
    )
    return _View(log, snapshot.committed, parts)


def _result(spec: AuditSpec, view: _View, found: dict[int, Found], seconds: float) -> JobResult:
    rows = []
    faults: list[Fault] = []
    ok = True
    for partition, one in found.items():
        start, end = view.log.partitions.get(partition, (0, 0))
        low, high = view.committed.get(partition, (start, start))
        lag, late, beyond = view.lag(partition), view.late_start(partition), view.beyond(partition)
        one.missing += late
        if late:
            faults.append(Fault(partition, start, "missing", f"the table begins at {low}"))
        if beyond:
            faults.append(Fault(partition, end, "extra", f"the table goes on to {high}"))
        if lag and not spec.allow_lag:
            faults.append(Fault(partition, high, "missing", f"the table lags {lag} behind"))
        faults += one.faults
        ok = ok and one.is_clean and not beyond and (spec.allow_lag or not lag)
        crc = "ok" if not one.spans_wrong else f"{one.spans_wrong} of {one.spans_checked} wrong"
        rows.append(
            (partition, start, end, low, high, one.lake_rows, one.malformed, one.missing,
             one.duplicate, one.differing, one.extra, crc, lag)
        )  # fmt: skip
    named = faults[: spec.faults_max]
    total = Found(-1)
    for one in found.values():
        total.add(replace(one, faults=[]), faults_max=0)
    return JobResult(
        kind="audit",
        name=spec.name,
        ok=ok,
        summary={
            "stream": spec.stream,
            "table": str(spec.table.address()),
            "rows": total.lake_rows,
            "rows_of_log": total.log_rows,
            "malformed": total.malformed,
            "missing": total.missing,
            "duplicate": total.duplicate,
            "differing": total.differing,
            "extra": total.extra,
            "compacted_since": total.compacted,
            "spans_checked": total.spans_checked,
            "spans_wrong": total.spans_wrong,
            "lag": sum(view.lag(partition) for partition in found),
            "first_faults": [
                {"partition": f.partition, "offset": f.offset, "kind": f.kind, "detail": f.detail}
                for f in named
            ],
            "seconds": round(seconds, 3),
            "rows_per_s": round(total.lake_rows / seconds) if seconds else 0,
        },
        tables=(
            Table(
                "Partitions",
                ("partition", "log start", "watermark", "lake start", "lake end", "rows",
                 "malformed", "missing", "duplicate", "differing", "extra", "crc", "lag"),
                tuple(rows),
            ),
            Table(
                "First faults",
                ("partition", "offset", "fault", "detail"),
                tuple((f.partition, f.offset, f.kind, f.detail) for f in named),
            ),
        ),
    )  # fmt: skip
