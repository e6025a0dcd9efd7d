"""Consumers with a name: their position is kept in the stream `_offsets`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from bascule.client.batch_reader import Start, messages_of
from bascule.client.messages import Ack, Message
from bascule.client.stream_reader import check_positions
from bascule.errors import BasculeError, Closed
from bascule.model import CommittedOffset, StreamInfo
from bascule.wire.offsets import (
    OFFSETS_STREAM,
    Commit,
    OffsetKey,
    check_consumer,
    commit_subject,
    encode_commit,
)

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)
T = TypeVar("T")

COMMIT_INTERVAL_S: Final = 5.0
"""From Kafka's auto.commit.interval.ms."""


class ConsumerClient(Protocol):
    """The part of the client that a consumer uses."""

    async def stream(self, name: str) -> StreamInfo: ...

    async def offsets(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[CommittedOffset]: ...

    async def publish(self, subject: str, value: bytes, *, stream: str | None = None) -> Ack: ...

    def read_batches(
        self, stream: str, *, start: Start, partition: int, follow: bool, timeout: float
    ) -> AsyncGenerator[pa.RecordBatch, None]: ...


class Consumer:
    """Messages of a stream from this consumer's committed offset: an asynchronous iterator.

    Delivery is at least once. A message counts as done when the next one is requested, at `commit`,
    and when the `async with` block ends without an exception. Done messages are committed every
    `commit_interval` seconds and at the end. Messages that were done but not committed when the
    process died are delivered again. Two consumers that run under one name at the same time both
    receive every message.
    """

    def __init__(
        self,
        client: ConsumerClient,
        stream: str,
        consumer: str,
        *,
        start: Start,
        partitions: Sequence[int] | None,
        follow: bool,
        commit_interval: float,
        timeout: float,
    ) -> None:
        check_consumer(consumer)
        self._client = client
        self._stream = stream
        self._name = consumer
        self._start: Start = start
        self._chosen = partitions
        self._follow = follow
        self._interval = commit_interval
        self._timeout = timeout
        self._rows: Iterator[Message] = iter(())
        self._last: Message | None = None
        """The last delivered message, if it is not known to be done."""
        self._done: dict[int, int] = {}
        """Partition -> the first offset that is not done."""
        self._committed: dict[int, int] = {}
        self._batches: asyncio.Queue[pa.RecordBatch | BaseException | None] = asyncio.Queue(2)
        self._reading = 0
        self._committing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    @property
    def committed(self) -> dict[int, int]:
        """Partition -> the last committed offset, by this consumer or an earlier one."""
        return dict(self._committed)

    async def open(self) -> Consumer:
        """Resolve the start offsets and start reading.

        Raises: UnknownStream, Broken, RequestFailed if the node cannot read committed offsets.
        """
        info = await self._client.stream(self._stream)
        found = await self._client.offsets(consumer=self._name, stream=self._stream)
        self._committed = {entry.partition: entry.offset for entry in found}
        # "latest" means the end at this moment, not at the first response.
        ends = {partition.partition: partition.high_watermark for partition in info.partitions}
        chosen = list(ends) if self._chosen is None else self._chosen
        check_positions(self._stream, len(chosen), self._start)
        self._reading = len(chosen)
        for partition in chosen:
            start = ends.get(partition, self._start) if self._start == "latest" else self._start
            start = self._committed.get(partition, start)
            self._tasks.append(asyncio.create_task(self._read(partition, start)))
        self._tasks.append(asyncio.create_task(self._commit_regularly()))
        return self

    async def close(self, *, done: bool = True) -> None:
        """Stop reading and commit done messages. With `done`, every delivered message counts as
        done.

        Idempotent. Raises: as `commit`; reading has stopped even then.
        """
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if done:
            self._settle()
        await self._commit()

    async def commit(self) -> None:
        """Commit all delivered messages, including the last one. Return when the commit is stored.

        Raises: as `Client.publish`.
        """
        self._settle()
        await self._commit()

    async def __aenter__(self) -> Consumer:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.leave(failed=kind is not None)

    async def leave(self, *, failed: bool) -> None:
        """End the `async with` block. If the block failed, its exception is more important than a
        failed commit, which is only logged. Raises: as `commit`, if the block did not fail."""
        try:
            await self.close(done=not failed)
        except BasculeError as error:
            if not failed:
                raise
            log.warning("the last commit of %s failed: %s", self._name, error)

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        while (message := self.take()) is None:
            if not await self.refill():
                raise StopAsyncIteration
        return message

    def take(self) -> Message | None:
        """Return the next message that has arrived. The previous one is done."""
        self._settle()
        self._last = next(self._rows, None)
        return self._last

    async def refill(self) -> bool:
        """Wait for more messages. Return False at the end. Raises: as `Client.read_batches`;
        Closed."""
        if self._closed:
            raise Closed(f"consumer {self._name!r} is closed")
        while self._reading:
            batch = await self._batches.get()
            if batch is None:
                self._reading -= 1
            elif isinstance(batch, BaseException):
                raise batch
            else:
                self._rows = messages_of(batch)
                return True
        return False

    def _settle(self) -> None:
        if self._last is not None:
            self._done[self._last.partition] = self._last.offset + 1
            self._last = None

    async def _read(self, partition: int, start: Start) -> None:
        """Put the partition's batches into the queue, then None or the error that ended them."""
        batches = self._client.read_batches(
            self._stream,
            start=start,
            partition=partition,
            follow=self._follow,
            timeout=self._timeout,
        )
        try:
            async for batch in batches:
                await self._batches.put(batch)
            await self._batches.put(None)
        except (BasculeError, OSError, ValueError) as error:
            await self._batches.put(error)
        finally:
            await batches.aclose()

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self._commit()
            except BasculeError as error:
                log.warning("a commit of %s failed and will be retried: %s", self._name, error)

    async def _commit(self) -> None:
        # One commit at a time, so that an older offset is never stored after a newer one.
        async with self._committing:
            for partition, offset in self._done.copy().items():
                if self._committed.get(partition) != offset:
                    key = OffsetKey(self._name, self._stream, partition)
                    value = encode_commit(Commit(offset=offset))
                    await self._client.publish(commit_subject(key), value, stream=OFFSETS_STREAM)
                    self._committed[partition] = offset


class CoroutineRunner(Protocol):
    """Runs a coroutine on the client's event loop and waits for it."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class SyncConsumer:
    """A blocking `Consumer`: an iterator in a `with` block. Not thread-safe."""

    def __init__(self, consumer: Consumer, run: CoroutineRunner) -> None:
        self._consumer = consumer
        self._run = run

    @property
    def committed(self) -> dict[int, int]:
        """See `Consumer.committed`."""
        return self._consumer.committed

    def commit(self) -> None:
        """See `Consumer.commit`."""
        self._run(self._consumer.commit())

    def close(self, *, done: bool = True) -> None:
        """See `Consumer.close`."""
        self._run(self._consumer.close(done=done))

    def __enter__(self) -> SyncConsumer:
        self._run(self._consumer.open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._consumer.leave(failed=kind is not None))

    def __iter__(self) -> SyncConsumer:
        return self

    def __next__(self) -> Message:
        while (message := self._consumer.take()) is None:
            if not self._run(self._consumer.refill()):
                raise StopIteration
        return message
