"""Skip batches below an offset, and check batches by their headers or by every byte.

Each function stops at the first batch that it does not accept. The caller then checks that batch in
interpreted code, which accepts it or raises an error that names the damage. So these functions may
stop at a valid batch, but they never accept an invalid one.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

from crc32c import crc32c

if cython.compiled:
    from cython.cimports.bascule._hot_number import read_number
else:
    from bascule._hot_number import read_number

IS_COMPILED: bool = cython.compiled

HEADER_BYTES: cython.Py_ssize_t = 61
CRC_START: cython.Py_ssize_t = 21
OFFSET_MAX: cython.longlong = 9223372036854775807
ALL_BITS: cython.ulonglong = 0xFFFFFFFFFFFFFFFF

ENTRY_FIELDS = 3
"""Numbers per index entry: base offset, position in the file, largest timestamp before the batch.
"""
STATE_FIELDS = 5
"""Numbers of `state`: position in the buffer, next offset, largest timestamp, entries written, and
the position in the file from which the next batch gets an index entry."""


def skip_batches(
    buf: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, offset: cython.longlong
) -> int:
    """The position of the first batch from `start` on that ends beyond `offset`.

    Stops earlier at a header that is incomplete or invalid. A position beyond the buffer means that
    the next batch starts there.
    """
    at: cython.Py_ssize_t
    size: cython.Py_ssize_t
    length: cython.longlong
    delta: cython.longlong
    size = buf.shape[0] if cython.compiled else len(buf)
    at = start
    while size - at >= HEADER_BYTES:
        if buf[at + 16] != 2:
            break
        length = read_number(buf, at + 8, 4)
        delta = read_number(buf, at + 23, 4)
        # Subtract: with a damaged base offset the sum could overflow 64 bits.
        if length < 49 or delta < 0 or read_number(buf, at, 8) >= offset - delta:
            break
        at += 12 + length
    return at


def check_headers(
    buf: cython.const[cython.uchar][::1],
    epoch: cython.longlong,
    epoch_end: cython.longlong,
    gaps_allowed: cython.bint,
    state: cython.longlong[::1],
) -> int:
    """Check batches by their headers only; returns how many were accepted.

    `state` is the position of the first batch and the offset at which it must begin. On return it
    is the position and offset after the accepted batches. Stops at the first header that is
    incomplete or invalid, whose offset does not continue, whose epoch is not `epoch`, or whose base
    offset is at or beyond `epoch_end`. A position beyond the buffer is as in `skip_batches`.
    """
    at: cython.Py_ssize_t
    size: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    length: cython.longlong
    delta: cython.longlong
    base: cython.longlong
    offset: cython.longlong
    size = buf.shape[0] if cython.compiled else len(buf)
    at = state[0]
    offset = state[1]
    if at < 0:
        raise IndexError("the position is before the buffer")
    while size - at >= HEADER_BYTES:
        base = read_number(buf, at, 8)
        length = read_number(buf, at + 8, 4)
        delta = read_number(buf, at + 23, 4)
        if buf[at + 16] != 2 or length < 49 or delta < 0:
            break
        if base != offset and (base < offset or not gaps_allowed):
            break
        if (
            base >= epoch_end
            or base > OFFSET_MAX - delta - 1
            or read_number(buf, at + 12, 4) != epoch
        ):
            break
        offset = base + delta + 1
        at += 12 + length
        count += 1
    state[0] = at
    state[1] = offset
    return count


def check_batches(
    data: object,
    origin: cython.longlong,
    offset: cython.longlong,
    epoch: cython.longlong,
    epoch_end: cython.longlong,
    gaps_allowed: cython.bint,
    interval: cython.longlong,
    entries: cython.longlong[::1],
    state: cython.longlong[::1],
) -> int:
    """Check whole batches from the beginning of `data` on; returns how many are valid.

    `data` is a memoryview of the bytes from byte `origin` of a file on, which is a batch boundary.
    The first batch must begin at `offset`. A batch is valid if its header is valid, it is complete,
    its CRC matches, its base offset continues, and its epoch is `epoch` (-2: any) with a base
    offset below `epoch_end`.

    The caller sets the largest timestamp and the position of the next index entry in `state` (see
    STATE_FIELDS). The function updates all of `state`, and writes index entries to `entries`. It
    stops when `entries` is full.
    """
    buf: cython.const[cython.uchar][::1]
    at: cython.Py_ssize_t
    size: cython.Py_ssize_t
    end: cython.Py_ssize_t
    count: cython.Py_ssize_t
    entry: cython.Py_ssize_t
    room: cython.Py_ssize_t
    length: cython.longlong
    delta: cython.longlong
    base: cython.longlong
    timestamp: cython.longlong
    timestamp_max: cython.longlong
    entry_at: cython.longlong
    crc: cython.longlong
    buf = data
    size = buf.shape[0] if cython.compiled else len(buf)
    room = entries.shape[0] if cython.compiled else len(entries)
    timestamp_max = state[2]
    entry_at = state[4]
    at = 0
    count = 0
    entry = 0
    while size - at >= HEADER_BYTES and entry + 3 <= room:
        base = read_number(buf, at, 8)
        length = read_number(buf, at + 8, 4)
        delta = read_number(buf, at + 23, 4)
        if buf[at + 16] != 2 or length < 49 or length > size - at - 12 or delta < 0:
            break
        if base != offset and (base < offset or not gaps_allowed):
            break
        if base > OFFSET_MAX - delta - 1:
            break
        if epoch != -2 and (base >= epoch_end or read_number(buf, at + 12, 4) != epoch):
            break
        end = at + 12 + length
        crc = read_number(buf, at + 17, 4)
        if crc < 0:
            crc += 0x100000000
        if crc32c(data[at + CRC_START : end]) != crc:
            break
        if origin + at >= entry_at or base != offset:
            entries[entry] = base
            entries[entry + 1] = origin + at
            entries[entry + 2] = timestamp_max
            entry += 3
            entry_at = origin + at + interval
        timestamp = read_number(buf, at + 35, 8)
        if timestamp > timestamp_max:
            timestamp_max = timestamp
        offset = base + delta + 1
        at = end
        count += 1
    state[0] = at
    state[1] = offset
    state[2] = timestamp_max
    state[3] = entry // 3
    state[4] = entry_at
    return count


def digest_batches(
    buf: cython.const[cython.uchar][::1],
    width: cython.longlong,
    first: cython.longlong,
    limit: cython.longlong,
    sums: cython.ulonglong[::1],
    covered: cython.longlong[::1],
    state: cython.longlong[::1],
) -> int:
    """Add batches, whose CRCs are checked, to the digests of ranges of offsets.

    Range `first` + i has the offsets from its number times `width` on. A batch belongs to the range
    of its base offset: `sums[i]` grows by a hash of base offset, length, leader epoch and CRC.
    `covered[i]` grows by the offsets of the range in batches that have all of their records, and
    that compaction has given no delete horizon. Batches that end beyond `limit` are only counted.

    `state` is the position of the first batch and the offset up to which batches were added before:
    batches that end there or below are skipped. On return it is the position and offset after the
    last batch, and state[2] has grown by the number of records. Returns the number of batches, or
    -1 at a batch beyond the last range.
    """
    at: cython.Py_ssize_t
    size: cython.Py_ssize_t
    rows: cython.Py_ssize_t
    row: cython.longlong
    count: cython.Py_ssize_t = 0
    base: cython.longlong
    end: cython.longlong
    low: cython.longlong
    high: cython.longlong
    length: cython.longlong
    delta: cython.longlong
    records: cython.longlong
    crc: cython.longlong
    hashed: cython.ulonglong
    offset: cython.longlong
    is_over: cython.bint = False
    size = buf.shape[0] if cython.compiled else len(buf)
    rows = sums.shape[0] if cython.compiled else len(sums)
    if width < 1 or first < 0 or state[0] < 0 or len(covered) < len(sums):
        raise IndexError("the ranges are not valid")
    at = state[0]
    offset = state[1]
    while size - at >= HEADER_BYTES:
        base = read_number(buf, at, 8)
        length = read_number(buf, at + 8, 4)
        delta = read_number(buf, at + 23, 4)
        if base < 0 or length < 49 or delta < 0 or base > OFFSET_MAX - delta - width:
            break
        end = base + delta + 1
        if base >= offset:
            records = read_number(buf, at + 57, 4)
            if end <= limit and base // width >= first:
                if (end - 1) // width - first >= rows:
                    is_over = True
                    break
                crc = read_number(buf, at + 17, 4)
                if crc < 0:
                    crc += 0x100000000
                # The end of splitmix64 spreads a difference in one bit over all bits.
                hashed = (base * 0x100000000 + crc) & ALL_BITS
                hashed = hashed ^ (length * 0x10001 + read_number(buf, at + 12, 4))
                hashed = ((hashed ^ (hashed >> 30)) * 0xBF58476D1CE4E5B9) & ALL_BITS
                hashed = ((hashed ^ (hashed >> 27)) * 0x94D049BB133111EB) & ALL_BITS
                hashed = hashed ^ (hashed >> 31)
                row = base // width - first
                sums[row] = (sums[row] + hashed) & ALL_BITS
                if records == delta + 1 and not buf[at + 22] & 0x40:
                    low = base
                    while low < end:
                        row = low // width - first
                        high = (row + first + 1) * width
                        if high > end:
                            high = end
                        covered[row] += high - low
                        low = high
            state[2] += records
            offset = end
        at += 12 + length
        count += 1
    state[0] = at
    state[1] = offset
    return -1 if is_over else count
