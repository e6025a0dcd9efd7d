"""A sorted list of pairs of integers, stored in a file of blocks.

One thread appends pairs while other threads read. Both indexes of a segment have this form.
docs/formats.md describes the file.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from struct import Struct
from typing import ClassVar, Final, Generic, NamedTuple, Self, TypeVar

from crc32c import crc32c

from bascule.errors import CorruptData

FILE_HEADER: Final = Struct(">8sq")
BLOCK_HEADER: Final = Struct(">IIqqq")
ENTRY_BYTES: Final = 16
CAPACITY_MIN: Final = 16
CHECKED_FROM: Final = 4
"""A block's CRC covers what follows it."""


class Covered(NamedTuple):
    """How much of a segment an index covers: up to which position, offset and largest timestamp."""

    position: int
    offset: int
    timestamp_max: int


IndexT = TypeVar("IndexT", bound="SparseIndex")


class Decoded(NamedTuple, Generic[IndexT]):
    """The content of an index file up to its first damage."""

    pairs: IndexT
    covered: Covered
    damage: CorruptData | None


class SparseIndex:
    """Pairs (key, value). Neither keys nor values decrease.

    One thread adds pairs, and any thread reads. Arrays are replaced when they grow. A pair is
    written before the count that makes it visible.
    """

    __slots__ = ("_view",)
    MAGIC: ClassVar[bytes]
    SUFFIX: ClassVar[str]

    def __init__(self, keys: array[int] | None = None, values: array[int] | None = None) -> None:
        """Its entries are `keys` and `values`, which have the same length."""
        first, second = array("q") if keys is None else keys, values or array("q")
        self._view: tuple[array[int], array[int], int] = (first, second, len(first))

    def __len__(self) -> int:
        return self._view[2]

    def entries(self) -> list[tuple[int, int]]:
        keys, values, count = self._view
        return list(zip(keys[:count], values[:count], strict=True))

    def last_value(self) -> int | None:
        _, values, count = self._view
        return values[count - 1] if count else None

    def add(self, key: int, value: int) -> None:
        keys, values, count = self._view
        if count == len(keys):
            room = array("q", bytes(8 * max(CAPACITY_MIN, count)))
            keys, values = keys + room, values + room
        keys[count] = key
        values[count] = value
        self._view = (keys, values, count + 1)

    def count_below(self, value: int) -> int:
        """How many entries have a value below `value`."""
        _, values, count = self._view
        return bisect_left(values, value, 0, count)

    def truncated(self, count: int) -> Self:
        """A copy of the first `count` entries."""
        keys, values, _ = self._view
        return type(self)(keys[:count], values[:count])

    def encode_header(self, base_offset: int) -> bytes:
        return FILE_HEADER.pack(self.MAGIC, base_offset)

    def encode_block(self, covered: Covered, *, start: int, end: int) -> bytes:
        """Encode entries [start, end) as one block, with what the index covers."""
        keys, values, _ = self._view
        pairs = [n for pair in zip(keys[start:end], values[start:end], strict=True) for n in pair]
        block = bytearray(BLOCK_HEADER.size + 8 * len(pairs))
        BLOCK_HEADER.pack_into(block, 0, 0, end - start, *covered)
        Struct(f">{len(pairs)}q").pack_into(block, BLOCK_HEADER.size, *pairs)
        block[:CHECKED_FROM] = crc32c(memoryview(block)[CHECKED_FROM:]).to_bytes(4, "big")
        return bytes(block)

    @classmethod
    def decode(cls, data: bytes, *, path: str, base_offset: int) -> Decoded[Self]:
        """Read a whole file up to the first damaged block."""
        index = cls()
        covered = Covered(0, base_offset, -1)
        try:
            _check_file_header(data, path, cls.MAGIC, base_offset)
            position = FILE_HEADER.size
            while position < len(data):
                end, count, found = _check_block(data, position, path, covered)
                first = position + BLOCK_HEADER.size
                index._extend(Struct(f">{2 * count}q").unpack_from(data, first), path, first)
                covered, position = found, end
        except CorruptData as damage:
            return Decoded(index, covered, damage)
        return Decoded(index, covered, None)

    def _extend(self, numbers: tuple[int, ...], path: str, at: int) -> None:
        keys, values, count = self._view
        keys = keys[:count] + array("q", numbers[0::2])
        values = values[:count] + array("q", numbers[1::2])
        for row in range(max(count, 1), len(keys)):
            if keys[row] < keys[row - 1] or values[row] <= values[row - 1]:
                raise CorruptData(
                    path, at + (row - count) * ENTRY_BYTES,
                    f"an entry above ({keys[row - 1]}, {values[row - 1]})",
                    f"({keys[row]}, {values[row]})",
                )  # fmt: skip
        self._view = (keys, values, len(keys))


def _check_file_header(data: bytes, path: str, magic: bytes, base_offset: int) -> None:
    header = data[: FILE_HEADER.size]
    if header != FILE_HEADER.pack(magic, base_offset):
        expected = f"{magic.decode()} and base offset {base_offset}"
        raise CorruptData(path, 0, expected, header.hex() or "an empty file")


def _check_block(
    data: bytes, position: int, path: str, before: Covered
) -> tuple[int, int, Covered]:
    """Check one block's bounds, CRC and progress; return its end, entry count and coverage."""
    left = len(data) - position
    if left < BLOCK_HEADER.size:
        raise CorruptData(
            path, position, f"a block header of {BLOCK_HEADER.size} bytes", f"{left} bytes"
        )
    crc, count, *rest = BLOCK_HEADER.unpack_from(data, position)
    end = position + BLOCK_HEADER.size + count * ENTRY_BYTES
    if end > len(data):
        raise CorruptData(path, position + 4, f"at most {left // ENTRY_BYTES} entries", str(count))
    if crc32c(memoryview(data)[position + CHECKED_FROM : end]) != crc:
        raise CorruptData(path, position, "the CRC of the block", f"{crc:#010x}")
    covered = Covered(*rest)
    if covered.position < before.position or covered.offset < before.offset:
        raise CorruptData(path, position + 8, f"coverage beyond {before}", str(covered))
    return end, count, covered
