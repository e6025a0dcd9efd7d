"""The methods of the two clients for publishing Arrow batches."""

# These timeouts bound retries and report the attempts; they are not cancel scopes.
# ruff: noqa: ASYNC109

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bascule.client.publish_window import HasStream
from bascule.client.publisher import Publisher
from bascule.errors import BasculeError, Closed
from bascule.model import StreamInfo

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.client.columnar.publish_window import ColumnarWindow, Published
    from bascule.nats_connection import NatsConnection

T = TypeVar("T")
BATCH_WINDOW: Final = 20_000
"""Rows without ack at a time: two of Spark's Arrow batches, so that one is sent while the other
waits."""
BATCH_TIMEOUT_S: Final = 60.0


class BatchPublisher:
    """Publishes batches: `async with client.batch_publisher(...) as out: await out.send(batch)`."""

    def __init__(self, open_window: Callable[[], Coroutine[Any, Any, ColumnarWindow]],
                 close_window: Callable[[ColumnarWindow], None]) -> None:  # fmt: skip
        self._open_window = open_window
        self._close_window = close_window
        self._window: ColumnarWindow | None = None

    async def open(self) -> BatchPublisher:
        """Raises: Broken, UnknownStream, InvalidName, ConfigError."""
        if self._window is None:
            self._window = await self._open_window()
        return self

    def close(self) -> None:
        """Ignore further acks. Rows without ack may or may not be stored. Idempotent."""
        if self._window is not None:
            self._close_window(self._window)

    @property
    def taken(self) -> int:
        """Rows sent so far."""
        return self._opened().taken

    @property
    def acked(self) -> int:
        """Rows acked so far."""
        return self._opened().acked

    @property
    def failed_row(self) -> int | None:
        """The row that ended publishing, if any."""
        return None if self._window is None else self._window.failed_row

    @property
    def failed_subject(self) -> str | None:
        """The subject of `failed_row`."""
        return None if self._window is None else self._window.failed_subject

    async def send(self, batch: pa.RecordBatch) -> None:
        """Send all rows of a batch. Waits while the window is full.

        Raises: ColumnMismatch, RowRefused (earlier rows were sent), and as `Client.publish_many`.
        """
        with _AddProgressNote(self._opened()):
            await self._opened().send(batch)

    async def finish(self) -> Published:
        """Wait until every row is acked. Return the counts. Raises: as `send`."""
        with _AddProgressNote(self._opened()):
            return await self._opened().finish()

    async def __aenter__(self) -> BatchPublisher:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _opened(self) -> ColumnarWindow:
        if self._window is None:
            raise Closed("the batch publisher is not open: use it in `with`")
        return self._window


class _AddProgressNote:
    """Adds the number of acked rows to an error."""

    def __init__(self, window: ColumnarWindow) -> None:
        self._window = window

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, BasculeError):
            error.add_note(f"{self._window.acked} of {self._window.taken} rows were acked")


class SyncBatchPublisher:
    """The same for the blocking client: `with client.batch_publisher(...) as out: out.send(batch)`.

    Not thread-safe.
    """

    def __init__(
        self, inner: BatchPublisher, run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._inner = inner
        self._run = run

    @property
    def taken(self) -> int:
        """See `BatchPublisher.taken`."""
        return self._inner.taken

    @property
    def acked(self) -> int:
        """See `BatchPublisher.acked`."""
        return self._inner.acked

    @property
    def failed_row(self) -> int | None:
        """See `BatchPublisher.failed_row`."""
        return self._inner.failed_row

    @property
    def failed_subject(self) -> str | None:
        """See `BatchPublisher.failed_subject`."""
        return self._inner.failed_subject

    def send(self, batch: pa.RecordBatch) -> None:
        """See `BatchPublisher.send`."""
        self._run(self._inner.send(batch))

    def finish(self) -> Published:
        """See `BatchPublisher.finish`."""
        published: Published = self._run(self._inner.finish())
        return published

    def open(self) -> SyncBatchPublisher:
        """See `BatchPublisher.open`."""
        self._run(self._inner.open())
        return self

    def __enter__(self) -> SyncBatchPublisher:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        async def close() -> None:
            self._inner.close()

        self._run(close())


class ColumnarMixin:
    """Methods of the asynchronous client for publishing Arrow batches."""

    async def _publishing(self) -> Publisher:
        raise NotImplementedError

    async def stream(self, name: str) -> StreamInfo:
        raise NotImplementedError

    def batch_publisher(
        self,
        *,
        subject: str | None = None,
        message_ids: str | None = None,
        window: int = BATCH_WINDOW,
        stream: str | None = None,
        timeout: float = BATCH_TIMEOUT_S,
        on_progress: Callable[[int], None] | None = None,
    ) -> BatchPublisher:
        """A publisher of successive Arrow batches; see `publish_batches`."""
        publisher: Publisher | None = None

        async def open_window() -> ColumnarWindow:
            # Importing Arrow is slow, and most clients do not need it.
            from bascule.client.columnar.columns import PublishRoute
            from bascule.client.columnar.publish_window import ColumnarWindow

            nonlocal publisher
            pattern = (
                "" if stream is None else (await self.stream(stream)).definition.config.subject
            )
            route = PublishRoute(subject or "", pattern, message_ids or "")
            route.check()

            def create(nats: NatsConnection, id: int, has_stream: HasStream) -> ColumnarWindow:
                return ColumnarWindow(
                    nats,
                    route,
                    id=id,
                    has_stream=has_stream,
                    window=window,
                    stream=stream,
                    timeout=timeout,
                    on_progress=on_progress,
                )

            publisher = await self._publishing()
            return await publisher.open_window(create, timeout)

        def close_window(columnar_window: ColumnarWindow) -> None:
            if publisher is not None:
                publisher.close_window(columnar_window)

        return BatchPublisher(open_window, close_window)

    async def publish_batches(
        self,
        batches: Iterable[pa.RecordBatch] | AsyncIterable[pa.RecordBatch],
        *,
        subject: str | None = None,
        message_ids: str | None = None,
        window: int = BATCH_WINDOW,
        stream: str | None = None,
        timeout: float = BATCH_TIMEOUT_S,
        on_progress: Callable[[int], None] | None = None,
    ) -> Published:
        """Publish the rows of Arrow batches in order: the fastest way, without Python code per row.

        Columns are `value` (binary or string; null: a tombstone), `subject` (string; required
        unless the argument `subject` sets it for all rows), `key` (binary or string), `headers`
        (list of key and value, or map) and `message_id` (string). With `message_ids`, rows without
        that column get ids: this prefix, the row's number and a checksum of the row. Publishing the
        same rows in the same order with the same prefix again stores nothing twice within the
        stream's dedupe window. Columns `stream`, `partition`, `offset` and `timestamp` are ignored,
        so that batches that were read can be published.

        `window`, `timeout` and `on_progress` are those of `publish_many`. With `stream`, only its
        acks count, it may be unavailable until `timeout`, and subjects that it does not use are
        refused.

        Raises: ColumnMismatch, RowRefused, ConfigError, UnknownStream, and as `publish_many`. Rows
        without ack may or may not be stored.
        """
        async with self.batch_publisher(
            subject=subject,
            message_ids=message_ids,
            window=window,
            stream=stream,
            timeout=timeout,
            on_progress=on_progress,
        ) as out:
            if isinstance(batches, AsyncIterable):
                async for batch in batches:
                    await out.send(batch)
            else:
                for batch in batches:
                    await out.send(batch)
            return await out.finish()


class SyncColumnarMixin:
    """The same for the blocking client."""

    _async_columnar: ColumnarMixin

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def batch_publisher(
        self,
        *,
        subject: str | None = None,
        message_ids: str | None = None,
        window: int = BATCH_WINDOW,
        stream: str | None = None,
        timeout: float = BATCH_TIMEOUT_S,
    ) -> SyncBatchPublisher:
        """See `ColumnarMixin.batch_publisher`."""
        inner = self._async_columnar.batch_publisher(
            subject=subject, message_ids=message_ids, window=window, stream=stream, timeout=timeout
        )
        return SyncBatchPublisher(inner, self._run)

    def publish_batches(
        self,
        batches: Iterable[pa.RecordBatch],
        *,
        subject: str | None = None,
        message_ids: str | None = None,
        window: int = BATCH_WINDOW,
        stream: str | None = None,
        timeout: float = BATCH_TIMEOUT_S,
    ) -> Published:
        """See `ColumnarMixin.publish_batches`. `batches` is iterated on the caller's thread."""
        with self.batch_publisher(
            subject=subject, message_ids=message_ids, window=window, stream=stream, timeout=timeout
        ) as out:
            for batch in batches:
                out.send(batch)
            return out.finish()
