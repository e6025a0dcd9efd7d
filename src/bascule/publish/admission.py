"""Which records of a batch a stream accepts: by its state, its limits and publish headers."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Final, Protocol

from bascule.model import Discard, StreamDefinition
from bascule.publish.acks import (
    DISCARDED_BYTES,
    DISCARDED_MESSAGES,
    PAUSED,
    RATE_BYTES,
    RATE_MESSAGES,
    READ_ONLY,
    AckError,
    AckFormat,
)
from bascule.publish.headers import HashKey
from bascule.publish.preconditions import (
    NO_LIMITS,
    UNLIMITED,
    BatchLimits,
    Evaluation,
    Preconditions,
)
from bascule.publish.stream_subjects import StreamSubjects
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record.header import HEADER_BYTES


class RefuseMessages(Protocol):
    """Answers messages of at most `count` ack entries; the replies to send now."""

    def __call__(self, entries: bytes, error: AckError, /, *, count: int) -> bytes: ...


_NS_PER_SECOND: Final = 1_000_000_000


class TokenBucket:
    """A token bucket that holds the tokens of one second and may become negative."""

    __slots__ = ("_at_ns", "_left", "rate")

    def __init__(self, rate: int) -> None:
        """`rate` tokens a second; the bucket starts full."""
        self.rate = rate
        self._left = float(rate)
        self._at_ns = 0

    def available(self, now_ns: int) -> float:
        """Tokens available at `now_ns` of a monotonic clock."""
        if self._at_ns:
            grown = self._left + (now_ns - self._at_ns) * self.rate / _NS_PER_SECOND
            self._left = min(grown, float(self.rate))
        self._at_ns = now_ns
        return self._left

    def take(self, tokens: int) -> None:
        self._left -= tokens


@dataclass(frozen=True, slots=True)
class LogState:
    """The values that the limits of a stream are compared with."""

    next_offset: int
    start_offset: int
    bytes: int


class Admission:
    """Admission to one partition. Only the log writer thread uses it, except for `configure`."""

    def __init__(
        self,
        definition: StreamDefinition,
        ack_format: AckFormat,
        hash_key: HashKey,
        subjects: StreamSubjects | None = None,
    ) -> None:
        self.answer: RefuseMessages = ack_format.errors
        """Answers messages that are refused as a part of a whole batch."""
        self.preconditions = Preconditions(definition, ack_format, hash_key, subjects)
        self._records = self._bytes = TokenBucket(0)
        self.configure(definition)

    def configure(self, definition: StreamDefinition) -> None:
        """Apply an altered definition from the next batch on."""
        config = definition.config
        self.refusal: AckError | None = None
        """Why every batch of a publisher is to be refused; None: batches are accepted."""
        if definition.paused:
            self.refusal = PAUSED
        elif config.read_only:
            self.refusal = READ_ONLY
        if self._records.rate != config.rate_messages_max:
            self._records = TokenBucket(config.rate_messages_max)
        if self._bytes.rate != config.rate_bytes_max:
            self._bytes = TokenBucket(config.rate_bytes_max)
        refuses_new = config.discard is Discard.NEW
        self._messages_max = config.retention_messages_max if refuses_new else 0
        self._bytes_max = config.retention_bytes_max if refuses_new else 0
        self._message_bytes_max = config.message_bytes_max
        self._is_limited = bool(
            self._records.rate or self._bytes.rate or self._messages_max or self._bytes_max
        )
        self.preconditions.configure(definition)

    def admit(
        self, batch: UnstampedBatch, state: LogState, *, now_ms: int, now_ns: int
    ) -> Evaluation | None:
        """Remove refused and duplicate records from the batch; None where all are accepted.

        For batches that need not be refused as a whole; see `refusal`. After a failed append of the
        rest, `preconditions.rollback` must be called.
        """
        if batch.is_internal:
            self.preconditions.accept_without_headers()
            return None
        if batch.headers is None and not self._is_limited and not self.preconditions.checks_keys:
            self.preconditions.accept_without_headers()
            return None
        limits = self._batch_limits(state, now_ns) if self._is_limited else NO_LIMITS
        size = len(batch.data)
        evaluation = self.preconditions.evaluate(
            batch, next_offset=state.next_offset, now_ms=now_ms, limits=limits
        )
        if self._is_limited:
            self._records.take(batch.record_count)
            self._bytes.take((size if evaluation is None else len(batch.data)) - HEADER_BYTES)
        return evaluation

    def refuse(
        self, batch: UnstampedBatch, error: AckError, *, now_ms: int, ends: tuple[int, int] | None
    ) -> bytes:
        """Refuse a whole batch, but acknowledge its repetitions of stored messages; return the
        replies to send now. The batch keeps the number of its refused records.

        `ends` of what is committed, and of what the leader has stored; None: the log is deleted.
        """
        replies = b""
        if ends is not None and batch.headers is not None:
            replies = self.preconditions.answer_known(
                batch, now_ms=now_ms, committed_end=ends[0], stored_end=ends[1]
            )
        if not batch.record_count:
            return replies
        if error is self.refusal:
            self.preconditions.counts.closed_refused += batch.record_count
        if batch.on_committed is not None:
            batch.on_committed(-1, error)
        if not batch.ack_entries:
            return replies
        return replies + self.answer(batch.ack_entries, error, count=batch.record_count)

    def _batch_limits(self, state: LogState, now_ns: int) -> BatchLimits:
        """The lowest of the limits on records, and the lowest of the limits on bytes."""
        records = [(UNLIMITED, DISCARDED_MESSAGES)]
        sizes = [(UNLIMITED, DISCARDED_BYTES)]
        if self._records.rate:
            records.append((int(self._records.available(now_ns)), RATE_MESSAGES))
        if self._messages_max:
            left = self._messages_max - (state.next_offset - state.start_offset)
            records.append((left, DISCARDED_MESSAGES))
        if self._bytes.rate:
            tokens = int(self._bytes.available(now_ns))
            if tokens >= self._bytes.rate:
                # A message larger than the rate is accepted when the bucket is full.
                tokens = max(tokens, self._message_bytes_max + HEADER_BYTES)
            sizes.append((tokens, RATE_BYTES))
        if self._bytes_max:
            sizes.append((self._bytes_max - state.bytes - HEADER_BYTES, DISCARDED_BYTES))
        records_left, records_error = min(records, key=itemgetter(0))
        bytes_left, bytes_error = min(sizes, key=itemgetter(0))
        return BatchLimits(
            records=max(records_left, 0),
            bytes=max(bytes_left, 0),
            records_error=records_error,
            bytes_error=bytes_error,
        )
