"""The variable-length values of Kafka's protocol: readers with bounds checks, and writers.

Readers take `(view, position, end, what)` and return `(value, next position)`. They read nothing at
or beyond `end`. They compare a length with the bytes that are left before they allocate memory for
it. `what` names the field in errors. Source: the "Protocol Primitive Types" of the Kafka protocol
guide and KIP-482 (flexible versions).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, error, pack, unpack_from
from typing import Protocol, TypeAlias, runtime_checkable

from bascule.errors import LocalProtocolError, RemoteProtocolError
from bascule.host.api import Buffer


@runtime_checkable
class SizedPiece(Protocol):
    """`length` bytes that are not in memory: a slice of a file, which the sender sends."""

    @property
    def length(self) -> int: ...


Piece: TypeAlias = Buffer | SizedPiece
Append: TypeAlias = Callable[[Piece], None]

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_SHORT_UVARINTS = tuple(bytes([n]) for n in range(128))
STRING_BYTES_MAX = 32_767
"""The longest string: its length is an int16. KIP-482 has the same bound for compact strings."""
INT32_MAX = 2**31 - 1


def cut_short(what: str, position: int, needed: int, end: int) -> RemoteProtocolError:
    """The error for a field that needs more bytes than are left."""
    return RemoteProtocolError(
        f"{what} is cut short at byte {position} of {end}: needs {needed} bytes, "
        f"found {max(end - position, 0)}"
    )


def read_uvarint(view: memoryview, position: int, end: int, what: str) -> tuple[int, int]:
    """Read an unsigned base-128 number of at most 32 bits."""
    value = shift = 0
    start = position
    while position < end:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position
        shift += 7
        if shift > 28 + 7:
            break
    else:
        raise cut_short(what, start, position - start + 1, end)
    raise RemoteProtocolError(f"{what} at byte {start} is a varint of more than 32 bits")


def _length16(view: memoryview, position: int, end: int, what: str) -> tuple[int, int]:
    if position + 2 > end:
        raise cut_short(what, position, 2, end)
    return _INT16.unpack_from(view, position)[0], position + 2


def _length32(view: memoryview, position: int, end: int, what: str) -> tuple[int, int]:
    if position + 4 > end:
        raise cut_short(what, position, 4, end)
    return _INT32.unpack_from(view, position)[0], position + 4


def _compact_length(view: memoryview, position: int, end: int, what: str) -> tuple[int, int]:
    """The length of a compact value, -1 for null."""
    if position < end and (byte := view[position]) < 0x80:
        return byte - 1, position + 1
    value, position = read_uvarint(view, position, end, what)
    return value - 1, position


def _text(
    view: memoryview, position: int, length: int, end: int, what: str
) -> tuple[str | None, int]:
    if length < 0:
        if length != -1:
            raise RemoteProtocolError(f"{what} at byte {position} has length {length}")
        return None, position
    if length > STRING_BYTES_MAX:
        raise RemoteProtocolError(
            f"{what} at byte {position} has {length} bytes, at most {STRING_BYTES_MAX} are allowed"
        )
    stop = position + length
    if stop > end:
        raise cut_short(what, position, length, end)
    try:
        return str(view[position:stop], "utf-8"), stop
    except UnicodeDecodeError as bad:
        # As in Kafka: U+FFFD for what is not UTF-8. It takes three bytes for one where the text
        # goes back into a response, so a text that would not fit there is refused.
        if 3 * length > STRING_BYTES_MAX:
            raise RemoteProtocolError(
                f"{what} at byte {position + bad.start} is not UTF-8: {bad.reason}"
            ) from None
        return str(view[position:stop], "utf-8", "replace"), stop


def read_nullable_string(
    view: memoryview, position: int, end: int, what: str
) -> tuple[str | None, int]:
    length, position = _length16(view, position, end, what)
    return _text(view, position, length, end, what)


def read_compact_nullable_string(
    view: memoryview, position: int, end: int, what: str
) -> tuple[str | None, int]:
    length, position = _compact_length(view, position, end, what)
    return _text(view, position, length, end, what)


def read_string(view: memoryview, position: int, end: int, what: str) -> tuple[str, int]:
    value, after = read_nullable_string(view, position, end, what)
    if value is None:
        raise RemoteProtocolError(f"{what} at byte {position} is null")
    return value, after


def read_compact_string(view: memoryview, position: int, end: int, what: str) -> tuple[str, int]:
    value, after = read_compact_nullable_string(view, position, end, what)
    if value is None:
        raise RemoteProtocolError(f"{what} at byte {position} is null")
    return value, after


def _bytes(
    view: memoryview, position: int, length: int, end: int, what: str
) -> tuple[memoryview | None, int]:
    if length < 0:
        if length != -1:
            raise RemoteProtocolError(f"{what} at byte {position} has length {length}")
        return None, position
    stop = position + length
    if stop > end:
        raise cut_short(what, position, length, end)
    return view[position:stop], stop


def read_bytes(
    view: memoryview, position: int, end: int, what: str
) -> tuple[memoryview | None, int]:
    """Read opaque bytes as a view of the frame, None for null; copies nothing."""
    length, position = _length32(view, position, end, what)
    return _bytes(view, position, length, end, what)


def read_compact_bytes(
    view: memoryview, position: int, end: int, what: str
) -> tuple[memoryview | None, int]:
    length, position = _compact_length(view, position, end, what)
    return _bytes(view, position, length, end, what)


def read_presence(view: memoryview, position: int, end: int, what: str) -> tuple[bool, int]:
    """Whether a nullable structure follows: a negative int8 says that it does not."""
    if position >= end:
        raise cut_short(what, position, 1, end)
    return view[position] < 0x80, position + 1


def _count(position: int, count: int, end: int, item_bytes_min: int, what: str) -> int:
    if count < -1:
        raise RemoteProtocolError(f"{what} at byte {position} has {count} items")
    if count * item_bytes_min > end - position:
        raise RemoteProtocolError(
            f"{what} at byte {position} of {end} claims {count} items of at least "
            f"{item_bytes_min} bytes, found {end - position} bytes"
        )
    return count


def read_count(
    view: memoryview, position: int, end: int, item_bytes_min: int, what: str
) -> tuple[int, int]:
    """Read the item count of an array, -1 for null. The remaining bytes can hold that many."""
    count, position = _length32(view, position, end, what)
    return _count(position, count, end, item_bytes_min, what), position


def read_compact_count(
    view: memoryview, position: int, end: int, item_bytes_min: int, what: str
) -> tuple[int, int]:
    count, position = _compact_length(view, position, end, what)
    return _count(position, count, end, item_bytes_min, what), position


def read_fixed_items(view: memoryview, position: int, code: str, count: int) -> list[int]:
    """Read `count` integers of struct code `code`. The caller has checked that they are there."""
    return list(unpack_from(f">{count}{code}", view, position))


def read_tags(
    view: memoryview, position: int, end: int, what: str
) -> tuple[Sequence[tuple[int, int, int]], int]:
    """Read the tagged fields at `position` as (tag, start, end), in the order of the bytes.

    KIP-482 demands ascending tags. Kafka accepts any order, and so does this function.
    """
    count, position = read_uvarint(view, position, end, what)
    if count == 0:
        return (), position
    if count * 2 > end - position:
        raise RemoteProtocolError(
            f"{what} at byte {position} of {end} claims {count} tagged fields"
        )
    tags: list[tuple[int, int, int]] = []
    for _ in range(count):
        tag, position = read_uvarint(view, position, end, what)
        size, position = read_uvarint(view, position, end, what)
        if position + size > end:
            raise cut_short(f"{what} tag {tag}", position, size, end)
        tags.append((tag, position, position + size))
        position += size
    return tags, position


def uvarint(value: int) -> bytes:
    """Encode an unsigned base-128 number; 0 <= value < 2**32."""
    if value < 128:
        return _SHORT_UVARINTS[value]
    out = bytearray()
    while value >= 128:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _encoded(value: str, what: str) -> bytes:
    data = value.encode()
    if len(data) > STRING_BYTES_MAX:
        raise LocalProtocolError(
            f"{what} has {len(data)} bytes, at most {STRING_BYTES_MAX} are allowed"
        )
    return data


def write_string(append: Append, value: str | None, what: str) -> None:
    if value is None:
        raise LocalProtocolError(f"{what} may not be null in this version")
    data = _encoded(value, what)
    append(_INT16.pack(len(data)))
    append(data)


def write_nullable_string(append: Append, value: str | None, what: str) -> None:
    if value is None:
        append(b"\xff\xff")
    else:
        write_string(append, value, what)


def write_compact_string(append: Append, value: str | None, what: str) -> None:
    if value is None:
        raise LocalProtocolError(f"{what} may not be null in this version")
    data = _encoded(value, what)
    append(uvarint(len(data) + 1))
    append(data)


def write_compact_nullable_string(append: Append, value: str | None, what: str) -> None:
    if value is None:
        append(b"\0")
    else:
        write_compact_string(append, value, what)


def size_of(piece: Piece) -> int:
    """The number of bytes of `piece` on the wire."""
    if isinstance(piece, (bytes, bytearray)):
        return len(piece)
    return piece.nbytes if isinstance(piece, memoryview) else piece.length


def write_bytes(append: Append, value: Piece | None, what: str) -> None:
    """Write opaque bytes, or a `SizedPiece` that the sender sends; None for null."""
    if value is None:
        append(b"\xff\xff\xff\xff")
        return
    size = size_of(value)
    if size > INT32_MAX:
        raise LocalProtocolError(f"{what} has {size} bytes, at most {INT32_MAX} are allowed")
    append(_INT32.pack(size))
    append(value)


def write_compact_bytes(append: Append, value: Piece | None, what: str) -> None:
    if value is None:
        append(b"\0")
        return
    size = size_of(value)
    if size >= INT32_MAX:
        raise LocalProtocolError(f"{what} has {size} bytes, at most {INT32_MAX - 1} are allowed")
    append(uvarint(size + 1))
    append(value)


def write_fixed_items(append: Append, code: str, items: Sequence[int], what: str) -> None:
    try:
        append(pack(f">{len(items)}{code}", *items))
    except error as bad:
        raise LocalProtocolError(f"{what}: {bad}") from None
