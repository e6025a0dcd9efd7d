"""Acks and error acks for publishers, and the batches that wait for the high watermark.

A message with a reply subject gets JSON in the format of a JetStream PubAck, which `js.publish()`
of every NATS client accepts. A message in a Liftbridge envelope gets a Liftbridge Ack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from bascule.wire import _hot, ack_codes
from bascule.wire.liftbridge import ERROR_INCORRECT_OFFSET, ERROR_TOO_LARGE, ERROR_UNKNOWN

_NS_PER_MS: Final = 1_000_000
_WRONG_SEQUENCE: Final = (
    b'{"error":{"code":400,"err_code":%d,"description":"wrong last sequence: '
    % ack_codes.WRONG_LAST_SEQUENCE
)


@dataclass(frozen=True, slots=True)
class AckError:
    """Why a message was not stored, or may not be. Codes: see `wire.ack_codes`."""

    code: int
    err_code: int
    description: str
    liftbridge: int = ERROR_UNKNOWN


WRONG_LAST_ID: Final = AckError(400, ack_codes.WRONG_LAST_ID, "wrong last msg ID")
DISCARDED_MESSAGES: Final = AckError(503, ack_codes.NOT_STORED, "maximum messages exceeded")
DISCARDED_BYTES: Final = AckError(503, ack_codes.NOT_STORED, "maximum bytes exceeded")
PAUSED: Final = AckError(503, ack_codes.PAUSED, "stream is paused")
READ_ONLY: Final = AckError(403, ack_codes.READ_ONLY, "stream is read-only")
RATE_MESSAGES: Final = AckError(
    429, ack_codes.RATE_EXCEEDED, "the stream's rate of messages is exceeded"
)
RATE_BYTES: Final = AckError(429, ack_codes.RATE_EXCEEDED, "the stream's rate of bytes is exceeded")
UNSUPPORTED_HEADERS: Final = AckError(
    400, ack_codes.UNSUPPORTED_HEADER, "the message has headers that are not supported here"
)
"""For the messages of a batch with so many different headers that not all are told apart."""
UNKNOWN_ACK_POLICY: Final = AckError(
    400, ack_codes.UNKNOWN_ACK_POLICY, "Bascule-Ack must be all, leader or none"
)
MALFORMED_SEQUENCE: Final = AckError(
    400, ack_codes.MALFORMED_SEQUENCE, "Nats-Expected-Last-Sequence must be a whole number"
)


def unsupported_header(name: str) -> AckError:
    return AckError(400, ack_codes.UNSUPPORTED_HEADER, f"the header {name} is not supported here")


def wrong_stream(name: str) -> AckError:
    return AckError(400, ack_codes.WRONG_STREAM, f"expected stream does not match: this is {name}")


def too_large(message_bytes_max: int) -> AckError:
    return AckError(
        400,
        ack_codes.TOO_LARGE,
        f"message exceeds the stream's limit of {message_bytes_max} bytes",
        ERROR_TOO_LARGE,
    )


def not_stored(cause: str) -> AckError:
    """For a message that is not in the log and never will be."""
    return AckError(503, ack_codes.NOT_STORED, f"message was not stored: {cause}")


def not_enough_replicas(in_sync: int, min_isr: int) -> AckError:
    """For a message that was refused before it got an offset: it could not be committed."""
    return AckError(
        503,
        ack_codes.NOT_ENOUGH_REPLICAS,
        f"not enough replicas: {in_sync} in sync, {min_isr} required",
    )


def indeterminate(cause: str) -> AckError:
    """For a message that was appended, and whose log failed before it was committed."""
    return AckError(503, ack_codes.INDETERMINATE, f"message may or may not be stored: {cause}")


class AckFormat:
    """Formats the acks of one partition."""

    def __init__(
        self, *, stream: str, subject: str, partition: int, replicas: int, synced: bool
    ) -> None:
        """`synced`: acked records are on the disk; else they may only be in the page cache."""
        name = msgspec.json.encode(stream)
        self._head = b'{"stream":' + name + b',"seq":'
        self._middle = b',"partition":%d,"offset":' % partition
        self._wrong_tail = b'"},"stream":' + name + b',"seq":0}'
        self._replicas = replicas
        self.configure(synced=synced)
        self._stream = stream.encode()
        self._subject = subject.encode()
        self._stream_name = stream

    def configure(self, *, synced: bool, replicas: int | None = None) -> None:
        """Change `synced` and, if given, the replicas that hold a record, from the next ack on."""
        if replicas is not None:
            self._replicas = replicas
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
        """NATS PUB operations for messages stored before; entry i has offset base + i."""
        return self._format(
            entries, self._head, self._middle, self._duplicate_tail, count, base, 0, 0, 0
        )

    def wrong_sequence(self, entries: bytes, *, base: int, count: int) -> bytes:
        """NATS PUB operations for messages that expected another last sequence.

        Entry i reports base + i as the last offset; it is -1 for an empty log.
        """
        return self._format(
            entries, _WRONG_SEQUENCE, self._wrong_tail, b"", count, base, 0, 0,
            ERROR_INCORRECT_OFFSET,
        )  # fmt: skip

    def errors(self, entries: bytes, error: AckError, *, count: int) -> bytes:
        """NATS PUB operations with `error` for at most `count` ack entries."""
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
"""Called with the base offset of a batch once it is committed, or with the error."""


@dataclass(slots=True)
class _Waiting:
    end_offset: int
    base_offset: int
    ack_entries: bytes
    count: int
    received_ms: int
    on_committed: OnCommitted | None
    is_duplicate: bool
    replies: bytes = b""
    """NATS operations to send instead of acks."""


class PendingAcks:
    """The acks of one partition that wait for the high watermark.

    The log writer thread calls `add`, in offset order. `release` and `fail` are called by the
    thread that moves the high watermark.
    """

    def __init__(self, ack_format: AckFormat) -> None:
        self._ack_format = ack_format
        self._waiting: deque[_Waiting] = deque()

    def __len__(self) -> int:
        """The number of batches that wait."""
        return len(self._waiting)

    @property
    def record_count(self) -> int:
        """Records of the batches that wait, without duplicates of records stored before."""
        return sum(batch.count for batch in self._waiting if not batch.is_duplicate)

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
        """Add entries of messages stored before, entry i at offset base + i below `end_offset`."""
        if ack_entries:
            self._waiting.append(_Waiting(end_offset, base, ack_entries, count, 0, None, True))

    def add_replies(self, replies: bytes, *, end_offset: int) -> None:
        """Add NATS operations to send once everything below `end_offset` is committed."""
        if replies:
            self._waiting.append(_Waiting(end_offset, end_offset, b"", 0, 0, None, True, replies))

    def drop(self, error: AckError) -> int:
        """Forget every batch that waits without an answer to its publishers; return the records.

        Callers within this process are told `error`.
        """
        dropped = 0
        while self._waiting:
            batch = self._waiting.popleft()
            dropped += 0 if batch.is_duplicate else batch.count
            if batch.on_committed is not None:
                batch.on_committed(batch.base_offset, error)
        return dropped

    def rollback(self, base_offset: int, error: AckError) -> bytes:
        """Remove the batch added last, at `base_offset`, after its append failed.

        Returns NATS operations with `error` for the duplicates that waited with it.
        """
        replies = b""
        while self._waiting and self._waiting[-1].end_offset > base_offset:
            batch = self._waiting.pop()
            if batch.is_duplicate:
                replies += self._ack_format.errors(batch.ack_entries, error, count=batch.count)
        return replies

    def release(self, high_watermark: int, *, committed_ms: int) -> bytes:
        """NATS operations with the acks of every batch below the high watermark."""
        waiting = self._waiting
        ready: list[bytes] = []
        while waiting and waiting[0].end_offset <= high_watermark:
            batch = waiting.popleft()
            if batch.on_committed is not None:
                batch.on_committed(batch.base_offset, None)
            if batch.replies:
                ready.append(batch.replies)
                continue
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
        """NATS operations with `error` for every batch that waits."""
        failed: list[bytes] = []
        while self._waiting:
            batch = self._waiting.popleft()
            if batch.on_committed is not None:
                batch.on_committed(batch.base_offset, error)
            failed.append(
                batch.replies
                or self._ack_format.errors(batch.ack_entries, error, count=batch.count)
            )
        return b"".join(failed)
