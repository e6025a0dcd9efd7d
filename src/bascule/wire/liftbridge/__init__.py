"""Liftbridge's envelope, in which Liftbridge publishers send their messages.

::

    0           4        5            6       7          8             8 or 12
    | B90E43B4  | version| header     | flags | message  | CRC-32C     | protobuf
    |           | 0      | bytes 8|12 |       | type     | if flags & 1| message

Message type 0 is a publish (protobuf `Message`), 1 an ack (`Ack`). Numbers are big-endian; the CRC
covers the protobuf bytes. A payload that does not parse as a publish is not an envelope; it is
treated as a plain message and never refused. Source: Liftbridge's envelope protocol and api.proto.
"""

from __future__ import annotations

from array import array
from typing import Final

ERROR_UNKNOWN: Final = 1
ERROR_INCORRECT_OFFSET: Final = 2
ERROR_TOO_LARGE: Final = 3
"""Values of the Ack's error field."""


def _crc32c_table() -> array[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return array("I", table)


CRC32C_TABLE: Final = _crc32c_table()
"""For `_hot.parse_envelopes`, which computes CRCs in compiled code."""
