"""The key map: remember the newest offset of each key, and judge records by it.

The map is a table of slots of three 64-bit words: 128 bits of keyed hash, then offset + 1 (0: the
slot is free). Collisions go to the next slot. A key is known by its hash alone; the hash is
SipHash-2-4 with a secret seed, so nobody can choose two keys that fall together.

Callers have checked each batch's header and CRC; the records within are range-checked here.
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

SLOT_WORDS = 3
SEED_WORDS = 4
"""Of `seed`: the state SipHash begins with, its constants and the secret already in it."""
HASH_WORDS = 3 * 256
"""Length of the scratch array `hashes`."""
ROW_WORDS = 2 * 256
"""Length of the scratch array `rows`: each record's offset and kind. Records are looked up 256 at
a time: the memory their slots are in is asked for before it is needed."""

DONE = 0
FULL = 1
"""There may be no room for the batch at the position reached."""
PACKED = 2
"""The batch at the position reached is compressed: repeat with the plain one."""
MALFORMED = 3
"""The batch at the position reached holds a record that cannot be."""

DROP = 0
KEEP = 1
KEEP_UNTIL_HORIZON = 2
"""Verdicts: the last one is on the newest tombstone of its key."""
COPY_WHOLE = -1
DROP_WHOLE = -2
"""In place of the index of a batch's first verdict."""
PLAN_FIELDS = 3
"""Numbers per batch of `plans`: its start and end, and the index of its first verdict."""


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
    seed: cython.const[cython.ulonglong][::1],
):
    """SipHash-2-4 of 128 bits (Aumasson and Bernstein) from a seeded state; checked by callers."""
    v0: cython.ulonglong = seed[0]
    v1: cython.ulonglong = seed[1]
    v2: cython.ulonglong = seed[2]
    v3: cython.ulonglong = seed[3]
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
    h0, h1 = _hash(key, 0, len(key), seed)
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
@cython.returns(cython.void)
def _touch(
    table: cython.ulonglong[::1],
    slots: cython.Py_ssize_t,
    hashes: cython.ulonglong[::1],
    rows: cython.longlong[::1],
    count: cython.Py_ssize_t,
):
    """Read where each hash begins to look: independent reads, so the memory serves many at once.

    What was read is kept, or the compiler would leave the reads out.
    """
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    for row in range(count):
        if rows[2 * row + 1] != 0:
            at = 3 * _slot(hashes[2 * row], slots)
            hashes[512 + row] = table[at] ^ table[at + 2]


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
    seed: cython.const[cython.ulonglong][::1],
    hashes: cython.ulonglong[::1],
    rows: cython.longlong[::1],
):
    """Put up to `count` records from `at` on into the scratch rows from `first` on.

    Returns the row behind the last one and the position reached, -1 where a record cannot be. A
    record's kind is 0 without a key, 1 with a value, 2 for a tombstone.
    """
    row: cython.Py_ssize_t = first
    last: cython.Py_ssize_t = min(256, first + count)
    stop: cython.Py_ssize_t
    key_at: cython.Py_ssize_t
    number: cython.longlong
    delta: cython.longlong
    key_length: cython.longlong
    h0: cython.ulonglong
    h1: cython.ulonglong
    while row < last:
        number, at = read_varint(buf, at, end)
        if at < 0 or number < 1 or number > end - at:
            return row, -1
        stop = at + number
        number, at = read_varint(buf, at + 1, stop)
        if at < 0:
            return row, -1
        delta, at = read_varint(buf, at, stop)
        if at < 0 or delta < 0 or delta >> 31 != 0:
            return row, -1
        key_length, at = read_varint(buf, at, stop)
        if at < 0 or key_length < -1 or key_length > stop - at:
            return row, -1
        key_at = at
        if key_length > 0:
            at += key_length
        number, at = read_varint(buf, at, stop)
        if at < 0 or number < -1 or number > stop - at:
            return row, -1
        rows[2 * row] = base + delta
        if key_length < 0:
            rows[2 * row + 1] = 0
        else:
            rows[2 * row + 1] = 2 if number < 0 else 1
            h0, h1 = _hash(buf, key_at, key_length, seed)
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
    _touch(table, slots, hashes, rows, count)
    for row in range(count):
        if rows[2 * row + 1] == 0:
            continue
        at = _find(table, slots, hashes[2 * row], hashes[2 * row + 1])
        mark = rows[2 * row] + 1
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

    `state` is a position, where to begin, and the slots taken; it comes out brought up to date. A
    batch that could take more than `slots_taken_max` slots is not begun. Control batches and those
    with attributes unknown here are passed over.
    """
    at: cython.Py_ssize_t = state[0]
    stop: cython.Py_ssize_t
    pending: cython.Py_ssize_t = 0
    before: cython.Py_ssize_t
    slots: cython.Py_ssize_t = len(table) // 3
    taken: cython.Py_ssize_t = state[1]
    length: cython.longlong
    base: cython.longlong
    count: cython.longlong
    record_at: cython.Py_ssize_t
    status: cython.int = 0
    if end > len(buf) or slots_taken_max >= slots or len(state) < 2:
        raise IndexError("buffers are too small for what is asked")
    if len(seed) < 4 or len(hashes) < 768 or len(rows) < 512:
        raise IndexError("a scratch array is too small")
    with cython.nogil:
        while at < end:
            status = 3
            if end - at < 61:
                break
            length = _int32(buf, at + 8)
            count = _int32(buf, at + 57)
            base = _int64(buf, at)
            if length < 49 or length > end - at - 12 or count < 0 or base >> 62 != 0:
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
                    buf, record_at, stop, base, before, count, seed, hashes, rows
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
    h0, h1 = _hash(key, 0, len(key), seed)
    mark = table[_find(table, len(table) // 3, h0, h1) + 2]
    return mark - 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.void)
def _judge(
    table: cython.ulonglong[::1],
    slots: cython.Py_ssize_t,
    hashes: cython.ulonglong[::1],
    rows: cython.longlong[::1],
    count: cython.Py_ssize_t,
    start_offset: cython.longlong,
    verdicts: cython.uchar[::1],
    at: cython.Py_ssize_t,
):
    """Write the verdicts on the scratch rows from `at` on."""
    row: cython.Py_ssize_t
    kind: cython.longlong
    mark: cython.longlong
    verdict: cython.int
    _touch(table, slots, hashes, rows, count)
    for row in range(count):
        kind = rows[2 * row + 1]
        verdict = 1
        if rows[2 * row] < start_offset:
            verdict = 0
        elif kind != 0:
            mark = table[_find(table, slots, hashes[2 * row], hashes[2 * row + 1]) + 2]
            verdict = kind if rows[2 * row] + 1 >= mark else 0
        verdicts[at + row] = verdict


def judge_batches(
    buf: cython.const[cython.uchar][::1],
    end: cython.Py_ssize_t,
    table: cython.ulonglong[::1],
    seed: cython.const[cython.ulonglong][::1],
    hashes: cython.ulonglong[::1],
    rows: cython.longlong[::1],
    end_offset: cython.longlong,
    start_offset: cython.longlong,
    verdicts: cython.uchar[::1],
    plans: cython.longlong[::1],
    state: cython.longlong[::1],
) -> int:
    """Say what stays of whole batches in `buf` up to `end`: `PLAN_FIELDS` numbers a batch, and a
    verdict for each record of those that are looked into.

    A record goes that has a key of which the map holds a newer one, or that lies below
    `start_offset`. Control batches, those with attributes unknown here and those from `end_offset`
    on, where the map ends, stay whole.

    `state` is a position, where to begin, and comes out as that and the number of batches planned.
    Stops where `verdicts` or `plans` is full.
    """
    at: cython.Py_ssize_t = state[0]
    stop: cython.Py_ssize_t
    record_at: cython.Py_ssize_t
    pending: cython.Py_ssize_t = 0
    before: cython.Py_ssize_t
    judged: cython.Py_ssize_t = 0
    plan: cython.Py_ssize_t = 0
    slots: cython.Py_ssize_t = len(table) // 3
    room: cython.Py_ssize_t = len(verdicts)
    plans_end: cython.Py_ssize_t = len(plans) - 2
    length: cython.longlong
    base: cython.longlong
    count: cython.longlong
    status: cython.int = 0
    if end > len(buf) or slots < 1 or len(state) < 2:
        raise IndexError("buffers are too small for what is asked")
    if len(seed) < 4 or len(hashes) < 768 or len(rows) < 512:
        raise IndexError("a scratch array is too small")
    with cython.nogil:
        while at < end:
            status = 3
            if end - at < 61:
                break
            length = _int32(buf, at + 8)
            count = _int32(buf, at + 57)
            base = _int64(buf, at)
            if length < 49 or length > end - at - 12 or count < 0 or base >> 62 != 0:
                break
            stop = at + 12 + length
            if plan >= plans_end or judged + pending + count > room:
                status = 1
                break
            plans[plan] = at
            plans[plan + 1] = stop
            plans[plan + 2] = judged + pending
            if base + _int32(buf, at + 23) < start_offset:
                plans[plan + 2] = -2
            elif base >= end_offset or buf[at + 21] != 0 or buf[at + 22] & 0xB0:
                plans[plan + 2] = -1
            elif buf[at + 22] & 7:
                status = 2
                break
            else:
                record_at = at + 61
                while count > 0:
                    before = pending
                    pending, record_at = _walk(
                        buf, record_at, stop, base, before, count, seed, hashes, rows
                    )
                    if record_at < 0:
                        break
                    count -= pending - before
                    if pending == 256:
                        _judge(table, slots, hashes, rows, pending, start_offset, verdicts, judged)
                        judged += pending
                        pending = 0
                if record_at != stop:
                    break
            plan += 3
            at = stop
            status = 0
        if pending <= room - judged:
            _judge(table, slots, hashes, rows, pending, start_offset, verdicts, judged)
    state[0] = at
    state[1] = plan // 3
    return status
