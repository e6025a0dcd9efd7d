"""Combining CRC-32C values: that of two pieces from those of each, without their bytes.

Appending zero bytes to a message multiplies its CRC by a fixed matrix over GF(2). The matrix for n
zeros is a product of those for powers of two (Mark Adler, zlib's crc32_combine).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_POLYNOMIAL: Final = 0x82F63B78
"""Castagnoli, reflected."""
_Matrix = tuple[int, ...]


def _times(matrix: _Matrix, vector: int) -> int:
    out = 0
    for row in matrix:
        if not vector:
            break
        if vector & 1:
            out ^= row
        vector >>= 1
    return out


def _square(matrix: _Matrix) -> _Matrix:
    return tuple(_times(matrix, row) for row in matrix)


_ONE_BIT: Final[_Matrix] = (_POLYNOMIAL, *(1 << n for n in range(31)))


@lru_cache(maxsize=64)
def _zero_bytes(exponent: int) -> _Matrix:
    """The matrix for 2**exponent zero bytes."""
    if exponent:
        return _square(_zero_bytes(exponent - 1))
    return _square(_square(_square(_ONE_BIT)))


@lru_cache(maxsize=256)
def _zeros(length: int) -> _Matrix:
    """The matrix for `length` zero bytes, of which a sender uses few."""
    found: _Matrix | None = None
    for exponent in range(length.bit_length()):
        if length >> exponent & 1:
            matrix = _zero_bytes(exponent)
            found = matrix if found is None else tuple(_times(matrix, row) for row in found)
    assert found is not None
    return found


def combine(first: int, second: int, second_length: int) -> int:
    """The CRC-32C of two pieces, from that of each; the second has `second_length` bytes."""
    if not second_length:
        return first
    return _times(_zeros(second_length), first) ^ second
