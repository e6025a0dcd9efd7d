"""A window of publishes without ack: what was sent, what is acked, what must be sent again."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import Final, TypeAlias

from bascule.client import _hot
from bascule.client.messages import Ack, Acks, MessageEncoder, MessageFields
from bascule.client.subject_inquiry import WhySilent, never_known
from bascule.errors import BasculeError, Indeterminate, NoResponders, PublishRejected
from bascule.nats_connection import NatsConnection
from bascule.wire import ack_codes

CHUNK_MESSAGES_MAX: Final = 1_000
CHUNK_BYTES_MAX: Final = 256 << 10
"""Size of a chunk. Received data is processed between two chunks."""
ACK_WAIT_S: Final = 5.0
"""Time before late messages are sent again; it doubles while there is no progress."""
TICK_S: Final = 0.5
REFUSED_WAIT_S: Final = 0.25
REFUSALS_MAX: Final = 3
"""After so many refusals of the first message ask whether there is a stream."""

PASSING: Final = frozenset(
    {
        ack_codes.NOT_STORED,
        ack_codes.PAUSED,
        ack_codes.READ_ONLY,
        ack_codes.RATE_EXCEEDED,
        ack_codes.NOT_ENOUGH_REPLICAS,
    }
)
"""Refusals for a state of the stream: the same message was taken before, perhaps."""
CONDITIONS: Final = frozenset({ack_codes.WRONG_LAST_ID, ack_codes.WRONG_LAST_SEQUENCE})
"""Refusals for a condition that the same message may have broken, unless it has a message id: then
its repetition is acked, within the dedupe window."""
_MESSAGE_ID: Final = re.compile(rb"\r\nnats-msg-id:[ \t]*[^ \t\r]", re.IGNORECASE)

HasStream: TypeAlias = Callable[[str, str | None], Awaitable[bool]]
"""Whether a stream has this subject, or the named one may get it by a subject mapping. A stream
without responders is about to get a leader."""
OnOtherReply: TypeAlias = Callable[[int, Ack | BasculeError], None]
"""Called with the number of a message and a reply to it beside the ack that counts."""


def reply_to_repeated(reply: BasculeError, frame: bytes) -> BasculeError:
    """What `reply` says of a message that was sent more than once without another reply."""
    if not isinstance(reply, PublishRejected):
        return reply
    reply.is_repeated = True
    if ack_codes.is_not_caught_up(reply):
        return reply
    if reply.err_code not in PASSING and (reply.err_code not in CONDITIONS or _has_id(frame)):
        return reply
    return Indeterminate(
        "message was sent more than once: one attempt was refused, another one may be stored: "
        f"{reply}"
    )


def _has_id(frame: bytes) -> bool:
    """Whether an operation of `MessageEncoder` or `ColumnBuffers` has a message id."""
    if not frame.startswith(b"HPUB "):
        return False
    start = frame.index(b"\r\n") + 2
    block_bytes = int(frame[:start].split()[-2])
    return _MESSAGE_ID.search(frame, start, start + block_bytes) is not None


class PublishWindow(ABC):
    """Messages without ack, oldest first, and the columns of their acks.

    Subclasses store the frames. Invariant: every message before `_first` is acked, and entry 0 of
    the ack columns is message `_base`.
    """

    def __init__(
        self,
        nats: NatsConnection,
        *,
        id: int,
        has_stream: HasStream,
        window: int,
        stream: str | None,
        timeout: float,
        on_progress: Callable[[int], None] | None,
        on_other_reply: OnOtherReply | None = None,
        reply_wait: float = 0.0,
    ) -> None:
        if window < 1:
            raise ValueError(f"window is {window}: expected at least 1")
        self._nats = nats
        self.id = id
        """The token between the inbox and a message's index in reply subjects."""
        self._has_stream = has_stream
        self._window = window
        self._chunk = max(1, min(CHUNK_MESSAGES_MAX, window // 4))
        self._timeout = timeout
        self._on_progress = on_progress
        self._on_other_reply = on_other_reply
        self._reply_wait = 0.0 if on_other_reply is None else reply_wait
        """Seconds that an error waits for another stream's ack, and the end for more replies."""
        self._prefix = f"{nats.inbox}.{id}.".encode()
        self._acks = Acks()
        self.only = stream
        """The stream whose replies count; None: the first reply counts."""
        if stream is not None:
            self._acks.names.append(stream)
        self._base = 0
        self._first = 0
        self._count = 0
        """Messages accepted so far, with or without ack."""
        self._acked = 0
        self._reported = 0
        self._sent: deque[tuple[int, float]] = deque()
        """(End index, time first sent) of each chunk with messages without ack."""
        self._repeated_end = 0
        """Messages before it were sent again, if they had no ack then: the connection was new, or
        the ack late. Not those that nobody had taken."""
        self._ticking: asyncio.TimerHandle | None = None
        """Until the next look for late acks; the caller may have nothing to send for long."""
        self._resent_at = 0.0
        self._ack_wait = ACK_WAIT_S
        self.why_silent: WhySilent = never_known
        """Asked before late messages are sent again."""
        self._asking: asyncio.Task[None] | None = None
        self._refused: set[int] = set()
        """Messages without responders that are not sent again yet."""
        self._refused_before: set[int] = set()
        """Those that were sent again last."""
        self._refusals = 0
        self._retrying: asyncio.Task[None] | None = None
        self._failure: BasculeError | None = None
        self._wanted = 0
        """`_settle` is woken when at most so many messages are without ack."""
        self._moved = asyncio.Event()

    @abstractmethod
    def subject_of(self, index: int) -> str:
        """The subject of a message without ack; `?` if its frame is not held."""

    @abstractmethod
    def _frames_of(self, indexes: list[int]) -> list[bytes]:
        """The frames of messages at or after `_first`, in ascending order."""

    @abstractmethod
    def _forget(self, first: int) -> None:
        """Drop the frames before message `first`. `_first` still has its old value."""

    def _explain(self, index: int, reply: BasculeError) -> BasculeError:
        """The error that ends the window because of this reply."""
        if index < self._repeated_end:
            (frame,) = self._frames_of([index])
            reply = reply_to_repeated(reply, frame)
        reply.add_note(f"it was message {index} on {self.subject_of(index)!r}")
        return reply

    async def _pace(self) -> None:
        """Wait while the window or the socket is full. Called after each chunk."""
        await self._nats.drain()
        if self._count - self._acked > self._window - self._chunk:
            await self._settle(self._window - self._chunk)
        else:
            await asyncio.sleep(0)
            # A window that is never full must send again, too.
            self._check_late()
        if self._failure is not None:
            raise self._failure

    async def _settle(self, wanted: int) -> None:
        """Wait until at most `wanted` messages are without ack. Send late ones again meanwhile."""
        self._wanted = wanted
        while self._count - self._acked > wanted:
            self._moved.clear()
            try:
                async with asyncio.timeout(TICK_S):
                    await self._moved.wait()
            except TimeoutError:
                self._check_late()
            if self._failure is not None:
                raise self._failure

    def _note_sent(self) -> None:
        """The messages accepted so far were sent now. From now on their acks may be late."""
        loop = asyncio.get_running_loop()
        self._sent.append((self._count, loop.time()))
        if self._ticking is None:
            self._ticking = loop.call_later(TICK_S, self._on_tick)

    def _on_tick(self) -> None:
        self._ticking = None
        if self._failure is not None or not self._sent:
            return
        try:
            self._check_late()
        except BasculeError as error:
            self.fail(error)
        else:
            self._ticking = asyncio.get_running_loop().call_later(TICK_S, self._on_tick)

    def close(self) -> None:
        """Send nothing again. Idempotent."""
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        if self._asking is not None:
            self._asking.cancel()

    def _check_late(self) -> None:
        self._nats.check_open()
        now = asyncio.get_running_loop().time()
        if not self._sent:
            return
        first_sent = self._sent[0][1]
        if now - first_sent > self._timeout:
            raise self._silence()
        if now - max(first_sent, self._resent_at) > self._ack_wait:
            late = next(
                (end for end, at in reversed(self._sent) if now - at > self._ack_wait), self._first
            )
            self._resent_at = now
            self._ack_wait *= 2
            if self._asking is None or self._asking.done():
                self._asking = asyncio.get_running_loop().create_task(self._resend_late(late))

    async def _resend_late(self, late: int) -> None:
        """Send the messages before `late` again, unless nobody will ever ack the first of them."""
        first = self._first
        if first == self._count:
            return
        why = await self.why_silent(self._frames_of([first])[0], self.only)
        if why is not None and self._first == first:
            self.fail(self._explain(first, why))
        elif self._failure is None:
            self._repeated_end = max(self._repeated_end, late)
            self._resend(range(self._first, late))

    def _silence(self) -> BasculeError:
        subject = self.subject_of(self._first)
        if self._first in self._refused or self._first in self._refused_before:
            return NoResponders(subject)
        said = self._nats.last_error
        return Indeterminate(
            f"no ack within {self._timeout} s for message {self._first} on {subject!r}: "
            "it may or may not be stored" + (f"; the NATS server said: {said}" if said else "")
        )

    def collect(
        self,
        data: bytes,
        positions: array[int],
        count: int,
        inbox_bytes: int,
        leftover: array[int],
        state: array[int],
    ) -> list[int]:
        """Store this window's common acks of a chunk. Return the rows that are something else."""
        acks = self._acks
        name = acks.names[0].encode() if acks.names else b""
        self._acked += _hot.collect_acks(
            data, positions, count, inbox_bytes, self.id, name,
            acks.offsets, acks.partitions, acks.details, leftover, state, self._base,
        )  # fmt: skip
        return leftover[: state[0]].tolist()

    def on_reply(self, index: int, reply: Ack | BasculeError) -> None:
        """Process one reply that `collect` left."""
        if not self._first <= index < self._count or self._acks.offsets[index - self._base] >= 0:
            if self._on_other_reply is not None and 0 <= index < self._count:
                self._on_other_reply(index, reply)
            return
        if isinstance(reply, Ack):
            self._acked += self._acks.put(index - self._base, reply)
        elif isinstance(reply, NoResponders):
            if not self._refused:
                self._retrying = asyncio.get_running_loop().create_task(self._retry_refused())
            self._refused.add(index)
        elif self._reply_wait:
            loop = asyncio.get_running_loop()
            loop.call_later(self._reply_wait, self._on_late_error, index, reply)
        else:
            self.fail(self._explain(index, reply))

    def _on_late_error(self, index: int, reply: BasculeError) -> None:
        """End the window, unless another stream has acked the message meanwhile."""
        if index >= self._first and self._acks.offsets[index - self._base] < 0:
            self.fail(self._explain(index, reply))
        elif self._on_other_reply is not None:
            self._on_other_reply(index, reply)

    def moved(self) -> None:
        """Drop acked messages. Called after every chunk of replies."""
        base = self._base
        first = base + _hot.first_unacked(
            self._acks.offsets, self._first - base, self._count - base
        )
        if first > self._first:
            self._forget(first)
            self._first = first
            self._ack_wait = ACK_WAIT_S
            while self._sent and self._sent[0][0] <= first:
                self._sent.popleft()
        if self._on_progress is not None and self._acked > self._reported:
            self._reported = self._acked
            self._on_progress(self._acked)
        if self._count - self._acked <= self._wanted:
            self._moved.set()

    def resend_all(self) -> None:
        """Send every message without ack again, because the connection is new."""
        self._resent_at = asyncio.get_running_loop().time()
        if self._sent:
            # What was accepted since then is sent for the first time.
            self._repeated_end = max(self._repeated_end, self._sent[-1][0])
        if not self._sent or self._sent[-1][0] < self._count:
            self._note_sent()
        self._resend(range(self._first, self._count))

    def fail(self, error: BasculeError) -> None:
        """End the window. Messages without ack stay undecided."""
        if self._failure is None:
            self._failure = error
        self._moved.set()

    async def _retry_refused(self) -> None:
        """Send refused messages again, unless there is no stream for them."""
        await asyncio.sleep(REFUSED_WAIT_S)
        self._refusals += 1
        subject = self.subject_of(min(self._refused))
        has_none = self._may_give_up() and not await self._has_stream(subject, self.only)
        refused = sorted(i for i in self._refused if i >= self._first)
        self._refused, self._refused_before = set(), self._refused
        if has_none and self._may_give_up():
            self.fail(NoResponders(subject))
        elif self._failure is None:
            self._resend(refused)

    def _may_give_up(self) -> bool:
        """Whether so many refusals of the first messages may mean that there is no stream."""
        return self._refusals == REFUSALS_MAX and self._acked == 0

    def _resend(self, indexes: Iterable[int]) -> None:
        offsets, base = self._acks.offsets, self._base
        unacked = [i for i in indexes if offsets[i - base] < 0]
        if unacked:
            self._nats.send(b"".join(self._frames_of(unacked)))


class MessageWindow(PublishWindow):
    """The window of one `publish_many`: `_frames[i]` is message `_first + i`."""

    def __init__(
        self,
        nats: NatsConnection,
        encoder: MessageEncoder,
        *,
        id: int,
        has_stream: HasStream,
        window: int,
        stream: str | None,
        timeout: float,
        on_progress: Callable[[int], None] | None,
        on_other_reply: OnOtherReply | None = None,
        reply_wait: float = 0.0,
    ) -> None:
        super().__init__(
            nats, id=id, has_stream=has_stream, window=window, stream=stream, timeout=timeout,
            on_progress=on_progress, on_other_reply=on_other_reply, reply_wait=reply_wait,
        )  # fmt: skip
        self._encoder = encoder
        self._frames: list[bytes] = []
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0

    async def publish_all(
        self, messages: Iterable[MessageFields] | AsyncIterable[MessageFields]
    ) -> Acks:
        """Publish all messages in order and wait for all acks."""
        try:
            if isinstance(messages, AsyncIterable):
                async for fields in messages:
                    if self._take(fields):
                        await self._flush()
            else:
                for fields in messages:
                    if self._take(fields):
                        await self._flush()
            await self._flush()
            await self._settle(0)
            if self._reply_wait:
                await asyncio.sleep(self._reply_wait)
        except BasculeError as error:
            error.add_note(f"{self._acked} of {self._count} messages were acked")
            raise
        self._acks.cut(self._count)
        return self._acks

    def subject_of(self, index: int) -> str:
        if not 0 <= index - self._first < len(self._frames):
            return "?"
        return self._frames[index - self._first].split(b" ", 2)[1].decode()

    def resend_all(self) -> None:
        self._unsent.clear()
        self._unsent_bytes = 0
        super().resend_all()

    def _take(self, fields: MessageFields) -> bool:
        """Encode one message. Return whether the chunk is full."""
        index = self._count
        frame = self._encoder.encode(b"%b%d" % (self._prefix, index), *fields)
        self._nats.check_payload(frame)
        if not self._unsent:
            # If the source waits, the messages so far are sent meanwhile.
            asyncio.get_running_loop().call_soon(self._send_chunk)
        if len(self._acks) <= index:
            self._acks.make_room(max(self._window, index // 4))
        self._frames.append(frame)
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)
        self._count = index + 1
        return len(self._unsent) >= self._chunk or self._unsent_bytes >= CHUNK_BYTES_MAX

    async def _flush(self) -> None:
        self._send_chunk()
        await self._pace()

    def _send_chunk(self) -> None:
        if not self._unsent:
            return
        self._nats.send(b"".join(self._unsent))
        self._unsent.clear()
        self._unsent_bytes = 0
        self._note_sent()

    def _frames_of(self, indexes: list[int]) -> list[bytes]:
        return [self._frames[i - self._first] for i in indexes]

    def _forget(self, first: int) -> None:
        del self._frames[: first - self._first]
