"""Reads partitions and hands out their messages; knows which messages are done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from bascule.client.batch_reader import Start, messages_of
from bascule.client.fetcher import FetchOptions
from bascule.client.messages import NEW_MESSAGE, Message
from bascule.client.stream_reader import bytes_of_each
from bascule.errors import BasculeError, Broken, UnknownPartition, UnknownStream

if TYPE_CHECKING:
    import pyarrow as pa

BATCHES_MAX: Final = 2
"""Batches of all partitions that wait for the application. Each reader holds another one."""
RETRY_S: Final = 0.1
"""Between attempts to begin reading a partition."""


class BatchSource(Protocol):
    """The part of the client that reads."""

    def read_batches(
        self,
        stream: str,
        *,
        start: Start,
        partition: int,
        follow: bool,
        fetch_bytes: int,
        batch_bytes: int,
        timeout: float,
    ) -> AsyncGenerator[pa.RecordBatch, None]: ...


class _Reading:
    """One partition that is being read. A later reading of it is another object."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.task: asyncio.Task[None] | None = None
        self.has_ended = False


class Delivery:
    """The messages of partitions, which may be added and stopped meanwhile.

    A message is done when the next one is taken, and at `settle`. Methods other than `take` belong
    to the event loop; `take` must not run at the same time.
    """

    def __init__(self, source: BatchSource, stream: str, *, follow: bool, timeout: float) -> None:
        self.done: dict[int, int] = {}
        """Partition -> the first offset that is not done, where any is."""
        self.new_message = NEW_MESSAGE
        self._source = source
        self._stream = stream
        self._follow = follow
        self._timeout = timeout
        self._readings: dict[int, _Reading] = {}
        self._arrived: asyncio.Queue[tuple[_Reading, pa.RecordBatch | BaseException] | None]
        self._arrived = asyncio.Queue(BATCHES_MAX)
        self._rows: Iterator[Message] = iter(())
        self._rows_of: int | None = None
        self._last: Message | None = None
        """The last message that was taken, if it is not known to be done."""
        self._failures: dict[int, BaseException] = {}
        """Partition -> the error that ended its reading. No message is delivered after one."""

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(self._readings)

    @property
    def has_ended(self) -> bool:
        """Whether every partition was read to its end. Ask when `take` has no message."""
        ended = all(reading.has_ended for reading in self._readings.values())
        return ended and self._arrived.empty()

    def start(self, starts: dict[int, Start]) -> None:
        """Read further partitions, from these positions on."""
        each = bytes_of_each(len(self._readings) + len(starts))
        for partition, start in starts.items():
            reading = self._readings[partition] = _Reading(partition)
            reading.task = asyncio.create_task(self._read(reading, start, each))

    async def stop(self, partitions: frozenset[int]) -> None:
        """Stop reading partitions. What has arrived of them is dropped, and `done` keeps its
        entries. The last message taken must be done."""
        stopped = [self._readings.pop(p) for p in partitions if p in self._readings]
        for partition in partitions:
            self._failures.pop(partition, None)
        if self._rows_of in partitions:
            self._rows, self._rows_of = iter(()), None
        tasks = [reading.task for reading in stopped if reading.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def take(self) -> Message | None:
        """The next message that has arrived. The previous one is done."""
        self.settle()
        self._last = next(self._rows, None)
        return self._last

    def settle(self) -> None:
        """The last message is done."""
        if self._last is not None:
            self.done[self._last.partition] = self._last.offset + 1
            self._last = None

    async def wait(self) -> None:
        """Wait until messages may have arrived, a partition has ended, or `wake` was called.

        Raises: as `Client.read_batches`.
        """
        for failure in self._failures.values():
            raise failure
        item = await self._arrived.get()
        if item is None:
            return
        reading, arrived = item
        if self._readings.get(reading.partition) is not reading:
            return  # it was stopped
        if isinstance(arrived, BaseException):
            self._failures[reading.partition] = arrived
            raise arrived
        self._rows, self._rows_of = messages_of(arrived, self.new_message), reading.partition

    def wake(self) -> None:
        """Let `wait` return."""
        if not self._arrived.full():
            self._arrived.put_nowait(None)

    async def _read(self, reading: _Reading, start: Start, each: int) -> None:
        """Put the partition's batches into the queue, and the error that ends them.

        Where reading cannot begin it is tried again: a partition that was just added may have no
        leader yet, and nodes say of one that they do not know that there is no such stream.
        """
        options = FetchOptions()
        loop = asyncio.get_running_loop()
        tries_until = loop.time() + self._timeout
        try:
            while not reading.has_ended:
                has_begun = False
                batches = self._source.read_batches(
                    self._stream,
                    start=start,
                    partition=reading.partition,
                    follow=self._follow,
                    fetch_bytes=min(options.fetch_bytes, each),
                    batch_bytes=min(options.batch_bytes, each),
                    timeout=self._timeout,
                )
                try:
                    async for batch in batches:
                        has_begun = True
                        await self._arrived.put((reading, batch))
                    # After its batches, which the queue holds before this.
                    reading.has_ended = True
                except (Broken, UnknownStream, UnknownPartition):
                    if has_begun or loop.time() > tries_until:
                        raise
                    await asyncio.sleep(RETRY_S)
                finally:
                    await batches.aclose()
            await self._arrived.put(None)
        except (BasculeError, OSError, ValueError) as error:
            await self._arrived.put((reading, error))
