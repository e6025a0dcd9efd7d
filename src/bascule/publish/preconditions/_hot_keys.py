# mypy: ignore-errors
"""The keys of the records of a batch, numbered; the layout of the rows is in `publish.headers`."""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

IS_COMPILED: bool = cython.compiled


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
