"""One task of a replay: publishes rows of one stream partition in offset order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bascule.pipeline.clients import client_of
from bascule.pipeline.jobs.archive.endpoints import log_extent_of
from bascule.pipeline.jobs.offset_cursor import OffsetCursor
from bascule.pipeline.jobs.replay.messages import MessageBuilder
from bascule.pipeline.jobs.replay.spec import ReplaySpec
from bascule.pipeline.jobs.replay.state import ReplayState, stored_since
from bascule.pipeline.jobs.rows import MALFORMED_SCHEMA, RAW, TIMESTAMP
from bascule.pipeline.lake.file_reader import read_files
from bascule.pipeline.lake.model import DataFile, Span
from bascule.pipeline.retries import with_retries
from bascule.pipeline.values.spec import ValueSpec


@dataclass(frozen=True, slots=True)
class ReplayTaskSpec:
    """Description of every task of a replay. Picklable."""

    spec: ReplaySpec
    stream_id: str
    schema: pa.Schema
    """Schema of the table."""
    value: ValueSpec


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """The offsets of one partition that one task publishes."""

    span: Span
    files: tuple[DataFile, ...]
    malformed_files: tuple[DataFile, ...] = ()
    stored: tuple[int, ...] = ()
    """Offsets that the target stream already holds."""


class ReplayCounts(msgspec.Struct):
    """Counts of one published range."""

    partition: int
    messages: int
    duplicates: int
    """Messages that the target already held; included in `messages`."""


def publish_range(
    task_spec: ReplayTaskSpec,
    before: ReplayState,
    replay_range: ReplayRange,
    *,
    attempt: int | None = None,
) -> str:
    """Publish a range and wait for all acks. Return the JSON of a `ReplayCounts`.

    An `attempt` above 0 leaves out what earlier ones published since `before`, the state at the
    start of the round: the target may have forgotten their message ids. None: Spark's attempt.

    Raises: as `Client.publish_batches`.
    """
    spec = task_spec.spec
    client = with_retries(lambda: client_of(spec.server), timeout_ms=spec.retry_timeout_ms)
    if _attempt() if attempt is None else attempt:
        target = log_extent_of(spec.server, spec.to, retry_timeout_ms=spec.retry_timeout_ms)
        stored = stored_since(client, before, target).get(replay_range.span.partition, [])
        replay_range = replace(replay_range, stored=(*replay_range.stored, *stored))
    fixed = None if spec.is_mapped() else spec.subject
    timeout_s = spec.retry_timeout_ms / 1_000
    with client.batch_publisher(subject=fixed, stream=spec.to, timeout=timeout_s) as out:
        for batch in messages_of(task_spec, replay_range):
            out.send(batch)
        published = out.finish()
    sent = ReplayCounts(replay_range.span.partition, published.messages, published.duplicates)
    return msgspec.json.encode(sent).decode()


def _attempt() -> int:
    """The number of attempts at Spark's task that failed."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.attemptNumber())


def messages_of(task_spec: ReplayTaskSpec, replay_range: ReplayRange) -> Iterator[pa.RecordBatch]:
    """The messages of a range, with malformed records at their offsets."""
    spec, span = task_spec.spec, replay_range.span
    typed = pa.types.is_struct(task_spec.schema.field("value").type)
    encoder = task_spec.value.encoder() if typed and RAW not in task_spec.schema.names else None
    subject = spec.subject if spec.is_mapped() else ""
    main = MessageBuilder(
        task_spec.stream_id,
        subject=subject,
        original_headers=spec.original_headers,
        encoder=encoder,
    )
    side = MessageBuilder(
        task_spec.stream_id, subject=subject, original_headers=spec.original_headers
    )

    def rows(files: tuple[DataFile, ...], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        batches = read_files(files, schema, offset_start=span.start, offset_end=span.end)
        return (kept for batch in batches if (kept := _wanted(spec, replay_range, batch)).num_rows)

    malformed = OffsetCursor(rows(replay_range.malformed_files, MALFORMED_SCHEMA), MALFORMED_SCHEMA)
    for batch in rows(replay_range.files, task_spec.schema):
        last = batch.column("offset")[-1].as_py()
        aside = malformed.until(last)
        yield _merged(main, batch, side, aside) if aside.num_rows else main.make(batch)
    for batch in malformed.until(span.end).to_batches():
        yield side.make(batch)


def _wanted(spec: ReplaySpec, replay_range: ReplayRange, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows within the requested times that the target does not hold."""
    keep = None
    times = batch.column("timestamp")
    for bound, test in ((spec.start_ms, pc.greater_equal), (spec.end_ms, pc.less)):
        if bound is not None:
            inside = test(times, pa.scalar(bound * 1_000, pa.int64()).cast(TIMESTAMP))
            keep = inside if keep is None else pc.and_(keep, inside)
    if replay_range.stored:
        new = pc.invert(pc.is_in(batch.column("offset"), pa.array(replay_range.stored, pa.int64())))
        keep = new if keep is None else pc.and_(keep, new)
    return batch if keep is None else batch.filter(keep)


def _merged(
    main: MessageBuilder, batch: pa.RecordBatch, side: MessageBuilder, aside: pa.Table
) -> pa.RecordBatch:
    parts = [main.make(batch), *(side.make(one) for one in aside.to_batches())]
    offsets = np.concatenate([batch.column("offset").to_numpy(), aside.column("offset").to_numpy()])
    return pa.concat_batches(parts).take(pa.array(np.argsort(offsets, kind="stable")))
