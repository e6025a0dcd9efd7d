"""Read and write zigzag varints: the interpreted twin of _hot_varint.pxd, which hot modules inline.

A varint is a signed 64-bit number in 1 to 10 bytes. Each byte has 7 bits of the number, the lowest
bits first. Bit 7 is set in all bytes but the last. Zigzag encodes 0, -1, 1, -2, ... as 0, 1, 2, 3,
... The reader accepts superfluous zero bits, as Kafka's clients do. It refuses a varint that is not
complete before `end`, that has more than ten bytes, or whose value does not fit 64 bits.
"""

from __future__ import annotations


def read_varint(buf: bytes | bytearray | memoryview, at: int, end: int) -> tuple[int, int]:
    """The number at `buf[at:end]` and the position after it, or (0, -1) if it is refused.

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


def write_varint(out: bytearray | memoryview, to: int, value: int) -> int:
    """Write a number at `out[to:]`; returns the position after it.

    The caller has checked that the number takes 64 bits at most and that `out` has room for it.
    """
    raw = (value << 1) ^ (value >> 63)
    while raw >= 0x80:
        out[to] = raw & 0x7F | 0x80
        raw >>= 7
        to += 1
    out[to] = raw
    return to + 1


def varint_bytes(value: int) -> int:
    """How many bytes `write_varint` writes for a number of at least -1."""
    size = 1
    while value >= 64:
        value >>= 7
        size += 1
    return size
