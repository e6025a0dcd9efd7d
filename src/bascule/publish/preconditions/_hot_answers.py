# mypy: ignore-errors
"""Which records of a batch this stream answers, and the names in the answers.

The layout of the rows is in `bascule.publish.headers._hot`, the verdicts are those of `_hot`.
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

NAMES_MAX = 32
"""Most names of unsupported headers that are told apart in one batch."""


def keep_flags(
    rows: cython.longlong[::1], count: cython.Py_ssize_t, flags: cython.longlong
) -> None:
    """Ignore the headers of `count` rows whose flags are not among `flags`."""
    row: cython.Py_ssize_t
    if len(rows) < 8 * count:
        raise IndexError("there are fewer rows than told")
    with cython.nogil:
        for row in range(0, 8 * count, 8):
            rows[row + 1] &= flags


def count_other_streams(
    rows: cython.const[cython.longlong][::1], count: cython.Py_ssize_t, stream: cython.longlong
) -> int:
    """How many of `count` rows expect another stream than the one with this hash of its name."""
    row: cython.Py_ssize_t
    found: cython.Py_ssize_t = 0
    if len(rows) < 8 * count:
        raise IndexError("there are fewer rows than told")
    with cython.nogil:
        for row in range(0, 8 * count, 8):
            if rows[row + 1] & 8 and rows[row + 7] != stream:
                found += 1
    return found


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.bint)
def _subject_matches(
    patterns: cython.const[cython.uchar][::1],
    pattern_at: cython.Py_ssize_t,
    pattern_end: cython.Py_ssize_t,
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
):
    """Whether a NATS subject matches a pattern with wildcards. The caller checked the ranges."""
    while pattern_at < pattern_end and at < end:
        if patterns[pattern_at] == 62:  # >
            return True
        if patterns[pattern_at] == 42:  # *
            pattern_at += 1
            while at < end and buf[at] != 46:
                at += 1
        while (
            pattern_at < pattern_end
            and at < end
            and patterns[pattern_at] != 46
            and patterns[pattern_at] == buf[at]
        ):
            pattern_at += 1
            at += 1
        if pattern_at == pattern_end or at == end:
            break
        if patterns[pattern_at] != 46 or buf[at] != 46:
            return False
        pattern_at += 1
        at += 1
    return pattern_at == pattern_end and at == end


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.longlong)
def _find_subject(
    batch: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t
):
    """Position and length of the subject in a record's header `subject`, which is its first one.

    The record is `batch[at:end]` without its length. Returns start << 32 | length, or -1 for a
    record without this header.
    """
    size: cython.longlong
    found: cython.longlong
    field: cython.int
    name: cython.p_char = b"subject"
    # Attributes, timestamp delta, offset delta.
    size, at = read_varint(batch, at + 1, end)
    if at < 0:
        return -1
    size, at = read_varint(batch, at, end)
    if at < 0:
        return -1
    for field in range(2):
        size, at = read_varint(batch, at, end)
        if at < 0 or size > end - at:
            return -1
        if size > 0:
            at += size
    size, at = read_varint(batch, at, end)
    if at < 0 or size < 1:
        return -1
    size, at = read_varint(batch, at, end)
    if at < 0 or size != 7 or size > end - at:
        return -1
    for field in range(7):
        if batch[at + field] != name[field]:
            return -1
    size, at = read_varint(batch, at + 7, end)
    if at < 0 or size < 0 or size > end - at:
        return -1
    found = at
    return (found << 32) | size


def mark_expecting(
    batch: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    record_count: cython.Py_ssize_t,
    rows: cython.const[cython.longlong][::1],
    count: cython.Py_ssize_t,
    streams: cython.const[cython.longlong][::1],
    patterns: cython.const[cython.uchar][::1],
    implied_subject: cython.const[cython.uchar][::1],
    verdicts: cython.uchar[::1],
) -> None:
    """Set `verdicts` to 1 for the records that expect one of `streams` and have its subject.

    A record without header `subject` has `implied_subject`, or none where that is empty.
    `streams` has three numbers for each stream: the hash of its name, and start and end of its
    subject in `patterns`.
    """
    index: cython.Py_ssize_t
    at: cython.Py_ssize_t = start
    stop: cython.Py_ssize_t
    row: cython.Py_ssize_t = 0
    place: cython.Py_ssize_t
    length: cython.Py_ssize_t
    size: cython.longlong
    subject: cython.longlong
    bad: cython.bint = False
    if len(rows) < 8 * count or len(verdicts) < record_count or start < 0:
        raise IndexError("there are fewer rows or verdicts than told")
    for place in range(0, len(streams) - 2, 3):
        if not 0 <= streams[place + 1] <= streams[place + 2] <= len(patterns):
            raise IndexError("a subject is outside the patterns")
    with cython.nogil:
        for index in range(record_count):
            size, stop = read_varint(batch, at, len(batch))
            if stop < 0:
                bad = True
                break
            if size < 0 or size > len(batch) - stop:
                bad = True
                break
            at = stop + size
            if row >= 8 * count or rows[row] != index:
                continue
            row += 8
            if not rows[row - 7] & 8:
                continue
            for place in range(0, len(streams) - 2, 3):
                if rows[row - 1] == streams[place]:
                    subject = _find_subject(batch, stop, at)
                    if subject < 0:
                        verdicts[index] = len(implied_subject) > 0 and _subject_matches(
                            patterns, streams[place + 1], streams[place + 2],
                            implied_subject, 0, len(implied_subject),
                        )  # fmt: skip
                    else:
                        stop = subject >> 32
                        length = subject - (subject >> 32 << 32)
                        verdicts[index] = _subject_matches(
                            patterns, streams[place + 1], streams[place + 2],
                            batch, stop, stop + length,
                        )  # fmt: skip
                    break
    if bad:
        raise IndexError("the records do not match the batch")


def group_unsupported(
    batch: cython.const[cython.uchar][::1],
    rows: cython.const[cython.longlong][::1],
    count: cython.Py_ssize_t,
    verdicts: cython.uchar[::1],
    names: cython.longlong[::1],
) -> int:
    """Tell the unsupported headers of evaluated records apart; return how many names there are.

    Verdict 6 (`NOT_SUPPORTED`) becomes 15 (`VERDICTS`) + i, and `names[i]` the position and length
    of header name i in the batch, as in a row. `names` bounds how many names are told apart.
    The records with further names keep their verdict.
    """
    row: cython.Py_ssize_t
    found: cython.Py_ssize_t = 0
    group: cython.Py_ssize_t
    place: cython.Py_ssize_t
    at: cython.Py_ssize_t
    other: cython.Py_ssize_t
    length: cython.Py_ssize_t
    name: cython.longlong
    index: cython.longlong
    bad: cython.bint = False
    if len(rows) < 8 * count or len(names) > 255 - 15:
        raise IndexError("there are fewer rows than told, or too many names")
    with cython.nogil:
        for row in range(0, 8 * count, 8):
            index = rows[row]
            if index < 0 or index >= len(verdicts):
                bad = True
                break
            if verdicts[index] != 6:
                continue
            name = rows[row + 4]
            at = name >> 16
            length = name & 32767
            if at < 0 or length > len(batch) - at:
                bad = True
                break
            for group in range(found):
                other = names[group] >> 16
                if (names[group] ^ name) & 65535:
                    continue
                for place in range(length):
                    if batch[other + place] != batch[at + place]:
                        break
                else:
                    verdicts[index] = 15 + group
                    break
            else:
                if found < len(names):
                    names[found] = name
                    verdicts[index] = 15 + found
                    found += 1
    if bad:
        raise IndexError("the rows do not match the batch")
    return found
