"""Parses the head of a Fetch response before its record batches have arrived.

    | response head | throttle | error | session | topic | partition, error, offsets ... | size |
    | record batches; usually the last one is incomplete                                        |
    | tagged fields, where the version has them                                                 |

Batches are most of a response, so they are received and decoded in pieces and not collected first.
The order of the fields is that of `bascule.wire.messages.fetch`. A request asks for exactly one
partition.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from bascule.errors import RemoteProtocolError
from bascule.wire.messages.fetch import FetchResponse
from bascule.wire.primitives import (
    cut_short,
    read_compact_count,
    read_compact_string,
    read_count,
    read_string,
    read_tags,
    read_uvarint,
)

HEAD_BYTES_MAX: Final = 1024
"""Larger than any head without aborted transactions: a name has at most 249 bytes."""
VERSION_MIN: Final = 7
"""Older versions have no session and lack other fields. No supported server is that old."""

_THROTTLE_ERROR_SESSION: Final = Struct(">ihi")
_PARTITION: Final = Struct(">ihqqq")
_INT32: Final = Struct(">i")
_ABORTED_BYTES: Final = 16


class FetchHead(NamedTuple):
    """The fields of a Fetch response before its batches."""

    error_code: int
    """Error of the whole response, else of the partition."""
    high_watermark: int
    records_at: int
    """Position of the batches in the frame."""
    records_bytes: int


def read_fetch_head(frame: memoryview, position: int, *, version: int, size: int) -> FetchHead:
    """Parse the head of a response of `size` bytes. `frame` holds its first bytes.

    `position` is the start of the body. Raises: RemoteProtocolError.
    """
    end, flexible = len(frame), version in FetchResponse.FLEXIBLE
    if version < VERSION_MIN:
        raise RemoteProtocolError(
            f"Fetch version {version} was agreed on, expected {VERSION_MIN} or later"
        )
    count = read_compact_count if flexible else read_count
    position = _need(position, _THROTTLE_ERROR_SESSION.size, end)
    _, error_code, _ = _THROTTLE_ERROR_SESSION.unpack_from(frame, position)
    position += _THROTTLE_ERROR_SESSION.size
    topics, position = count(frame, position, end, 1, "Fetch topics")
    if error_code or topics < 1:
        return FetchHead(error_code, -1, size, 0)
    if version >= 13:
        position = _need(position, 16, end) + 16
    else:
        read = read_compact_string if flexible else read_string
        _, position = read(frame, position, end, "Fetch topic")
    partitions, position = count(frame, position, end, 1, "Fetch partitions")
    if partitions < 1:
        return FetchHead(0, -1, size, 0)
    position = _need(position, _PARTITION.size, end)
    _, error_code, high_watermark, _, _ = _PARTITION.unpack_from(frame, position)
    position += _PARTITION.size
    aborted, position = count(frame, position, end, _ABORTED_BYTES, "Fetch aborted transactions")
    for _ in range(aborted):
        position += _ABORTED_BYTES
        if flexible:
            _, position = read_tags(frame, position, end, "Fetch aborted transaction")
    if version >= 11:
        position = _need(position, 4, end) + 4
    if flexible:
        length, position = read_uvarint(frame, position, end, "Fetch records")
        length -= 1
    else:
        position = _need(position, 4, end) + 4
        (length,) = _INT32.unpack_from(frame, position - 4)
    if length > size - position:
        raise RemoteProtocolError(
            f"Fetch records at byte {position} of {size} are said to have {length} bytes"
        )
    return FetchHead(error_code, high_watermark, position, max(length, 0))


def _need(position: int, count: int, end: int) -> int:
    if position + count > end:
        raise cut_short("Fetch response", position, count, end)
    return position
