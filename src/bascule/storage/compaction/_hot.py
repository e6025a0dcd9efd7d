"""Copy what stays of record batches, by the verdicts on their records, and seal them again."""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

from crc32c import crc32c

if cython.compiled:
    from cython.cimports.bascule.record._hot_varint import read_varint
    from cython.cimports.libc.string import memcpy
else:
    from bascule.record._hot_varint import read_varint

IS_COMPILED: bool = cython.compiled

COPY_FIELDS = 8
"""`state` of `copy_batches`: present time, delete horizon for tombstones met first, earliest
horizon of those kept, records removed, batches changed or dropped; then, only coming out, where the
output ends and how many numbers are in `places`; and, only going in, the offset at which the log
ends, where nothing follows what is compacted, or -1."""


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


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.void)
def _put(
    buf: cython.uchar[::1],
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    value: cython.longlong,
):
    """Write a non-negative number in `size` bytes."""
    step: cython.Py_ssize_t
    for step in range(size):
        buf[at + size - 1 - step] = value & 0xFF
        value >>= 8


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
    """Copy `length` bytes; the caller checked both ranges."""
    if length > 0:
        if cython.compiled:
            memcpy(cython.address(target[to]), cython.address(source[at]), length)
        else:
            target[to : to + length] = source[at : at + length]


def copy_batches(
    buf: cython.const[cython.uchar][::1],
    plans: cython.const[cython.longlong][::1],
    count: cython.Py_ssize_t,
    verdicts: cython.const[cython.uchar][::1],
    out: cython.uchar[::1],
    places: cython.longlong[::1],
    state: cython.longlong[::1],
) -> bool:
    """Copy to `out`, which has room for all of them, what stays of `count` batches of `plans`.

    `plans` and `verdicts` are those of `keys._hot.judge_batches` on the same bytes. A tombstone
    that is the newest of its key stays until its batch's delete horizon has passed (KIP-534). A
    batch with a tombstone and no horizon gets one; batches without LogAppendTime do not, since
    their base timestamp is in use, and keep their tombstones. Base offset, last offset delta and
    max timestamp stay as they are, and a batch of which nothing stays is left out. The log's last
    batch keeps its tombstones whatever their horizon: a reader that waits for the last offset has
    to get there.

    `places` takes start and end in `out` of each batch that was changed, for `seal_batches`. False
    where the records are not those that were judged.
    """
    now: cython.longlong = state[0]
    horizon_new: cython.longlong = state[1]
    horizon_next: cython.longlong = state[2]
    removed: cython.longlong = state[3]
    changed: cython.longlong = state[4]
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    record_at: cython.Py_ssize_t
    record_stop: cython.Py_ssize_t
    run: cython.Py_ssize_t
    to: cython.Py_ssize_t = 0
    head: cython.Py_ssize_t
    placed: cython.Py_ssize_t = 0
    record: cython.Py_ssize_t
    records: cython.longlong
    first: cython.longlong
    number: cython.longlong
    kept: cython.longlong
    tombstones: cython.longlong
    horizon: cython.longlong
    has_horizon: cython.bint
    is_over: cython.bint
    is_tail: cython.bint
    tail: cython.longlong = state[7]
    good: cython.bint = True
    if len(plans) < 3 * count or len(places) < 2 * count or len(state) < 8:
        raise IndexError("buffers are too small for what is asked")
    with cython.nogil:
        for row in range(count):
            good = False
            at = plans[3 * row]
            stop = plans[3 * row + 1]
            first = plans[3 * row + 2]
            if at < 0 or stop - at < 61 or stop > len(buf) or stop - at > len(out) - to:
                break
            good = True
            if first == -1:
                _copy(buf, at, stop - at, out, to)
                to += stop - at
                continue
            records = _int32(buf, at + 57)
            if first < 0:
                removed += records
                changed += 1
                continue
            good = False
            if records < 0 or first + records > len(verdicts):
                break
            has_horizon = (buf[at + 22] & 0x40) != 0
            horizon = _int64(buf, at + 27) if has_horizon else horizon_new
            is_tail = _int64(buf, at) + _int32(buf, at + 23) + 1 == tail
            is_over = has_horizon and now >= horizon and not is_tail
            head = to
            to += 61
            kept = 0
            tombstones = 0
            record_at = at + 61
            run = record_at
            good = True
            for record in range(first, first + records):
                number, record_stop = read_varint(buf, record_at, stop)
                if record_stop < 0 or number < 1 or number > stop - record_stop:
                    good = False
                    break
                record_stop += number
                if verdicts[record] == 1 or (verdicts[record] == 2 and not is_over):
                    kept += 1
                    tombstones += verdicts[record] == 2
                else:
                    # What stayed before it goes in one piece.
                    _copy(buf, run, record_at - run, out, to)
                    to += record_at - run
                    run = record_stop
                record_at = record_stop
            if not good:
                break
            removed += records - kept
            if kept == 0:
                changed += 1
                to = head
                continue
            _copy(buf, run, record_at - run, out, to)
            to += record_at - run
            _copy(buf, at, 61, out, head)
            if tombstones > 0 and (has_horizon or buf[at + 22] & 8):
                if not has_horizon:
                    out[head + 22] = buf[at + 22] | 0x40
                    _put(out, head + 27, 8, horizon)
                # Past already, it would ask for a run that changes nothing, again and again.
                if horizon < horizon_next and not (is_tail and now >= horizon):
                    horizon_next = horizon
            if kept < records or out[head + 22] != buf[at + 22]:
                _put(out, head + 8, 4, to - head - 12)
                _put(out, head + 57, 4, kept)
                places[placed] = head
                places[placed + 1] = to
                placed += 2
                changed += 1
    state[2] = horizon_next
    state[3] = removed
    state[4] = changed
    state[5] = to
    state[6] = placed
    return good


def seal_batches(
    data: object, places: cython.const[cython.longlong][::1], count: cython.Py_ssize_t
) -> None:
    """Write the CRC of the batches at `count` numbers of `places`; `data` is a memoryview."""
    buf: cython.uchar[::1]
    row: cython.Py_ssize_t
    crc: cython.longlong
    buf = data
    for row in range(0, count, 2):
        crc = crc32c(data[places[row] + 21 : places[row + 1]])
        _put(buf, places[row] + 17, 4, crc)
