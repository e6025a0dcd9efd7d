"""Records whose content is not in the log but in a file beside it: a payload.

Such a record has an empty value, and headers that name the payload and say how long it is::

    Bascule-Payload-Id        32 hexadecimal digits, drawn by who sends the payload
    Bascule-Payload-Bytes     its size, in decimal
    Bascule-Payload-CRC32C    its CRC-32C, 8 hexadecimal digits

Its batch has the attribute `PAYLOAD_LINKS`, so that only such batches are decoded for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from bascule.record.batch import RecordBatch, scan_batches
from bascule.record.header import PAYLOAD_LINKS

ID_HEADER: Final = "Bascule-Payload-Id"
BYTES_HEADER: Final = "Bascule-Payload-Bytes"
CRC_HEADER: Final = "Bascule-Payload-CRC32C"
RESERVED_PREFIX: Final = "bascule-payload-"
"""In lower case: publishers cannot set headers whose names begin so, in any case."""
ID_BYTES: Final = 16
PAYLOAD_BYTES_MAX: Final = 1 << 50
_ID: Final = re.compile(f"[0-9a-f]{{{2 * ID_BYTES}}}")
_ATTRIBUTES_HIGH: Final = 21


class Payload(NamedTuple):
    """What a link says of its payload."""

    id: str
    """32 hexadecimal digits."""
    size: int
    """In bytes."""
    crc: int
    """CRC-32C of all bytes."""

    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """The headers of its record."""
        return (
            (ID_HEADER, self.id.encode()),
            (BYTES_HEADER, b"%d" % self.size),
            (CRC_HEADER, b"%08x" % self.crc),
        )


class PayloadLink(NamedTuple):
    """A record that has a payload."""

    offset: int
    payload: Payload


def is_payload_id(text: str) -> bool:
    """Whether `text` has the form of an id."""
    return _ID.fullmatch(text) is not None


def payload_of(headers: Iterable[tuple[str, bytes | None]]) -> Payload | None:
    """The payload that the headers of a record name; None where they name none as it must be."""
    found = {name: value or b"" for name, value in headers}
    try:
        id = found[ID_HEADER].decode("ascii")
        size, crc = int(found[BYTES_HEADER]), int(found[CRC_HEADER], 16)
    except (KeyError, ValueError):
        return None
    if not is_payload_id(id) or not 0 <= size < PAYLOAD_BYTES_MAX or not 0 <= crc < 1 << 32:
        return None
    return Payload(id, size, crc)


def may_have_links(batch: bytes | bytearray | memoryview) -> bool:
    """Whether a whole batch has the attribute."""
    return batch[_ATTRIBUTES_HIGH] & (PAYLOAD_LINKS >> 8) != 0


def links_of(
    batches: bytes | bytearray | memoryview, *, origin: str = "buffer"
) -> list[PayloadLink]:
    """The links in whole batches, back to back; those without the attribute are not decoded.

    Raises: CorruptData.
    """
    view = memoryview(batches)
    found: list[PayloadLink] = []
    for header, start, end in scan_batches(view, origin=origin):
        if not header.has_payload_links:
            continue
        for record in RecordBatch(view[start:end], origin=origin):
            payload = payload_of(record.headers)
            if payload is not None:
                found.append(PayloadLink(record.offset, payload))
    return found
