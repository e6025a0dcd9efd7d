"""The requests about buckets and their entries."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Protocol

from bascule.config import StreamDefaults
from bascule.errors import (
    BasculeError,
    CannotAlter,
    ConfigError,
    CorruptData,
    Indeterminate,
    InvalidKey,
    InvalidName,
    InvalidPattern,
    LogFailed,
    NotEnoughNodes,
    PartitionFailed,
    PublishRejected,
    StreamConflict,
)
from bascule.keyvalue.buckets import (
    STREAM_PREFIX,
    bucket_of_stream,
    stream_info,
    table_changes,
    table_config,
)
from bascule.keyvalue.consumers import PushConsumers
from bascule.keyvalue.held_tables import HeldTable, HeldTables
from bascule.keyvalue.messages import (
    BAD_REQUEST,
    KV_OPERATION,
    MESSAGE_NOT_FOUND,
    STREAM_NAME_IN_USE,
    UNAVAILABLE,
    ApiError,
    answer,
    error_answer,
    not_served,
    operation_of,
    publish,
    publish_with_headers,
    time_text,
)
from bascule.keyvalue.requests import (
    ApiRequest,
    BucketConfig,
    MessageRequest,
    PageRequest,
    SubjectPurgeRequest,
)
from bascule.model import StreamConfig, StreamDefinition
from bascule.replica.internal_publisher import ClientMessage
from bascule.replica.partition import Partition
from bascule.tables._hot import FORGOTTEN
from bascule.tables.rows import Row
from bascule.wire.ack_codes import NO_KEY, last_sequence
from bascule.wire.tables.conditions import FORGETTING_HEADERS, SEQUENCE_HEADER

PAGE_NAMES: Final = 1024
PAGE_ENTRIES: Final = 256
"""As JetStream: a page has to be smaller than the NATS server's `max_payload`."""
API_LEVEL: Final = 1
"""From this level on JetStream has `Nats-TTL`; nats.go asks for `LimitMarkerTTL` only then."""
_BY_ANY_REPLICA: Final = frozenset({"DIRECT.GET", "STREAM.INFO", "CONSUMER.CREATE"})
_NOT_HERE: Final = (PartitionFailed, CorruptData, LogFailed, Indeterminate)
"""The replica of this node has stopped, its table cannot be read, or is behind."""
_ACCOUNT_LIMITS: Final = (
    "max_memory",
    "max_storage",
    "max_streams",
    "max_consumers",
    "max_ack_pending",
    "memory_max_stream_bytes",
    "storage_max_stream_bytes",
)


class Elsewhere(Exception):
    """Another node has to answer: one that holds the bucket, or leads it."""

    def __init__(self, bucket: str, *, leader: bool) -> None:
        super().__init__(bucket)
        self.bucket = bucket
        self.leader = leader


class Streams(Protocol):
    """Creates and deletes streams; implemented by `controller`."""

    async def create_stream(
        self, name: str, config: StreamConfig
    ) -> tuple[StreamDefinition, bool]: ...

    async def delete_stream(self, name: str) -> None: ...

    async def alter_stream(self, name: str, changes: Mapping[str, Any]) -> StreamDefinition: ...


class MarkerPublisher(Protocol):
    """Publishes messages to the partitions that this node leads."""

    async def publish_message(self, partition: Partition, message: ClientMessage) -> int: ...


class BucketApi:
    """Answers requests. Belongs to the event loop."""

    def __init__(
        self,
        tables: HeldTables,
        streams: Streams,
        consumers: PushConsumers,
        publisher: MarkerPublisher,
        defaults: StreamDefaults,
    ) -> None:
        self._publisher = publisher
        self._tables = tables
        self._streams = streams
        self._consumers = consumers
        self._defaults = defaults

    async def answer(self, request: ApiRequest, reply: str) -> bytes:
        """The NATS operation that answers a request. Raises: Elsewhere."""
        try:
            return await self._answer(request, reply)
        except ApiError as error:
            return refusal(request, reply, error)
        except (InvalidKey, InvalidPattern) as error:
            return refusal(request, reply, ApiError(400, BAD_REQUEST, str(error)))
        except BasculeError as error:
            if isinstance(error, _NOT_HERE) and request.operation in _BY_ANY_REPLICA:
                self._leave_to_others(request)
            return refusal(request, reply, ApiError(503, UNAVAILABLE, str(error)))

    async def _answer(self, request: ApiRequest, reply: str) -> bytes:
        match request.operation:
            case "DIRECT.GET":
                return await self._get_direct(request, reply)
            case "INFO":
                body = self._account()
            case "STREAM.NAMES":
                body = self._page(request, [f"{STREAM_PREFIX}{name}" for name in self._names()])
            case "STREAM.LIST":
                body = await self._list(request)
            case "STREAM.INFO":
                body = await self._info(self._held(request))
            case "STREAM.CREATE":
                body = await self._create(request)
            case "STREAM.UPDATE":
                body = await self._update(request)
            case "STREAM.DELETE":
                definition = self._tables.definition(bucket_of_stream(request.stream))
                await self._streams.delete_stream(definition.name)
                body = {"success": True}
            case "STREAM.PURGE":
                body = await self._purge(request)
            case "STREAM.MSG.GET":
                body = await self._get_message(request)
            case "CONSUMER.CREATE":
                body = await self._consumers.create(self._held(request), request)
            case "CONSUMER.NAMES" | "CONSUMER.LIST":
                found = self._consumers.listed(bucket_of_stream(request.stream))
                if request.operation == "CONSUMER.NAMES":
                    found = [each["name"] for each in found]
                body = self._page(request, found, "consumers")
            case "CONSUMER.DURABLE.CREATE":
                raise not_served("durable consumers; read the stream with a Kafka client")
            case _:
                raise not_served(f"the request {request.operation}")
        return publish(reply, "", answer(request.kind, body))

    def _held(self, request: ApiRequest, *, leader: bool = False) -> HeldTable:
        """Raises: ApiError, Elsewhere."""
        bucket = bucket_of_stream(request.stream)
        found = self._tables.held(bucket, leader=leader)
        if found is None:
            raise Elsewhere(bucket, leader=leader)
        return found

    def _leave_to_others(self, request: ApiRequest) -> None:
        """Raises: Elsewhere if there is another replica."""
        bucket = bucket_of_stream(request.stream)
        with suppress(ApiError):  # it is deleted
            if self._tables.others(bucket):
                raise Elsewhere(bucket, leader=False)

    def _names(self) -> list[str]:
        return [name for name, _ in self._tables.buckets()]

    def _account(self) -> dict[str, Any]:
        limits = dict.fromkeys(_ACCOUNT_LIMITS, -1) | {"max_bytes_required": False}
        return {
            "memory": 0,
            "storage": 0,
            "streams": len(self._names()),
            "consumers": self._consumers.count,
            "limits": limits,
            "api": {"level": API_LEVEL, "total": 0, "errors": 0},
        }

    def _page(self, request: ApiRequest, found: list[Any], name: str = "streams") -> dict[str, Any]:
        offset = request.decode(PageRequest).offset
        limit = PAGE_NAMES if request.operation.endswith("NAMES") else PAGE_ENTRIES
        page = found[offset : offset + limit]
        return {"total": len(found), "offset": offset, "limit": limit, name: page}

    async def _list(self, request: ApiRequest) -> dict[str, Any]:
        """All buckets; what is not held here is shown without its number of keys."""
        found = []
        for bucket, definition in self._tables.buckets():
            held = self._tables.held(bucket)
            if held is not None:
                found.append(await self._info(held))
            else:
                found.append(_info_of(bucket, definition, keys=0))
        return self._page(request, found)

    async def _info(self, table: HeldTable) -> dict[str, Any]:
        log = table.partition.log
        return stream_info(
            table.bucket,
            table.definition,
            keys=await table.replica.count_quickly(),
            size_bytes=0 if log is None else log.size_bytes(),
            first=table.partition.start_offset,
            end=table.partition.high_watermark.offset,
            consumers=self._consumers.count_of(table.bucket),
        )

    async def _create(self, request: ApiRequest) -> dict[str, Any]:
        bucket = bucket_of_stream(request.stream)
        config = table_config(bucket, request.decode(BucketConfig), self._defaults)
        try:
            definition, created = await self._streams.create_stream(bucket, config)
        except StreamConflict as error:
            raise ApiError(400, STREAM_NAME_IN_USE, str(error)) from error
        except (ConfigError, InvalidName, NotEnoughNodes) as error:
            raise ApiError(400, BAD_REQUEST, str(error)) from error
        return {**_info_of(bucket, definition, keys=0), "did_create": created}

    async def _update(self, request: ApiRequest) -> dict[str, Any]:
        """Clients that create a bucket or update it update first, also where nothing changes."""
        bucket = bucket_of_stream(request.stream)
        definition = self._tables.definition(bucket)
        changes = table_changes(bucket, request.decode(BucketConfig), definition.config)
        if changes:
            try:
                definition = await self._streams.alter_stream(definition.name, changes)
            except (ConfigError, CannotAlter, NotEnoughNodes) as error:
                raise ApiError(400, BAD_REQUEST, str(error)) from error
        held = self._tables.held(bucket)
        if held is None:
            return _info_of(bucket, definition, keys=0)
        return await self._info(replace(held, definition=definition))

    async def _purge(self, request: ApiRequest) -> dict[str, Any]:
        """Clients purge the markers of keys that were removed: watchers see these no more."""
        table = self._held(request, leader=True)
        asked = request.decode(SubjectPurgeRequest)
        if (subject := asked.filter) is None:
            raise not_served("purging a whole bucket; use `bascule stream purge`")
        row = await self._last(table, subject)
        if row is not None and row.value is not None:
            raise not_served(f"purging {subject}, which has a value: remove the key")
        if row is None or asked.keep or row.content_type == FORGOTTEN:
            return {"success": True, "purged": 0}
        return {"success": True, "purged": await self._forget(table, row)}

    async def _forget(self, table: HeldTable, removed: Row) -> int:
        """Remove a key once more; how many markers that has put out of sight."""
        expected = (SEQUENCE_HEADER, b"%d" % (removed.version + 1))
        message = ClientMessage(
            table.keys.subject(removed.key), None, None, (expected, *FORGETTING_HEADERS)
        )
        try:
            version = await self._publisher.publish_message(table.partition, message)
        except PublishRejected as error:
            if last_sequence(error) is None:
                raise
            return 0  # the key was set meanwhile
        await table.replica.wait_position(version + 1)
        return 1

    async def _last(self, table: HeldTable, subject: str) -> Row | None:
        """The last row of a subject; it has no value if the key was removed. Raises: ApiError if
        it is the subject of no key."""
        record_key = subject.encode()
        key = table.keys.table_key(record_key)
        if key is None:
            raise ApiError(400, NO_KEY, table.keys.why_no_key(record_key))
        await table.wait_applied()
        return (await table.replica.last([key])).get(key)

    async def _row(self, table: HeldTable, asked: MessageRequest) -> Row:
        """The row that a request for a message means. Raises: ApiError."""
        row = None
        if asked.next_by_subj:
            raise not_served("next_by_subj")
        if asked.last_by_subj is not None:
            row = await self._last(table, asked.last_by_subj)
        elif sequence := asked.seq:
            await table.wait_applied()
            row = await table.replica.at_version(sequence - 1)
        else:
            raise ApiError(400, BAD_REQUEST, "a message is asked for by last_by_subj or seq")
        if row is None or (row.value is None and row.content_type == FORGOTTEN):
            raise ApiError(404, MESSAGE_NOT_FOUND, "no message found")
        return row

    async def _get_direct(self, request: ApiRequest, reply: str) -> bytes:
        table = self._held(request)
        if request.rest:
            asked = MessageRequest(last_by_subj=request.rest)
        else:
            asked = request.decode(MessageRequest)
        row = await self._row(table, asked)
        headers = {
            "Nats-Stream": request.stream,
            "Nats-Subject": table.keys.subject(row.key),
            "Nats-Sequence": str(row.version + 1),
            "Nats-Time-Stamp": time_text(row.timestamp),
        }
        if row.value is None:
            headers[KV_OPERATION] = operation_of(row.content_type)
        return publish_with_headers(reply, "", headers, row.value or b"")

    async def _get_message(self, request: ApiRequest) -> dict[str, Any]:
        table = self._held(request, leader=True)
        row = await self._row(table, request.decode(MessageRequest))
        message: dict[str, Any] = {
            "subject": table.keys.subject(row.key),
            "seq": row.version + 1,
            "time": time_text(row.timestamp),
        }
        if row.value is None:
            head = f"NATS/1.0\r\n{KV_OPERATION}: {operation_of(row.content_type)}\r\n\r\n"
            message["hdrs"] = base64.b64encode(head.encode()).decode()
        elif row.value:
            message["data"] = (await asyncio.to_thread(base64.b64encode, row.value)).decode()
        return {"message": message}


def refusal(request: ApiRequest, reply: str, error: ApiError) -> bytes:
    """The operation that tells a client why it gets nothing."""
    if request.operation == "DIRECT.GET":
        text = f"{error.code} {' '.join(error.description.split())}"
        return publish_with_headers(reply, "", {}, b"", status=text)
    return publish(reply, "", error_answer(request.kind, error))


def _info_of(bucket: str, definition: StreamDefinition, *, keys: int) -> dict[str, Any]:
    return stream_info(bucket, definition, keys=keys, size_bytes=0, first=0, end=0, consumers=0)
