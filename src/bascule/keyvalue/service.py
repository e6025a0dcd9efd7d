"""`KeyValueService`: serves the key-value clients of a NATS server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from array import array
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import msgspec

from bascule.config import StreamDefaults
from bascule.controller.cluster.metadata_group import Peers
from bascule.errors import BasculeError, Broken
from bascule.host.api import Clock, Random
from bascule.host.lasting_tasks import start_lasting
from bascule.keyvalue.api import BucketApi, Elsewhere, MarkerPublisher, Streams, refusal
from bascule.keyvalue.buckets import STREAM_PREFIX, bucket_of_stream
from bascule.keyvalue.consumers import PushConsumers
from bascule.keyvalue.held_tables import HeldTables
from bascule.keyvalue.leaf import LeafLink
from bascule.keyvalue.messages import (
    CONSUMER_NOT_FOUND,
    UNAVAILABLE,
    ApiError,
    answer,
    larger_than_nats,
    payload_bytes,
    publish,
)
from bascule.keyvalue.requests import API, ApiRequest, parse_request
from bascule.nats_connection import NatsConnection
from bascule.wire import _hot as wire_hot
from bascule.wire.nats import ServerAddress, encode_sub

log = logging.getLogger("bascule.keyvalue")

KEY_VALUE: Final = "key_value"
"""The kind of control request for a request that another node answers."""
KEY_VALUE_ANSWER: Final = "key_value_answer"
"""The kind of control request for an answer that is to be sent to NATS from another node."""
QUEUE_GROUP: Final = "bascule.key_value"
CONNECT_SECONDS_MAX: Final = 10.0
SERVED_SECONDS_MAX: Final = 2.0
RETRY_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.25
FORWARD_SECONDS_MAX: Final = 4.0
OWNER_SECONDS: Final = 2.5
"""The node of a consumer answers at once; without an answer for so long there is none."""
REQUESTS_MAX: Final = 4_096
"""Requests that are answered at a time; further ones are refused."""

_REQUESTS_SID: Final = 2
_OWN_SIDS: Final = (3, 4)
_CONTROL_SID: Final = 5


class Controller(Streams, Protocol):
    """`controller.ClusterController`, as far as it is needed here."""

    def add_control(
        self, kind: str, handler: Callable[[bytes], Coroutine[Any, Any, bytes]]
    ) -> None: ...


class _Forwarded(msgspec.Struct, array_like=True):
    """A request that another node answers."""

    subject: str
    reply: str
    body: bytes


class KeyValueService:
    """Belongs to the event loop."""

    def __init__(
        self,
        connect: Callable[[], NatsConnection],
        may_connect: Callable[[], bool],
        leaf: Callable[[], ServerAddress | None],
        raised_to: Callable[[], int],
        tables: HeldTables,
        controller: Controller,
        peers: Peers,
        publisher: MarkerPublisher,
        *,
        defaults: StreamDefaults,
        clock: Clock,
        dice: Random,
        name: str,
    ) -> None:
        """`connect` makes a connection that does not reconnect by itself. It is made while
        `may_connect` is true: the connection that messages are stored from comes first, where a
        server has one left. `leaf` returns where the server takes leafnodes, without which nobody
        can watch. `raised_to` returns the server's `max_payload` where that is known to be higher
        than it has said to this node.
        """
        self._connect = connect
        self._may_connect = may_connect
        self._raised_to = raised_to
        self._connection: NatsConnection | None = None
        self._served = asyncio.Event()
        """Set while the server has the subscriptions."""
        self._tables = tables
        self._peers = peers
        self._leaf = LeafLink(
            leaf,
            name=name,
            on_interest=lambda subject: self.consumers.on_interest(subject),
            on_lost=self._on_leaf_lost,
            raised_to=raised_to,
        )
        self.consumers = PushConsumers(self._leaf, clock, dice)
        self._api = BucketApi(tables, controller, self.consumers, publisher, defaults)
        self._serving: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        controller.add_control(KEY_VALUE, self._answer_forwarded)
        controller.add_control(KEY_VALUE_ANSWER, self._send_forwarded)

    def start(self) -> None:
        """Connect and subscribe from now on, unless the NATS server has JetStream itself."""
        self._leaf.start()
        self._serving = start_lasting("key-value connection", self._serve)

    async def _serve(self) -> None:
        is_told = False
        while True:
            while not self._may_connect():  # noqa: ASYNC110  # a thread connects, and tells nobody
                await asyncio.sleep(LOOK_SECONDS)
            connection, lost = self._connect(), asyncio.Event()
            connection.on_chunk = self._on_messages
            connection.on_failed = lambda _, lost=lost: lost.set()  # type: ignore[misc]
            try:
                await connection.connect(CONNECT_SECONDS_MAX)
                self._connection, is_told = connection, False
                self._subscribe(connection)
                await connection.flush(CONNECT_SECONDS_MAX)
                self._served.set()
                await lost.wait()
            except BasculeError as error:
                if not is_told:
                    log.warning("key-value clients not served", extra={"error": str(error)})
                is_told = True
            finally:
                self._connection = None
                self._served.clear()
                await connection.close()
            await asyncio.sleep(RETRY_SECONDS)

    async def wait_served(self) -> None:
        """Return once clients are served, or left to JetStream, after `SERVED_SECONDS_MAX` in any
        case."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SERVED_SECONDS_MAX):
                await self._served.wait()

    async def close(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])
        await self.consumers.close()
        await self._leaf.close()
        for task in list(self._tasks):
            task.cancel()

    def _send(self, data: bytes) -> None:
        """Answers are dropped without a connection: their clients ask again."""
        if self._connection is not None and payload_bytes(data) <= self._payload_bytes_max:
            self._connection.send(data)

    @property
    def _payload_bytes_max(self) -> int:
        """What the NATS server takes in one message. It closes the connection, to which all
        clients' requests come, for more."""
        said = 0 if self._connection is None else self._connection.info.max_payload
        return max(said, self._raised_to())

    def _subscribe(self, connection: NatsConnection) -> None:
        if connection.info.jetstream:
            log.info("key-value clients left to the server's JetStream")
            return
        connection.send(
            encode_sub(f"{API}>", _REQUESTS_SID, group=QUEUE_GROUP)
            + encode_sub(f"{API}CONSUMER.INFO.>", _OWN_SIDS[0])
            + encode_sub(f"{API}CONSUMER.DELETE.>", _OWN_SIDS[1])
            + encode_sub(f"{self.consumers.control}.>", _CONTROL_SID)
        )

    def _on_messages(self, data: bytes, positions: array[int], count: int) -> None:
        for at in range(0, count * wire_hot.MESSAGE_FIELDS, wire_hot.MESSAGE_FIELDS):
            sid, subject_at, subject_bytes, reply_at, reply_bytes = positions[at : at + 5]
            header_bytes, body_at, body_bytes = positions[at + 5 : at + 8]
            subject = data[subject_at : subject_at + subject_bytes].decode(errors="replace")
            reply = data[reply_at : reply_at + reply_bytes].decode(errors="replace")
            body = data[body_at + header_bytes : body_at + body_bytes]
            if sid == _CONTROL_SID:
                self.consumers.on_control(subject)
            elif sid in _OWN_SIDS:
                self._answer_as_owner(subject, reply, body)
            elif sid == _REQUESTS_SID and reply:
                self._on_request(subject, reply, body)

    def _on_request(self, subject: str, reply: str, body: bytes) -> None:
        try:
            request = parse_request(subject, body)
        except ApiError as unknown:
            request = ApiRequest("UNKNOWN", "", "", b"")
            self._send(refusal(request, reply, unknown))
            return
        if request.operation in ("CONSUMER.INFO", "CONSUMER.DELETE"):
            loop = asyncio.get_running_loop()
            error = ApiError(404, CONSUMER_NOT_FOUND, "consumer not found")
            late = refusal(request, reply, error)
            loop.call_later(OWNER_SECONDS, self._send, late)
            return
        if len(self._tasks) >= REQUESTS_MAX:
            error = ApiError(503, UNAVAILABLE, f"{REQUESTS_MAX} requests are being answered")
            self._send(refusal(request, reply, error))
            return
        task = asyncio.create_task(self._handle(request, subject, reply))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, request: ApiRequest, subject: str, reply: str) -> None:
        try:
            found = await self._answer(request, subject, reply)
        except Exception:  # boundary: a bug fails one request
            log.exception("key-value request failed")
            error = ApiError(500, UNAVAILABLE, "internal error")
            found = refusal(request, reply, error)
        size, limit = payload_bytes(found), self._payload_bytes_max
        if self._connection is not None and size > limit:
            self.consumers.counts.oversize += 1
            bucket = request.stream.removeprefix(STREAM_PREFIX)
            self.consumers.oversize.report(
                bucket, f"answer to {request.operation}", found=size, limit=limit
            )
            found = refusal(request, reply, larger_than_nats(size, limit))
        if request.operation != "STREAM.CREATE" or not await self._send_from_leader(request, found):
            self._send(found)
        if self._connection is not None:
            await self._connection.drain()

    async def _answer(self, request: ApiRequest, subject: str, reply: str) -> bytes:
        """The operation that answers, by this node or by one that can."""
        try:
            return await self._api.answer(request, reply)
        except Elsewhere as elsewhere:
            body = msgspec.msgpack.encode(_Forwarded(subject, reply, request.body))
            why: Exception = Broken("no node has the bucket")
            for node in self._tables.others(elsewhere.bucket, leader=elsewhere.leader):
                try:
                    return await self._peers.control(
                        node, KEY_VALUE, body, timeout_s=FORWARD_SECONDS_MAX
                    )
                except BasculeError as error:
                    why = error
            return refusal(request, reply, ApiError(503, UNAVAILABLE, str(why)))

    async def _send_from_leader(self, request: ApiRequest, found: bytes) -> bool:
        """Have the node that leads a bucket send the answer to its creation, and return whether it
        has. NATS servers forward that behind the subscription to the bucket. So where the answer
        has come, a message to the bucket is not refused for want of a subscriber."""
        try:
            nodes = self._tables.others(bucket_of_stream(request.stream), leader=True)
            for node in nodes:
                await self._peers.control(
                    node, KEY_VALUE_ANSWER, found, timeout_s=FORWARD_SECONDS_MAX
                )
        except (ApiError, BasculeError):
            return False  # it was not created, or that node has an earlier release
        return bool(nodes)

    async def _send_forwarded(self, operation: bytes) -> bytes:
        """Send an answer of another node. Raises: Broken."""
        if self._connection is None:
            raise Broken("key-value clients are not served here now")
        self._send(operation)
        return b""

    async def _answer_forwarded(self, body: bytes) -> bytes:
        """Answer for another node. Raises: Broken if this node has no replica either."""
        asked = msgspec.msgpack.decode(body, type=_Forwarded)
        try:
            return await self._api.answer(parse_request(asked.subject, asked.body), asked.reply)
        except Elsewhere as elsewhere:
            raise Broken(f"this node does not serve the bucket {elsewhere.bucket}") from None

    def _answer_as_owner(self, subject: str, reply: str, body: bytes) -> None:
        """Answer what only the node of a consumer knows; another one says nothing."""
        try:
            request = parse_request(subject, body)
            bucket = bucket_of_stream(request.stream)
        except ApiError:
            return
        found = self.consumers.info(bucket, request.rest)
        if found is None:
            return
        if request.operation == "CONSUMER.DELETE":
            self.consumers.delete(bucket, request.rest)
            found = {"success": True}
        if reply:
            self._send(publish(reply, "", answer(request.kind, found)))

    def _on_leaf_lost(self) -> None:
        """Clients miss heartbeats, and begin again where they have stopped."""
        self.consumers.end_all()
