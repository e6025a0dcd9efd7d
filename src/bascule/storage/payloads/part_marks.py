"""How much of a payload that is received in part is right: the file `<id>.marks`. Pure.

A packet is written before its checksum can be compared, so the length of `<id>.open` says nothing.
The file has two marks of 16 bytes, big-endian. The first is written after each packet, the second
after each sync::

    | position u64 | CRC-32C of the payload below it u32 | CRC-32C of these 12 bytes u32 |

Marks are not synced. Who reads one compares the payload's file with it.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from crc32c import crc32c

_MARK: Final = Struct(">QI")
MARK_BYTES: Final = _MARK.size + 4
CONFIRMED_AT: Final = 0
SYNCED_AT: Final = MARK_BYTES


def encode_mark(position: int, crc: int) -> bytes:
    """The bytes below `position` have come, and have this CRC-32C."""
    mark = _MARK.pack(position, crc)
    return mark + crc32c(mark).to_bytes(4, "big")


def decode_marks(data: bytes) -> dict[int, int]:
    """Position -> CRC-32C of the marks that are intact."""
    found: dict[int, int] = {}
    for at in (SYNCED_AT, CONFIRMED_AT):
        mark, crc = data[at : at + _MARK.size], data[at + _MARK.size : at + MARK_BYTES]
        if len(crc) == 4 and int.from_bytes(crc, "big") == crc32c(mark):
            position, checksum = _MARK.unpack(mark)
            found[position] = checksum
    return found
