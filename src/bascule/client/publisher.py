"""Publishing with acks: one message at a time, or many in a window.

Promise: at least once. A message is sent again when its ack does not come in time and when the
NATS connection was lost, so a stream may hold it twice; a message that was acked is stored. Acks
arrive on `<inbox>.<run>.<index>`: run 0 is single publishes, every `publish_many` has its own.
"""

# A timeout here bounds retries and says what it did; it is no cancel scope.
# ruff: noqa: ASYNC109

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec

from bascule.client.messages import Ack, Acks, Encoder, Fields, Headers
from bascule.client.nats import MESSAGES_PER_PARSE, NatsConnection
from bascule.client.publish_window import PublishRun, Run
from bascule.errors import (
    BasculeError,
    Indeterminate,
    NoResponders,
    PublishRejected,
    RemoteProtocolError,
)
from bascule.wire._hot import MESSAGE_FIELDS

ACK_WAIT_S: Final = 2.0
"""Patience with one attempt before the message is sent again; it doubles with every attempt."""
NO_RESPONDERS_WAIT_S: Final = 0.25
NO_RESPONDERS_ATTEMPTS: Final = 3
"""As JetStream clients do: a node that just restarts is given a moment."""

R = TypeVar("R", bound=Run)


class _Answer(msgspec.Struct):
    """A JetStream PubAck, extended by ours; or its error form."""

    stream: str = ""
    seq: int = 0
    partition: int = 0
    offset: int = -1
    replicas: int = 1
    synced: bool = False
    duplicate: bool = False
    error: dict[str, Any] | None = None


def decode_answer(data: bytes, subject: str) -> Ack | BasculeError:
    """What a reply to a publish says: an ack, or why there is none.

    `data` is the whole body: header block and payload. An answer from JetStream itself, which
    counts from 1 and knows no offset, is an ack too.
    """
    if data.startswith(b"NATS/1.0 503"):
        return NoResponders(subject)
    try:
        answer = msgspec.json.decode(data, type=_Answer)
    except msgspec.DecodeError:
        return RemoteProtocolError(
            f"the answer to a publish on {subject!r} is no ack: {data[:80]!r}; "
            "does another program answer on this subject?"
        )
    if answer.error is not None:
        return PublishRejected(
            int(answer.error.get("code", 0)),
            int(answer.error.get("err_code", 0)),
            str(answer.error.get("description", "no description")),
        )
    offset = answer.offset if answer.offset >= 0 else answer.seq - 1
    return Ack(
        answer.stream, offset + 1, offset, answer.partition, answer.replicas, answer.synced,
        answer.duplicate,
    )  # fmt: skip


class _Single:
    """One message waiting for its ack."""

    __slots__ = ("answer", "frame", "stream", "subject")

    def __init__(self, subject: str, frame: bytes, stream: str | None) -> None:
        self.subject = subject
        self.frame = frame
        self.stream = stream
        self.answer: asyncio.Future[Ack | BasculeError] = asyncio.get_running_loop().create_future()


class Publisher:
    """Everything that waits for acks on one NATS connection."""

    def __init__(self, nats: NatsConnection) -> None:
        self._nats = nats
        self._encoder = Encoder()
        self._singles: dict[int, _Single] = {}
        self._runs: dict[int, Run] = {}
        self._indexes = itertools.count()
        self._run_ids = itertools.count(1)
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
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        await self._nats.wait_connected(timeout)
        index = next(self._indexes)
        reply = f"{self._nats.inbox}.0.{index}".encode()
        frame = self._encoder.encode(reply, subject, value, key, headers)
        self._nats.check_payload(frame)
        single = self._singles[index] = _Single(subject, frame, stream)
        try:
            return await self._until_acked(single, deadline, timeout)
        finally:
            del self._singles[index]

    async def _until_acked(self, single: _Single, deadline: float, timeout: float) -> Ack:
        loop = asyncio.get_running_loop()
        wait, refusals = ACK_WAIT_S, 0
        for attempt in itertools.count(1):
            self._nats.check_open()
            self._nats.send(single.frame)
            await self._nats.drain()
            left = deadline - loop.time()
            done, _ = await asyncio.wait([single.answer], timeout=min(wait, max(left, 0)))
            if done:
                answer = single.answer.result()
                if isinstance(answer, Ack):
                    return answer
                refusals += 1
                if not isinstance(answer, NoResponders) or refusals >= NO_RESPONDERS_ATTEMPTS:
                    raise answer
                single.answer = loop.create_future()
                await asyncio.sleep(min(NO_RESPONDERS_WAIT_S, max(deadline - loop.time(), 0)))
            else:
                wait *= 2
            if loop.time() >= deadline:
                raise Indeterminate(self._silence(single.subject, timeout, attempt))
        raise AssertionError("unreachable")

    def _silence(self, subject: str, timeout: float, attempts: int) -> str:
        said = self._nats.last_error
        return (
            f"no ack within {timeout} s for a message on {subject!r} after {attempts} attempts: "
            "it may or may not be stored" + (f"; the NATS server said: {said}" if said else "")
        )

    async def publish_many(
        self,
        messages: Iterable[Fields] | AsyncIterable[Fields],
        *,
        window: int,
        stream: str | None,
        timeout: float,
        on_progress: Callable[[int], None] | None,
    ) -> Acks:
        """Publish all, at most `window` without ack at a time; see `Client.publish_many`."""

        def create(nats: NatsConnection, id: int) -> PublishRun:
            return PublishRun(
                nats,
                self._encoder,
                id=id,
                window=window,
                stream=stream,
                timeout=timeout,
                on_progress=on_progress,
            )

        run = await self.open_run(create, timeout)
        try:
            return await run.publish_all(messages)
        finally:
            self.close_run(run)

    async def open_run(self, create: Callable[[NatsConnection, int], R], timeout: float) -> R:
        """A run of its own number, made by `create`, which hears answers from now on.

        Raises: Broken where there is no connection within `timeout` seconds.
        """
        await self._nats.wait_connected(timeout)
        run = create(self._nats, next(self._run_ids))
        self._runs[run.id] = run
        return run

    def close_run(self, run: Run) -> None:
        """Hear no more answers for `run`; idempotent."""
        self._runs.pop(run.id, None)

    def publish_nowait(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes | str | None,
        headers: Headers | None,
    ) -> None:
        """Hand a message to the connection and forget it; see `Client.publish_nowait`."""
        self._nats.check_open()
        frame = self._encoder.encode(b"", subject, value, key, headers)
        self._nats.check_payload(frame)
        self._nats.send(frame)

    def _on_chunk(self, data: bytes, positions: array[int], count: int) -> None:
        """Take the answers of one chunk: the usual acks in compiled code, the rest one by one."""
        inbox_bytes = len(self._nats.inbox) + 1
        rows: Iterable[int] = range(count)
        for number, run in enumerate(self._runs.values()):
            left = run.collect(data, positions, count, inbox_bytes, self._leftover, self._state)
            rows = left if number == 0 else sorted({*rows} & {*left})
        for row in rows:
            self._on_answer(data, positions[row * MESSAGE_FIELDS : (row + 1) * MESSAGE_FIELDS])
        for run in self._runs.values():
            run.moved()

    def _on_answer(self, data: bytes, fields: array[int]) -> None:
        _, subject_at, subject_bytes, _, _, _, body_at, body_bytes = fields
        subject = data[subject_at : subject_at + subject_bytes]
        body = data[body_at : body_at + body_bytes]
        try:
            run_id, index = map(int, subject.rsplit(b".", 2)[1:])
        except ValueError:
            return
        if run_id == 0:
            single = self._singles.get(index)
            if single is None or single.answer.done():
                return
            answer = decode_answer(body, single.subject)
            if single.stream and isinstance(answer, Ack) and answer.stream != single.stream:
                return
            single.answer.set_result(answer)
        elif (run := self._runs.get(run_id)) is not None:
            run.on_answer(index, decode_answer(body, run.subject_of(index)))

    def _on_reconnect(self) -> None:
        for single in self._singles.values():
            if not single.answer.done():
                self._nats.send(single.frame)
        for run in self._runs.values():
            run.resend_all()

    def _on_failed(self, error: Exception) -> None:
        wrapped = error if isinstance(error, BasculeError) else Indeterminate(str(error))
        for single in self._singles.values():
            if not single.answer.done():
                single.answer.set_result(wrapped)
        for run in self._runs.values():
            run.fail(wrapped)
