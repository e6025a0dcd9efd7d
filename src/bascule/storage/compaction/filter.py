"""What stays of the batches: decided and copied in compiled code, sealed, handed on in order."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from bascule.errors import CorruptData
from bascule.model import Compression
from bascule.record.compression import CODECS, compress_batch, decompress_batch
from bascule.record.header import batch_crc, read_header
from bascule.storage.compaction import _hot
from bascule.storage.compaction.key_map import KeyMap
from bascule.storage.compaction.windows import READ_BYTES, Window

PLACES: Final = 2 * 4_096
"""Changed batches that are given their CRC at a time."""
NO_HORIZON: Final = (1 << 63) - 1
_CODEC_NAMES: Final = {number: codec for codec, number in CODECS.items()}


class BatchFilter:
    """Takes windows in the order of the log and writes what stays of them."""

    def __init__(
        self,
        keys: KeyMap,
        *,
        end_offset: int,
        start_offset: int,
        now_ms: int,
        tombstone_retention_ms: int,
    ) -> None:
        """`end_offset` is where the map's batches end, `start_offset` the log's start."""
        self._keys = keys
        self._out = bytearray(READ_BYTES)
        self._places = array("q", bytes(8 * PLACES))
        horizon = now_ms + tombstone_retention_ms
        self._state = array(
            "q", (0, 0, end_offset, start_offset, now_ms, horizon, NO_HORIZON, 0, 0, 0)
        )

    @property
    def horizon_ms(self) -> int | None:
        """The earliest delete horizon among the tombstones that were kept, if any was."""
        return None if self._state[6] == NO_HORIZON else self._state[6]

    @property
    def records_removed(self) -> int:
        return self._state[7]

    @property
    def batches_changed(self) -> int:
        """Batches so far that are not copied as they are."""
        return self._state[8]

    def apply(self, window: Window, write: Callable[[memoryview], None], *, origin: str) -> None:
        """Give `write` what stays of a window; it is done with the bytes when it returns.

        Raises: CorruptData naming `origin` and byte, whatever `write` raises.
        """
        state = self._state
        state[0] = 0
        while True:
            status = self._filter(window.data, window.end, self._out)
            at = state[0]
            if status == _hot.DONE:
                break
            if status == _hot.MALFORMED:
                raise CorruptData(
                    origin, window.position + at, "a batch of well-formed records", "other bytes"
                )
            self._flush(write)
            size = read_header(window.data, at).total_bytes
            if status == _hot.PACKED:
                packed = self._filter_packed(window.data[at : at + size], origin)
                if packed:
                    write(packed)
                state[0] = at + size
            elif size > len(self._out):
                self._out = bytearray(size)
        self._flush(write)

    def _filter(self, data: memoryview, end: int, out: bytearray) -> int:
        keys = self._keys
        return int(
            _hot.filter_batches(
                data, end, keys.table, keys.seed, keys.hashes, keys.rows, out, self._places,
                self._state,
            )
        )  # fmt: skip

    def _flush(self, write: Callable[[memoryview], None]) -> None:
        state = self._state
        out = memoryview(self._out)
        _hot.seal_batches(out, self._places, state[9])
        if state[1] > 0:
            write(out[: state[1]])
        state[1] = state[9] = 0

    def _filter_packed(self, batch: memoryview, origin: str) -> memoryview:
        """What stays of one compressed batch, compressed as it was; maybe nothing."""
        state = self._state
        plain = memoryview(decompress_batch(batch, origin=origin))
        out = bytearray(len(plain))
        changed = self.batches_changed
        state[0] = 0
        if self._filter(plain, len(plain), out) != _hot.DONE:
            raise CorruptData(origin, 0, "a compressed batch of well-formed records", "other bytes")
        size = state[1]
        state[1] = state[9] = 0
        if self.batches_changed == changed:
            return batch
        if size == 0:
            return memoryview(b"")
        codec = _CODEC_NAMES.get(read_header(batch).codec, Compression.NONE)
        packed = memoryview(compress_batch(memoryview(out)[:size], codec))
        packed[17:21] = batch_crc(packed).to_bytes(4, "big")
        return packed
