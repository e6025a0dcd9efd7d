# mypy: ignore-errors
"""The keys of the records of a batch, numbered; the layout of the rows is in `publish.headers`."""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.bascule.record._hot_varint import read_varint
else:
    from bascule.record._hot_varint import read_varint

IS_COMPILED: bool = cython.compiled


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.returns(cython.bint)
def _is_plain_byte(byte: cython.int):
    """Whether a byte is a part of a subject as it is: letters, digits, `-`, `/`, `=` and `_`."""
    return (
        97 <= byte <= 122
        or 65 <= byte <= 90
        or 47 <= byte <= 57
        or byte == 45
        or byte == 61
        or byte == 95
    )


def find_odd_keys(
    batch: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    record_count: cython.Py_ssize_t,
    prefix: bytes,
    bytes_max: cython.Py_ssize_t,
    found: cython.longlong[::1],
) -> int:
    """How many records may have no key of a table: all others have one.

    `found` gets three numbers for each of them: its index, the position of its key in the batch and
    the length of that, which is -1 for a record without a key. With a `prefix` keys are subjects
    that begin with it; a key that is plain behind it, and has at most `bytes_max` bytes there, is
    not odd. Without, one of 1 to `bytes_max` bytes.
    """
    index: cython.Py_ssize_t
    place: cython.Py_ssize_t
    at: cython.Py_ssize_t = start
    stop: cython.Py_ssize_t
    end: cython.Py_ssize_t
    cut: cython.Py_ssize_t = len(prefix)
    count: cython.Py_ssize_t = 0
    size: cython.longlong
    length: cython.longlong = 0
    skipped: cython.longlong
    odd: cython.bint
    after_dot: cython.bint
    bad: cython.bint = False
    head: cython.const[cython.uchar][::1] = prefix
    if len(found) < 3 * record_count or start < 0:
        raise IndexError("an array is too short for the records")
    with cython.nogil:
        for index in range(record_count):
            size, stop = read_varint(batch, at, len(batch))
            if stop < 0:
                bad = True
                break
            if size < 1 or size > len(batch) - stop:
                bad = True
                break
            end = stop + size
            skipped, at = read_varint(batch, stop + 1, end)
            if at >= 0:
                skipped, at = read_varint(batch, at, end)
            if at >= 0:
                length, at = read_varint(batch, at, end)
            if at < 0 or length > end - at:
                bad = True
                break
            odd = length <= cut or length - cut > bytes_max
            if not odd and cut > 0:
                for place in range(cut):
                    if batch[at + place] != head[place]:
                        odd = True
                        break
                after_dot = True  # a dot may be neither first nor last, nor behind another
                for place in range(at + cut, at + length):
                    if batch[place] == 46:
                        odd = odd or after_dot
                        after_dot = True
                    else:
                        odd = odd or not _is_plain_byte(batch[place])
                        after_dot = False
                odd = odd or after_dot
            if odd:
                found[3 * count] = index
                found[3 * count + 1] = at
                found[3 * count + 2] = length if length >= 0 else -1
                count += 1
            at = end
    if bad:
        raise IndexError("the records do not match the batch")
    return count


def number_keys(
    batch: bytes,
    positions: cython.const[cython.longlong][::1],
    record_count: cython.Py_ssize_t,
    rows: cython.const[cython.longlong][::1],
    count: cython.Py_ssize_t,
    keys: cython.longlong[::1],
) -> list[bytes]:
    """The different keys of the records that expect a sequence of their key, in their order.

    `positions` are those of the batch's records (see `record._hot.index_records`). `keys` gets two
    numbers for each record: the index of its key in the result, or -1 if it is not there, and
    whether the record has a value.
    """
    row: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    at: cython.longlong
    length: cython.longlong
    index: cython.longlong
    numbers: dict = {}
    key: bytes
    if len(positions) < 8 * record_count or len(keys) < 2 * record_count or len(rows) < 8 * count:
        raise IndexError("an array is too short for the records")
    for row in range(0, 8 * count, 8):
        index = rows[row]
        if rows[row + 1] & 128 and 0 <= index < record_count:
            at = positions[8 * index + 2]
            length = positions[8 * index + 3]
            key = batch[at : at + length] if length > 0 else b""
            numbers.setdefault(key, len(numbers))
    for slot in range(record_count):
        at = positions[8 * slot + 2]
        length = positions[8 * slot + 3]
        key = batch[at : at + length] if length > 0 else b""
        keys[2 * slot] = numbers.get(key, -1)
        keys[2 * slot + 1] = positions[8 * slot + 5] >= 0
    return list(numbers)


def number_range(
    verdicts: cython.const[cython.uchar][::1],
    numbers: cython.const[cython.longlong][::1],
    verdict: cython.int,
    out: cython.longlong[::1],
) -> None:
    """The least and the largest number of the records with `verdict` into `out[:2]`; (0, -1)
    without any."""
    index: cython.Py_ssize_t
    least: cython.longlong = 0
    largest: cython.longlong = -1
    found: cython.bint = False
    if len(numbers) < len(verdicts) or len(out) < 2:
        raise IndexError("an array is too short for the records")
    with cython.nogil:
        for index in range(len(verdicts)):
            if verdicts[index] != verdict:
                continue
            if not found or numbers[index] < least:
                least = numbers[index]
            if not found or numbers[index] > largest:
                largest = numbers[index]
            found = True
    out[0] = least
    out[1] = largest
