"""Pass over many batches: those an offset is behind, or those that are what they should be.

Both functions stop at the first batch they cannot vouch for and leave it to the callers' slow and
exact path, which accepts it or says what is wrong with it. So they may refuse too much, never too
little.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

from crc32c import crc32c

IS_COMPILED: bool = cython.compiled

HEADER_BYTES: cython.Py_ssize_t = 61
CRC_START: cython.Py_ssize_t = 21
OFFSET_MAX: cython.longlong = 9223372036854775807

ENTRY_FIELDS = 3
"""Numbers per index entry: base offset, position in the file, largest timestamp before."""
STATE_FIELDS = 5
"""Numbers of `state`: position in the buffer, next offset, largest timestamp, entries written, and
the position in the file from which the next batch is an entry."""


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.longlong)
def _int64(buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t):
    value: cython.longlong
    step: cython.Py_ssize_t
    value = buf[at]
    if value >= 128:
        value -= 256
    for step in range(1, 8):
        value = value * 256 + buf[at + step]
    return value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.longlong)
def _int32(buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t):
    value: cython.longlong
    value = buf[at]
    if value >= 128:
        value -= 256
    return ((value * 256 + buf[at + 1]) * 256 + buf[at + 2]) * 256 + buf[at + 3]


def skip_batches(
    buf: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, offset: cython.longlong
) -> int:
    """The position of the first batch from `start` on that ends beyond `offset`.

    Or of the first one whose header is cut short or cannot be. Positions beyond the buffer say that
    the batch starts there.
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
        length = _int32(buf, at + 8)
        delta = _int32(buf, at + 23)
        # Subtracted, since a damaged base offset could take the sum beyond 64 bits.
        if length < 49 or delta < 0 or _int64(buf, at) >= offset - delta:
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
    """Pass the batches from position `state[0]` on, where offset `state[1]` continues, by their
    headers alone; `state` is brought up to date. Returns how many were passed.

    Stops at the first header that is cut short, cannot be, has another offset, or another epoch
    than `epoch`, or one at or beyond `epoch_end`. Positions beyond the buffer are as in
    `skip_batches`.
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
        base = _int64(buf, at)
        length = _int32(buf, at + 8)
        delta = _int32(buf, at + 23)
        if buf[at + 16] != 2 or length < 49 or delta < 0:
            break
        if base != offset and (base < offset or not gaps_allowed):
            break
        if base >= epoch_end or base > OFFSET_MAX - delta - 1 or _int32(buf, at + 12) != epoch:
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
    """Check whole batches from the beginning of `data` on; returns how many are sound.

    `data` is a memoryview of bytes that begin at byte `origin` of their file, at a batch boundary
    where `offset` continues. A batch is sound that has a sane header, its whole length in `data`,
    a right CRC, the next base offset, and epoch `epoch` (-2: any) below offset `epoch_end`.

    `state` (see STATE_FIELDS) goes in with the largest timestamp and the next entry's position, and
    comes out brought up to date; `entries` takes an index entry for each batch that is due one.
    Stops where `entries` is full.
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
        base = _int64(buf, at)
        length = _int32(buf, at + 8)
        delta = _int32(buf, at + 23)
        if buf[at + 16] != 2 or length < 49 or length > size - at - 12 or delta < 0:
            break
        if base != offset and (base < offset or not gaps_allowed):
            break
        if base > OFFSET_MAX - delta - 1:
            break
        if epoch != -2 and (base >= epoch_end or _int32(buf, at + 12) != epoch):
            break
        end = at + 12 + length
        crc = _int32(buf, at + 17)
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
        timestamp = _int64(buf, at + 35)
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
