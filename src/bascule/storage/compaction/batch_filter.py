"""Filter batches: compiled code selects and copies the records to keep and writes the CRCs."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from bascule.errors import CorruptData
from bascule.model import Compression
from bascule.record.compression import CODECS, compress_batch, decompress_batch
from bascule.record.header import batch_crc, read_header
from bascule.storage.compaction import _hot
from bascule.storage.compaction.keys import _hot as key_hot
from bascule.storage.compaction.keys.key_map import KeyMap
from bascule.storage.compaction.windows import READ_BYTES, Window

BATCHES_MAX: Final = 4_096
"""Batches planned and copied in one call of compiled code."""
NO_HORIZON: Final = (1 << 63) - 1
NO_OFFSET_MAX: Final = (1 << 63) - 1
_CODEC_NAMES: Final = {number: codec for codec, number in CODECS.items()}
_RECORD_BYTES_MIN: Final = 7


class BatchFilter:
    """Takes windows in the order of the log and writes the records to keep."""

    def __init__(
        self,
        keys: KeyMap,
        *,
        end_offset: int,
        start_offset: int,
        now_ms: int,
        tombstone_retention_ms: int,
        tail: int | None = None,
        tombstones_end: int = NO_OFFSET_MAX,
    ) -> None:
        """`end_offset` is the end of the mapped batches, `start_offset` the log's start.

        The batch that ends at `tail` keeps its tombstones. Those from `tombstones_end` on stay.
        """
        self._keys = keys
        self._end_offset = end_offset
        self._start_offset = start_offset
        self._out = bytearray()
        self._actions = bytearray(READ_BYTES // _RECORD_BYTES_MIN)
        self._plans = array("q", bytes(8 * key_hot.PLAN_FIELDS * BATCHES_MAX))
        self._changed_ranges = array("q", bytes(8 * 2 * BATCHES_MAX))
        horizon_ms = now_ms + tombstone_retention_ms
        last = -1 if tail is None else tail
        state = (now_ms, horizon_ms, NO_HORIZON, 0, 0, 0, 0, last, tombstones_end, 0)
        self._state = array("q", state)

    @property
    def horizon_ms(self) -> int | None:
        """The earliest delete horizon of the kept tombstones, None if there are none."""
        return None if self._state[2] == NO_HORIZON else self._state[2]

    @property
    def records_removed(self) -> int:
        return self._state[3]

    @property
    def tombstones_removed_end(self) -> int:
        """The end of the last batch of which a tombstone was removed so far; 0: none."""
        return self._state[9]

    @property
    def batches_changed(self) -> int:
        """Batches that were changed or removed so far."""
        return self._state[4]

    def apply(self, window: Window, write: Callable[[memoryview], None], *, origin: str) -> None:
        """Pass the records to keep of a window to `write`, which must not keep the memoryview.

        Raises: CorruptData naming `origin` and byte, and the errors of `write`.
        """
        at = 0
        while True:
            kept, reached, status = self._pass(window, at, origin)
            if kept:
                write(kept)
            if status == key_hot.DONE:
                return
            size = read_header(window.data, reached).total_bytes
            if status == key_hot.COMPRESSED:
                packed = self._apply_compressed(window, reached, size, origin)
                if packed:
                    write(packed)
                reached += size
            elif reached == at:
                # The batch has more records than `_actions` has room for.
                self._actions = bytearray(max(size // _RECORD_BYTES_MIN, 2 * len(self._actions)))
            at = reached

    def _pass(self, window: Window, at: int, origin: str) -> tuple[memoryview, int, int]:
        """Copy the records to keep of some batches from `at` on.

        Returns them with their CRCs, the position after the last batch, and the status of
        `plan_batches`, which says why it stopped there.
        """
        keys, state = self._keys, self._state
        room = window.end + _hot.GROWTH_BYTES_MAX * len(self._actions)
        if room > len(self._out):
            self._out = bytearray(room)  # takes memory as it is written
        span = array("q", (at, 0))
        status = key_hot.plan_batches(
            window.data, window.end, keys.table, keys.seed, keys.hashes, keys.rows,
            self._end_offset, self._start_offset, self._actions, self._plans, span,
        )  # fmt: skip
        reached, count = span
        is_sound = status != key_hot.MALFORMED and _hot.copy_batches(
            window.data, self._plans, count, self._actions, self._out, self._changed_ranges, state
        )
        if not is_sound:
            raise CorruptData(
                origin, window.position + reached, "a batch of well-formed records", "other bytes"
            )
        out = memoryview(self._out)
        _hot.seal_batches(out, self._changed_ranges, state[6])
        return out[: state[5]], reached, status

    def _apply_compressed(self, window: Window, at: int, size: int, origin: str) -> memoryview:
        """The records to keep of one compressed batch, compressed again; possibly empty."""
        batch = window.data[at : at + size]
        plain = memoryview(decompress_batch(batch, origin=origin))
        changed = self.batches_changed
        at_plain = Window(plain, window.position + at, len(plain), window.end_offset)
        # A copy: the buffer of the piece is used again.
        pieces: list[bytes] = []
        self.apply(at_plain, lambda piece: pieces.append(bytes(piece)), origin=origin)
        if self.batches_changed == changed:
            return batch
        kept = b"".join(pieces)
        if not kept:
            return memoryview(kept)
        codec = _CODEC_NAMES.get(read_header(batch).codec, Compression.NONE)
        packed = memoryview(compress_batch(memoryview(bytearray(kept)), codec))
        packed[17:21] = batch_crc(packed).to_bytes(4, "big")
        return packed
