"""The two passes of compaction over record batches: remember the newest of each key, keep it.

The key map is a table of slots of three 64-bit words: 128 bits of keyed hash, then offset + 1 (0:
the slot is free). Collisions go to the next slot. A key is known by its hash alone; the hash is
SipHash-2-4 with a secret seed, so nobody can choose two keys that fall together.

Callers have checked each batch's header and CRC. The records within are range-checked here, since
a CRC says only that they are what was written.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

from crc32c import crc32c

if cython.compiled:
    from cython.cimports.libc.string import memcpy

IS_COMPILED: bool = cython.compiled

SLOT_WORDS = 3
SEED_WORDS = 4
"""Of `seed`: the state SipHash begins with, its constants and the secret already in it."""
CHUNK_RECORDS = 256
"""Records looked up together: the memory their slots are in is asked for before it is needed."""
HASH_WORDS = 2 * 256
"""Length of the scratch array `hashes`."""
ROW_WORDS = 4 * 256
"""Length of the scratch array `rows`: each record's start, end, offset and kind."""

DONE = 0
"""Every batch was taken."""
FULL = 1
"""The batch at the position reached may not fit: into the map, or into the output."""
PACKED = 2
"""The batch at the position reached is compressed: repeat with the plain one."""
MALFORMED = 3
"""The batch at the position reached holds a record that cannot be."""

MAP_FIELDS = 2
"""`state` of `map_batches`: position, slots taken."""
FILTER_FIELDS = 10
"""`state` of `filter_batches`: position in, position out, end of the map's offsets, log start,
present time, horizon for tombstones met first, earliest horizon of those kept, records removed,
batches changed or dropped, places written."""


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
@cython.returns((cython.longlong, cython.Py_ssize_t))
def _varint(buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t):
    """Read a zigzag varint of at most five bytes: its value and the position behind it, or -1."""
    byte: cython.longlong
    raw: cython.longlong
    shift: cython.int
    if at >= end:
        return 0, -1
    byte = buf[at]
    at += 1
    raw = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        if at >= end or shift > 28:
            return 0, -1
        byte = buf[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
    return (raw >> 1) ^ -(raw & 1), at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _skip_varint(
    buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t
):
    """The position behind a varint of at most ten bytes, or -1."""
    start: cython.Py_ssize_t = at
    while at < end:
        if buf[at] < 0x80:
            return at + 1
        at += 1
        if at - start >= 10:
            break
    return -1


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


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.ulonglong)
def _word(buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t):
    """Eight bytes as a little-endian number."""
    value: cython.ulonglong = 0
    if cython.compiled:
        memcpy(cython.address(value), cython.address(buf[at]), 8)
    else:
        value = int.from_bytes(buf[at : at + 8], "little")
    return value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.returns((cython.ulonglong, cython.ulonglong, cython.ulonglong, cython.ulonglong))
def _round(v0: cython.ulonglong, v1: cython.ulonglong, v2: cython.ulonglong, v3: cython.ulonglong):
    """One SipRound. The masks are for the interpreted twin, whose numbers have no end."""
    m: cython.ulonglong = 0xFFFFFFFF
    m |= m << 32
    v0 = (v0 + v1) & m
    v1 = ((v1 << 13) & m) | (v1 >> 51)
    v1 ^= v0
    v0 = ((v0 << 32) & m) | (v0 >> 32)
    v2 = (v2 + v3) & m
    v3 = ((v3 << 16) & m) | (v3 >> 48)
    v3 ^= v2
    v0 = (v0 + v3) & m
    v3 = ((v3 << 21) & m) | (v3 >> 43)
    v3 ^= v0
    v2 = (v2 + v1) & m
    v1 = ((v1 << 17) & m) | (v1 >> 47)
    v1 ^= v2
    v2 = ((v2 << 32) & m) | (v2 >> 32)
    return v0, v1, v2, v3


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns((cython.ulonglong, cython.ulonglong))
def _hash(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
    v0: cython.ulonglong,
    v1: cython.ulonglong,
    v2: cython.ulonglong,
    v3: cython.ulonglong,
):
    """SipHash-2-4 of 128 bits (Aumasson and Bernstein) from a seeded state; checked by callers."""
    word: cython.ulonglong
    first: cython.ulonglong
    step: cython.int
    end: cython.Py_ssize_t = at + length
    left: cython.Py_ssize_t = length & 7
    while end - at >= 8:
        word = _word(buf, at)
        at += 8
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
    word = length & 0xFF
    word <<= 56
    if left and length >= 8:
        first = _word(buf, end - 8)
        word |= first >> (64 - 8 * left)
    else:
        for step in range(left):
            first = buf[at + step]
            word |= first << (8 * step)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= 0xEE
    for step in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= 0xDD
    for step in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


def hash_key(
    key: cython.const[cython.uchar][::1], seed: cython.const[cython.ulonglong][::1]
) -> tuple[int, int]:
    """The two words a key is known by; `seed` has `SEED_WORDS` words."""
    h0: cython.ulonglong
    h1: cython.ulonglong
    h0, h1 = _hash(key, 0, len(key), seed[0], seed[1], seed[2], seed[3])
    return h0, h1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _slot(h0: cython.ulonglong, slots: cython.ulonglong):
    """The slot a hash begins to look in: rising with the hash, so that growing is one sweep."""
    at: cython.ulonglong
    at = ((h0 >> 32) * slots) >> 32
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _find(
    table: cython.ulonglong[::1],
    slots: cython.Py_ssize_t,
    h0: cython.ulonglong,
    h1: cython.ulonglong,
):
    """The word where the slot of this hash begins, or of the free one it would take."""
    slot: cython.Py_ssize_t = _slot(h0, slots)
    at: cython.Py_ssize_t = 3 * slot
    while table[at + 2] != 0 and (table[at] != h0 or table[at + 1] != h1):
        slot += 1
        if slot == slots:
            slot = 0
        at = 3 * slot
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.ulonglong)
def _touch(
    table: cython.ulonglong[::1],
    slots: cython.Py_ssize_t,
    hashes: cython.ulonglong[::1],
    rows: cython.longlong[::1],
    count: cython.Py_ssize_t,
):
    """Read where each hash begins to look: independent reads, so the memory serves many at once."""
    seen: cython.ulonglong = 0
    row: cython.Py_ssize_t
    for row in range(count):
        if rows[4 * row + 3] != 0:
            seen |= table[3 * _slot(hashes[2 * row], slots) + 2]
    return seen


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns((cython.Py_ssize_t, cython.Py_ssize_t))
def _walk(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    base: cython.longlong,
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    v0: cython.ulonglong,
    v1: cython.ulonglong,
    v2: cython.ulonglong,
    v3: cython.ulonglong,
    hashes: cython.ulonglong[::1],
    rows: cython.longlong[::1],
):
    """Put up to `count` records from `at` on into the scratch rows from `first` on.

    Returns the row behind the last one and the position reached, -1 where a record cannot be. A
    record's kind is 0 without a key, 1 with a value, 2 for a tombstone.
    """
    row: cython.Py_ssize_t = first
    last: cython.Py_ssize_t = min(256, first + count)
    start: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    key_at: cython.Py_ssize_t
    number: cython.longlong
    delta: cython.longlong
    key_length: cython.longlong
    h0: cython.ulonglong
    h1: cython.ulonglong
    while row < last:
        start = at
        number, at = _varint(buf, at, end)
        if at < 0 or number < 1 or number > end - at:
            return row, -1
        stop = at + number
        at = _skip_varint(buf, at + 1, stop)
        if at < 0:
            return row, -1
        delta, at = _varint(buf, at, stop)
        if at < 0 or delta < 0:
            return row, -1
        key_length, at = _varint(buf, at, stop)
        if at < 0 or key_length < -1 or key_length > stop - at:
            return row, -1
        key_at = at
        if key_length > 0:
            at += key_length
        number, at = _varint(buf, at, stop)
        if at < 0 or number < -1 or number > stop - at:
            return row, -1
        rows[4 * row] = start
        rows[4 * row + 1] = stop
        rows[4 * row + 2] = base + delta
        if key_length < 0:
            rows[4 * row + 3] = 0
        else:
            rows[4 * row + 3] = 2 if number < 0 else 1
            h0, h1 = _hash(buf, key_at, key_length, v0, v1, v2, v3)
            hashes[2 * row] = h0
            hashes[2 * row + 1] = h1
        at = stop
        row += 1
    return row, at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _remember(
    table: cython.ulonglong[::1],
    slots: cython.Py_ssize_t,
    hashes: cython.ulonglong[::1],
    rows: cython.longlong[::1],
    count: cython.Py_ssize_t,
):
    """Enter the scratch rows into the map; there is room. Returns how many keys are new."""
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    added: cython.Py_ssize_t = 0
    mark: cython.ulonglong
    if _touch(table, slots, hashes, rows, count) == 0 and count == 0:
        return 0
    for row in range(count):
        if rows[4 * row + 3] == 0:
            continue
        at = _find(table, slots, hashes[2 * row], hashes[2 * row + 1])
        mark = rows[4 * row + 2] + 1
        if table[at + 2] == 0:
            table[at] = hashes[2 * row]
            table[at + 1] = hashes[2 * row + 1]
            added += 1
        if mark > table[at + 2]:
            table[at + 2] = mark
    return added


def map_batches(
    buf: cython.const[cython.uchar][::1],
    end: cython.Py_ssize_t,
    table: cython.ulonglong[::1],
    slots_taken_max: cython.Py_ssize_t,
    seed: cython.const[cython.ulonglong][::1],
    hashes: cython.ulonglong[::1],
    rows: cython.longlong[::1],
    state: cython.longlong[::1],
) -> int:
    """Remember the offset of each key's newest record, of whole batches in `buf` up to `end`.

    `state` (`MAP_FIELDS`) says where to begin and comes out brought up to date. A batch that could
    take more than `slots_taken_max` slots is not begun. Control batches and those with attributes
    unknown here are passed over.
    """
    at: cython.Py_ssize_t = state[0]
    stop: cython.Py_ssize_t
    pending: cython.Py_ssize_t = 0
    before: cython.Py_ssize_t
    slots: cython.Py_ssize_t = len(table) // 3
    taken: cython.Py_ssize_t = state[1]
    length: cython.longlong
    count: cython.longlong
    record_at: cython.Py_ssize_t
    v0: cython.ulonglong = seed[0]
    v1: cython.ulonglong = seed[1]
    v2: cython.ulonglong = seed[2]
    v3: cython.ulonglong = seed[3]
    status: cython.int = 0
    if (
        end > len(buf)
        or slots_taken_max >= slots
        or len(seed) < 4
        or len(hashes) < 512
        or len(rows) < 1024
    ):
        raise IndexError("buffers are too small for what is asked")
    with cython.nogil:
        while at < end:
            status = 3
            if end - at < 61:
                break
            length = _int32(buf, at + 8)
            count = _int32(buf, at + 57)
            if length < 49 or length > end - at - 12 or count < 0:
                break
            stop = at + 12 + length
            if buf[at + 21] != 0 or buf[at + 22] & 0xB0:
                at = stop
                status = 0
                continue
            if buf[at + 22] & 7:
                status = 2
                break
            if taken + pending + count > slots_taken_max:
                taken += _remember(table, slots, hashes, rows, pending)
                pending = 0
                if taken + count > slots_taken_max:
                    status = 1
                    break
            record_at = at + 61
            while count > 0:
                before = pending
                pending, record_at = _walk(
                    buf,
                    record_at,
                    stop,
                    _int64(buf, at),
                    before,
                    count,
                    v0,
                    v1,
                    v2,
                    v3,
                    hashes,
                    rows,
                )
                if record_at < 0:
                    break
                count -= pending - before
                if pending == 256:
                    taken += _remember(table, slots, hashes, rows, pending)
                    pending = 0
            if record_at != stop:
                break
            at = stop
            status = 0
        taken += _remember(table, slots, hashes, rows, pending)
    state[0] = at
    state[1] = taken
    return status


def move_slots(old: cython.ulonglong[::1], new: cython.ulonglong[::1]) -> None:
    """Fill `new`, a larger map of zeros, with what `old` holds."""
    at: cython.Py_ssize_t
    to: cython.Py_ssize_t
    size: cython.Py_ssize_t = len(old) // 3
    slots: cython.Py_ssize_t = len(new) // 3
    row: cython.Py_ssize_t
    if slots <= size:
        raise IndexError("the new map is no larger")
    with cython.nogil:
        for row in range(size):
            at = 3 * row
            if old[at + 2] != 0:
                to = _find(new, slots, old[at], old[at + 1])
                new[to] = old[at]
                new[to + 1] = old[at + 1]
                new[to + 2] = old[at + 2]


def find_key(
    table: cython.ulonglong[::1],
    key: cython.const[cython.uchar][::1],
    seed: cython.const[cython.ulonglong][::1],
) -> int:
    """The newest offset of a key, -1 where the map does not hold it."""
    h0: cython.ulonglong
    h1: cython.ulonglong
    mark: cython.longlong
    h0, h1 = _hash(key, 0, len(key), seed[0], seed[1], seed[2], seed[3])
    mark = table[_find(table, len(table) // 3, h0, h1) + 2]
    return mark - 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns((cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t))
def _keep(
    buf: cython.const[cython.uchar][::1],
    table: cython.ulonglong[::1],
    slots: cython.Py_ssize_t,
    hashes: cython.ulonglong[::1],
    rows: cython.longlong[::1],
    count: cython.Py_ssize_t,
    start_offset: cython.longlong,
    tombstones_go: cython.bint,
    out: cython.uchar[::1],
    to: cython.Py_ssize_t,
):
    """Copy the scratch rows that stay: how many, how many tombstones, where the output ends."""
    row: cython.Py_ssize_t
    kept: cython.Py_ssize_t = 0
    tombstones: cython.Py_ssize_t = 0
    kind: cython.longlong
    mark: cython.longlong
    run_start: cython.Py_ssize_t = 0
    run_end: cython.Py_ssize_t = 0
    stays: cython.bint
    if _touch(table, slots, hashes, rows, count) == 0 and count == 0:
        return 0, 0, to
    for row in range(count):
        kind = rows[4 * row + 3]
        stays = rows[4 * row + 2] >= start_offset
        if stays and kind != 0:
            mark = table[_find(table, slots, hashes[2 * row], hashes[2 * row + 1]) + 2]
            stays = rows[4 * row + 2] + 1 >= mark and not (kind == 2 and tombstones_go)
        if not stays:
            continue
        kept += 1
        if kind == 2:
            tombstones += 1
        if rows[4 * row] != run_end:
            _copy(buf, run_start, run_end - run_start, out, to)
            to += run_end - run_start
            run_start = rows[4 * row]
        run_end = rows[4 * row + 1]
    _copy(buf, run_start, run_end - run_start, out, to)
    return kept, tombstones, to + run_end - run_start


def filter_batches(
    buf: cython.const[cython.uchar][::1],
    end: cython.Py_ssize_t,
    table: cython.ulonglong[::1],
    seed: cython.const[cython.ulonglong][::1],
    hashes: cython.ulonglong[::1],
    rows: cython.longlong[::1],
    out: cython.uchar[::1],
    places: cython.longlong[::1],
    state: cython.longlong[::1],
) -> int:
    """Copy to `out` what stays of whole batches in `buf` up to `end`.

    A record stays that has no key, or is the newest of its key, and is not below the log's start; a
    tombstone until its batch's delete horizon has passed (KIP-534). A batch with a tombstone and no
    horizon gets one; batches without LogAppendTime do not, since their base timestamp is in use,
    and keep their tombstones. Base offset, last offset delta and max timestamp stay. Batches of
    which nothing stays are left out; control batches, those with attributes unknown here and those
    beyond the map's offsets are copied as they are.

    `state` (`FILTER_FIELDS`) goes in and comes out; `places` takes start and end in `out` of each
    batch that was changed and has to be given its CRC by `seal_batches`.
    """
    at: cython.Py_ssize_t = state[0]
    to: cython.Py_ssize_t = state[1]
    offset_end: cython.longlong = state[2]
    start_offset: cython.longlong = state[3]
    now: cython.longlong = state[4]
    horizon_new: cython.longlong = state[5]
    horizon_next: cython.longlong = state[6]
    removed: cython.longlong = state[7]
    changed: cython.longlong = state[8]
    placed: cython.Py_ssize_t = state[9]
    slots: cython.Py_ssize_t = len(table) // 3
    room: cython.Py_ssize_t = len(out)
    places_max: cython.Py_ssize_t = len(places) - 2
    stop: cython.Py_ssize_t
    record_at: cython.Py_ssize_t
    record_to: cython.Py_ssize_t
    walked: cython.Py_ssize_t
    got: cython.Py_ssize_t
    dead: cython.Py_ssize_t
    length: cython.longlong
    base: cython.longlong
    count: cython.longlong
    left: cython.longlong
    kept: cython.longlong
    tombstones: cython.longlong
    horizon: cython.longlong
    has_horizon: cython.bint
    v0: cython.ulonglong = seed[0]
    v1: cython.ulonglong = seed[1]
    v2: cython.ulonglong = seed[2]
    v3: cython.ulonglong = seed[3]
    status: cython.int = 0
    if end > len(buf) or slots < 1 or len(seed) < 4 or len(hashes) < 512 or len(rows) < 1024:
        raise IndexError("buffers are too small for what is asked")
    with cython.nogil:
        while at < end:
            status = 3
            if end - at < 61:
                break
            length = _int32(buf, at + 8)
            count = _int32(buf, at + 57)
            base = _int64(buf, at)
            if length < 49 or length > end - at - 12 or count < 0:
                break
            length += 12
            stop = at + length
            if base + _int32(buf, at + 23) < start_offset:
                removed += count
                changed += 1
                at = stop
                status = 0
                continue
            if length > room - to or placed > places_max:
                status = 1
                break
            if base >= offset_end or buf[at + 21] != 0 or buf[at + 22] & 0xB0:
                _copy(buf, at, length, out, to)
                to += length
                at = stop
                status = 0
                continue
            if buf[at + 22] & 7:
                status = 2
                break
            has_horizon = (buf[at + 22] & 0x40) != 0
            horizon = _int64(buf, at + 27) if has_horizon else horizon_new
            record_at = at + 61
            record_to = to + 61
            left = count
            kept = 0
            tombstones = 0
            while left > 0:
                walked, record_at = _walk(
                    buf, record_at, stop, base, 0, left, v0, v1, v2, v3, hashes, rows
                )
                if record_at < 0:
                    break
                left -= walked
                got, dead, record_to = _keep(
                    buf,
                    table,
                    slots,
                    hashes,
                    rows,
                    walked,
                    start_offset,
                    has_horizon and now >= horizon,
                    out,
                    record_to,
                )
                kept += got
                tombstones += dead
            if record_at != stop:
                break
            status = 0
            removed += count - kept
            if kept == 0:
                changed += 1
                at = stop
                continue
            _copy(buf, at, 61, out, to)
            if tombstones > 0 and (has_horizon or buf[at + 22] & 8):
                if not has_horizon:
                    out[to + 22] = buf[at + 22] | 0x40
                    _put(out, to + 27, 8, horizon)
                if horizon < horizon_next:
                    horizon_next = horizon
            if kept < count or out[to + 22] != buf[at + 22]:
                _put(out, to + 8, 4, record_to - to - 12)
                _put(out, to + 57, 4, kept)
                places[placed] = to
                places[placed + 1] = record_to
                placed += 2
                changed += 1
            to = record_to
            at = stop
    state[0] = at
    state[1] = to
    state[6] = horizon_next
    state[7] = removed
    state[8] = changed
    state[9] = placed
    return status


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
