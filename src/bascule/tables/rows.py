"""The rows of a table, from the batches of its stream."""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from bascule.errors import CorruptData
from bascule.record import _hot as record_hot
from bascule.record.batch import scan_batches
from bascule.record.compression import decompress_batch
from bascule.record.header import HEADER_BYTES, BatchHeader
from bascule.storage.epochs import Epoch
from bascule.tables import _hot
from bascule.tables._hot import AppliedRow
from bascule.wire.tables.keys import TableKeys


class Row(NamedTuple):
    """The latest record of a key."""

    key: bytes
    version: int
    """The offset of the record."""
    timestamp: int
    """Unix time of the record, milliseconds."""
    value: bytes | None
    """None: the key was removed."""
    content_type: str | None = None
    """What the record's header `Content-Type` says. Of a removal: see `AppliedRow`."""


class TablePosition(NamedTuple):
    """What a table stands at."""

    offset: int
    """The first offset that is not applied."""
    epoch: int
    """The leader epoch of the record before; -1 if it is not known."""


NOTHING_SEEN: Final = TablePosition(0, -1)
"""Of a reader that has no rows yet."""


class Rows(NamedTuple):
    """The rows of a piece of a log, in its order; a key may be there several times."""

    rows: list[AppliedRow]
    """As `Row`, and the time to live; a plain tuple costs a third."""
    end: int
    """The end offset of the last batch."""
    skipped: int
    """Records that have no key of the table."""
    missing: int = 0
    """Offsets without a record: compaction has removed it."""
    epochs: tuple[Epoch, ...] = ()
    """The leader epochs of the batches, as far as one differs from that before."""


def read_rows(data: memoryview, keys: TableKeys, *, start: int, origin: str, position: int) -> Rows:
    """The rows of the records from offset `start` on in the batches of `data`.

    `origin` and `position` are the file and the place of `data` in it, for errors.

    Raises: CorruptData.
    """
    rows: list[AppliedRow] = []
    epochs: list[Epoch] = []
    end, skipped = start, 0
    for header, at, to in scan_batches(data, origin=origin, origin_position=position):
        skipped += _add_batch(rows, header, data[at:to], keys, start=start, origin=origin)
        end = max(end, header.end_offset)
        if not epochs or epochs[-1].number < header.leader_epoch:
            epochs.append(Epoch(header.leader_epoch, header.base_offset))
    return Rows(rows, end, skipped, end - start - len(rows) - skipped, tuple(epochs))


def _add_batch(
    rows: list[AppliedRow],
    header: BatchHeader,
    data: memoryview,
    keys: TableKeys,
    *,
    start: int,
    origin: str,
) -> int:
    """Add the rows of one batch; return how many of its records are none of the table."""
    batch = bytes(decompress_batch(data, origin=origin))
    count = header.record_count
    if count < 0 or count * 7 > len(batch):  # a record takes at least 7 bytes
        raise CorruptData(origin, 57, "a record count that fits the batch", str(count))
    positions = array("q", bytes(8 * record_hot.POSITION_FIELDS * count))
    state = array("q", [0] * 4)
    found = record_hot.index_records(batch, HEADER_BYTES, len(batch), count, positions, state)
    if found < 0:
        raise CorruptData(origin, state[0], "a well-formed record", "other bytes")
    escaped: list[int] = []
    skipped = _hot.read_rows(
        batch,
        positions,
        count,
        header.base_offset,
        header.base_timestamp,
        header.max_timestamp if header.is_log_append_time else -1,
        keys.prefix or b"",
        start,
        rows,
        escaped,
    )
    for number in reversed(escaped):
        key = keys.table_key((keys.prefix or b"") + rows[number][0])
        if key is None:
            del rows[number]
            skipped += 1
        else:
            rows[number] = (key, *rows[number][1:])
    return skipped
