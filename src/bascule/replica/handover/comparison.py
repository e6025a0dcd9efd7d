"""Which records of batches that were received during a handover are in the log already."""

from __future__ import annotations

from array import array
from typing import Final

from bascule.errors import LimitExceeded
from bascule.publish.headers import HEADER_FIELDS, HashKey, PublishHeaders, read_publish_headers
from bascule.publish.headers._hot import EXPECTS_SEQUENCE, UNSUPPORTED
from bascule.publish.preconditions import Evaluation
from bascule.publish.preconditions._hot import drop_records, split_ack_entries
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record.batch import scan_batches
from bascule.record.compression import decompress_batch
from bascule.record.header import HEADER_BYTES
from bascule.replica.handover import _hot
from bascule.storage.partition_log import PartitionLog

READ_BYTES: Final = 4 << 20
TAIL_BYTES_MAX: Final = 64 << 20
"""Most bytes that are compared: some 400,000 messages of 128 bytes, which take the log writer about
0.2 s. A handover of 0.1 s at full load brings a tenth of that."""


class TailContents:
    """The contents of the records at the end of a log, as a multiset."""

    def __init__(self) -> None:
        self._heads: dict[bytes, int] = {}
        self._nexts = array("q")
        self._offsets = array("q")

    def __len__(self) -> int:
        """The records added so far, taken or not."""
        return len(self._offsets)

    def add(self, batch: bytes, *, record_count: int, base_offset: int) -> None:
        """Add the records of an uncompressed batch of the log; called in the order of the log."""
        known, room = len(self._offsets), array("q", bytes(8 * record_count))
        self._nexts.extend(room)
        self._offsets.extend(room)
        _hot.add_contents(
            batch, batch, HEADER_BYTES, record_count, base_offset,
            self._heads, self._nexts, self._offsets, known,
        )  # fmt: skip

    def take(self, batch: UnstampedBatch, hash_key: HashKey) -> Evaluation | None:
        """Remove from `batch` the records whose contents are here, and these from here.

        Each record here accounts for one. The evaluation has the entries of those who wait for acks
        of the removed ones, as of duplicates. None: nothing was removed.
        """
        count = batch.record_count
        if not self._heads or not count:
            return None
        data = bytes(batch.data)
        verdicts, numbers = bytearray(count), array("q", bytes(8 * count))
        left = _hot.take_contents(
            data, data, HEADER_BYTES, count,
            self._heads, self._nexts, self._offsets, verdicts, numbers,
        )  # fmt: skip
        if left == count:
            return None
        base, entries = self._offsets[0], batch.ack_entries
        batch.ack_entries = _split(entries, verdicts, numbers, _hot.NEW, 0)
        expected = _expected(batch.headers, verdicts, numbers)
        end = HEADER_BYTES
        if left:
            end = drop_records(batch.data, HEADER_BYTES, count, verdicts)
        batch.data, batch.record_count = batch.data[:end], left
        if batch.headers is not None:
            batch.headers = None
            if left:
                batch.headers = read_publish_headers(batch.data, left, hash_key, expected=expected)
        stored = _split(entries, verdicts, numbers, _hot.STORED, base)
        return Evaluation(b"", stored, base, count - left)


def read_tail(log: PartitionLog, start: int) -> TailContents:
    """The contents of the log from offset `start` on.

    Raises: LimitExceeded beyond TAIL_BYTES_MAX; CorruptData, LogFailed, Closed, OSError.
    """
    contents, end = TailContents(), log.end
    offset, size = max(start, log.start_offset), 0
    while offset < end.offset:
        part = log.plan_read(offset, bytes_max=READ_BYTES, end=end)
        assert part is not None, "reads from the disk are allowed here"
        if part.length == 0:
            break
        size += part.length
        if size > TAIL_BYTES_MAX:
            raise LimitExceeded("bytes of a handover", TAIL_BYTES_MAX, size)
        data = part.file.read_at(part.position, part.length)
        origin, position = part.file.path, part.position
        for header, at, stop in scan_batches(data, origin=origin, origin_position=position):
            offset = header.end_offset
            if header.is_control or header.end_offset <= start:
                continue
            batch = data[at:stop]
            contents.add(
                bytes(decompress_batch(batch, origin=origin)) if header.codec else bytes(batch),
                record_count=header.record_count,
                base_offset=header.base_offset,
            )
    return contents


def _split(
    entries: bytes, verdicts: bytearray, numbers: array[int], verdict: int, base: int
) -> bytes:
    """The ack entries of the records with `verdict`, with their numbers less `base`."""
    out = bytearray(len(entries))
    size = split_ack_entries(entries, verdicts, numbers, verdict, base, out)
    return bytes(memoryview(out)[:size])


def _expected(
    headers: PublishHeaders | None, verdicts: bytearray, numbers: array[int]
) -> array[int]:
    """Pairs of the index of a record that is left, and the offset that it expects."""
    pairs = array("q")
    if headers is not None:
        for at in range(0, HEADER_FIELDS * headers.count, HEADER_FIELDS):
            index, flags = headers.rows[at], headers.rows[at + 1]
            if verdicts[index] == _hot.NEW and flags & EXPECTS_SEQUENCE and not flags & UNSUPPORTED:
                pairs.extend((numbers[index], headers.rows[at + 4]))
    return pairs
