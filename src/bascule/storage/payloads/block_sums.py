"""The checksums of a payload's blocks, so that a range of it can be compared without the rest.

In the file `<id>-<crc>.sums` beside the payload, big-endian::

    | magic "BPS1" | CRC-32C u32 | block bytes u32 | payload CRC-32C u32 | payload bytes u64 |
    | CRC-32C u32 of each block |

The first CRC is that of everything behind it. The checksums of the blocks, combined, are that of
the payload. A payload of one block at most has no such file. A missing or damaged file is written
again from the payload, which has to have the checksum in its name: so the file is not synced.
Releases before this one name it `<id>.sums`; such a file is read, and not written any more.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct
from sys import byteorder
from typing import Final, NamedTuple

from crc32c import crc32c

from bascule.errors import PayloadDamaged
from bascule.record.payload_links import Payload
from bascule.wire.datastream.checksums import combine

BLOCK_BYTES: Final = 1 << 20
MAGIC: Final = b"BPS1"
_HEAD: Final = Struct(">4sI")
_BODY: Final = Struct(">IIQ")
_SUM_BYTES: Final = 4


class BlockSums(NamedTuple):
    """The CRC-32C of each block of a payload."""

    size: int
    """Of the payload, in bytes."""
    crc: int
    """Of the whole payload."""
    crcs: Sequence[int]

    def check(self, id: str, block: int, data: bytes) -> None:
        """Compare a whole block. Raises: PayloadDamaged."""
        at = block * BLOCK_BYTES
        expected = min(self.size - at, BLOCK_BYTES)
        if len(data) != expected:
            raise PayloadDamaged(id, f"bytes at {at}", str(len(data)), str(expected))
        crc = crc32c(data)
        if crc != self.crcs[block]:
            where = f"checksum of {len(data)} bytes at {at}"
            raise PayloadDamaged(id, where, f"{crc:08x}", f"{self.crcs[block]:08x}")


class SumsBuilder:
    """Makes the checksums of blocks from those of pieces, in the order of the payload."""

    def __init__(self, *, is_known: bool = True) -> None:
        """`is_known`: whether the pieces are those from the payload's beginning on."""
        self._is_known = is_known
        self._crcs = array("I")
        self._position = 0

    def add(self, crc: int, length: int) -> None:
        """The next piece. Pieces over the end of a block leave the checksums unknown."""
        if not length or not self._is_known:
            return
        at = self._position % BLOCK_BYTES
        if at + length > BLOCK_BYTES:
            self._is_known, self._crcs = False, array("I")
            return
        if at:
            self._crcs[-1] = combine(self._crcs[-1], crc, length)
        else:
            self._crcs.append(crc)
        self._position += length

    def sums(self, payload: Payload) -> BlockSums | None:
        """Those of a payload whose size and checksum were compared; None if not known."""
        if not self._is_known or self._position != payload.size:
            return None
        return BlockSums(payload.size, payload.crc, self._crcs)


def sums_of_one_block(payload: Payload) -> BlockSums:
    """Those of a payload of one block at most."""
    return BlockSums(payload.size, payload.crc, [payload.crc] if payload.size else [])


def encode_sums(sums: BlockSums) -> bytes:
    """The content of the file."""
    crcs = array("I", sums.crcs)
    if byteorder == "little":
        crcs.byteswap()
    body = _BODY.pack(BLOCK_BYTES, sums.crc, sums.size) + crcs.tobytes()
    return _HEAD.pack(MAGIC, crc32c(body)) + body


def decode_sums(data: bytes) -> BlockSums | None:
    """None for what is no such file, or is damaged."""
    start = _HEAD.size + _BODY.size
    if len(data) < start or (len(data) - start) % _SUM_BYTES:
        return None
    magic, crc = _HEAD.unpack_from(data)
    if magic != MAGIC or crc != crc32c(memoryview(data)[_HEAD.size :]):
        return None
    block_bytes, payload_crc, size = _BODY.unpack_from(data, _HEAD.size)
    crcs = array("I", data[start:])
    if block_bytes != BLOCK_BYTES or len(crcs) != -(-size // BLOCK_BYTES):
        return None
    if byteorder == "little":
        crcs.byteswap()
    return BlockSums(size, payload_crc, crcs)
