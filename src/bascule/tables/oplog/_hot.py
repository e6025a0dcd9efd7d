"""Records of an oplog: encode, check and search them, and find the last one of each key."""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

from array import array

from crc32c import crc32c

IS_COMPILED: bool = cython.compiled

RECORD_BYTES = 25
BLOCK_SLOTS = 256
"""Records of a block, with its check."""
SET = 1
REMOVE = 2
CHECK = 0x80
"""Operations from here on are control operations: they have no key id."""
OPERATION_FIELDS = 3
"""Numbers of an operation: operation id, key id, SET or REMOVE."""
STATE_FIELDS = 4
"""Numbers of `state`: CRC32C and last id up to where it was read or written, and those up to the
end of the last block that is whole."""
DONE = 0
REACHED = 1
FULL = 2


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.ulonglong)
def _get(buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t):
    value: cython.ulonglong = buf[at + 7]
    value = (value << 8) | buf[at + 6]
    value = (value << 8) | buf[at + 5]
    value = (value << 8) | buf[at + 4]
    value = (value << 8) | buf[at + 3]
    value = (value << 8) | buf[at + 2]
    value = (value << 8) | buf[at + 1]
    return (value << 8) | buf[at]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.void)
def _put(
    out: cython.uchar[::1],
    at: cython.Py_ssize_t,
    id: cython.ulonglong,
    key: cython.ulonglong,
    table: cython.ulonglong,
    operation: cython.uchar,
):
    step: cython.Py_ssize_t
    for step in range(8):
        out[at + step] = (id >> (8 * step)) & 255
        out[at + 8 + step] = (key >> (8 * step)) & 255
        out[at + 16 + step] = (table >> (8 * step)) & 255
    out[at + 24] = operation


def make_operations(
    rows: list[tuple[bytes, int, int, bytes | None, str | None, int | None]],
    noted: list[int],
    next_key: cython.longlong,
    out: cython.longlong[::1],
) -> int:
    """Write the operation of each row to `out`; return the key id after those that are new.

    `noted` has the key id and the offset of each row whose key the table had already, in order.
    The other rows' keys are new, and get the next key ids.

    Raises: ValueError if the two do not fit.
    """
    row: tuple
    slot: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = len(noted)
    offset: cython.longlong
    known: cython.longlong = -1
    key: cython.longlong
    if len(out) < 3 * len(rows):
        raise IndexError("out is too small for the rows")
    if count:
        known = noted[1]
    for row in rows:
        offset = row[1]
        if known == offset:
            key = noted[at]
            at += 2
            known = noted[at + 1] if at < count else -1
        else:
            key = next_key
            next_key += 1
        out[slot] = offset + 1
        out[slot + 1] = key
        out[slot + 2] = 2 if row[3] is None else 1
        slot += 3
    if at != count:
        raise ValueError(f"row ids of {count // 2} keys, expected {at // 2}")
    return next_key


def encode(
    operations: cython.longlong[::1],
    table: cython.ulonglong,
    slot: cython.Py_ssize_t,
    out: bytearray,
    state: cython.longlong[::1],
    firsts: array[int],
) -> int:
    """Write the records of the operations to `out`, and the checks; return the length in bytes.

    `slot` is the place of the first one in its file. `state` is that of the records before, and
    afterwards that of these. `firsts` gets the first id of each block that begins.

    Raises: ValueError if an id is not higher than the one before, or a key id is not positive.
    """
    data: cython.uchar[::1] = out
    view = memoryview(out)
    number: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    begin: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = len(operations) // 3
    id: cython.longlong
    key: cython.longlong
    last: cython.longlong = state[1]
    crc: cython.longlong = state[0]
    if len(out) < 25 * (count + (slot % 256 + count) // 255 + 1):
        raise IndexError("out is too small for the records")
    for number in range(count):
        id = operations[3 * number]
        key = operations[3 * number + 1]
        if id <= last or key <= 0:
            raise ValueError(f"operation {id} of key {key} after operation {last}")
        last = id
        if slot % 256 == 0:
            firsts.append(id)
        _put(data, at, id, key, table, operations[3 * number + 2] & 255)
        at += 25
        slot += 1
        if slot % 256 == 255:
            crc = crc32c(view[begin:at], crc)
            _put(data, at, last, crc, table, 0x80)
            at += 25
            slot += 1
            begin = at
            state[2] = crc
            state[3] = last
    if at > begin:
        crc = crc32c(view[begin:at], crc)
    state[0] = crc
    state[1] = last
    return at


def check(
    buf: cython.const[cython.uchar][::1],
    slots: cython.Py_ssize_t,
    table: cython.ulonglong,
    state: cython.longlong[::1],
    firsts: array[int],
) -> int:
    """How many of the records in `buf`, which begins with a block, are good.

    Those of a block whose check is wrong are not; those of the last block that has no check yet
    may be, and the caller compares `state` with what it knows. `state` is that of the records
    before, and afterwards that of the good ones. `firsts` gets the first id of each block of these.
    """
    view = memoryview(buf)
    number: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    begin: cython.Py_ssize_t = 0
    good: cython.Py_ssize_t = slots
    operation: cython.int
    id: cython.longlong
    first: cython.longlong = 0
    last: cython.longlong = state[1]
    crc: cython.longlong = state[0]
    if len(buf) < 25 * slots:
        raise IndexError("fewer bytes than records")
    for number in range(slots):
        operation = buf[at + 24]
        id = _get(buf, at)
        if _get(buf, at + 16) != table:
            good = number
            break
        if number % 256 == 255:
            crc = crc32c(view[begin:at], crc)
            if operation != 0x80 or id != last or _get(buf, at + 8) != crc:
                good = number - 255
                break
            begin = at + 25
            state[0] = crc
            state[1] = last
            state[2] = crc
            state[3] = last
            firsts.append(first)
        elif id <= last or _get(buf, at + 8) == 0 or not (operation == 1 or operation == 2):
            good = number
            break
        else:
            if number % 256 == 0:
                first = id
            last = id
        at += 25
    if good % 256 and begin < 25 * good:
        firsts.append(first)
        state[0] = crc32c(view[begin : 25 * good], state[2])
        state[1] = last
    return good


def verify(
    buf: cython.const[cython.uchar][::1], slots: cython.Py_ssize_t, state: cython.longlong[::1]
) -> int:
    """As `check`, by the CRC32C alone: how many of the records are in blocks whose check is right,
    with those behind the last check. `state` needs and has the CRC32C only."""
    view = memoryview(buf)
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = 25 * slots
    crc: cython.longlong = state[0]
    stored: cython.longlong
    if len(buf) < end:
        raise IndexError("fewer bytes than records")
    while end - at >= 6400:
        crc = crc32c(view[at : at + 6375], crc)
        stored = _get(buf, at + 6383)
        if stored != crc or buf[at + 6399] != 0x80:
            return at // 25
        at += 6400
    if end > at:
        crc = crc32c(view[at:end], crc)
    state[0] = crc
    return slots


def find(
    buf: cython.const[cython.uchar][::1], slots: cython.Py_ssize_t, since: cython.longlong
) -> int:
    """The place of the first record with an id above `since`, `slots` if there is none.

    `buf` begins with a block."""
    low: cython.Py_ssize_t = 0
    high: cython.Py_ssize_t = slots
    middle: cython.Py_ssize_t
    id: cython.longlong
    if len(buf) < 25 * slots:
        raise IndexError("fewer bytes than records")
    while low < high:
        middle = (low + high) // 2
        id = _get(buf, 25 * middle)
        if id > since:
            high = middle
        else:
            low = middle + 1
    return low


def collapse(
    buf: cython.const[cython.uchar][::1],
    slots: cython.Py_ssize_t,
    since: cython.longlong,
    seen: cython.longlong[::1],
    count: cython.Py_ssize_t,
    found: cython.longlong[::1],
    rest: cython.longlong[::1],
) -> int:
    """Add the last operation of each key to `found`, from the last record in `buf` to its first.

    `buf` begins with a block, `slots` is how many of its records are to be read. `seen` is an open
    hash table of the `count` key ids so far, 0 where there is none, its length a power of two;
    `found` has twice as many numbers as that can take: operation id and key id, newest first.

    Returns REACHED at a record that is not above `since`, FULL when `seen` is half full, else DONE.
    `rest` is the number of records that are not read, and the number of key ids.
    """
    number: cython.Py_ssize_t = slots
    at: cython.Py_ssize_t
    place: cython.Py_ssize_t
    size: cython.Py_ssize_t = len(seen)
    shift: cython.int = 64
    id: cython.longlong
    key: cython.longlong
    hashed: cython.ulonglong
    # As literals in the loop these would be Python's integers.
    multiplier: cython.ulonglong = 0x9E3779B97F4A7C15
    all_bits: cython.ulonglong = 0xFFFFFFFFFFFFFFFF
    answer: cython.int = 0
    if len(buf) < 25 * slots or len(found) < size or size & (size - 1):
        raise IndexError("buffers of wrong sizes")
    while (1 << (64 - shift)) < size:
        shift -= 1
    while number > 0:
        at = 25 * (number - 1)
        if number % 256 == 0:
            number -= 1
            continue
        id = _get(buf, at)
        if id <= since:
            answer = 1
            break
        key = _get(buf, at + 8)
        hashed = key
        hashed = (hashed * multiplier) & all_bits
        place = hashed >> shift
        while seen[place] != 0 and seen[place] != key:
            place = (place + 1) & (size - 1)
        if seen[place] == 0:
            if 2 * count >= size:
                answer = 2
                break
            seen[place] = key
            found[2 * count] = id
            found[2 * count + 1] = key
            count += 1
        number -= 1
    rest[0] = number
    rest[1] = count
    return answer


def fill(found: cython.longlong[::1], count: cython.Py_ssize_t, seen: cython.longlong[::1]) -> None:
    """Put the key ids of `found` into a larger `seen`, all zero before."""
    number: cython.Py_ssize_t
    place: cython.Py_ssize_t
    size: cython.Py_ssize_t = len(seen)
    shift: cython.int = 64
    hashed: cython.ulonglong
    # As literals in the loop these would be Python's integers.
    multiplier: cython.ulonglong = 0x9E3779B97F4A7C15
    all_bits: cython.ulonglong = 0xFFFFFFFFFFFFFFFF
    if len(found) < 2 * count or 2 * count > size or size & (size - 1):
        raise IndexError("buffers of wrong sizes")
    while (1 << (64 - shift)) < size:
        shift -= 1
    for number in range(count):
        hashed = found[2 * number + 1]
        hashed = (hashed * multiplier) & all_bits
        place = hashed >> shift
        while seen[place] != 0:
            place = (place + 1) & (size - 1)
        seen[place] = found[2 * number + 1]
