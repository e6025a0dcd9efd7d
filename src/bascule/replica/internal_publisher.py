"""Publishes from within the node, through the log writer like any other batch: records of the node
itself, and messages that clients have sent to it over another protocol than NATS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import msgspec

from bascule.errors import NotLeader, PublishRejected, UnknownPartition, UnknownStream
from bascule.model import KeyFrom, RecordHeader, StreamConfig, StreamDefinition
from bascule.publish.acks import (
    NOT_LEADING,
    AckError,
    AckFormat,
    too_large,
    unsupported_header,
)
from bascule.publish.headers import HashKey, PublishHeaders, read_publish_headers
from bascule.publish.preconditions import Preconditions
from bascule.publish.unstamped_batch import Append, UnstampedBatch
from bascule.record._hot_encode import encode_records
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.header import HEADER_BYTES, PAYLOAD_LINKS, seal
from bascule.record.payload_links import RESERVED_PREFIX, Payload
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.wire import ack_codes
from bascule.wire.ack_codes import publish_error

LASTING_REFUSALS: Final = frozenset(
    {
        ack_codes.TOO_LARGE,
        ack_codes.WRONG_STREAM,
        ack_codes.MALFORMED_TTL,
        ack_codes.UNSUPPORTED_HEADER,
        ack_codes.UNKNOWN_ACK_POLICY,
        ack_codes.MALFORMED_SEQUENCE,
        ack_codes.NO_KEY,
    }
)
"""Refusals of a message that its stream would also give later, whatever is in its log."""


class InternalRecord(msgspec.Struct, frozen=True, gc=False):
    """One record to publish; `subject` is stored as that of a NATS message would be."""

    subject: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


EncodableRecord: TypeAlias = tuple[
    bytes | None, bytes | None, "bytes | tuple[tuple[str, bytes | None], ...]"
]
"""Key, value and headers, as `record._hot_encode.encode_records` takes them."""


class ClientMessage(NamedTuple):
    """What a client would have sent in a NATS message."""

    subject: str
    key: bytes | None
    """None: as the stream has it for messages without a header `Bascule-Key`."""
    value: bytes | None
    """None: the message removes its key."""
    headers: tuple[tuple[str, bytes], ...] = ()
    payload: Payload | None = None
    """The payload that its record links; see `record.payload_links`."""

    @property
    def wire_bytes(self) -> int:
        """What NATS would count: the payload and the block of headers."""
        lines = sum(len(name) + len(value) + 4 for name, value in self.headers)
        return len(self.value or b"") + (lines + 14 if lines else 0)


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
        return await self.publish_encodable(stream, partition, [encodable(r) for r in records])

    async def publish_encodable(
        self, stream: str, partition: int, records: list[EncodableRecord]
    ) -> int:
        """As `publish`."""
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

    async def publish_message(self, partition: Partition, message: ClientMessage) -> int:
        """Publish a client's message at the leader; return the offset once it is committed.

        It is admitted as a NATS message is: its publish headers, the state of the stream and its
        limits decide. With the id of a message that was stored before, the offset is that one's.

        Raises: NotLeader if this node does not lead the partition, and the message is not stored;
        PublishRejected, which is true of everything committed; Indeterminate.
        """
        return (await self.publish_messages(partition, [message]))[0]

    async def publish_messages(
        self, partition: Partition, messages: Sequence[ClientMessage]
    ) -> tuple[int, int]:
        """As `publish_message`, for several messages in one batch: those that are admitted are
        stored. Returns the offset of the first of these and how many they are.

        At most one of them, alone, may have a message id or a payload. Raises: as
        `publish_message`, for the last message, if none is admitted.
        """
        self._check_leads(partition)
        config = partition.definition.config
        name = partition.definition.name
        links = any(message.payload is not None for message in messages)
        if links:
            _check_only_link(messages, name)
        _check_sizes(messages, partition.definition)
        data, headers = _batch(config, messages, partition.preconditions.hash_key, links=links)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        batch = UnstampedBatch(
            data=data,
            record_count=len(messages),
            headers=headers,
            on_committed=_resolver(loop, done, name, partition),
            attributes=PAYLOAD_LINKS if links else 0,
        )
        written: asyncio.Future[None] = loop.create_future()
        self._append(partition, [batch], _waker(loop, written) if links else None)
        try:
            offset = await done
            if links:
                await written  # others may sync and copy the record before its payload has it
            return offset, batch.record_count
        except PublishRejected as error:
            if error.err_code == ack_codes.NOT_STORED:
                self._check_leads(partition)
            raise

    def _check_leads(self, partition: Partition) -> None:
        if not partition.is_leader or partition.has_handed_over:
            raise NotLeader.of_partition(partition.state, partition.leader_epoch)


def check_message(definition: StreamDefinition, message: ClientMessage) -> None:
    """Compare a message with what is asked of all messages of a stream, before it is published.

    What the state of the stream, its log or its ids of messages decide is left to the leader.
    Raises: PublishRejected.
    """
    links = message.payload is not None
    if links:
        _check_only_link([message], definition.name)
    _check_sizes([message], definition)
    hash_key = HashKey(bytes(16))
    data, headers = _batch(definition.config, [message], hash_key, links=links)
    acks = AckFormat(stream=definition.name, subject="", partition=0, replicas=1, synced=False)
    batch = UnstampedBatch(
        data=data, record_count=1, headers=headers, on_committed=lambda offset, error: None
    )
    found = Preconditions(definition, acks, hash_key).evaluate(batch, next_offset=0, now_ms=0)
    error = None if found is None or found.outcome is None else found.outcome.error
    if error is not None and error.err_code in LASTING_REFUSALS:
        raise publish_error(error.code, error.err_code, error.description, definition.name)


def _check_sizes(messages: Sequence[ClientMessage], definition: StreamDefinition) -> None:
    """Raises: PublishRejected."""
    most = definition.config.message_bytes_max
    for message in messages:
        if message.wire_bytes > most:
            error = too_large(most, message.wire_bytes)
            raise publish_error(error.code, error.err_code, error.description, definition.name)


def _batch(
    config: StreamConfig, messages: Sequence[ClientMessage], hash_key: HashKey, *, links: bool
) -> tuple[memoryview, PublishHeaders]:
    """The batch of messages, and their publish headers."""
    records = [_record(config, row, message) for row, message in enumerate(messages)]
    data = memoryview(build_batch(records, base_offset=0, log_append_time=True))
    return data, read_publish_headers(data, len(records), hash_key, own_links=links)


def _check_only_link(messages: Sequence[ClientMessage], stream: str) -> None:
    """The headers of a batch with a link are not compared: they must be the node's own.

    Raises: ValueError if there are several messages; PublishRejected for a header of the client.
    """
    if len(messages) != 1:
        raise ValueError("a message with a payload is published alone")
    for header, _ in messages[0].headers:
        if header.lower().startswith(RESERVED_PREFIX):
            error = unsupported_header(header)
            raise publish_error(error.code, error.err_code, error.description, stream)


def _record(config: StreamConfig, row: int, message: ClientMessage) -> Record:
    """The record of a message, as ingest makes it."""
    key = message.key
    if key is None and config.key_from is KeyFrom.SUBJECT:
        key = message.subject.encode()
    headers: tuple[tuple[str, bytes | None], ...] = message.headers
    if message.payload is not None:
        headers = (*headers, *message.payload.headers())
    kept = RecordHeader.SUBJECT in config.record_headers
    if kept or message.subject != config.literal_subject:
        headers = (("subject", message.subject.encode()), *headers)
    return Record(row, 0, key, message.value, headers)


def encodable(record: InternalRecord) -> EncodableRecord:
    """The record with its subject as the first header."""
    return record.key, record.value, (("subject", record.subject.encode()), *record.headers)


def _encode(records: list[EncodableRecord]) -> bytearray:
    batch = encode_records(records, HEADER_BYTES)
    seal(batch, record_count=len(records), base_timestamp=0, max_timestamp=0)
    return batch


def _waker(loop: asyncio.AbstractEventLoop, waiting: asyncio.Future[None]) -> Callable[[], None]:
    """Sets the result, from another thread."""

    def wake() -> None:
        if not waiting.done():
            waiting.set_result(None)

    return partial(_on_loop, loop, wake)


def _on_loop(
    loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object
) -> None:
    """Call it there soon. Once the loop is closed no caller waits."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)


def _resolver(
    loop: asyncio.AbstractEventLoop,
    done: asyncio.Future[int],
    stream: str = "",
    asked: Partition | None = None,
) -> Callable[[int, AckError | None], None]:
    """`asked`: its `NOT_LEADING` is a `NotLeader`, also where the partition has not heard of that
    yet."""

    def resolve(base_offset: int, error: AckError | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(base_offset)
        elif error is NOT_LEADING and asked is not None:
            done.set_exception(NotLeader.of_partition(asked.state, asked.leader_epoch))
        else:
            refused = publish_error(error.code, error.err_code, error.description, stream)
            done.set_exception(refused)

    return partial(_on_loop, loop, resolve)
