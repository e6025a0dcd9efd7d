"""Spark's writers: planned on the driver, pickled to the executors, committed on the driver.

Spark creates the writer of a stream twice per micro-batch, in different processes. So everything
that `commit` needs is in the tasks' messages.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from bascule.client.columnar.publisher import SyncBatchPublisher
from bascule.errors import (
    BasculeError,
    Broken,
    Closed,
    ConfigError,
    DedupeTooSmall,
    RowNotPublished,
    UnknownStream,
)
from bascule.pipeline.clients import client_of, drop_client
from bascule.pipeline.retries import with_retries
from bascule.pipeline.sink.columns import Projection, projection_of
from bascule.pipeline.sink.dedupe_coverage import DedupeCoverage, coverage_problems
from bascule.pipeline.sink.error_hints import explain
from bascule.pipeline.sink.options import SinkOptions
from bascule.wire.nats import NatsRefused

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.client.columnar.publish_window import Published

log = logging.getLogger(__name__)

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of a task. Spark passes the query id and batch number to `write` in no other
way."""
ID_DIGITS: Final = 16
"""Digits of a query's id in message ids. 60 random bits distinguish queries within a window."""


@dataclass
class WriteCommitMessage(WriterCommitMessage):
    """Counts of one task. Every message is acked."""

    rows: int
    duplicates: int
    planned_ms: int
    """Unix time at which the driver planned the write."""
    spans: tuple[tuple[str, int, int], ...]
    """(stream, partition, rows)."""


@dataclass(frozen=True)
class WritePlan:
    """The plan of a write, for executors. Picklable."""

    options: SinkOptions
    projection: Projection
    window: DedupeCoverage | None
    """Window of the named stream when the write was planned."""
    planned_ms: int

    @classmethod
    def of(cls, options: SinkOptions, schema: StructType) -> WritePlan:
        """Check everything that needs no rows.

        Raises: ColumnMismatch, UnknownStream, Broken, DedupeTooSmall.
        """
        projection = projection_of(
            [(field.name, field.dataType.simpleString()) for field in schema.fields],
            lambda index: to_arrow_type(schema.fields[index].dataType, timezone="UTC"),
            fixed_subject=bool(options.subject),
            headers=options.headers,
        )
        window = None
        if options.stream:
            window = _window(options, options.stream, timeout_ms=options.retry_timeout_ms)
            if options.dedupe == "require" and (none := window.why_no_dedupe()) is not None:
                raise DedupeTooSmall(options.stream, none)
        return cls(options, projection, window, _now_ms())

    def publish(
        self, batches: Iterator[pa.RecordBatch], *, write: str, ids: str
    ) -> WriteCommitMessage:
        """Publish a task's rows and wait for all acks. `ids` is the prefix of their message ids.

        Raises: RowNotPublished.
        """
        partition = _task().partitionId()
        out: SyncBatchPublisher | None = None
        try:
            out = self._open(f"{ids}.{partition}." if ids else "")
            with out:
                for batch in batches:
                    self._check_covered(out.taken + batch.num_rows)
                    out.send(self.projection.of(batch))
                published = out.finish()
        except BasculeError as error:
            row, subject = (out.failed_row, out.failed_subject) if out is not None else (None, None)
            raise RowNotPublished(write, partition, row, subject, explain(error)) from error
        return self._stored(published)

    def _open(self, ids: str) -> SyncBatchPublisher:
        """Open a publisher. Raises: as `Client.batch_publisher`."""
        options = self.options

        def attempt() -> SyncBatchPublisher:
            out = client_of(options.server, options.login).batch_publisher(
                subject=options.subject or None,
                message_ids=ids or None,
                window=options.window,
                stream=options.stream or None,
                timeout=options.ack_timeout_s,
            )
            out.open()
            return out

        def attempt_anew() -> SyncBatchPublisher | NatsRefused:
            try:
                return attempt()
            except NatsRefused as refused:
                # Retrying does not change the credentials.
                drop_client(options.server, options.login)
                return refused
            except (Broken, Closed):
                # The client keeps a permanent failure, so the next attempt needs a new client.
                drop_client(options.server, options.login)
                raise

        out = with_retries(attempt_anew, timeout_ms=options.retry_timeout_ms)
        if isinstance(out, NatsRefused):
            raise out
        return out

    def _check_covered(self, rows: int) -> None:
        """Stop before the dedupe window no longer covers the batch, if coverage is required.

        Raises: DedupeTooSmall.
        """
        window = self.window
        if window is None or self.options.dedupe != "require":
            return
        why = window.why_too_short(_now_ms() - self.planned_ms) or window.why_too_few(rows)
        if why is not None:
            raise DedupeTooSmall(window.stream, why)

    def _stored(self, published: Published) -> WriteCommitMessage:
        return WriteCommitMessage(
            published.messages,
            published.duplicates,
            self.planned_ms,
            tuple((span.stream, span.partition, span.messages) for span in published.spans),
        )

    def finish(self, messages: list[WriterCommitMessage | None], *, write: str) -> None:
        """Log what a repetition of this write would store twice.

        It does not raise: the rows are stored, and Spark would repeat a batch that fails now.
        """
        stored = [message for message in messages if isinstance(message, WriteCommitMessage)]
        again = sum(message.duplicates for message in stored)
        if again:
            log.info("%s: %d rows had been stored by an earlier attempt", write, again)
        if self.options.dedupe == "off" or not stored:
            return
        spans = [span for message in stored for span in message.spans]
        windows = {} if self.window is None else {self.window.stream: self.window}
        for stream in {stream for stream, _, _ in spans} - windows.keys():
            try:
                windows[stream] = _window(self.options, stream, timeout_ms=0)
            except (UnknownStream, Broken):
                # A stream of JetStream, or an unreachable node. The rows are stored in either case.
                continue
        duration_ms = _now_ms() - min(message.planned_ms for message in stored)
        level = logging.ERROR if self.options.dedupe == "require" else logging.WARNING
        for why in coverage_problems(windows, spans, duration_ms=duration_ms):
            log.log(level, "%s: %s", write, why)


class BasculeWriter(DataSourceArrowWriter):
    """One `df.write`."""

    def __init__(self, plan: WritePlan, ids: str) -> None:
        self._plan = plan
        self._ids = ids

    @classmethod
    def plan(
        cls, options: Mapping[str, str], schema: StructType, *, overwrite: bool
    ) -> BasculeWriter:
        _refuse_overwrite(overwrite, 'use mode("append")')
        parsed = SinkOptions.parse(options)
        ids = parsed.id_prefix or secrets.token_hex(ID_DIGITS // 2)
        return cls(WritePlan.of(parsed, schema), "" if parsed.dedupe == "off" else ids)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._plan.publish(iterator, write=self._name, ids=self._ids)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._plan.finish(messages, write=self._name)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Does nothing: acked rows stay in the stream."""

    @property
    def _name(self) -> str:
        return f"write {self._ids}" if self._ids else "write"


class BasculeStreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch of a query."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    @classmethod
    def plan(
        cls, options: Mapping[str, str], schema: StructType, *, overwrite: bool
    ) -> BasculeStreamWriter:
        _refuse_overwrite(overwrite, 'use output mode "append", or foreachBatch')
        parsed = SinkOptions.parse(options).for_stream()
        return cls(WritePlan.of(parsed, schema))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        name = f"batch {batch} of query {query}"
        if self._plan.options.dedupe == "off":
            return self._plan.publish(iterator, write=name, ids="")
        if query is None or batch is None:
            raise ConfigError(
                f"this Spark sets neither {QUERY_ID!r} nor {BATCH_ID!r} for a task; the message "
                'ids need both. Option dedupe="off" writes without ids'
            )
        ids = f"{query.replace('-', '')[:ID_DIGITS]}.{batch}"
        return self._plan.publish(iterator, write=name, ids=ids)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._plan.finish(messages, write=f"batch {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Does nothing: Spark repeats the batch, and the stream knows the ids of acked rows."""


def _refuse_overwrite(overwrite: bool, instead: str) -> None:
    if overwrite:
        raise ConfigError(f"a stream cannot be overwritten, only appended to: {instead}")


def _window(options: SinkOptions, stream: str, *, timeout_ms: int) -> DedupeCoverage:
    """Ask for the dedupe window of a stream. Raises: UnknownStream, Broken."""

    def ask() -> DedupeCoverage:
        info = client_of(options.server, options.login).stream(stream)
        return DedupeCoverage.of(stream, info.definition.config)

    return with_retries(ask, timeout_ms=timeout_ms)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None
    return task


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
