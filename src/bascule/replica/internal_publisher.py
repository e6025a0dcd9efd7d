"""Publishes records of the node itself, through the log writer like any other batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bascule.errors import UnknownPartition, UnknownStream
from bascule.publish.acks import AckError
from bascule.publish.unstamped_batch import Append, UnstampedBatch
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.replica.partitions import Partitions
from bascule.wire.ack_codes import publish_error


class InternalRecord(NamedTuple):
    """One record to publish; `subject` is stored as that of a NATS message would be."""

    subject: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class InternalPublisher:
    """For small internal streams: a record costs some microseconds. Belongs to the event loop."""

    def __init__(self, partitions: Partitions, append: Append) -> None:
        self._partitions = partitions
        self._append = append

    async def publish(self, stream: str, partition: int, records: Sequence[InternalRecord]) -> int:
        """Append `records` as one batch; return its base offset once it is committed.

        Raises: UnknownStream, UnknownPartition, PublishRejected where it is not stored,
        Indeterminate where it may or may not be.
        """
        found = self._partitions.stream(stream)
        if found is None:
            raise UnknownStream(stream)
        if not 0 <= partition < len(found):
            raise UnknownPartition(stream, partition, len(found))
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        batch = UnstampedBatch(
            data=memoryview(_encode(records)),
            record_count=len(records),
            on_committed=_resolver(loop, done),
        )
        self._append(found[partition], [batch])
        return await done


def _encode(records: Sequence[InternalRecord]) -> bytearray:
    return build_batch(
        [
            Record(
                offset=row,
                timestamp=0,
                key=record.key,
                value=record.value,
                headers=(("subject", record.subject.encode()), *record.headers),
            )
            for row, record in enumerate(records)
        ],
        base_offset=0,
        log_append_time=True,
    )


def _resolver(
    loop: asyncio.AbstractEventLoop, done: asyncio.Future[int]
) -> Callable[[int, AckError | None], None]:
    def resolve(base_offset: int, error: AckError | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(base_offset)
        else:
            done.set_exception(publish_error(error.code, error.err_code, error.description))

    def on_committed(base_offset: int, error: AckError | None) -> None:
        try:
            loop.call_soon_threadsafe(resolve, base_offset, error)
        except RuntimeError:
            pass  # The loop is closed, so no caller waits.

    return on_committed
