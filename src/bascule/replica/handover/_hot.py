"""Find records of equal content: all bytes of a record behind its offset delta.

`heads` maps a content to the number of one record that has it; `nexts` leads from there to the
others, and -1 ends the list. `offsets` has the offset of each record by its number.
"""

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

NEW = 0
STORED = 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _content_start(
    batch: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t
):
    """Where the content of the record body `batch[at:end]` begins, or -1."""
    skipped: cython.longlong
    if at >= end:
        return -1
    skipped, at = read_varint(batch, at + 1, end)
    if at >= 0:
        skipped, at = read_varint(batch, at, end)
    return at


def add_contents(
    data: bytes,
    batch: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    record_count: cython.Py_ssize_t,
    base_offset: cython.longlong,
    heads: dict[bytes, int],
    nexts: cython.longlong[::1],
    offsets: cython.longlong[::1],
    known: cython.Py_ssize_t,
) -> None:
    """Add the records of a stored batch, as numbers from `known` on.

    `data` and `batch` are the same bytes. `nexts` and `offsets` have room for all records.
    """
    index: cython.Py_ssize_t
    at: cython.Py_ssize_t = start
    stop: cython.Py_ssize_t
    content_at: cython.Py_ssize_t
    end: cython.Py_ssize_t = len(batch)
    size: cython.longlong
    delta: cython.longlong
    skipped: cython.longlong
    if min(len(nexts), len(offsets)) < known + record_count or len(data) != end or start < 0:
        raise IndexError("there is no room for the records")
    for index in range(record_count):
        size, stop = read_varint(batch, at, end)
        if stop < 0 or size < 1 or size > end - stop:
            raise IndexError("the records do not match the batch")
        at = stop + size
        skipped, content_at = read_varint(batch, stop + 1, at)
        delta = 0
        if content_at >= 0:
            delta, content_at = read_varint(batch, content_at, at)
        if content_at < 0:
            raise IndexError("the records do not match the batch")
        content = data[content_at:at]
        nexts[known + index] = heads.get(content, -1)
        offsets[known + index] = base_offset + delta
        heads[content] = known + index


def take_contents(
    data: bytes,
    batch: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    record_count: cython.Py_ssize_t,
    heads: dict[bytes, int],
    nexts: cython.const[cython.longlong][::1],
    offsets: cython.const[cython.longlong][::1],
    verdicts: cython.uchar[::1],
    numbers: cython.longlong[::1],
) -> int:
    """Look for each record of a batch among those added; return how many are new.

    A record that is found is removed from the table. `verdicts[i]` becomes `NEW` or `STORED`,
    `numbers[i]` the record's index among the new ones, or the offset of the stored one.
    """
    index: cython.Py_ssize_t
    at: cython.Py_ssize_t = start
    stop: cython.Py_ssize_t
    content_at: cython.Py_ssize_t
    end: cython.Py_ssize_t = len(batch)
    size: cython.longlong
    found: cython.longlong
    fresh: cython.longlong = 0
    new: cython.uchar = NEW  # C copies: a global is a lookup by name, each time
    stored: cython.uchar = STORED
    if min(len(verdicts), len(numbers)) < record_count or len(data) != end or start < 0:
        raise IndexError("there is no room for the verdicts")
    for index in range(record_count):
        size, stop = read_varint(batch, at, end)
        if stop < 0 or size < 1 or size > end - stop:
            raise IndexError("the records do not match the batch")
        at = stop + size
        content_at = _content_start(batch, stop, at)
        if content_at < 0:
            raise IndexError("the records do not match the batch")
        content = data[content_at:at]
        found = heads.get(content, -1)
        if found < 0:
            verdicts[index] = new
            numbers[index] = fresh
            fresh += 1
            continue
        verdicts[index] = stored
        numbers[index] = offsets[found]
        if nexts[found] < 0:
            del heads[content]
        else:
            heads[content] = nexts[found]
    return fresh
