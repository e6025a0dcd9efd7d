"""Consumers with a name: their position is kept in the stream `_offsets`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol, Self

from bascule.client.batch_reader import Start
from bascule.client.consumers.base import MessageConsumer
from bascule.client.consumers.delivery import BatchSource, Delivery
from bascule.client.messages import Ack, Headers, Message
from bascule.client.stream_reader import check_positions
from bascule.errors import BasculeError, Closed
from bascule.group_results import CommittedOffset
from bascule.model import StreamInfo
from bascule.wire.offsets import (
    OFFSETS_STREAM,
    STREAM_ID_HEADER,
    Commit,
    OffsetKey,
    check_consumer,
    commit_subject,
    encode_commit,
)

log = logging.getLogger(__name__)

COMMIT_INTERVAL_S: Final = 5.0
"""From Kafka's auto.commit.interval.ms."""
CHECK_SECONDS: Final = 10.0
"""Time between checks for partitions that were added. Kafka's metadata.max.age.ms is 5 minutes."""


class ConsumerClient(BatchSource, Protocol):
    """The part of the client that a consumer uses."""

    async def stream(self, name: str) -> StreamInfo: ...

    async def offsets(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[CommittedOffset]: ...

    async def publish(
        self,
        subject: str,
        value: bytes,
        *,
        headers: Headers | None = None,
        stream: str | None = None,
    ) -> Ack: ...


class Consumer(MessageConsumer):
    """Messages of a stream from this consumer's committed offset: an asynchronous iterator.

    Delivery is at least once. A message counts as done when the next one is requested, at `commit`,
    and when the `async with` block ends without an exception. Done messages are committed every
    `commit_interval` seconds and at the end. Messages that were done but not committed when the
    process died are delivered again. Two consumers that run under one name at the same time both
    receive every message; the members of a group share them.
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
        super().__init__(consumer, Delivery(client, stream, follow=follow, timeout=timeout))
        self._client = client
        self._stream = stream
        self._name = consumer
        self._start: Start = start
        self._chosen = partitions
        self._follow = follow
        self._interval = commit_interval
        self._committing = asyncio.Lock()
        self._stream_id = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    async def open(self) -> Self:
        """Resolve the start offsets and start reading.

        Raises: UnknownStream, Broken, RequestFailed if the node cannot read committed offsets.
        """
        info = await self._client.stream(self._stream)
        self._stream_id = info.definition.id.hex()
        await self._find_committed()
        # "latest" means the end at this moment, not at the first response.
        ends = {partition.partition: partition.high_watermark for partition in info.partitions}
        chosen = list(ends) if self._chosen is None else self._chosen
        check_positions(self._stream, len(chosen), self._start)
        starts: dict[int, Start] = {}
        for partition in chosen:
            # Where its leader has not told the end it is that at the first response.
            end = ends.get(partition) if self._start == "latest" else None
            start = self._start if end is None else end
            starts[partition] = self._committed.get(partition, start)
        self._delivery.start(starts)
        self._tasks.append(asyncio.create_task(self._commit_regularly()))
        if self._chosen is None and self._follow:
            self._tasks.append(asyncio.create_task(self._watch_partitions()))
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
            self._delivery.settle()
        await self._delivery.stop(self._delivery.partitions)
        await self._commit()

    async def commit(self) -> None:
        """Commit all delivered messages, including the last one. Return when the commit is stored.

        Raises: as `Client.publish`.
        """
        self._delivery.settle()
        await self._commit()

    def take(self) -> Message | None:
        """Return the next message that has arrived. The previous one is done."""
        return self._delivery.take()

    async def refill(self) -> bool:
        """Wait for more messages. Return False at the end. Raises: as `Client.read_batches`;
        Closed."""
        if self._closed:
            raise Closed(f"consumer {self._name!r} is closed")
        if self._delivery.has_ended:
            return False
        await self._delivery.wait()
        return True

    async def _find_committed(self) -> None:
        found = await self._client.offsets(consumer=self._name, stream=self._stream)
        self._committed |= {entry.partition: entry.offset for entry in found}

    async def _watch_partitions(self) -> None:
        """Read partitions that are added, from their start or their committed offset."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                info = await self._client.stream(self._stream)
            except BasculeError as error:
                log.info("the partitions of %s are not known now: %s", self._stream, error)
                continue
            added = {part.partition for part in info.partitions} - self._delivery.partitions
            self._delivery.start({p: self._committed.get(p, "earliest") for p in sorted(added)})

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
            for partition, offset in self._delivery.done.copy().items():
                if self._committed.get(partition) != offset:
                    key = OffsetKey(self._name, self._stream, partition)
                    value = encode_commit(Commit(offset=offset))
                    await self._client.publish(
                        commit_subject(key),
                        value,
                        headers={STREAM_ID_HEADER: self._stream_id},
                        stream=OFFSETS_STREAM,
                    )
                    self._committed[partition] = offset
