"""Copy the records to keep of record batches, and write the CRCs of the changed batches."""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

from crc32c import crc32c

if cython.compiled:
    from cython.cimports.bascule._hot_number import read_number
    from cython.cimports.bascule.record._hot_varint import read_varint, write_varint
    from cython.cimports.libc.string import memcpy
else:
    from bascule._hot_number import read_number
    from bascule.record._hot_varint import read_varint, write_varint

IS_COMPILED: bool = cython.compiled

COPY_FIELDS = 10
"""Numbers of `state` of `copy_batches`. In and out: current time, delete horizon for tombstones
without one, earliest horizon of the kept tombstones, records removed, batches changed or removed.
Out: size of the output, count of numbers in `changed_ranges`. In: the offset at which the log ends
if all of it is compacted, else -1; the end of the tombstones that may be removed. In and out: the
end of those that were."""
GROWTH_BYTES_MAX = 10
"""Most bytes by which a record grows: its delta takes 10 bytes instead of 1, its length 1 more."""


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
def _has_delta(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    delta: cython.longlong,
):
    """Whether the record at `at` has the timestamp delta `delta`."""
    number: cython.longlong
    number, at = read_varint(buf, at, stop)
    if at < 0:
        return False
    number, at = read_varint(buf, at + 1, stop)
    return at >= 0 and number == delta


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _copy_records(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    actions: cython.const[cython.uchar][::1],
    first: cython.Py_ssize_t,
    records: cython.Py_ssize_t,
    tombstones_go: cython.bint,
    out: cython.uchar[::1],
    to: cython.Py_ssize_t,
):
    """Copy the records to keep. Returns the end in `out`, or -1 if they are malformed."""
    number: cython.longlong
    record: cython.Py_ssize_t
    record_stop: cython.Py_ssize_t
    run: cython.Py_ssize_t = at
    for record in range(first, first + records):
        number, record_stop = read_varint(buf, at, stop)
        if record_stop < 0 or number < 1 or number > stop - record_stop:
            return -1
        record_stop += number
        if actions[record] != 1 and (actions[record] != 2 or tombstones_go):
            # Copy the kept records before it in one piece.
            _copy(buf, run, at - run, out, to)
            to += at - run
            run = record_stop
        at = record_stop
    _copy(buf, run, at - run, out, to)
    return to + at - run


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _copy_rebased(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    actions: cython.const[cython.uchar][::1],
    first: cython.Py_ssize_t,
    records: cython.Py_ssize_t,
    tombstones_go: cython.bint,
    delta: cython.longlong,
    out: cython.uchar[::1],
    to: cython.Py_ssize_t,
):
    """As `_copy_records`, with the timestamp delta `delta` in every record."""
    number: cython.longlong
    record: cython.Py_ssize_t
    body: cython.Py_ssize_t
    rest: cython.Py_ssize_t
    record_stop: cython.Py_ssize_t
    delta_bytes: cython.Py_ssize_t = write_varint(out, to, delta) - to
    for record in range(first, first + records):
        number, body = read_varint(buf, at, stop)
        if body < 0 or number < 1 or number > stop - body:
            return -1
        record_stop = body + number
        if actions[record] == 1 or (actions[record] == 2 and not tombstones_go):
            number, rest = read_varint(buf, body + 1, record_stop)
            if rest < 0:
                return -1
            to = write_varint(out, to, 1 + delta_bytes + record_stop - rest)
            out[to] = buf[body]
            to = write_varint(out, to + 1, delta)
            _copy(buf, rest, record_stop - rest, out, to)
            to += record_stop - rest
        at = record_stop
    return to


def copy_batches(
    buf: cython.const[cython.uchar][::1],
    plans: cython.const[cython.longlong][::1],
    count: cython.Py_ssize_t,
    actions: cython.const[cython.uchar][::1],
    out: cython.uchar[::1],
    changed_ranges: cython.longlong[::1],
    state: cython.longlong[::1],
) -> bool:
    """Copy the records to keep of `count` batches of `plans` to `out`.

    `out` has room for the batches and for `GROWTH_BYTES_MAX` more bytes per record.

    `plans` and `actions` are the results of `keys._hot.plan_batches` on the same bytes. A tombstone
    that is the latest record of its key is kept until its batch's delete horizon has passed
    (KIP-534). A batch with a tombstone and without a horizon gets one as its base timestamp. Its
    records get timestamp deltas against the horizon, as in Kafka, so that a reader that ignores
    LogAppendTime computes the right times. A batch to which an older release gave a horizon without
    new deltas gets them, too. Exception: a batch without LogAppendTime gets no horizon and keeps
    its tombstones; the node writes none. Base offset, last offset delta and max timestamp stay
    unchanged. A batch without records to keep is not copied. The batch that ends at `state[7]`, the
    last one of what is synced and committed, keeps its tombstones regardless of the horizon, so
    that a reader can reach the last offset. So do batches that end after `state[8]`: replicas have
    not passed them.

    Writes start and end in `out` of each changed batch to `changed_ranges`, for `seal_batches`.
    Returns False if the records do not match the plans.
    """
    now: cython.longlong = state[0]
    horizon_new: cython.longlong = state[1]
    horizon_next: cython.longlong = state[2]
    removed: cython.longlong = state[3]
    changed: cython.longlong = state[4]
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    to: cython.Py_ssize_t = 0
    head: cython.Py_ssize_t
    placed: cython.Py_ssize_t = 0
    record: cython.Py_ssize_t
    records: cython.longlong
    first: cython.longlong
    kept: cython.longlong
    tombstones: cython.longlong
    horizon: cython.longlong
    time: cython.longlong
    has_horizon: cython.bint
    gets_horizon: cython.bint
    is_rebased: cython.bint
    is_over: cython.bint
    is_tail: cython.bint
    tail: cython.longlong = state[7]
    end: cython.longlong
    tombstones_end: cython.longlong = state[8]
    removed_end: cython.longlong = state[9]
    latest: cython.longlong
    # No difference of two times below it overflows.
    time_max: cython.longlong = 2305843009213693952
    good: cython.bint = True
    if len(plans) < 3 * count or len(changed_ranges) < 2 * count or len(state) < 10:
        raise IndexError(f"plans, changed_ranges or state are too small for {count} batches")
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
            records = read_number(buf, at + 57, 4)
            if first < 0:
                removed += records
                changed += 1
                continue
            good = False
            if records < 0 or first + records > len(actions):
                break
            has_horizon = (buf[at + 22] & 0x40) != 0
            horizon = read_number(buf, at + 27, 8) if has_horizon else horizon_new
            end = read_number(buf, at, 8) + read_number(buf, at + 23, 4) + 1
            is_tail = end == tail
            is_over = has_horizon and now >= horizon and not is_tail and end <= tombstones_end
            kept = 0
            latest = 0
            for record in range(first, first + records):
                latest += actions[record] == 2
                kept += actions[record] == 1
            tombstones = 0 if is_over else latest
            kept += tombstones
            if is_over and latest > 0 and end > removed_end:
                removed_end = end
            good = True
            removed += records - kept
            if kept == 0:
                changed += 1
                continue
            time = read_number(buf, at + 35, 8)
            gets_horizon = False
            is_rebased = False
            if buf[at + 22] & 8 and -time_max < time < time_max and -time_max < horizon < time_max:
                gets_horizon = tombstones > 0 and not has_horizon
                is_rebased = gets_horizon or (
                    has_horizon and not _has_delta(buf, at + 61, stop, time - horizon)
                )
            # The last batch's horizon is ignored. If it has passed, it must not cause new runs.
            if tombstones > 0 and (has_horizon or gets_horizon) and horizon < horizon_next:
                if not (is_tail and now >= horizon):
                    horizon_next = horizon
            head = to
            to += 61
            if is_rebased:
                good = False
                if stop - at + 10 * records > len(out) - head:
                    break
                to = _copy_rebased(
                    buf, at + 61, stop, actions, first, records, is_over, time - horizon, out, to
                )
            else:
                to = _copy_records(buf, at + 61, stop, actions, first, records, is_over, out, to)
            good = to >= 0
            if not good:
                break
            _copy(buf, at, 61, out, head)
            if gets_horizon:
                out[head + 22] = buf[at + 22] | 0x40
                _put(out, head + 27, 8, horizon)
            if kept < records or is_rebased:
                _put(out, head + 8, 4, to - head - 12)
                _put(out, head + 57, 4, kept)
                changed_ranges[placed] = head
                changed_ranges[placed + 1] = to
                placed += 2
                changed += 1
    state[2] = horizon_next
    state[3] = removed
    state[4] = changed
    state[5] = to
    state[6] = placed
    state[9] = removed_end
    return good


def seal_batches(
    data: object, changed_ranges: cython.const[cython.longlong][::1], count: cython.Py_ssize_t
) -> None:
    """Write the CRCs of the batches in the first `count` numbers of `changed_ranges`.

    `data` is a memoryview of the `out` of `copy_batches`.
    """
    buf: cython.uchar[::1]
    row: cython.Py_ssize_t
    crc: cython.longlong
    buf = data
    for row in range(0, count, 2):
        crc = crc32c(data[changed_ranges[row] + 21 : changed_ranges[row + 1]])
        _put(buf, changed_ranges[row] + 17, 4, crc)
