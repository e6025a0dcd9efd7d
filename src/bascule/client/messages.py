"""Outgoing messages and their encoding as NATS operations; acks; messages read. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypeAlias, overload

from bascule.record.payload_links import Payload, payload_of
from bascule.wire.nats import HEADER_VERSION
from bascule.wire.subjects import check_subject

Headers: TypeAlias = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]
"""Headers of outgoing messages. Pairs keep their order and repeated names."""

KEY_HEADER: Final = "Bascule-Key"
ID_HEADER: Final = "Nats-Msg-Id"
LAST_SEQUENCE_HEADER: Final = "Nats-Expected-Last-Sequence"
SUBJECTS_CACHED_MAX: Final = 65_536
"""Checked subjects in the cache; a few MB at most."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Outgoing(NamedTuple):
    """One message to publish. A plain tuple of its first two to four fields is also accepted."""

    subject: str
    value: bytes
    key: bytes | str | None = None
    headers: Headers | None = None


class Ack(NamedTuple):
    """The ack of one published message."""

    stream: str
    seq: int
    """JetStream's 1-based number: offset + 1."""
    offset: int
    partition: int
    replicas: int
    """How many replicas hold the message."""
    synced: bool
    """Whether every replica had synced the message when the ack was sent."""
    duplicate: bool = False
    """Whether the message id was stored before. The other fields are then those of the first
    message."""


class Message(NamedTuple):
    """One record of a stream, as consumers see it."""

    offset: int
    partition: int
    timestamp_ms: int
    """Append time, Unix ms. It never decreases within a partition."""
    key: bytes | None
    value: bytes | None
    subject: str | None
    """The NATS subject it was published on."""
    reply: str | None
    """The reply subject it was published with, if the stream's `record_headers` has `reply`."""
    headers: tuple[tuple[str, bytes | None], ...]
    """NATS headers, in order."""

    @property
    def timestamp(self) -> datetime:
        """`timestamp_ms` as an aware UTC datetime."""
        return _EPOCH + timedelta(milliseconds=self.timestamp_ms)

    @property
    def payload(self) -> Payload | None:
        """The payload that the record has; `open` reads it."""
        return payload_of(self.headers)

    def open(self, *, start: int = 0, end: int | None = None) -> Any:
        """Its payload, or the bytes [start, end) of it, as `read_payload` of the client that has
        read the message: `async with message.open() as payload: await payload.read()`, and without
        `async` and `await` where the client is a blocking one.

        Raises: ValueError if it has no payload, or was not read by a client.
        """
        raise ValueError("message was made by no client: use `read_payload`")

    def __reduce__(self) -> tuple[Any, ...]:
        """Of a message that is copied to another process only the fields are."""
        return Message, tuple(self)

    def header(self, name: str) -> bytes | None:
        """The first header of this exact name, or None."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


NewMessage: TypeAlias = Callable[[tuple[Any, ...]], Message]
NEW_MESSAGE: Final[NewMessage] = partial(tuple.__new__, Message)
"""`Message._make` without its length check: half the time per row."""
OpenPayloadOf: TypeAlias = Callable[[Message, int, int | None], Any]


def opening_messages(open_payload: OpenPayloadOf) -> NewMessage:
    """Makes messages whose `open` calls this function with `start` and `end`."""

    class Opening(Message):
        __slots__ = ()

        def open(self, *, start: int = 0, end: int | None = None) -> Any:
            if self.payload is None:
                raise ValueError(f"message {self.offset} has no payload")
            return open_payload(self, start, end)

    Opening.__name__ = Opening.__qualname__ = Message.__name__
    return partial(tuple.__new__, Opening)


class Acks(Sequence[Ack]):
    """The acks of one `publish_many`, in publish order, stored in columns (about 20 B per
    message)."""

    __slots__ = ("details", "names", "offsets", "partitions", "streams")

    SYNCED: Final = 1 << 15
    DUPLICATE: Final = 1 << 14

    def __init__(self) -> None:
        self.offsets = array("q")
        """Offset of each message; -1 while it has no ack."""
        self.partitions = array("i")
        self.details = array("H")
        """Number of replicas, and SYNCED and DUPLICATE."""
        self.streams = array("H")
        """Index into `names`."""
        self.names: list[str] = []

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, index: int) -> Ack: ...
    @overload
    def __getitem__(self, index: slice) -> list[Ack]: ...
    def __getitem__(self, index: int | slice) -> Ack | list[Ack]:
        if isinstance(index, slice):
            return [self._at(i) for i in range(*index.indices(len(self.offsets)))]
        return self._at(index)

    def __iter__(self) -> Iterator[Ack]:
        return (self._at(i) for i in range(len(self.offsets)))

    def __repr__(self) -> str:
        return f"<Acks of {len(self)} messages to {', '.join(self.names) or 'no stream'}>"

    def _at(self, index: int) -> Ack:
        offset, details = self.offsets[index], self.details[index]
        return Ack(
            stream=self.names[self.streams[index]],
            seq=offset + 1,
            offset=offset,
            partition=self.partitions[index],
            replicas=details & ~(self.SYNCED | self.DUPLICATE),
            synced=details & self.SYNCED != 0,
            duplicate=details & self.DUPLICATE != 0,
        )

    def make_room(self, count: int) -> None:
        """Add `count` messages without ack."""
        self.offsets.extend([-1] * count)
        self.partitions.frombytes(bytes(4 * count))
        self.details.frombytes(bytes(2 * count))
        self.streams.frombytes(bytes(2 * count))

    def cut(self, count: int) -> None:
        """Keep the first `count` messages."""
        for column in (self.offsets, self.partitions, self.details, self.streams):
            del column[count:]

    def drop(self, count: int) -> None:
        """Drop the first `count` messages. The next one becomes number 0."""
        for column in (self.offsets, self.partitions, self.details, self.streams):
            del column[:count]

    def put(self, index: int, ack: Ack) -> bool:
        """Store `ack` for message `index`. Return False if it had one."""
        if self.offsets[index] >= 0:
            return False
        if ack.stream not in self.names:
            self.names.append(ack.stream)
        self.partitions[index] = ack.partition
        flags = (self.SYNCED if ack.synced else 0) | (self.DUPLICATE if ack.duplicate else 0)
        self.details[index] = ack.replicas | flags
        self.streams[index] = self.names.index(ack.stream)
        self.offsets[index] = ack.offset
        return True


MessageFields: TypeAlias = (
    tuple[str, bytes]
    | tuple[str, bytes, bytes | str | None]
    | tuple[str, bytes, bytes | str | None, Headers | None]
)
"""A message of `publish_many`: an `Outgoing`, or a plain tuple of its first two to four fields."""


class MessageEncoder:
    """Encodes messages as PUB and HPUB. Caches checked subjects."""

    def __init__(self) -> None:
        self._subjects: dict[str, bytes] = {}

    def subject(self, subject: str) -> bytes:
        """The subject's bytes. Raises: InvalidName, also for wildcards."""
        known = self._subjects.get(subject)
        if known is None:
            check_subject(subject, wildcards=False)
            if len(self._subjects) >= SUBJECTS_CACHED_MAX:
                self._subjects.clear()
            known = self._subjects[subject] = subject.encode()
        return known

    def encode(
        self,
        reply: bytes,
        subject: str,
        value: bytes,
        key: bytes | str | None = None,
        headers: Headers | None = None,
    ) -> bytes:
        """Encode one operation. `reply` is empty if no ack is wanted.

        Raises: InvalidName, ValueError for a header that would break the block.
        """
        name = self._subjects.get(subject) or self.subject(subject)
        if key is None and not headers:
            if reply:
                return b"PUB %b %b %d\r\n%b\r\n" % (name, reply, len(value), value)
            return b"PUB %b %d\r\n%b\r\n" % (name, len(value), value)
        block = encode_block(key, headers)
        size = len(block)
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
            name, reply, size, size + len(value), block, value,
        )  # fmt: skip


def with_publish_headers(
    headers: Headers | None, message_id: str | None, expected_last_sequence: int | None
) -> Headers | None:
    """Append the headers for a message id and an expected sequence."""
    publish_headers: list[tuple[str, str | bytes]] = []
    if message_id is not None:
        publish_headers.append((ID_HEADER, message_id))
    if expected_last_sequence is not None:
        publish_headers.append((LAST_SEQUENCE_HEADER, str(expected_last_sequence)))
    if not publish_headers:
        return headers
    given = headers.items() if isinstance(headers, Mapping) else headers or ()
    return [*given, *publish_headers]


def encode_block(key: bytes | str | None, headers: Headers | None) -> bytes:
    """Encode the header block: the key, then the headers in order.

    Raises: ValueError for an invalid name or value. A NATS header is one line of text, and blanks
    at the ends of a value are lost.
    """
    pairs: Iterable[tuple[str, str | bytes]] = ()
    if headers:
        pairs = headers.items() if isinstance(headers, Mapping) else headers
    block = bytearray(HEADER_VERSION)
    if key is not None:
        block += b"%b: %b\r\n" % (KEY_HEADER.encode(), _value(None, key))
    for name, value in pairs:
        block += b"%b: %b\r\n" % (_header_name(name), _value(name, value))
    block += b"\r\n"
    return bytes(block)


@lru_cache(maxsize=256)
def _header_name(name: str) -> bytes:
    """Raises: ValueError."""
    if not name or not name.isascii() or not name.isprintable() or ":" in name or " " in name:
        raise ValueError(f"header name {name!r}: expected printable ASCII without colon, blank")
    if name == KEY_HEADER:
        raise ValueError(f"header {KEY_HEADER!r} is the message's key: give it as `key`")
    return name.encode()


def is_header_value(data: bytes) -> bool:
    """Whether a NATS header can have the value: it is one line, without blanks at its ends."""
    return b"\r" not in data and b"\n" not in data and data.strip(b" \t") == data


def _value(name: str | None, value: str | bytes) -> bytes:
    """`name` is that of the header, None for the key. Raises: ValueError."""
    data = value.encode() if isinstance(value, str) else bytes(value)
    if is_header_value(data):
        return data
    if b"\r" in data or b"\n" in data:
        why = "holds a line break, which a NATS header cannot carry"
    else:
        why = "begins or ends with a blank, which would be lost"
    what = "key" if name is None else f"header {name!r}"
    raise ValueError(f"{what} {why}: {data!r}")
