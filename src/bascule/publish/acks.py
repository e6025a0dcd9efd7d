"""Acks and error acks for publishers.

A message with a reply subject gets JSON in the format of a JetStream PubAck, which `js.publish()`
of every NATS client accepts. A message in a Liftbridge envelope gets a Liftbridge Ack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import msgspec

from bascule.model import AckPolicy
from bascule.wire import _hot, ack_codes
from bascule.wire.liftbridge import ERROR_INCORRECT_OFFSET, ERROR_TOO_LARGE, ERROR_UNKNOWN

ACK_POLICIES: Final = {
    AckPolicy.ALL: _hot.POLICY_ALL,
    AckPolicy.LEADER: _hot.POLICY_LEADER,
    AckPolicy.NONE: _hot.POLICY_NONE,
}
"""The numbers of the policies in ack entries."""
ALL: Final = 1 << _hot.POLICY_ALL
"""Ack entries of messages that are acked once they are committed."""
LEADER: Final = 1 << _hot.POLICY_LEADER
"""Ack entries of messages that are acked once the leader has stored them."""
NONE: Final = 1 << _hot.POLICY_NONE
"""Ack entries of messages that are answered only if they are refused."""
ANY: Final = ALL | LEADER | NONE

_NS_PER_MS: Final = 1_000_000
_WRONG_SEQUENCE: Final = b'{"error":{"code":400,"err_code":%d,"description":"%s' % (
    ack_codes.WRONG_LAST_SEQUENCE,
    ack_codes.WRONG_SEQUENCE_TEXT.encode(),
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
    400,
    ack_codes.MALFORMED_SEQUENCE,
    "Nats-Expected-Last-Sequence and Nats-Expected-Last-Subject-Sequence must be whole numbers, "
    "and only one of them can be set",
)
MALFORMED_TTL: Final = AckError(
    400,
    ack_codes.MALFORMED_TTL,
    "Nats-TTL must be whole seconds, a duration such as 1h30m, or never, from 1 s to 100 years",
)
NO_TABLE: Final = AckError(
    400,
    ack_codes.UNSUPPORTED_HEADER,
    "Nats-Expected-Last-Subject-Sequence, Nats-Rollup and Nats-TTL need a table: open the stream "
    "with `bascule stream alter --table`",
)
NO_KEY: Final = AckError(400, ack_codes.NO_KEY, "the message has no key of the table")
TABLE_NOT_CAUGHT_UP: Final = AckError(
    503,
    ack_codes.NOT_STORED,
    f"{ack_codes.NOT_CAUGHT_UP_TEXT}; try again",
)


def unsupported_header(name: str) -> AckError:
    return AckError(400, ack_codes.UNSUPPORTED_HEADER, f"the header {name} is not supported here")


def malformed_block(line: str) -> AckError:
    """Of a message that asks for something in its header block, which is malformed at `line`."""
    text = f"malformed header block at '{line}': what it asks for would have no effect"
    return AckError(400, ack_codes.UNSUPPORTED_HEADER, text)


def wrong_stream(name: str) -> AckError:
    return AckError(400, ack_codes.WRONG_STREAM, f"expected stream does not match: this is {name}")


def wrong_last_sequence(last: int) -> AckError:
    """`last` is the sequence found: the offset and 1, 0 if there is none."""
    description = f"{ack_codes.WRONG_SEQUENCE_TEXT}{last}"
    return AckError(400, ack_codes.WRONG_LAST_SEQUENCE, description, ERROR_INCORRECT_OFFSET)


def too_large(message_bytes_max: int, size: int | None = None) -> AckError:
    """`size`: that of the message, where it is known."""
    message = "message" if size is None else f"message of {size} bytes"
    return AckError(
        400,
        ack_codes.TOO_LARGE,
        f"{message} exceeds the stream's limit of {message_bytes_max} bytes",
        ERROR_TOO_LARGE,
    )


def not_stored(cause: str) -> AckError:
    """For a message that is not in the log and never will be."""
    return AckError(503, ack_codes.NOT_STORED, f"message was not stored: {cause}")


NOT_LEADING: Final = not_stored("this node does not lead the partition")
"""For callers within this process, who have asked this node alone."""


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
        self._tails = {
            policy: b',"replicas":%d,"synced":%s}' % (copies, promise)
            for policy, copies in ((ALL, self._replicas), (LEADER, 1))
        }

    def acks(
        self,
        entries: bytes,
        *,
        count: int,
        base_offset: int,
        received_ms: int,
        acked_ms: int,
        policy: int = ALL,
    ) -> bytes:
        """NATS PUB operations for those of `entries` with `policy`, ALL or LEADER.

        There are at most `count` of them. Record i has offset base + i.
        """
        return self._format(
            entries, self._head, self._middle, self._tails[policy], count, base_offset,
            received_ms * _NS_PER_MS, acked_ms * _NS_PER_MS, 0, policy,
        )  # fmt: skip

    def duplicates(self, entries: bytes, *, base: int, count: int, policy: int = ALL) -> bytes:
        """NATS PUB operations for messages stored before; entry i has offset base + i."""
        tail = self._tails[policy][:-1] + b',"duplicate":true}'
        return self._format(entries, self._head, self._middle, tail, count, base, 0, 0, 0, policy)

    def wrong_sequence(
        self, entries: bytes, *, base: int, count: int, policies: int = ANY
    ) -> bytes:
        """NATS PUB operations for messages that expected another last sequence.

        Entry i reports base + i as the last offset; it is -1 for an empty log.
        """
        return self._format(
            entries, _WRONG_SEQUENCE, self._wrong_tail, b"", count, base, 0, 0,
            ERROR_INCORRECT_OFFSET, policies,
        )  # fmt: skip

    def errors(self, entries: bytes, error: AckError, *, count: int, policies: int = ANY) -> bytes:
        """NATS PUB operations with `error` for those of at most `count` entries with `policies`."""
        body = self._error_body(error)
        return self._format(entries, body, b"", b"", count, 0, 0, 0, error.liftbridge, policies)

    def too_large(self, entries: bytes, message_bytes_max: int, *, count: int) -> bytes:
        """As `errors`, for messages that `ingest` has refused as too large: such an entry has the
        message's size in place of a record's index, which the reply names."""
        error = too_large(message_bytes_max, 0)
        head, _, tail = self._error_body(error).partition(b" 0 ")
        # A sequence is the number of an entry, plus the base offset and 1.
        return self._format(
            entries, head + b" ", b" " + tail, b"", count, -1, 0, 0, error.liftbridge, ANY
        )

    def _error_body(self, error: AckError) -> bytes:
        return msgspec.json.encode(
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

    def _format(
        self,
        entries: bytes,
        head: bytes,
        middle: bytes,
        tail: bytes,
        count: int,
        base_offset: int,
        received_ns: int,
        acked_ns: int,
        error: int,
        policies: int,
    ) -> bytes:
        fixed = len(head) + len(middle) + len(tail) + len(self._stream) + len(self._subject) + 200
        out = bytearray(count * fixed + 2 * len(entries))
        size = _hot.format_acks(
            entries, head, middle, tail, self._stream, self._subject,
            base_offset, received_ns, acked_ns, error, policies, out,
        )  # fmt: skip
        return bytes(memoryview(out)[:size])


OnCommitted: TypeAlias = Callable[[int, AckError | None], None]
"""Called with the base offset of a batch once it is committed, or with the error. With the offset
of a message that was stored before, where a message repeats its id."""


class Outcome(NamedTuple):
    """The arguments of `OnCommitted`."""

    offset: int
    error: AckError | None
