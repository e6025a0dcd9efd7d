"""Parse the records of batches to field positions, or decode them to Arrow buffers.

Both functions return a number of records. If a record is malformed, they return -1, and `state[0]`
is that record's byte position. The bytes are untrusted, so every range is checked before it is
read.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.bascule.record._hot_varint import read_varint
    from cython.cimports.libc.string import memcpy
else:
    from bascule.record._hot_varint import read_varint

IS_COMPILED: bool = cython.compiled

TIMESTAMP_DELTA_MAX = 1 << 50
"""About 35,000 years in milliseconds: enough for every clock, and too small to overflow."""
OFFSET_DELTA_MAX = (1 << 31) - 1
"""The header's last offset delta is an int32."""

POSITION_FIELDS = 8
"""Numbers per record from `index_records`: offset delta, timestamp delta, key at, key length,
value at, value length, headers at, header count. A length of -1 is a null."""

BATCH_FIELDS = 6
"""Numbers per batch for `decode_columns`."""


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.void)
def _copy(
    source: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
    target: cython.uchar[::1],
    to: cython.Py_ssize_t,
):
    """Copy `length` bytes. The caller has checked both ranges."""
    if length > 0:
        if cython.compiled:
            memcpy(cython.address(target[to]), cython.address(source[at]), length)
        else:
            target[to : to + length] = source[at : at + length]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.bint)
def _is_subject(
    buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, length: cython.Py_ssize_t
):
    """Whether the bytes are `subject`. The caller has checked the range."""
    return (
        length == 7
        and buf[at] == 115
        and buf[at + 1] == 117
        and buf[at + 2] == 98
        and buf[at + 3] == 106
        and buf[at + 4] == 101
        and buf[at + 5] == 99
        and buf[at + 6] == 116
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.int)
def _high_bits(buf: cython.uchar[::1], at: cython.Py_ssize_t, length: cython.Py_ssize_t):
    """The bitwise or of the bytes: at least 128 if one is not ASCII. The caller has checked the
    range."""
    seen: cython.int = 0
    position: cython.Py_ssize_t
    for position in range(at, at + length):
        seen |= buf[position]
    return seen


def index_records(
    buf: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    positions: cython.longlong[::1],
    state: cython.longlong[::1],
) -> int:
    """Find every field of `count` records, which must fill `buf[start:end]` exactly.

    Writes 8 numbers per record to `positions` (`POSITION_FIELDS`). Positions are absolute in `buf`.
    """
    at: cython.Py_ssize_t = start
    row: cython.Py_ssize_t
    record_at: cython.Py_ssize_t = start
    record_end: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    field: cython.Py_ssize_t
    fields: cython.Py_ssize_t
    number: cython.longlong
    header_count: cython.longlong
    good: cython.bint = True
    if start < 0 or end > len(buf) or len(positions) < 8 * count:
        raise IndexError("buf or positions is too small for the records")
    with cython.nogil:
        for row in range(count):
            record_at = at
            good = False
            number, at = read_varint(buf, at, end)
            if at < 0 or number < 1 or number > end - at:
                break
            record_end = at + number
            at += 1
            slot = 8 * row
            number, at = read_varint(buf, at, record_end)
            if at < 0:
                break
            positions[slot + 1] = number
            number, at = read_varint(buf, at, record_end)
            if at < 0:
                break
            positions[slot] = number
            number, at = read_varint(buf, at, record_end)
            if at < 0 or number < -1 or number > record_end - at:
                break
            positions[slot + 2] = at
            positions[slot + 3] = number
            if number > 0:
                at += number
            number, at = read_varint(buf, at, record_end)
            if at < 0 or number < -1 or number > record_end - at:
                break
            positions[slot + 4] = at
            positions[slot + 5] = number
            if number > 0:
                at += number
            header_count, at = read_varint(buf, at, record_end)
            if at < 0 or header_count < 0 or header_count > record_end - at:
                break
            positions[slot + 6] = at
            positions[slot + 7] = header_count
            fields = 2 * header_count
            good = True
            for field in range(fields):
                number, at = read_varint(buf, at, record_end)
                if at < 0 or number > record_end - at or number < (-1 if field & 1 else 0):
                    good = False
                    break
                if number > 0:
                    at += number
            if not good:
                break
            if at != record_end:
                good = False
                break
        if good and at != end:
            good = False
            record_at = at
    if not good:
        state[0] = record_at
        return -1
    return count


# All reads are range-checked, and every capacity is checked before the loop.
@cython.boundscheck(False)
def decode_columns(
    buf: cython.const[cython.uchar][::1],
    batches: cython.const[cython.longlong][::1],
    batch_count: cython.Py_ssize_t,
    offset_min: cython.longlong,
    offset_end: cython.longlong,
    offsets: cython.longlong[::1],
    timestamps: cython.longlong[::1],
    key_ends: cython.int[::1],
    key_data: cython.uchar[::1],
    key_valid: cython.uchar[::1],
    value_ends: cython.int[::1],
    value_data: cython.uchar[::1],
    value_valid: cython.uchar[::1],
    subject_ends: cython.int[::1],
    subject_data: cython.uchar[::1],
    subject_valid: cython.uchar[::1],
    header_ends: cython.int[::1],
    header_key_ends: cython.int[::1],
    header_key_data: cython.uchar[::1],
    header_value_ends: cython.int[::1],
    header_value_data: cython.uchar[::1],
    header_value_valid: cython.uchar[::1],
    state: cython.longlong[::1],
) -> int:
    """Decode the records of some batches with offsets in [offset_min, offset_end) to columns.

    `batches` has 6 numbers per batch (`BATCH_FIELDS`): start and end of its records in `buf`, their
    number, base offset, base timestamp, and the timestamp of all records or -1 if each has its own.
    `*_ends[i + 1]` is the end of row i's bytes (`*_ends[0]` is 0, as in Arrow). `*_valid` are
    bitmaps, which the caller has zeroed. Timestamps are milliseconds times 1000. Every data buffer
    has room for the bytes of all batches, and the row buffers for all records.

    Returns the number of rows; -1 (see the module); or -2 if the header entries do not fit: repeat
    with larger buffers. On return `state[1]` is the number of rows and `state[2]` of header
    entries. `state[3]` is at least 128 if a subject or header name is not ASCII: only then must the
    caller check for UTF-8.
    """
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t
    batch: cython.Py_ssize_t
    count: cython.longlong
    base_offset: cython.longlong
    base_timestamp: cython.longlong
    append_timestamp: cython.longlong
    index: cython.Py_ssize_t
    row: cython.Py_ssize_t = 0
    entry: cython.Py_ssize_t = 0
    rows: cython.longlong = 0
    size: cython.Py_ssize_t = 0
    record_at: cython.Py_ssize_t = 0
    record_end: cython.Py_ssize_t
    number: cython.longlong
    offset: cython.longlong
    timestamp: cython.longlong
    key_at: cython.Py_ssize_t
    key_length: cython.longlong
    header_count: cython.longlong
    header: cython.longlong
    name_at: cython.Py_ssize_t
    name_length: cython.longlong
    key_to: cython.Py_ssize_t = 0
    value_to: cython.Py_ssize_t = 0
    subject_to: cython.Py_ssize_t = 0
    header_key_to: cython.Py_ssize_t = 0
    header_value_to: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = min(
        len(header_key_ends) - 1,
        len(header_value_ends) - 1,
        len(header_value_valid) * 8,
    )
    timestamp_delta_max: cython.longlong = TIMESTAMP_DELTA_MAX
    delta_max: cython.longlong = OFFSET_DELTA_MAX
    full: cython.bint = False
    text: cython.int = 0
    good: cython.bint = True
    if len(batches) < 6 * batch_count:
        raise IndexError("batches is too small for batch_count")
    for batch in range(batch_count):
        at = batches[6 * batch]
        end = batches[6 * batch + 1]
        count = batches[6 * batch + 2]
        if at < 0 or end < at or end > len(buf) or count < 0 or count > end - at:
            raise IndexError("a batch is not within the buffer")
        rows += count
        size += end - at
    if (
        len(key_data) < size
        or len(value_data) < size
        or len(subject_data) < size
        or len(header_key_data) < size
        or len(header_value_data) < size
        or len(offsets) < rows
        or len(timestamps) < rows
        or len(key_ends) <= rows
        or len(value_ends) <= rows
        or len(subject_ends) <= rows
        or len(header_ends) <= rows
        or len(key_valid) * 8 < rows
        or len(value_valid) * 8 < rows
        or len(subject_valid) * 8 < rows
        or room < 0
    ):
        raise IndexError("columns are too small for the records")
    key_ends[0] = 0
    value_ends[0] = 0
    subject_ends[0] = 0
    header_ends[0] = 0
    header_key_ends[0] = 0
    header_value_ends[0] = 0
    with cython.nogil:
        for batch in range(batch_count):
            at = batches[6 * batch]
            end = batches[6 * batch + 1]
            count = batches[6 * batch + 2]
            base_offset = batches[6 * batch + 3]
            base_timestamp = batches[6 * batch + 4]
            append_timestamp = batches[6 * batch + 5]
            for index in range(count):
                record_at = at
                good = False
                number, at = read_varint(buf, at, end)
                if at < 0 or number < 1 or number > end - at:
                    break
                record_end = at + number
                at += 1
                number, at = read_varint(buf, at, record_end)
                if at < 0 or number > timestamp_delta_max or number < -timestamp_delta_max:
                    break
                timestamp = base_timestamp + number
                number, at = read_varint(buf, at, record_end)
                if at < 0 or number < 0 or number > delta_max:
                    break
                offset = base_offset + number
                if offset < offset_min or offset >= offset_end:
                    at = record_end
                    good = True
                    continue
                key_length, at = read_varint(buf, at, record_end)
                if at < 0 or key_length < -1 or key_length > record_end - at:
                    break
                key_at = at
                if key_length > 0:
                    at += key_length
                number, at = read_varint(buf, at, record_end)
                if at < 0 or number < -1 or number > record_end - at:
                    break
                if append_timestamp >= 0:
                    timestamp = append_timestamp
                offsets[row] = offset
                timestamps[row] = timestamp * 1000
                if key_length >= 0:
                    _copy(buf, key_at, key_length, key_data, key_to)
                    key_to += key_length
                    key_valid[row >> 3] |= 1 << (row & 7)
                key_ends[row + 1] = key_to
                if number >= 0:
                    _copy(buf, at, number, value_data, value_to)
                    value_to += number
                    at += number
                    value_valid[row >> 3] |= 1 << (row & 7)
                value_ends[row + 1] = value_to
                header_count, at = read_varint(buf, at, record_end)
                if at < 0 or header_count < 0 or header_count > (record_end - at) // 2:
                    break
                good = True
                for header in range(header_count):
                    good = False
                    name_length, at = read_varint(buf, at, record_end)
                    if at < 0 or name_length < 0 or name_length > record_end - at:
                        break
                    name_at = at
                    at += name_length
                    number, at = read_varint(buf, at, record_end)
                    if at < 0 or number < -1 or number > record_end - at:
                        break
                    good = True
                    if header == 0 and number >= 0 and _is_subject(buf, name_at, name_length):
                        _copy(buf, at, number, subject_data, subject_to)
                        subject_to += number
                        subject_valid[row >> 3] |= 1 << (row & 7)
                    else:
                        if entry >= room:
                            full = True
                            good = False
                            break
                        _copy(buf, name_at, name_length, header_key_data, header_key_to)
                        header_key_to += name_length
                        header_key_ends[entry + 1] = header_key_to
                        if number >= 0:
                            _copy(buf, at, number, header_value_data, header_value_to)
                            header_value_to += number
                            header_value_valid[entry >> 3] |= 1 << (entry & 7)
                        header_value_ends[entry + 1] = header_value_to
                        entry += 1
                    if number > 0:
                        at += number
                if not good:
                    break
                if at != record_end:
                    good = False
                    break
                subject_ends[row + 1] = subject_to
                header_ends[row + 1] = entry
                row += 1
            if good and at != end:
                good = False
                record_at = at
            if not good:
                break
        text = _high_bits(subject_data, 0, subject_to)
        text |= _high_bits(header_key_data, 0, header_key_to)
    if full:
        return -2
    if not good:
        state[0] = record_at
        return -1
    state[1] = row
    state[2] = entry
    state[3] = text
    return row
