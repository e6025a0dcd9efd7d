"""Read big-endian numbers: the interpreted twin of _hot_number.pxd, which hot modules inline."""

from __future__ import annotations


def read_number(buf: bytes | bytearray | memoryview, at: int, size: int) -> int:
    """The signed number in `size` bytes of `buf`, 1 to 8, from `at` on.

    The caller has checked that they lie within `buf`.
    """
    return int.from_bytes(buf[at : at + size], "big", signed=True)
