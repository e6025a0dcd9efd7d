"""Write the rows of Arrow columns as PUB and HPUB operations, each with its reply subject.

`client.messages.MessageEncoder` defines what a row may carry. A row that breaks a rule ends the
call; the state then holds the position and the kind of the error. The caller must check subjects
with characters outside ASCII, because printability is not known here.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.libc.string import memcpy

IS_COMPILED: bool = cython.compiled

DONE = 0
FULL = 1
BAD_SUBJECT = 2
OTHER_SUBJECT = 3
BAD_KEY = 4
BAD_HEADER_NAME = 5
BAD_HEADER_VALUE = 6
TAKEN_HEADER = 7
BAD_ID = 8
TOO_LARGE = 9
MALFORMED = 10


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _put(
    source: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
    out: cython.uchar[::1],
    to: cython.Py_ssize_t,
):
    """Copy `length` bytes. Return the position after them. The caller checks both ranges."""
    if length > 0:
        if cython.compiled:
            memcpy(cython.address(out[to]), cython.address(source[at]), length)
        else:
            out[to : to + length] = source[at : at + length]
    return to + length


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _put_word(
    word: cython.p_char, length: cython.int, out: cython.uchar[::1], to: cython.Py_ssize_t
):
    """Copy a literal. The caller ensures the space."""
    place: cython.int
    for place in range(length):
        out[to + place] = word[place]
    return to + length


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _digits(value: cython.longlong):
    """Number of decimal digits of a non-negative number."""
    count: cython.Py_ssize_t = 1
    while value >= 10:
        value //= 10
        count += 1
    return count


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _put_number(out: cython.uchar[::1], to: cython.Py_ssize_t, value: cython.longlong):
    """Write a non-negative number in decimal. The caller ensures the space."""
    end: cython.Py_ssize_t = to + _digits(value)
    at: cython.Py_ssize_t = end
    while at > to:
        at -= 1
        out[at] = 48 + value % 10
        value //= 10
    return end


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.bint)
def _is_null(bitmap: cython.const[cython.uchar][::1], bit: cython.Py_ssize_t):
    """Whether an element is null. Without a bitmap no element is null. A bit beyond the bitmap is
    null."""
    if len(bitmap) == 0:
        return False
    if bit >> 3 >= len(bitmap):
        return True
    return (bitmap[bit >> 3] >> (bit & 7)) & 1 == 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.bint)
def _is_line(
    buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, length: cython.Py_ssize_t
):
    """Whether these bytes are a valid header value: no line break, no blank at an end."""
    end: cython.Py_ssize_t = at + length
    if length > 0 and (buf[at] == 32 or buf[at] == 9 or buf[end - 1] == 32 or buf[end - 1] == 9):
        return False
    while at < end:
        if buf[at] == 10 or buf[at] == 13:
            return False
        at += 1
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.bint)
def _is_name(
    buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, length: cython.Py_ssize_t
):
    """Whether these bytes are a valid header name: printable ASCII without colon and blank."""
    end: cython.Py_ssize_t = at + length
    if length <= 0:
        return False
    while at < end:
        if buf[at] < 33 or buf[at] > 126 or buf[at] == 58:
            return False
        at += 1
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.bint)
def _reads(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    word: cython.p_char,
    length: cython.int,
):
    """Whether the lower-case `word` is at `at`, ignoring case. The caller checks the range."""
    place: cython.int
    for place in range(length):
        if (buf[at + place] | 32) != word[place]:
            return False
    return True


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.bint)
def _is_subject(
    buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, length: cython.Py_ssize_t
):
    """Whether these bytes are a subject for publishing, by the rules of `wire.subjects`."""
    end: cython.Py_ssize_t = at + length
    tokens: cython.int = 1
    byte: cython.int
    before: cython.int = 46
    if length <= 0 or length > 512:
        return False
    while at < end:
        byte = buf[at]
        if byte <= 32 or byte == 127 or byte == 42 or byte == 62:
            return False
        if byte == 46:
            if before == 46:
                return False
            tokens += 1
        before = byte
        at += 1
    return before != 46 and tokens <= 64


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.bint)
def _matches(
    pattern: cython.const[cython.uchar][::1],
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
):
    """Whether a subject matches the pattern, token by token. Both are well-formed."""
    end: cython.Py_ssize_t = at + length
    size: cython.Py_ssize_t = len(pattern)
    place: cython.Py_ssize_t = 0
    while place < size and at < end:
        if pattern[place] == 62:
            return True
        if pattern[place] == 42:
            place += 1
            while at < end and buf[at] != 46:
                at += 1
        else:
            while place < size and pattern[place] != 46:
                if at >= end or buf[at] != pattern[place]:
                    return False
                place += 1
                at += 1
        if place >= size or at >= end:
            break
        if pattern[place] != 46 or buf[at] != 46:
            return False
        place += 1
        at += 1
    return place >= size and at >= end


def subject_matches(
    pattern: cython.const[cython.uchar][::1], subject: cython.const[cython.uchar][::1]
) -> bool:
    """Whether `subject` matches `pattern`, which may have wildcards."""
    return bool(_matches(pattern, subject, 0, len(subject)))


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.ulonglong)
def _mix(
    state: cython.ulonglong,
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
):
    """Mix a field into a checksum, eight bytes at a time, its length first (-1: null)."""
    mask: cython.ulonglong = 0xFFFFFFFFFFFFFFFF
    factor: cython.ulonglong = 0x9E3779B97F4A7C15
    word: cython.ulonglong
    left: cython.Py_ssize_t = length
    word = length + 1
    state = ((state ^ word) * factor) & mask
    state ^= state >> 32
    while left >= 8:
        if cython.compiled:
            memcpy(cython.address(word), cython.address(buf[at]), 8)
        else:
            word = int.from_bytes(buf[at : at + 8], "little")
        state = ((state ^ word) * factor) & mask
        state ^= state >> 32
        at += 8
        left -= 8
    word = 0
    while left > 0:
        left -= 1
        word = (word << 8) | buf[at + left]
    state = ((state ^ word) * factor) & mask
    return state ^ (state >> 29)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.bint)
def _in_range(
    ends: cython.const[cython.int][::1], size: cython.Py_ssize_t, element: cython.Py_ssize_t
):
    """Whether an element lies within the `size` bytes of its column's data."""
    if element < 0 or element + 1 >= len(ends):
        return False
    return 0 <= ends[element] <= ends[element + 1] <= size


def encode_rows(
    row: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
    index: cython.longlong,
    number: cython.longlong,
    prefix: cython.const[cython.uchar][::1],
    fixed_subject: cython.const[cython.uchar][::1],
    pattern: cython.const[cython.uchar][::1],
    id_prefix: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    subject_ends: cython.const[cython.int][::1],
    subject_data: cython.const[cython.uchar][::1],
    subject_valid: cython.const[cython.uchar][::1],
    key_ends: cython.const[cython.int][::1],
    key_data: cython.const[cython.uchar][::1],
    key_valid: cython.const[cython.uchar][::1],
    value_ends: cython.const[cython.int][::1],
    value_data: cython.const[cython.uchar][::1],
    value_valid: cython.const[cython.uchar][::1],
    header_ends: cython.const[cython.int][::1],
    header_valid: cython.const[cython.uchar][::1],
    name_ends: cython.const[cython.int][::1],
    name_data: cython.const[cython.uchar][::1],
    name_valid: cython.const[cython.uchar][::1],
    content_ends: cython.const[cython.int][::1],
    content_data: cython.const[cython.uchar][::1],
    content_valid: cython.const[cython.uchar][::1],
    id_ends: cython.const[cython.int][::1],
    id_data: cython.const[cython.uchar][::1],
    id_valid: cython.const[cython.uchar][::1],
    payload_bytes_max: cython.longlong,
    out: cython.uchar[::1],
    out_ends: cython.int[::1],
    state: cython.longlong[::1],
) -> int:
    """Write rows [row, rows) as operations to `out`, as many as fit.

    Row `row` is message `index` of its window. Its reply subject is `prefix` and that number.
    Columns are Arrow's buffers (ends, data, validity bitmap; an absent column has no ends).
    `starts` holds the position of row 0 in each. With `id_prefix`, a message id is the prefix, the
    row's `number`, a dot and a checksum of the row. A column of ids takes precedence. A null value
    becomes a tombstone (`KV-Operation: DEL`).

    Returns the number of rows written; `out_ends[i]` is the end of the i-th. `state` receives: 0
    bytes written, 1 why it stopped (DONE, FULL or the error of the next row), 2 size of the next
    row if FULL, or of its payload if TOO_LARGE, 3 the header concerned.
    """
    mask: cython.ulonglong = 0xFFFFFFFF
    first: cython.Py_ssize_t = row
    room: cython.Py_ssize_t = len(out)
    to: cython.Py_ssize_t = 0
    entry: cython.Py_ssize_t
    element: cython.Py_ssize_t
    header: cython.Py_ssize_t
    header_from: cython.Py_ssize_t
    header_end: cython.Py_ssize_t
    children: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t
    length: cython.Py_ssize_t
    subject_at: cython.Py_ssize_t
    subject_bytes: cython.Py_ssize_t
    key_at: cython.Py_ssize_t
    key_bytes: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    value_bytes: cython.Py_ssize_t
    id_at: cython.Py_ssize_t
    id_bytes: cython.Py_ssize_t
    block: cython.Py_ssize_t
    size: cython.Py_ssize_t
    fixed_bytes: cython.Py_ssize_t = len(fixed_subject)
    has_fixed: cython.bint = fixed_bytes > 0
    tombstone: cython.bint
    deletes: cython.bint
    checksum: cython.ulonglong
    digit: cython.ulonglong
    place: cython.int
    why: cython.int = 0
    detail: cython.longlong = 0
    at = min(row, len(starts) - 7, len(state) - 4, len(out_ends) - 1, 2147483647 - room)
    if at < 0 or index < 0 or number < 0:
        raise IndexError("buffers are too small for the rows given")
    state[3] = 0
    if len(header_ends) > 0:
        children = min(len(name_ends), len(content_ends)) - 1 - max(starts[4], starts[5])
    with cython.nogil:
        while row < rows:
            entry = row - first
            if entry >= len(out_ends):
                why = 1
                break
            # The subject.
            subject_at = 0
            subject_bytes = fixed_bytes
            if not has_fixed:
                element = starts[0] + row
                if _is_null(subject_valid, element):
                    why = 2
                    break
                if not _in_range(subject_ends, len(subject_data), element):
                    why = 10
                    break
                subject_at = subject_ends[element]
                subject_bytes = subject_ends[element + 1] - subject_at
                if not _is_subject(subject_data, subject_at, subject_bytes):
                    why = 2
                    break
                if len(pattern) > 0 and not _matches(
                    pattern, subject_data, subject_at, subject_bytes
                ):
                    why = 3
                    break
            block = 12
            # The key.
            key_at = 0
            key_bytes = -1
            if len(key_ends) > 0 and not _is_null(key_valid, starts[1] + row):
                element = starts[1] + row
                if not _in_range(key_ends, len(key_data), element):
                    why = 10
                    break
                key_at = key_ends[element]
                key_bytes = key_ends[element + 1] - key_at
                if not _is_line(key_data, key_at, key_bytes):
                    why = 4
                    break
                block += 15 + key_bytes
            # The value.
            element = starts[2] + row
            value_at = 0
            value_bytes = 0
            tombstone = _is_null(value_valid, element)
            if not tombstone:
                if not _in_range(value_ends, len(value_data), element):
                    why = 10
                    break
                value_at = value_ends[element]
                value_bytes = value_ends[element + 1] - value_at
            # The id, where a column has it.
            id_at = 0
            id_bytes = -1
            if len(id_ends) > 0:
                element = starts[6] + row
                if _is_null(id_valid, element):
                    why = 8
                    break
                if not _in_range(id_ends, len(id_data), element):
                    why = 10
                    break
                id_at = id_ends[element]
                id_bytes = id_ends[element + 1] - id_at
                if id_bytes == 0 or not _is_line(id_data, id_at, id_bytes):
                    why = 8
                    break
            elif len(id_prefix) > 0:
                id_bytes = len(id_prefix) + _digits(number + row) + 9
            if id_bytes >= 0:
                block += 15 + id_bytes
            # The headers.
            header_from = 0
            header_end = 0
            deletes = tombstone
            if len(header_ends) > 0 and not _is_null(header_valid, starts[3] + row):
                element = starts[3] + row
                if not _in_range(header_ends, children, element):
                    why = 10
                    break
                header_from = header_ends[element]
                header_end = header_ends[element + 1]
            header = header_from
            while header < header_end:
                element = starts[4] + header
                if _is_null(name_valid, element):
                    why = 5
                    break
                if not _in_range(name_ends, len(name_data), element):
                    why = 10
                    break
                at = name_ends[element]
                length = name_ends[element + 1] - at
                if not _is_name(name_data, at, length):
                    why = 5
                    break
                if length == 11 and (
                    _reads(name_data, at, b"bascule-key", 11)
                    or (id_bytes >= 0 and _reads(name_data, at, b"nats-msg-id", 11))
                ):
                    why = 7
                    break
                if length == 12 and _reads(name_data, at, b"kv-operation", 12):
                    deletes = False
                block += length + 4
                element = starts[5] + header
                if _is_null(content_valid, element):
                    why = 6
                    break
                if not _in_range(content_ends, len(content_data), element):
                    why = 10
                    break
                at = content_ends[element]
                length = content_ends[element + 1] - at
                if not _is_line(content_data, at, length):
                    why = 6
                    break
                block += length
                header += 1
            if why:
                detail = header - header_from
                break
            if deletes:
                block += 19
            if block == 12:
                block = 0
            # Its whole size.
            size = block + value_bytes
            if size > payload_bytes_max:
                why = 9
                state[2] = size
                break
            at = 4 + subject_bytes + 1 + len(prefix) + _digits(index + entry) + 1
            at += _digits(size) + 2 + size + 2
            if block > 0:
                at += 2 + _digits(block)
            if at > room - to:
                why = 1
                state[2] = at
                break
            # All of it is right and there is room for it.
            checksum = 0
            if block > 0:
                to = _put_word(b"HPUB ", 5, out, to)
            else:
                to = _put_word(b"PUB ", 4, out, to)
            if has_fixed:
                to = _put(fixed_subject, 0, fixed_bytes, out, to)
            else:
                to = _put(subject_data, subject_at, subject_bytes, out, to)
            out[to] = 32
            to = _put(prefix, 0, len(prefix), out, to + 1)
            to = _put_number(out, to, index + entry)
            out[to] = 32
            to += 1
            if block > 0:
                to = _put_number(out, to, block)
                out[to] = 32
                to += 1
            to = _put_number(out, to, size)
            to = _put_word(b"\r\n", 2, out, to)
            if block > 0:
                to = _put_word(b"NATS/1.0\r\n", 10, out, to)
                if key_bytes >= 0:
                    to = _put_word(b"Bascule-Key: ", 13, out, to)
                    to = _put(key_data, key_at, key_bytes, out, to)
                    to = _put_word(b"\r\n", 2, out, to)
                header = header_from
                while header < header_end:
                    element = starts[4] + header
                    at = name_ends[element]
                    length = name_ends[element + 1] - at
                    checksum = _mix(checksum, name_data, at, length)
                    to = _put(name_data, at, length, out, to)
                    to = _put_word(b": ", 2, out, to)
                    element = starts[5] + header
                    at = content_ends[element]
                    length = content_ends[element + 1] - at
                    checksum = _mix(checksum, content_data, at, length)
                    to = _put(content_data, at, length, out, to)
                    to = _put_word(b"\r\n", 2, out, to)
                    header += 1
                if deletes:
                    to = _put_word(b"KV-Operation: DEL\r\n", 19, out, to)
                if id_bytes >= 0:
                    to = _put_word(b"Nats-Msg-Id: ", 13, out, to)
                    if len(id_ends) > 0:
                        to = _put(id_data, id_at, id_bytes, out, to)
                    else:
                        to = _put(id_prefix, 0, len(id_prefix), out, to)
                        to = _put_number(out, to, number + row)
                        out[to] = 46
                        to += 1
                        if not has_fixed:
                            checksum = _mix(checksum, subject_data, subject_at, subject_bytes)
                        checksum = _mix(checksum, key_data, key_at, key_bytes)
                        checksum = _mix(
                            checksum, value_data, value_at, -1 if tombstone else value_bytes
                        )
                        checksum = (checksum ^ (checksum >> 32)) & mask
                        for place in range(8):
                            digit = (checksum >> (28 - 4 * place)) & 15
                            out[to + place] = (48 if digit < 10 else 87) + digit
                        to += 8
                    to = _put_word(b"\r\n", 2, out, to)
                to = _put_word(b"\r\n", 2, out, to)
            to = _put(value_data, value_at, value_bytes, out, to)
            to = _put_word(b"\r\n", 2, out, to)
            out_ends[entry] = to
            row += 1
    state[0] = to
    state[1] = why
    state[3] = detail
    return row - first
