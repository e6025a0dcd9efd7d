"""Read a zigzag varint: the interpreted twin of _hot_varint.pxd, which hot modules inline.

A varint is a signed 64-bit number in 1 to 10 bytes of 7 bits, lowest first, with bit 7 set in all
but the last; zigzag: 0, -1, 1, -2, ... are 0, 1, 2, 3, ... As in Kafka's clients an encoding with
superfluous zero bits is accepted. Refused are varints that reach `end`, that have more than ten
bytes, and those whose tenth byte holds more than the one bit left.
"""

from __future__ import annotations


def read_varint(buf: bytes | bytearray | memoryview, at: int, end: int) -> tuple[int, int]:
    """The number at `buf[at:end]` and the position behind it; (0, -1) where there is none.

    The caller has checked that `end` lies within `buf` and that `at` is not negative.
    """
    raw = shift = 0
    while at < end and shift <= 63:
        byte = buf[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((raw >> 1) ^ -(raw & 1), at) if raw < 1 << 64 else (0, -1)
        shift += 7
    return 0, -1
