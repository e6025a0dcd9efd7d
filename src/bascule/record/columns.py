"""Decode fetched bytes to Arrow columns with compiled code."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from operator import itemgetter
from typing import Final, Literal

import pyarrow as pa

from bascule.errors import CorruptData
from bascule.record import _hot
from bascule.record.batch import scan_batches
from bascule.record.compression import decompress_records
from bascule.record.header import HEADER_BYTES, BatchHeader

HEADERS_TYPE: Final = pa.list_(
    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
)

SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("partition", pa.int32()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("subject", pa.string()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""`headers` holds every record header but the subject, in order (`reply` first where present)."""

DECODED_BYTES_MAX: Final = 256 << 20
"""Decompressed bytes after which no further compressed batch is decoded in one call. Arrow's
offsets within a column have 32 bits, and few fetched bytes may decompress to very many."""

_TIMESTAMP_MS_MAX: Final = 1 << 52
"""A larger number of milliseconds overflows when it is converted to Arrow's microseconds."""


class _Columns:
    """Buffers for one Arrow record batch, in Arrow's layout."""

    def __init__(self, *, rows: int, data_bytes: int, entries: int) -> None:
        self.offsets = pa.allocate_buffer(8 * rows)
        self.timestamps = pa.allocate_buffer(8 * rows)
        self.key_ends = _ends(rows)
        self.key_data = pa.allocate_buffer(data_bytes)
        self.key_valid = bytearray(rows // 8 + 1)
        self.value_ends = _ends(rows)
        self.value_data = pa.allocate_buffer(data_bytes)
        self.value_valid = bytearray(rows // 8 + 1)
        self.subject_ends = _ends(rows)
        self.subject_data = pa.allocate_buffer(data_bytes)
        self.subject_valid = bytearray(rows // 8 + 1)
        self.header_ends = _ends(rows)
        self.header_key_ends = _ends(entries)
        self.header_key_data = pa.allocate_buffer(data_bytes)
        self.header_value_ends = _ends(entries)
        self.header_value_data = pa.allocate_buffer(data_bytes)
        self.header_value_valid = bytearray(entries // 8 + 1)
        self.state = array("q", [0, 0, 0, 0])

    def fill(
        self, view: memoryview, batches: array[int], *, offset_min: int, offset_end: int
    ) -> int:
        """Decode the batches. See `_hot.decode_columns` for `batches` and the result."""
        return int(
            _hot.decode_columns(
                view, batches, len(batches) // _hot.BATCH_FIELDS, offset_min, offset_end,
                _view(self.offsets, "q"), _view(self.timestamps, "q"),
                _view(self.key_ends, "i"), _view(self.key_data), self.key_valid,
                _view(self.value_ends, "i"), _view(self.value_data), self.value_valid,
                _view(self.subject_ends, "i"), _view(self.subject_data), self.subject_valid,
                _view(self.header_ends, "i"),
                _view(self.header_key_ends, "i"), _view(self.header_key_data),
                _view(self.header_value_ends, "i"), _view(self.header_value_data),
                self.header_value_valid, self.state,
            )
        )  # fmt: skip

    def finish(self, partition: int, subject: str | None) -> pa.RecordBatch:
        """The columns as an Arrow record batch, without copying.

        `subject` is that of the records without header; None: they have none.
        """
        rows, entries = self.state[1], self.state[2]
        text = pa.string() if self.state[3] < 128 else pa.binary()
        names = _variable(text, entries, None, self.header_key_ends, self.header_key_data)
        contents = _variable(
            pa.binary(), entries, self.header_value_valid, self.header_value_ends,
            self.header_value_data,
        )  # fmt: skip
        subjects = _variable(text, rows, self.subject_valid, self.subject_ends, self.subject_data)
        if text != pa.string():
            names, subjects = _to_utf8(names), _to_utf8(subjects)
        if subject is not None and subjects.null_count:
            subjects = _filled(subjects, subject)
        pairs = pa.StructArray.from_arrays([names, contents], fields=list(HEADERS_TYPE.value_type))
        headers = pa.Array.from_buffers(
            HEADERS_TYPE, rows, [None, self.header_ends], null_count=0, children=[pairs]
        )
        stamps = pa.Array.from_buffers(
            SCHEMA.field("timestamp").type, rows, [None, self.timestamps], null_count=0
        )
        return pa.RecordBatch.from_arrays(
            [
                pa.Array.from_buffers(pa.int64(), rows, [None, self.offsets], null_count=0),
                pa.repeat(pa.scalar(partition, pa.int32()), rows),
                stamps,
                _variable(pa.binary(), rows, self.key_valid, self.key_ends, self.key_data),
                _variable(pa.binary(), rows, self.value_valid, self.value_ends, self.value_data),
                subjects,
                headers,
            ],
            schema=SCHEMA,
        )


def decode_batches(
    data: bytes | bytearray | memoryview,
    *,
    partition: int = 0,
    offset_min: int = 0,
    offset_end: int = (1 << 63) - 1,
    subject: str | None = None,
    origin: str = "fetched bytes",
) -> tuple[pa.RecordBatch, int]:
    """Decode the records of all complete batches of `data` that lie in [offset_min, offset_end).

    Returns the Arrow batch (`SCHEMA`; possibly empty) and the offset to fetch next: the end of the
    last batch read, or `offset_min` if there was none. Records without header `subject` get
    `subject`, that of their stream. Skips control batches. Leaves an incomplete
    last batch for the next fetch. Stops decompressing when the records reach `DECODED_BYTES_MAX`:
    decode the rest with another call from the returned offset.

    Raises: CorruptData for a wrong CRC, magic, codec, length or record; it names `origin` and byte.
    """
    view = memoryview(data)
    next_offset = offset_min
    plain = _PlainRecords(view, origin)
    for header, start, end in scan_batches(view, origin=origin):
        end_offset = header.end_offset
        if end_offset > offset_min and not header.is_control:
            if header.codec and plain.is_full:
                break
            plain.add(header, start, end)
        if end_offset > next_offset:
            next_offset = end_offset
    view = plain.joined()
    entries = 64
    while True:
        columns = _Columns(rows=plain.rows, data_bytes=plain.bytes, entries=entries)
        found = columns.fill(view, plain.batches, offset_min=offset_min, offset_end=offset_end)
        if found >= 0:
            return columns.finish(partition, subject), min(next_offset, max(offset_end, offset_min))
        if found == -1:
            raise plain.malformed(columns.state[0])
        entries = max(4 * entries, 2 * plain.rows)


class _PlainRecords:
    """The uncompressed records of some batches, in one buffer.

    Without compressed batches the buffer is the fetched bytes. Otherwise the records of all batches
    are copied into a new buffer, because the compiled decoder takes one buffer.
    """

    def __init__(self, view: memoryview, origin: str) -> None:
        self._view = view
        self._origin = origin
        self._decompressed: dict[int, bytes] = {}
        """Index of a compressed batch -> its records."""
        self._locations: list[tuple[int, int, bool]] = []
        """(position in `joined`, position in the fetched bytes, whether compressed) per batch."""
        self.batches = array("q")
        """`BATCH_FIELDS` numbers per batch, with positions in the result of `joined`."""
        self.rows = 0
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        return bool(self._decompressed) and self.bytes >= DECODED_BYTES_MAX

    def add(self, header: BatchHeader, start: int, end: int) -> None:
        """Add the batch in [start, end). Raises: CorruptData."""
        at = start + HEADER_BYTES
        size = end - at
        if header.codec:
            records = decompress_records(
                header.codec, self._view[at:end], origin=self._origin, position=at
            )
            self._decompressed[len(self.batches) // _hot.BATCH_FIELDS] = records
            size = len(records)
        _check_header(header, start, size, self._origin)
        append_time = header.max_timestamp if header.is_log_append_time else -1
        self.batches.extend(
            (
                at, end, header.record_count,
                header.base_offset, header.base_timestamp, append_time,
            )
        )  # fmt: skip
        self.rows += header.record_count
        self.bytes += size

    def joined(self) -> memoryview:
        """The buffer with the records of all batches. No batch may be added afterwards."""
        if not self._decompressed:
            return self._view
        batches, at = self.batches, 0
        pieces: list[bytes | memoryview] = []
        for index in range(len(batches) // _hot.BATCH_FIELDS):
            slot = _hot.BATCH_FIELDS * index
            start, end = batches[slot : slot + 2]
            records = self._decompressed.get(index)
            self._locations.append((at, start, records is not None))
            pieces.append(self._view[start:end] if records is None else records)
            batches[slot], batches[slot + 1] = at, at + len(pieces[-1])
            at += len(pieces[-1])
        return memoryview(b"".join(pieces))

    def malformed(self, at: int) -> CorruptData:
        """The error for the record at `at` of `joined`. If compressed, it names its batch."""
        expected = "a well-formed record"
        if self._locations:
            index = bisect_right(self._locations, at, key=itemgetter(0)) - 1
            joined_at, fetched_at, compressed = self._locations[index]
            if compressed:
                expected += f" at byte {at - joined_at} of the decompressed records"
                at = fetched_at
            else:
                at += fetched_at - joined_at
        return CorruptData(self._origin, at, expected, "other bytes")


def _check_header(header: BatchHeader, start: int, records_bytes: int, origin: str) -> None:
    """Raises: CorruptData for an invalid record count or timestamp."""
    # A record takes at least 7 bytes. Check the count before allocating memory for it.
    if not 0 <= header.record_count * 7 <= records_bytes:
        raise CorruptData(origin, start + 57, "a record count that fits", str(header.record_count))
    for stamp in (header.base_timestamp, header.max_timestamp):
        if abs(stamp) > _TIMESTAMP_MS_MAX:
            raise CorruptData(origin, start + 27, "a timestamp in milliseconds", str(stamp))


def _filled(subjects: pa.Array, subject: str) -> pa.Array:
    """`subjects` with `subject` in place of nulls."""
    if subjects.null_count == len(subjects):
        return pa.repeat(pa.scalar(subject, pa.string()), len(subjects))
    # Imported here: most reads do not need it.
    import pyarrow.compute as pc

    return pc.fill_null(subjects, subject)


def _view(buffer: pa.Buffer, kind: Literal["B", "i", "q"] = "B") -> memoryview:
    view: memoryview = memoryview(buffer).cast(kind)
    return view


def _ends(count: int) -> pa.Buffer:
    return pa.allocate_buffer(4 * (count + 1))


def _variable(
    kind: pa.DataType, rows: int, valid: bytearray | None, ends: pa.Buffer, data: pa.Buffer
) -> pa.Array:
    bitmap = None if valid is None else pa.py_buffer(valid)
    return pa.Array.from_buffers(kind, rows, [bitmap, ends, data])


def _to_utf8(column: pa.Array) -> pa.Array:
    """Decode bytes as UTF-8 and replace invalid bytes, as Kafka's Java client does."""
    return pa.array(
        [None if item is None else item.decode("utf-8", "replace") for item in column.to_pylist()],
        pa.string(),
    )
