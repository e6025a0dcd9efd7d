"""Runs an audit: checks that the table holds every record of the stream once, unchanged."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from bascule.errors import DataLoss
from bascule.pipeline.clients import client_of, with_retries
from bascule.pipeline.jobs.archive.endpoints import log_extent_of
from bascule.pipeline.jobs.audit.compare import AuditFindings
from bascule.pipeline.jobs.audit.deletions import find_deletions, settle
from bascule.pipeline.jobs.audit.plan import span_groups_of
from bascule.pipeline.jobs.audit.report import AuditView, result_of
from bascule.pipeline.jobs.audit.spec import AuditSpec as AuditSpec
from bascule.pipeline.jobs.audit.task import AuditTaskSpec, check_span_group
from bascule.pipeline.jobs.executors import run_on_executors
from bascule.pipeline.jobs.model import NO_PROGRESS, JobProgress, JobResult
from bascule.pipeline.jobs.rows import RAW
from bascule.pipeline.jobs.tables import open_if_exists
from bascule.pipeline.lake import open_table
from bascule.pipeline.lake.address import malformed_address
from bascule.pipeline.values.spec import ValueSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bascule.pipeline.lake.model import LakeTable


def run(spark: SparkSession, spec: AuditSpec, progress: JobProgress = NO_PROGRESS) -> JobResult:
    """Compare every record between the log start and the high watermark with the table's rows.
    Compare the rows that only the table holds with the digests recorded by the archive.

    `ok` is False for a missing, duplicate or different record, for a record that never was in the
    log, for a span with another row count or checksum, and for a table that lags behind the high
    watermark unless `allow_lag`. Rows that another program deleted are missing unless
    `deletions` is `allowed`. The result names the snapshots that removed them.

    Raises: UnknownTable, UnknownStream, DataLoss if the stream was created again; Broken, or
    Spark's exception for it, if the node was away for `retry_timeout_ms`.
    """
    began = time.monotonic()
    value = ValueSpec.from_options({name.lower(): text for name, text in spec.value.items()})
    main = open_table(spec.table.address())
    side = None if value.is_raw else open_if_exists(malformed_address(main.address))
    view = _look(spec, main, side)
    task_spec = AuditTaskSpec(
        server=spec.server,
        stream=spec.stream,
        value=value,
        raw=RAW in main.schema.names,
        compacted=_is_compacted(spec),
        faults_max=spec.faults_max,
        retry_timeout_ms=spec.retry_timeout_ms,
        deletions_allowed=spec.deletions == "allowed",
    )
    weights = [group.spans[-1].end - group.spans[0].start for group in view.groups]
    progress.begin(f"audit {spec.stream}", sum(weights))
    responses = run_on_executors(
        spark, view.groups, partial(check_span_group, task_spec), progress=progress, weights=weights
    )
    found = {p: AuditFindings(p) for p in sorted({*view.log.partitions, *view.committed})}
    for response in responses:
        one = msgspec.json.decode(response, type=AuditFindings)
        found[one.partition].add(one, faults_max=spec.faults_max)
    removed = find_deletions([main] if side is None else [main, side], found)
    for partition, one in found.items():
        settle(spec, one, removed, view.recorded(partition))
    return result_of(spec, view, found, removed, time.monotonic() - began)


def _is_compacted(spec: AuditSpec) -> bool:
    info = with_retries(
        lambda: client_of(spec.server).stream(spec.stream), timeout_ms=spec.retry_timeout_ms
    )
    return "compact" in info.definition.config.cleanup


def _look(spec: AuditSpec, main: LakeTable, side: LakeTable | None) -> AuditView:
    snapshot = main.snapshot()
    log = log_extent_of(spec.server, spec.stream, retry_timeout_ms=spec.retry_timeout_ms)
    if snapshot is None:
        return AuditView(log, {}, [])
    if snapshot.stream_id and snapshot.stream_id != log.id:
        raise DataLoss(
            spec.stream, None, "the table holds an older stream, deleted since and made again"
        )
    # The archive commits the table of malformed records first. Reading it last shows every record
    # that belongs to the snapshot.
    malformed = None if side is None else side.snapshot()
    groups = span_groups_of(
        snapshot.committed,
        log.partitions,
        main.history(),
        main.files(snapshot),
        () if side is None or malformed is None else side.files(malformed),
        malformed_digests=() if side is None or malformed is None else side.history(),
    )
    return AuditView(log, snapshot.committed, groups)
