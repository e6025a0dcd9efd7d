"""The key map: store the latest offset of each key, and decide which records to keep.

The map is an open-addressing table. A slot has three 64-bit words: 128 bits of hash, then
offset + 1 (0: the slot is free). On a collision the next slot is used. The map compares hashes, not
keys. The hash is SipHash-2-4 with a secret seed, so nobody can construct two keys with one hash.

Callers have checked each batch's header and CRC. The records within are range-checked here.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.bascule._hot_number import read_number
    from cython.cimports.bascule.record._hot_varint import read_varint
    from cython.cimports.libc.string import memcpy
else:
    from bascule._hot_number import read_number
    from bascule.record._hot_varint import read_varint

IS_COMPILED: bool = cython.compiled

SLOT_WORDS = 3
SEED_WORDS = 4
"""Length of `seed`: the initial state of SipHash, computed from its constants and the secret."""
HASH_WORDS = 3 * 256
"""Length of the scratch array `hashes`."""
ROW_WORDS = 2 * 256
"""Length of the scratch array `rows`: each record's offset and kind. Records are looked up 256 at
a time, so that the memory of their slots can be prefetched."""

DONE = 0
FULL = 1
"""There may be no room for the batch at the position reached."""
COMPRESSED = 2
"""The batch at the position reached is compressed: repeat with the decompressed batch."""
MALFORMED = 3
"""The batch at the position reached has a malformed record."""

DROP = 0
KEEP = 1
KEEP_UNTIL_HORIZON = 2
"""Actions for records. The last one is for a tombstone that is the latest record of its key."""
COPY_WHOLE = -1
DROP_WHOLE = -2
"""Actions for whole batches, in place of the index of a batch's first action."""
PLAN_FIELDS = 3
"""Numbers per batch of `plans`: its start and end, and the index of its first action."""


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
    """One SipRound. The interpreted twin needs the masks, because its integers are unbounded."""
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
    """SipHash-2-4 with 128 bits (Aumasson and Bernstein). The caller has checked the range."""
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
    """The two words of a key's hash; `seed` has `SEED_WORDS` words."""
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
    """The first slot to probe for a hash. Monotonic in the hash, so that growing is sequential."""
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
    """The index of the first word of this hash's slot, or of the free slot for it."""
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
def _prefetch_slots(
    table: cython.ulonglong[::1],
    slots: cython.Py_ssize_t,
    hashes: cython.ulonglong[::1],
    rows: cython.longlong[::1],
    count: cython.Py_ssize_t,
):
    """Read the first slot to probe of each hash. The reads are independent and run in parallel.

    Stores the values in `hashes`, otherwise the compiler would remove the reads.
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
def _scan_records(
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
    """Parse up to `count` records from `at` on into the scratch rows from `first` on.

    Returns the row after the last one and the position reached, or -1 for a malformed record. A
    record's kind is 0 without a key, 1 with key and value, 2 for a tombstone.
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
def _insert_rows(
    table: cython.ulonglong[::1],
    slots: cython.Py_ssize_t,
    hashes: cython.ulonglong[::1],
    rows: cython.longlong[::1],
    count: cython.Py_ssize_t,
):
    """Insert the scratch rows into the map, which has room. Returns the number of new keys."""
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    added: cython.Py_ssize_t = 0
    mark: cython.ulonglong
    _prefetch_slots(table, slots, hashes, rows, count)
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
    """Store the latest offset of each key of the whole batches in `buf` up to `end`.

    `state` is the position to begin at and the slots in use; the function updates both. It stops
    before a batch with which more than `slots_taken_max` slots could be in use. It skips control
    batches and batches with unknown attributes.
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
        raise IndexError("buf, table or state is too small")
    if len(seed) < 4 or len(hashes) < 768 or len(rows) < 512:
        raise IndexError("seed, hashes or rows are too small")
    with cython.nogil:
        while at < end:
            status = 3
            if end - at < 61:
                break
            length = read_number(buf, at + 8, 4)
            count = read_number(buf, at + 57, 4)
            base = read_number(buf, at, 8)
            if length < 49 or length > end - at - 12 or count < 0 or base >> 62 != 0:
                break
            stop = at + 12 + length
            if buf[at + 21] & 0xBF or buf[at + 22] & 0xB0:
                at = stop
                status = 0
                continue
            if buf[at + 22] & 7:
                status = 2
                break
            if taken + pending + count > slots_taken_max:
                taken += _insert_rows(table, slots, hashes, rows, pending)
                pending = 0
                if taken + count > slots_taken_max:
                    status = 1
                    break
            record_at = at + 61
            while count > 0:
                before = pending
                pending, record_at = _scan_records(
                    buf, record_at, stop, base, before, count, seed, hashes, rows
                )
                if record_at < 0:
                    break
                count -= pending - before
                if pending == 256:
                    taken += _insert_rows(table, slots, hashes, rows, pending)
                    pending = 0
            if record_at != stop:
                break
            at = stop
            status = 0
        taken += _insert_rows(table, slots, hashes, rows, pending)
    state[0] = at
    state[1] = taken
    return status


def move_slots(old: cython.ulonglong[::1], new: cython.ulonglong[::1]) -> None:
    """Copy the entries of `old` to `new`, a larger map of zeros."""
    at: cython.Py_ssize_t
    to: cython.Py_ssize_t
    size: cython.Py_ssize_t = len(old) // 3
    slots: cython.Py_ssize_t = len(new) // 3
    row: cython.Py_ssize_t
    if slots <= size:
        raise IndexError(f"the new map has {slots} slots, expected more than {size}")
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
    """The latest offset of a key, -1 if the map does not contain it."""
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
def _decide_actions(
    table: cython.ulonglong[::1],
    slots: cython.Py_ssize_t,
    hashes: cython.ulonglong[::1],
    rows: cython.longlong[::1],
    count: cython.Py_ssize_t,
    start_offset: cython.longlong,
    actions: cython.uchar[::1],
    at: cython.Py_ssize_t,
):
    """Write the actions for the scratch rows to `actions` from `at` on."""
    row: cython.Py_ssize_t
    kind: cython.longlong
    mark: cython.longlong
    action: cython.int
    _prefetch_slots(table, slots, hashes, rows, count)
    for row in range(count):
        kind = rows[2 * row + 1]
        action = 1
        if rows[2 * row] < start_offset:
            action = 0
        elif kind != 0:
            mark = table[_find(table, slots, hashes[2 * row], hashes[2 * row + 1]) + 2]
            action = kind if rows[2 * row] + 1 >= mark else 0
        actions[at + row] = action


def plan_batches(
    buf: cython.const[cython.uchar][::1],
    end: cython.Py_ssize_t,
    table: cython.ulonglong[::1],
    seed: cython.const[cython.ulonglong][::1],
    hashes: cython.ulonglong[::1],
    rows: cython.longlong[::1],
    end_offset: cython.longlong,
    start_offset: cython.longlong,
    actions: cython.uchar[::1],
    plans: cython.longlong[::1],
    state: cython.longlong[::1],
) -> int:
    """Decide which records to keep of the whole batches in `buf` up to `end`.

    Writes `PLAN_FIELDS` numbers per batch to `plans`, and an action for each record of the batches
    that are not copied or dropped as a whole. A record is dropped if the map has a later record of
    its key, or if it is below `start_offset`. Control batches, batches with unknown attributes and
    batches from `end_offset` on, where the map ends, are kept as a whole.

    `state` is the position to begin at. On return it is the position reached and the number of
    batches planned. Stops when `actions` or `plans` is full.
    """
    at: cython.Py_ssize_t = state[0]
    stop: cython.Py_ssize_t
    record_at: cython.Py_ssize_t
    pending: cython.Py_ssize_t = 0
    before: cython.Py_ssize_t
    decided: cython.Py_ssize_t = 0
    plan: cython.Py_ssize_t = 0
    slots: cython.Py_ssize_t = len(table) // 3
    room: cython.Py_ssize_t = len(actions)
    plans_end: cython.Py_ssize_t = len(plans) - 2
    length: cython.longlong
    base: cython.longlong
    count: cython.longlong
    status: cython.int = 0
    if end > len(buf) or slots < 1 or len(state) < 2:
        raise IndexError("buf, table or state is too small")
    if len(seed) < 4 or len(hashes) < 768 or len(rows) < 512:
        raise IndexError("seed, hashes or rows are too small")
    with cython.nogil:
        while at < end:
            status = 3
            if end - at < 61:
                break
            length = read_number(buf, at + 8, 4)
            count = read_number(buf, at + 57, 4)
            base = read_number(buf, at, 8)
            if length < 49 or length > end - at - 12 or count < 0 or base >> 62 != 0:
                break
            stop = at + 12 + length
            if plan >= plans_end or decided + pending + count > room:
                status = 1
                break
            plans[plan] = at
            plans[plan + 1] = stop
            plans[plan + 2] = decided + pending
            if base + read_number(buf, at + 23, 4) < start_offset:
                plans[plan + 2] = -2
            elif base >= end_offset or buf[at + 21] & 0xBF or buf[at + 22] & 0xB0:
                plans[plan + 2] = -1
            elif buf[at + 22] & 7:
                status = 2
                break
            else:
                record_at = at + 61
                while count > 0:
                    before = pending
                    pending, record_at = _scan_records(
                        buf, record_at, stop, base, before, count, seed, hashes, rows
                    )
                    if record_at < 0:
                        break
                    count -= pending - before
                    if pending == 256:
                        _decide_actions(
                            table, slots, hashes, rows, pending, start_offset, actions, decided
                        )
                        decided += pending
                        pending = 0
                if record_at != stop:
                    break
            plan += 3
            at = stop
            status = 0
        if pending <= room - decided:
            _decide_actions(table, slots, hashes, rows, pending, start_offset, actions, decided)
    state[0] = at
    state[1] = plan // 3
    return status
