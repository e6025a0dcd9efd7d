"""Publishing from within the node: the same way through appender and disk as a NATS message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bascule.broker.ingest_task import IngestTask
from bascule.broker.partitions import Partitions
from bascule.errors import PublishRejected, UnknownPartition, UnknownStream
from bascule.ingest.acks import AckError
from bascule.ingest.sequencer import Draft
from bascule.record.batch import Record
from bascule.record.builder import build_batch


class LocalRecord(NamedTuple):
    """One record to publish; `subject` is what a NATS publisher would have used."""

    subject: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class LocalPublisher:
    """Belongs to the event loop. For small internal streams: a record costs some microseconds."""

    def __init__(self, partitions: Partitions, ingest: IngestTask) -> None:
        self._partitions = partitions
        self._ingest = ingest

    async def publish(self, stream: str, partition: int, records: Sequence[LocalRecord]) -> int:
        """Append `records` as one batch; its base offset once it is committed.

        Raises: UnknownStream, UnknownPartition, PublishRejected where it is not stored.
        """
        found = self._partitions.stream(stream)
        if found is None:
            raise UnknownStream(stream)
        if not 0 <= partition < len(found):
            raise UnknownPartition(stream, partition, len(found))
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        self._ingest.submit_own(
            found[partition],
            lambda lane: _draft(lane, records, _resolver(loop, done)),
        )
        return await done


def _resolver(
    loop: asyncio.AbstractEventLoop, done: asyncio.Future[int]
) -> Callable[[int, AckError | None], None]:
    def resolve(base_offset: int, error: AckError | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(base_offset)
        else:
            done.set_exception(PublishRejected(error.code, error.err_code, error.description))

    def stored(base_offset: int, error: AckError | None) -> None:
        try:
            loop.call_soon_threadsafe(resolve, base_offset, error)
        except RuntimeError:
            pass  # The loop is closed: nobody waits any more.

    return stored


def _draft(
    lane: int, records: Sequence[LocalRecord], stored: Callable[[int, AckError | None], None]
) -> Draft:
    batch = build_batch(
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
    return Draft(
        lane=lane,
        batch=memoryview(batch),
        record_count=len(records),
        answers=b"",
        refused=b"",
        refused_count=0,
        slab=None,
        stored=stored,
    )
