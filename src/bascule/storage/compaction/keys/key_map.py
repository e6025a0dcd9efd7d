"""Key -> offset of its latest record, in bounded memory."""

from __future__ import annotations

from array import array
from typing import Final

from bascule.errors import CorruptData
from bascule.record.compression import decompress_batch
from bascule.record.header import read_header
from bascule.storage.compaction.keys import _hot
from bascule.storage.compaction.windows import Window

SECRET_BYTES: Final = 16
SLOT_BYTES: Final = 8 * _hot.SLOT_WORDS
SLOTS_MIN: Final = 64
GROWTH: Final = 4
"""Factor between the sizes of two tables. The last two tables together take the whole bound."""
_SIP: Final = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_LONG_DIGEST: Final = 0xEE
"""The initial state of SipHash's 128-bit variant differs by this constant."""


def seed_words(secret: bytes) -> array[int]:
    """The initial state of SipHash for a secret of 16 bytes."""
    assert len(secret) == SECRET_BYTES, f"secret of {len(secret)} bytes, expected {SECRET_BYTES}"
    low, high = int.from_bytes(secret[:8], "little"), int.from_bytes(secret[8:], "little")
    return array("Q", (low ^ _SIP[0], high ^ _SIP[1] ^ _LONG_DIGEST, low ^ _SIP[2], high ^ _SIP[3]))


class KeyMap:
    """Batches are added in the order of the log. For one thread."""

    def __init__(self, *, bytes_max: int, secret: bytes, records_max: int) -> None:
        """`secret` is random. `records_max` bounds the records to add, and so the memory."""
        self.seed = seed_words(secret)
        self.hashes = array("Q", bytes(8 * _hot.HASH_WORDS))
        self.rows = array("q", bytes(8 * _hot.ROW_WORDS))
        size = max(SLOTS_MIN, bytes_max // SLOT_BYTES * GROWTH // (GROWTH + 1))
        # Sizes of the following tables, in slots, the next one last.
        self._sizes = [min(size, max(SLOTS_MIN, records_max * 5 // 4 + 2))]
        while size // GROWTH >= SLOTS_MIN:
            size //= GROWTH
            if size < self._sizes[-1]:
                self._sizes.append(size)
        self.table = _table(self._sizes.pop())
        self.keys = 0
        self.is_full = False

    @property
    def size_bytes(self) -> int:
        """Memory of the table."""
        return SLOT_BYTES * self._slots

    @property
    def _slots(self) -> int:
        return len(self.table) // _hot.SLOT_WORDS

    def add(self, window: Window, *, origin: str) -> int:
        """Add the batches of a window; return the position at which the map was full, or the end.

        Raises: CorruptData naming `origin` and byte.
        """
        state = array("q", (0, self.keys))
        while True:
            status = _hot.map_batches(
                window.data, window.end, self.table, self._slots * 4 // 5,
                self.seed, self.hashes, self.rows, state,
            )  # fmt: skip
            at, self.keys = state
            if status == _hot.DONE:
                return at
            if status == _hot.MALFORMED:
                raise CorruptData(
                    origin, window.position + at, "a batch of well-formed records", "other bytes"
                )
            if status == _hot.COMPRESSED:
                batch = window.data[at : at + read_header(window.data, at).total_bytes]
                plain = memoryview(decompress_batch(batch, origin=origin))
                inner = Window(plain, window.position + at, len(plain), window.end_offset)
                if self.add(inner, origin=origin) == 0:
                    return at
                state[0], state[1] = at + len(batch), self.keys
            elif not self._grow():
                self.is_full = True
                return at

    def newest(self, key: bytes) -> int | None:
        """The offset of the latest record of a key, None if none was added."""
        offset = _hot.find_key(self.table, key, self.seed)
        return None if offset < 0 else offset

    def _grow(self) -> bool:
        if not self._sizes:
            return False
        table = _table(self._sizes.pop())
        _hot.move_slots(self.table, table)
        self.table = table
        return True


def _table(slots: int) -> memoryview:
    return memoryview(bytearray(SLOT_BYTES * slots)).cast("Q")
