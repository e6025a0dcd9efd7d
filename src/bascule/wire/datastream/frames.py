"""Frames of the data streaming protocol, without any input or output."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple, TypeVar

import msgspec

from bascule.errors import RemoteProtocolError

VERSION: Final = 1
FIRST_KIND: Final = 0xD0
KINDS: Final = range(FIRST_KIND, 0xE0)
"""The fifth byte of a connection of this protocol."""
HELLO: Final = 0xD0
OPEN: Final = 0xD1
OPENED: Final = 0xD2
DATA: Final = 0xD3
ACK: Final = 0xD4
CLOSE: Final = 0xD5
CLOSED: Final = 0xD6
FAILED: Final = 0xD7
FETCH: Final = 0xD8
FETCHED: Final = 0xD9
ELSEWHERE: Final = 0xDA

SYNC: Final = 1
"""Flag of DATA: sync what is written so far, on every node, and acknowledge that."""

HEAD: Final = Struct(">IBB")
DATA_HEAD: Final = Struct(">IBBQI")
ACK_FRAME: Final = Struct(">IBBQQ")
SIZE_BYTES: Final = 4
DATA_EXTRA: Final = DATA_HEAD.size - SIZE_BYTES
FRAME_BYTES_MAX: Final = 1 << 20
"""Of frames other than DATA. The headers of a message may take most of it."""
SMALL_FRAME_BYTES_MAX: Final = 4 << 10
"""Of those that have only numbers and names."""
_SMALL: Final = frozenset({HELLO, ACK, CLOSE, FETCH})
PACKET_BYTES: Final = 1 << 20
"""What a sender puts into one DATA frame."""
PACKET_BYTES_MAX: Final = 16 << 20
MessageT = TypeVar("MessageT")


class DataHead(NamedTuple):
    """What precedes the bytes of a DATA frame."""

    flags: int
    position: int
    crc: int
    length: int
    """Of the bytes."""


def encode_data_head(position: int, length: int, crc: int, flags: int = 0) -> bytes:
    """The head of a DATA frame; `length` bytes follow it."""
    return DATA_HEAD.pack(DATA_EXTRA + length, DATA, flags, position, crc)


def decode_data_head(head: bytes | bytearray | memoryview) -> DataHead:
    """Raises: RemoteProtocolError for a length that no sender uses."""
    size, _, flags, position, crc = DATA_HEAD.unpack_from(head)
    length = size - DATA_EXTRA
    if not 0 <= length <= PACKET_BYTES_MAX:
        raise RemoteProtocolError(
            f"a packet of {length} bytes, expected 0 to {PACKET_BYTES_MAX} bytes"
        )
    if position >> 62:
        raise RemoteProtocolError(f"a packet at position {position}, expected less than 2^62")
    return DataHead(flags, position, crc, length)


def encode_ack(written: int, synced: int) -> bytes:
    """An ACK frame."""
    return ACK_FRAME.pack(ACK_FRAME.size - SIZE_BYTES, ACK, 0, written, synced)


def decode_ack(frame: bytes | bytearray | memoryview) -> tuple[int, int]:
    """`written` and `synced`. Raises: RemoteProtocolError."""
    if len(frame) != ACK_FRAME.size:
        raise RemoteProtocolError(
            f"an acknowledgement of {len(frame)} bytes, expected {ACK_FRAME.size}"
        )
    _, _, _, written, synced = ACK_FRAME.unpack(frame)
    return written, synced


def encode_message(kind: int, message: msgspec.Struct) -> bytes:
    """A frame with a MessagePack body."""
    body = msgspec.msgpack.encode(message)
    return HEAD.pack(HEAD.size - SIZE_BYTES + len(body), kind, 0) + body


def decode_message(frame: bytes | bytearray | memoryview, type: type[MessageT]) -> MessageT:
    """The message of a whole frame. Raises: RemoteProtocolError."""
    try:
        return msgspec.msgpack.decode(memoryview(frame)[HEAD.size :], type=type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        name = getattr(type, "__name__", str(type))
        raise RemoteProtocolError(f"malformed {name}: {error}") from None


class StreamFrameReader:
    """Finds frames in what a connection brings. The bytes of DATA frames do not pass through it.

    Ask for `wanted` bytes, give them to `feed`, and take the frame it returns. After the head of a
    DATA frame the caller reads the frame's bytes itself, and goes on here behind them.
    """

    def __init__(self, *, awaits_hello: bool = False) -> None:
        """`awaits_hello`: whether the first frame has to be HELLO."""
        self._awaits_hello = awaits_hello
        self._frame = bytearray()
        self._size = 0
        """Of the whole frame, 0 while it is not known."""

    @property
    def frame_bytes(self) -> int:
        """Of the frame that has come in part, once its size is known; else 0."""
        return self._size

    @property
    def wanted(self) -> int:
        """How many bytes to read next, at most."""
        return (self._size or HEAD.size) - len(self._frame)

    def feed(self, data: bytes | bytearray | memoryview) -> tuple[int, bytearray] | None:
        """Take at most `wanted` bytes; return the kind and the frame, once it is whole. Of a DATA
        frame it is the head.

        Raises: RemoteProtocolError for an unknown kind, an impossible size, or no HELLO.
        """
        frame = self._frame
        frame += data
        if not self._size:
            if len(frame) < HEAD.size:
                return None
            if self._awaits_hello and frame[SIZE_BYTES] != HELLO:
                kind = frame[SIZE_BYTES]
                raise RemoteProtocolError(f"a frame of kind {kind:#04x} before a hello")
            self._awaits_hello = False
            self._size = _size_of(frame)
        if len(frame) < self._size:
            return None
        self._frame, self._size = bytearray(), 0
        return frame[SIZE_BYTES], frame


def _size_of(head: bytearray) -> int:
    """The bytes to read for a frame that begins with `head`. Raises: RemoteProtocolError."""
    size, kind, _ = HEAD.unpack(head)
    if kind not in KINDS:
        raise RemoteProtocolError(
            f"a frame of kind {kind:#04x}, expected {KINDS.start:#04x} to {KINDS.stop - 1:#04x}"
        )
    if kind == DATA:
        if size < DATA_EXTRA:
            raise RemoteProtocolError(f"a packet frame of {size} bytes, expected {DATA_EXTRA}")
        return DATA_HEAD.size
    most = SMALL_FRAME_BYTES_MAX if kind in _SMALL else FRAME_BYTES_MAX
    if not HEAD.size - SIZE_BYTES <= size <= most:
        raise RemoteProtocolError(f"a frame of {size} bytes, expected at most {most} bytes")
    return SIZE_BYTES + int(size)
