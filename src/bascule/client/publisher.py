"""Publishes with acks: single messages, or many in a window.

Delivery is at least once. A message is sent again if its ack is late or the NATS connection was
lost, so a stream may store it twice. An acked message is stored. Acks arrive on
`<inbox>.<window>.<index>`. Window 0 is for single messages; every `publish_many` opens its own
window.
"""

# These timeouts bound retries and report the attempts; they are not cancel scopes.
# ruff: noqa: ASYNC109

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections.abc import AsyncIterable, Callable, Iterable
from math import inf
from typing import Any, Final, TypeVar

import msgspec

from bascule.client.messages import Ack, Acks, Headers, MessageEncoder, MessageFields
from bascule.client.publish_window import (
    HasStream,
    MessageWindow,
    OnOtherReply,
    PublishWindow,
    reply_to_repeated,
)
from bascule.errors import (
    BasculeError,
    Indeterminate,
    NoResponders,
    RemoteProtocolError,
)
from bascule.nats_connection import MESSAGES_PER_PARSE, NatsConnection
from bascule.wire._hot import MESSAGE_FIELDS
from bascule.wire.ack_codes import publish_error

ACK_WAIT_S: Final = 1.0
"""Time to wait for an ack before the message is sent again."""
ACK_WAIT_GROWTH: Final = 1.5
"""With every attempt. NATS hands a message to one of several nodes, also to one that hangs: within
10 s five are asked."""
NO_RESPONDERS_WAIT_S: Final = 0.25
NO_RESPONDERS_ATTEMPTS: Final = 3
"""As in JetStream clients: a restarting node gets some time. A subject that a stream has is tried
until the deadline, because its partition is about to get a leader."""

R = TypeVar("R", bound=PublishWindow)


class _PubAck(msgspec.Struct):
    """A JetStream PubAck with Bascule's fields, or its error form."""

    stream: str = ""
    seq: int = 0
    partition: int = 0
    offset: int = -1
    replicas: int = 1
    synced: bool = False
    duplicate: bool = False
    error: dict[str, Any] | None = None


def decode_reply(data: bytes, subject: str, only: str | None = None) -> Ack | BasculeError | None:
    """Decode the reply to a publish: an ack, or an error; None: of another stream than `only`.

    `data` is the whole body: header block and payload. A reply of JetStream itself, which counts
    from 1 and has no offset, is also an ack.
    """
    if data.startswith(b"NATS/1.0 503"):
        return NoResponders(subject)
    try:
        reply = msgspec.json.decode(data, type=_PubAck)
    except msgspec.DecodeError:
        return RemoteProtocolError(
            f"the reply to a publish on {subject!r} is no ack: {data[:80]!r}; "
            "another program may reply on this subject"
        )
    if only and reply.stream != only and (reply.stream or reply.error is None):
        return None
    if reply.error is not None:
        return publish_error(
            int(reply.error.get("code", 0)),
            int(reply.error.get("err_code", 0)),
            str(reply.error.get("description", "no description")),
            reply.stream,
        )
    offset = reply.offset if reply.offset >= 0 else reply.seq - 1
    return Ack(
        reply.stream, offset + 1, offset, reply.partition, reply.replicas, reply.synced,
        reply.duplicate,
    )  # fmt: skip


class _PendingPublish:
    """One message waiting for its ack."""

    __slots__ = ("due", "frame", "reply", "stream", "subject", "unanswered")

    def __init__(self, subject: str, frame: bytes, stream: str | None) -> None:
        self.subject = subject
        self.frame = frame
        self.stream = stream
        self.due = inf
        """Loop time at which `reply` is None if there is none."""
        self.unanswered = 0
        """How many times it was sent without a reply so far."""
        self.renew()

    def renew(self) -> None:
        """Wait for the next reply."""
        self.reply: asyncio.Future[Ack | BasculeError | None] = (
            asyncio.get_running_loop().create_future()
        )


class Publisher:
    """Manages all messages that wait for acks on one NATS connection."""

    def __init__(self, nats: NatsConnection, *, has_stream: HasStream) -> None:
        """`has_stream` is asked before a subject without responders is given up."""
        self._nats = nats
        self._has_stream = has_stream
        self._encoder = MessageEncoder()
        self._pending: dict[int, _PendingPublish] = {}
        self._timer: asyncio.TimerHandle | None = None
        """Of the first of them that is due: one for all."""
        self._windows: dict[int, PublishWindow] = {}
        self._indexes = itertools.count()
        self._window_ids = itertools.count(1)
        self._leftover = array("i", bytes(4 * MESSAGES_PER_PARSE))
        self._state = array("q", [0])
        nats.on_chunk = self._on_chunk
        nats.on_reconnect = self._on_reconnect
        nats.on_failed = self._on_failed

    async def publish(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes | str | None,
        headers: Headers | None,
        stream: str | None,
        timeout: float,
    ) -> Ack:
        """Publish and wait for the ack; see `Client.publish`."""
        deadline = asyncio.get_running_loop().time() + timeout
        if not self._nats.is_connected:
            await self._nats.wait_connected(timeout)
        index = next(self._indexes)
        reply = f"{self._nats.inbox}.0.{index}".encode()
        frame = self._encoder.encode(reply, subject, value, key, headers)
        self._nats.check_payload(frame)
        pending = self._pending[index] = _PendingPublish(subject, frame, stream)
        try:
            return await self._until_acked(pending, deadline, timeout)
        finally:
            del self._pending[index]

    async def _until_acked(self, pending: _PendingPublish, deadline: float, timeout: float) -> Ack:
        loop = asyncio.get_running_loop()
        wait, refusals = ACK_WAIT_S, 0
        for attempt in itertools.count(1):
            self._nats.check_open()
            self._send(pending)
            if self._nats.is_full:
                await self._nats.drain()
            now = loop.time()
            self._wake_at(pending, min(now + wait, max(now, deadline)))
            reply = await pending.reply
            if isinstance(reply, Ack):
                return reply
            if reply is None:
                wait *= ACK_WAIT_GROWTH
            elif not isinstance(reply, NoResponders):
                if pending.unanswered > 1:
                    raise reply_to_repeated(reply, pending.frame)
                raise reply
            else:
                pending.unanswered -= 1
                refusals += 1
                if refusals == NO_RESPONDERS_ATTEMPTS and not await self._has_stream(
                    pending.subject, pending.stream
                ):
                    raise reply
                pending.renew()
                await asyncio.sleep(min(NO_RESPONDERS_WAIT_S, max(deadline - loop.time(), 0)))
                if loop.time() >= deadline and refusals == attempt:
                    raise reply
            if loop.time() >= deadline:
                raise Indeterminate(self._silence(pending.subject, timeout, attempt))
        raise AssertionError("unreachable")

    def _send(self, pending: _PendingPublish) -> None:
        pending.unanswered += 1
        self._nats.send(pending.frame)

    def _wake_at(self, pending: _PendingPublish, due: float) -> None:
        """Have its reply be None at loop time `due`, unless there is one before. As most are due in
        the order in which they were sent, that is seldom more than a comparison."""
        pending.due = due
        if self._timer is None or due < self._timer.when():
            self._set_timer(due)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now, first = asyncio.get_running_loop().time(), inf
        for pending in self._pending.values():
            if pending.due <= now:
                reply = pending.reply
                pending.due = inf
                if not reply.done():
                    pending.renew()  # what comes from now on is not lost
                    reply.set_result(None)
            first = min(first, pending.due)
        if first < inf:
            self._set_timer(first)

    def _silence(self, subject: str, timeout: float, attempts: int) -> str:
        said = self._nats.last_error
        return (
            f"no ack within {timeout} s for a message on {subject!r} after {attempts} attempts: "
            "it may or may not be stored" + (f"; the NATS server said: {said}" if said else "")
        )

    async def publish_many(
        self,
        messages: Iterable[MessageFields] | AsyncIterable[MessageFields],
        *,
        window: int,
        stream: str | None,
        timeout: float,
        on_progress: Callable[[int], None] | None,
        on_other_reply: OnOtherReply | None,
        reply_wait: float,
    ) -> Acks:
        """Publish all, with at most `window` messages without ack; see `Client.publish_many`."""

        def create(nats: NatsConnection, id: int, has_stream: HasStream) -> MessageWindow:
            return MessageWindow(
                nats,
                self._encoder,
                id=id,
                has_stream=has_stream,
                window=window,
                stream=stream,
                timeout=timeout,
                on_progress=on_progress,
                on_other_reply=on_other_reply,
                reply_wait=reply_wait,
            )

        publish_window = await self.open_window(create, timeout)
        try:
            return await publish_window.publish_all(messages)
        finally:
            self.close_window(publish_window)

    async def open_window(
        self, create: Callable[[NatsConnection, int, HasStream], R], timeout: float
    ) -> R:
        """Open a window with a new id. `create` makes it, and it receives replies from now on.

        Raises: Broken if there is no connection within `timeout` seconds.
        """
        await self._nats.wait_connected(timeout)
        publish_window = create(self._nats, next(self._window_ids), self._has_stream)
        self._windows[publish_window.id] = publish_window
        return publish_window

    def close_window(self, publish_window: PublishWindow) -> None:
        """Ignore further replies for the window. Idempotent."""
        publish_window.close()
        self._windows.pop(publish_window.id, None)

    def publish_nowait(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes | str | None,
        headers: Headers | None,
    ) -> None:
        """Send a message without waiting for an ack; see `Client.publish_nowait`."""
        self._nats.check_open()
        frame = self._encoder.encode(b"", subject, value, key, headers)
        self._nats.check_payload(frame)
        self._nats.send(frame)

    def _on_chunk(self, data: bytes, positions: array[int], count: int) -> None:
        """Process the replies of one chunk: common acks in compiled code, the others one by one."""
        inbox_bytes = len(self._nats.inbox) + 1
        rows: Iterable[int] = range(count)
        for number, publish_window in enumerate(self._windows.values()):
            left = publish_window.collect(
                data, positions, count, inbox_bytes, self._leftover, self._state
            )
            rows = left if number == 0 else sorted({*rows} & {*left})
        for row in rows:
            self._on_reply(data, positions[row * MESSAGE_FIELDS : (row + 1) * MESSAGE_FIELDS])
        for publish_window in self._windows.values():
            publish_window.moved()

    def _on_reply(self, data: bytes, fields: array[int]) -> None:
        _, subject_at, subject_bytes, _, _, _, body_at, body_bytes = fields
        reply_subject = data[subject_at : subject_at + subject_bytes]
        body = data[body_at : body_at + body_bytes]
        try:
            window_id, index = map(int, reply_subject.rsplit(b".", 2)[1:])
        except ValueError:
            return
        if window_id == 0:
            pending = self._pending.get(index)
            if pending is None or pending.reply.done():
                return
            reply = decode_reply(body, pending.subject, pending.stream)
            if reply is not None:
                pending.reply.set_result(reply)
        elif (publish_window := self._windows.get(window_id)) is not None:
            subject = publish_window.subject_of(index)
            decoded = decode_reply(body, subject, publish_window.only)
            if decoded is not None:
                publish_window.on_reply(index, decoded)

    def _on_reconnect(self) -> None:
        for pending in self._pending.values():
            if not pending.reply.done():
                self._send(pending)
        for publish_window in self._windows.values():
            publish_window.resend_all()

    def _on_failed(self, error: Exception) -> None:
        wrapped = error if isinstance(error, BasculeError) else Indeterminate(str(error))
        for pending in self._pending.values():
            if not pending.reply.done():
                pending.reply.set_result(wrapped)
        for publish_window in self._windows.values():
            publish_window.fail(wrapped)
