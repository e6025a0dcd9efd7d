"""Runs a replay in rounds of Spark tasks, one task per stream partition."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from bascule.errors import ConfigError
from bascule.pipeline.clients import client_of
from bascule.pipeline.jobs.archive.endpoints import log_extent_of
from bascule.pipeline.jobs.executors import run_on_executors
from bascule.pipeline.jobs.model import NO_PROGRESS, JobProgress, JobResult, Table
from bascule.pipeline.jobs.replay.spec import ReplaySpec, offset_of
from bascule.pipeline.jobs.replay.state import (
    ReplayState,
    check_same,
    read_state,
    stored_since,
    write_state,
)
from bascule.pipeline.jobs.replay.task import (
    ReplayCounts,
    ReplayRange,
    ReplayTaskSpec,
    publish_range,
)
from bascule.pipeline.jobs.rows import RAW
from bascule.pipeline.jobs.tables import open_if_exists
from bascule.pipeline.lake import open_table
from bascule.pipeline.lake.address import malformed_address
from bascule.pipeline.lake.model import DataFile, LakeSnapshot, Span
from bascule.pipeline.retries import with_retries
from bascule.pipeline.values.spec import ValueSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bascule.model import StreamInfo


@dataclass
class _ReplayPlan:
    """The state of a running replay: the offsets to publish, and the counts so far."""

    ends: dict[int, int]
    next: dict[int, int]
    stored: dict[int, list[int]]
    files: list[DataFile]
    malformed_files: list[DataFile]
    sent: dict[int, ReplayCounts] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        return sum(self.ends[p] - self.next[p] for p in self.ends)

    def round(self, rows: int) -> list[ReplayRange]:
        """The ranges of the next round: at most `rows` offsets of each partition."""
        ranges = []
        for partition, end in sorted(self.ends.items()):
            start = self.next[partition]
            span = Span(partition, start, min(end, start + rows))
            if span.start < span.end:
                stored = self.stored.get(partition, ())
                self.stored[partition] = [offset for offset in stored if offset >= span.end]
                ranges.append(
                    ReplayRange(
                        span,
                        tuple(file for file in self.files if file.may_hold(span)),
                        tuple(file for file in self.malformed_files if file.may_hold(span)),
                        tuple(offset for offset in stored if span.start <= offset < span.end),
                    )
                )
        return ranges

    def has_stored(self) -> bool:
        """Whether the target holds messages of later rounds already."""
        return any(
            offset < self.ends[partition]
            for partition, stored in self.stored.items()
            if partition in self.ends
            for offset in stored
        )

    def done(self, ranges: list[ReplayRange], responses: list[str]) -> None:
        for replay_range, response in zip(ranges, responses, strict=True):
            one = msgspec.json.decode(response, type=ReplayCounts)
            total = self.sent.setdefault(one.partition, ReplayCounts(one.partition, 0, 0))
            total.messages += one.messages
            total.duplicates += one.duplicates
            self.next[one.partition] = replay_range.span.end


def run(spark: SparkSession, spec: ReplaySpec, progress: JobProgress = NO_PROGRESS) -> JobResult:
    """Publish the table's rows, each partition in offset order, and wait for all acks.

    With a `checkpoint` a killed run continues. Its messages after the last checkpoint are found in
    the target by their message ids and are not published again.

    Raises: UnknownTable, UnknownStream, ConfigError; publishing errors through Spark.
    """
    began = time.monotonic()
    value = ValueSpec.from_options({name.lower(): text for name, text in spec.value.items()})
    table = open_table(spec.table.address())
    snapshot = table.snapshot()
    target = _target(spec)
    task_spec = ReplayTaskSpec(
        spec, "" if snapshot is None else snapshot.stream_id, table.schema, value
    )
    _check(spec, task_spec)
    now = _state(spec, task_spec, target, {})
    plan = _ReplayPlan({}, {}, {}, [], [])
    if snapshot is not None:
        plan = _plan_replay(spec, snapshot, table.files(snapshot), now)
    total, dedupes = plan.waiting, _dedupes(target)
    progress.begin(f"replay to {spec.to}", total)
    if not dedupes:
        progress.say(f"stream {spec.to} has no dedupe window: repeated messages are stored again")
    rows = _round_rows(spec, target, len(plan.ends))
    while ranges := plan.round(rows):
        done = total - plan.waiting
        weights = [each.span.end - each.span.start for each in ranges]
        responses = run_on_executors(
            spark,
            ranges,
            partial(publish_range, task_spec, now),
            progress=_RoundProgress(progress, done),
            weights=weights,
        )
        plan.done(ranges, responses)
        searched = now.to_ends
        now = _state(spec, task_spec, _target(spec), plan.next)
        if plan.has_stored():
            # An interrupted run with larger rounds published these, and the next run has to find
            # them again.
            now.to_ends = searched
        write_state(spec.checkpoint, now)
    return _result(spec, plan, dedupes=dedupes, seconds=time.monotonic() - began)


@dataclass
class _RoundProgress:
    """Adds the progress of a round to that of the whole replay."""

    progress: JobProgress
    before: int

    def begin(self, what: str, total: int | None) -> None:
        """Does nothing: the replay has begun already."""

    def advance(self, done: int) -> None:
        self.progress.advance(self.before + done)

    def say(self, text: str) -> None:
        self.progress.say(text)


def _target(spec: ReplaySpec) -> StreamInfo:
    return with_retries(
        lambda: client_of(spec.server).stream(spec.to), timeout_ms=spec.retry_timeout_ms
    )


def _check(spec: ReplaySpec, task_spec: ReplayTaskSpec) -> None:
    typed = pa.types.is_struct(task_spec.schema.field("value").type)
    if typed and RAW not in task_spec.schema.names and task_spec.value.is_raw:
        raise ConfigError(
            f"table {spec.table.address()} stores values as columns: set `value` "
            "(valueFormat json or msgpack) to encode them, or archive with raw = true"
        )
    if typed and RAW not in task_spec.schema.names:
        task_spec.value.encoder()


def _plan_replay(
    spec: ReplaySpec, snapshot: LakeSnapshot, files: list[DataFile], now: ReplayState
) -> _ReplayPlan:
    """The requested offsets of the snapshot, without those that an earlier run published."""
    _check_range(spec, snapshot)
    starts, ends = {}, {}
    for partition, (first, last) in snapshot.committed.items():
        if spec.partitions and partition not in spec.partitions:
            continue
        start, end = (offset_of(a, partition) for a in (spec.start_offset, spec.end_offset))
        starts[partition] = first if start is None else min(max(start, first), last)
        ends[partition] = max(starts[partition], last if end is None else min(end, last))
    malformed: list[DataFile] = []
    if (
        spec.malformed
        and (side := open_if_exists(malformed_address(spec.table.address()))) is not None
    ):
        held = side.snapshot()
        malformed = [] if held is None else side.files(held)
    stored: dict[int, list[int]] = {}
    state = read_state(spec.checkpoint)
    if state is None:
        now.next = {str(partition): start for partition, start in starts.items()}
        write_state(spec.checkpoint, now)
    else:
        check_same(state, now, spec.checkpoint)
        target = log_extent_of(spec.server, spec.to, retry_timeout_ms=spec.retry_timeout_ms)
        stored = stored_since(client_of(spec.server), state, target)
        now.to_ends = state.to_ends
        for partition, start in starts.items():
            at = max(start, state.next.get(str(partition), start))
            starts[partition] = min(at, ends[partition])
    return _ReplayPlan(ends, starts, stored, files, malformed)


def _check_range(spec: ReplaySpec, snapshot: LakeSnapshot) -> None:
    """Refuse a range that would silently publish nothing.

    Raises: ConfigError for a partition that the table does not hold, and a start after its end.
    """
    unknown = sorted(set(spec.partitions) - set(snapshot.committed))
    if unknown:
        raise ConfigError(
            f"replay.partitions names {unknown}: the table holds {sorted(snapshot.committed)}"
        )
    chosen = spec.partitions or tuple(snapshot.committed)
    starts = {p: offset_of(spec.start_offset, p) for p in chosen}
    late = {p: n for p, n in starts.items() if n is not None and n > snapshot.committed[p][1]}
    # One offset for all partitions may be after the end of some.
    if late and (isinstance(spec.start_offset, dict) or len(late) == len(chosen)):
        partition, start = min(late.items())
        raise ConfigError(
            f"replay.start_offset of partition {partition} is {start}, after the end of the table, "
            f"which is {snapshot.committed[partition][1]}"
        )


def _state(
    spec: ReplaySpec, task_spec: ReplayTaskSpec, target: StreamInfo, next: Mapping[int, int]
) -> ReplayState:
    return ReplayState(
        table=str(spec.table.address()),
        stream_id=task_spec.stream_id,
        to=spec.to,
        to_id=target.definition.id.hex(),
        next={str(partition): offset for partition, offset in next.items()},
        to_ends={
            str(p.partition): p.high_watermark
            for p in target.partitions
            if p.high_watermark is not None  # else all of it is searched
        },
    )


def _dedupes(target: StreamInfo) -> bool:
    config = target.definition.config
    return config.dedupe_window_ms > 0 and config.dedupe_messages_max > 0


def _round_rows(spec: ReplaySpec, target: StreamInfo, partitions: int) -> int:
    """Rows per partition and round, so that the target remembers the ids of two rounds."""
    remembered = target.definition.config.dedupe_messages_max
    if not _dedupes(target):
        return spec.rows_per_round
    return max(1, min(spec.rows_per_round, remembered // (2 * max(1, partitions))))


def _result(spec: ReplaySpec, plan: _ReplayPlan, *, dedupes: bool, seconds: float) -> JobResult:
    messages = sum(sent.messages for sent in plan.sent.values())
    return JobResult(
        kind="replay",
        name=spec.name,
        ok=True,
        summary={
            "table": str(spec.table.address()),
            "to": spec.to,
            "messages": messages,
            "duplicates": sum(sent.duplicates for sent in plan.sent.values()),
            "dedupe": dedupes,
            "seconds": round(seconds, 3),
            "messages_per_s": round(messages / seconds) if seconds else 0,
        },
        tables=(
            Table(
                "Partitions",
                ("partition", "next offset", "messages", "duplicates"),
                tuple(
                    (
                        partition,
                        plan.next[partition],
                        *(
                            (s.messages, s.duplicates)
                            if (s := plan.sent.get(partition))
                            else (0, 0)
                        ),
                    )
                    for partition in sorted(plan.ends)
                ),
            ),
        ),
    )
