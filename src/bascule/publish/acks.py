"""Answers to publishers: what they say, and when they may leave.

A message with a reply subject gets JSON in the shape of a JetStream PubAck, so that `js.publish()`
of any NATS client is satisfied; a message in a Liftbridge envelope gets that system's Ack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from bascule.wire import _hot
from bascule.wire.liftbridge import ERROR_INCORRECT_OFFSET, ERROR_TOO_LARGE, ERROR_UNKNOWN

_NS_PER_MS: Final = 1_000_000
_WRONG_SEQUENCE: Final = (
    b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: '
)


@dataclass(frozen=True, slots=True)
class AckError:
    """Why a message was not stored. Codes are JetStream's where it has one for the case."""

    code: int
    err_code: int
    description: str
    liftbridge: int = ERROR_UNKNOWN


WRONG_LAST_ID: Final = AckError(400, 10070, "wrong last msg ID")
DISCARDED_MESSAGES: Final = AckError(503, 10077, "maximum messages exceeded")
DISCARDED_BYTES: Final = AckError(503, 10077, "maximum bytes exceeded")
PAUSED: Final = AckError(503, 20001, "stream is paused")
READ_ONLY: Final = AckError(403, 20002, "stream is read-only")
RATE_MESSAGES: Final = AckError(429, 20003, "the stream's rate of messages is exceeded")
RATE_BYTES: Final = AckError(429, 20003, "the stream's rate of bytes is exceeded")
UNSUPPORTED_HEADER: Final = AckError(
    400, 20004,
    "Nats-Expected-Last-Subject-Sequence, Nats-Rollup and Nats-TTL are not supported here",
)  # fmt: skip
UNKNOWN_ACK_POLICY: Final = AckError(400, 20005, "Bascule-Ack must be all, leader or none")
MALFORMED_SEQUENCE: Final = AckError(
    400, 20006, "Nats-Expected-Last-Sequence must be a whole number"
)


def wrong_stream(name: str) -> AckError:
    return AckError(400, 10060, f"expected stream does not match: this is {name}")


def too_large(message_bytes_max: int) -> AckError:
    return AckError(
        400, 10054, f"message exceeds the stream's limit of {message_bytes_max} bytes",
        ERROR_TOO_LARGE,
    )  # fmt: skip


def store_failed(cause: str) -> AckError:
    return AckError(503, 10077, f"message was not stored: {cause}")


class AckFormat:
    """Formats the acks of one partition."""

    def __init__(
        self, *, stream: str, subject: str, partition: int, replicas: int, synced: bool
    ) -> None:
        """`synced` is what the ack promises: on the disk, or with the kernel."""
        name = msgspec.json.encode(stream)
        self._head = b'{"stream":' + name + b',"seq":'
        self._middle = b',"partition":%d,"offset":' % partition
        self._wrong_tail = b'"},"stream":' + name + b',"seq":0}'
        self._replicas = replicas
        self.configure(synced=synced)
        self._stream = stream.encode()
        self._subject = subject.encode()
        self._stream_name = stream

    def configure(self, *, synced: bool) -> None:
        """Promise something else from the next ack on."""
        promise = b"true" if synced else b"false"
        self._tail = b',"replicas":%d,"synced":%s}' % (self._replicas, promise)
        self._duplicate_tail = self._tail[:-1] + b',"duplicate":true}'

    def acks(
        self, entries: bytes, *, count: int, base_offset: int, received_ms: int, committed_ms: int
    ) -> bytes:
        """NATS PUB operations for at most `count` ack entries; record i has offset base + i."""
        return self._format(
            entries, self._head, self._middle, self._tail, count, base_offset,
            received_ms * _NS_PER_MS, committed_ms * _NS_PER_MS, 0,
        )  # fmt: skip

    def duplicates(self, entries: bytes, *, base: int, count: int) -> bytes:
        """NATS PUB operations for messages stored before: entry i says offset base + i."""
        return self._format(
            entries, self._head, self._middle, self._duplicate_tail, count, base, 0, 0, 0
        )

    def wrong_sequence(self, entries: bytes, *, base: int, count: int) -> bytes:
        """NATS PUB operations for messages that expected another last sequence.

        Entry i says that the last offset is base + i; -1 is that of an empty log.
        """
        return self._format(
            entries, _WRONG_SEQUENCE, self._wrong_tail, b"", count, base, 0, 0,
            ERROR_INCORRECT_OFFSET,
        )  # fmt: skip

    def errors(self, entries: bytes, error: AckError, *, count: int) -> bytes:
        """NATS PUB operations that tell at most `count` publishers why nothing was stored."""
        body = msgspec.json.encode(
            {
                "error": {
                    "code": error.code,
                    "err_code": error.err_code,
                    "description": error.description,
                },
                "stream": self._stream_name,
                "seq": 0,
            }
        )
        return self._format(entries, body, b"", b"", count, 0, 0, 0, error.liftbridge)

    def _format(
        self,
        entries: bytes,
        head: bytes,
        middle: bytes,
        tail: bytes,
        count: int,
        base_offset: int,
        received_ns: int,
        committed_ns: int,
        error: int,
    ) -> bytes:
        fixed = len(head) + len(middle) + len(tail) + len(self._stream) + len(self._subject) + 200
        out = bytearray(count * fixed + 2 * len(entries))
        size = _hot.format_acks(
            entries, head, middle, tail, self._stream, self._subject,
            base_offset, received_ns, committed_ns, error, out,
        )  # fmt: skip
        return bytes(memoryview(out)[:size])


OnCommitted: TypeAlias = Callable[[int, AckError | None], None]
"""Told the base offset of a batch once it is committed, or why it never will be."""


@dataclass(slots=True)
class _Waiting:
    end_offset: int
    base_offset: int
    ack_entries: bytes
    count: int
    received_ms: int
    on_committed: OnCommitted | None
    is_duplicate: bool


class PendingAcks:
    """Answers of one partition that wait for the high watermark.

    `add` is called by the thread that appends, in offset order; `release` and `fail` by whoever
    moves the high watermark, one at a time.
    """

    def __init__(self, ack_format: AckFormat) -> None:
        self._ack_format = ack_format
        self._waiting: deque[_Waiting] = deque()

    def __len__(self) -> int:
        """Batches with unanswered publishers."""
        return len(self._waiting)

    def add(
        self,
        *,
        base_offset: int,
        count: int,
        ack_entries: bytes,
        received_ms: int,
        on_committed: OnCommitted | None = None,
    ) -> None:
        if ack_entries or on_committed is not None:
            self._waiting.append(
                _Waiting(
                    base_offset + count,
                    base_offset,
                    ack_entries,
                    count,
                    received_ms,
                    on_committed,
                    False,
                )
            )

    def add_duplicates(self, ack_entries: bytes, *, base: int, count: int, end_offset: int) -> None:
        """Entries of messages stored before, entry i at offset base + i, all below `end_offset`."""
        if ack_entries:
            self._waiting.append(_Waiting(end_offset, base, ack_entries, count, 0, None, True))

    def take_back(self, base_offset: int, error: AckError) -> bytes:
        """Forget the batch added last at `base_offset`, which the log did not take after all.

        Returns NATS operations for the duplicates that waited with it.
        """
        told = b""
        while self._waiting and self._waiting[-1].end_offset > base_offset:
            batch = self._waiting.pop()
            if batch.is_duplicate:
                told += self._ack_format.errors(batch.ack_entries, error, count=batch.count)
        return told

    def release(self, high_watermark: int, *, committed_ms: int) -> bytes:
        """NATS operations for every batch that lies wholly below the high watermark."""
        waiting = self._waiting
        ready: list[bytes] = []
        while waiting and waiting[0].end_offset <= high_watermark:
            batch = waiting.popleft()
            if batch.on_committed is not None:
                batch.on_committed(batch.base_offset, None)
            if batch.is_duplicate:
                ready.append(
                    self._ack_format.duplicates(
                        batch.ack_entries, base=batch.base_offset, count=batch.count
                    )
                )
                continue
            if not batch.ack_entries:
                continue
            ready.append(
                self._ack_format.acks(
                    batch.ack_entries,
                    count=batch.count,
                    base_offset=batch.base_offset,
                    received_ms=batch.received_ms,
                    committed_ms=committed_ms,
                )
            )
        return ready[0] if len(ready) == 1 else b"".join(ready)

    def fail(self, error: AckError) -> bytes:
        """NATS operations that tell everybody still waiting why there will be no ack."""
        failed: list[bytes] = []
        while self._waiting:
            batch = self._waiting.popleft()
            if batch.on_committed is not None:
                batch.on_committed(batch.base_offset, error)
            failed.append(self._ack_format.errors(batch.ack_entries, error, count=batch.count))
        return b"".join(failed)
