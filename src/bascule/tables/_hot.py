"""Make rows of a table of the records of a batch."""

from __future__ import annotations

from typing import Any, TypeAlias

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.bascule.record._hot_ttl import read_ttl
    from cython.cimports.bascule.record._hot_varint import read_varint
else:
    from bascule.record._hot_ttl import read_ttl
    from bascule.record._hot_varint import read_varint

IS_COMPILED: bool = cython.compiled

KEY_BYTES_MAX = 1024
"""As in `wire.tables.keys`."""
CONTENT_TYPE_BYTES_MAX = 255
"""A longer one is as good as none: those that are registered have at most 127 characters."""
_NAME: bytes = b"content-type"
_TTL: bytes = b"nats-ttl"
_NO_HEADERS: tuple = (None, None)
_OPERATION: bytes = b"kv-operation"
_MARKER_REASON: bytes = b"nats-marker-reason"
PURGED = "PURGE"
"""In the place of the content type of a removal that key-value clients see as a purge."""
FORGOTTEN = "FORGOTTEN"
"""Of a removal that they see no more: it came with `Nats-Marker-Reason: Purge`."""
AppliedRow: TypeAlias = tuple[bytes, int, int, bytes | None, str | None, int | None]
"""Key, offset, timestamp, value (None: removed), content type, and time to live of a record:
milliseconds, 0 for ever, None as the table has it. A removal has PURGED, FORGOTTEN or None
as content type."""


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.returns(cython.bint)
def _is_plain(data: bytes, at: cython.Py_ssize_t, end: cython.Py_ssize_t):
    """Whether the bytes are tokens of letters, digits, `-`, `/`, `=` and `_`, with dots between."""
    byte: cython.int
    after_dot: cython.bint = True
    while at < end:
        byte = data[at]
        if byte == 46:
            if after_dot:
                return False
            after_dot = True
        elif 97 <= byte <= 122 or 65 <= byte <= 90 or 47 <= byte <= 57 or byte in (45, 61, 95):
            after_dot = False
        else:
            return False
        at += 1
    return not after_dot


@cython.cfunc
@cython.inline
@cython.returns(cython.bint)
def _is(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    word: bytes,
    length: cython.longlong,
):
    """Whether `word`, in lower case, is the header name of this length at `at`, in any case."""
    place: cython.Py_ssize_t
    if length != len(word):
        return False
    for place in range(length):
        # Letters differ by this bit only; `-` has it.
        if (buf[at + place] | 32) != word[place]:
            return False
    return True


@cython.cfunc
@cython.returns(object)
def _content_type(
    data: bytes,
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    length: cython.longlong,
):
    """The value of a header `Content-Type`, or None.

    One that is empty, too long, or not of printable ASCII is none: it becomes a header of a
    response.
    """
    position: cython.Py_ssize_t
    byte: cython.int
    if length < 1 or length > CONTENT_TYPE_BYTES_MAX:
        return None
    for position in range(length):
        byte = buf[at + position]
        if byte < 32 or byte > 126:
            return None
    return data[at : at + length].decode("ascii")


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.returns((cython.Py_ssize_t, cython.longlong, cython.Py_ssize_t, cython.longlong))
def _header(buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t):
    """Position and length of the name of the header at `at`, and of its value; a position of -1
    for the value if the header does not end before `end`."""
    name_at: cython.Py_ssize_t
    name: cython.longlong
    length: cython.longlong
    name, name_at = read_varint(buf, at, end)
    if name_at < 0 or name < 0 or name > end - name_at:
        return 0, 0, -1, 0
    length, at = read_varint(buf, name_at + name, end)
    if at < 0 or length > end - at:
        return 0, 0, -1, 0
    return name_at, name, at, length


@cython.cfunc
@cython.returns(tuple)
def _headers(
    data: bytes,
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    count: cython.longlong,
):
    """The content type and the time to live of a record, each None if it has none.

    The first header of each name among the `count` headers at `at` counts. The headers were checked
    by `record.index_records`.
    """
    header: cython.longlong
    length: cython.longlong
    name_at: cython.Py_ssize_t
    name: cython.longlong
    end: cython.Py_ssize_t = len(buf)
    has_type: cython.bint = False
    ttl_ms: cython.longlong = -1
    has_ttl: cython.bint = False
    content_type: object = None
    for header in range(count):
        name_at, name, at, length = _header(buf, at, end)
        if at < 0:
            break
        if not has_type and _is(buf, name_at, _NAME, name):
            has_type = True
            content_type = _content_type(data, buf, at, length)
        elif not has_ttl and _is(buf, name_at, _TTL, name):
            has_ttl = True
            ttl_ms = read_ttl(buf, at, at + length) if length > 0 else -1
        if length > 0:
            at += length
    return content_type, ttl_ms if ttl_ms >= 0 else None


@cython.cfunc
@cython.returns(object)
def _removal(
    data: bytes,
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    count: cython.longlong,
):
    """PURGED, FORGOTTEN or None, as the headers say; arguments as of `_headers`.

    A key whose time to live was over is purged, as clients see JetStream's own markers.
    """
    header: cython.longlong
    length: cython.longlong
    name_at: cython.Py_ssize_t
    name: cython.longlong
    end: cython.Py_ssize_t = len(buf)
    for header in range(count):
        name_at, name, at, length = _header(buf, at, end)
        if at < 0:
            break
        if _is(buf, name_at, _OPERATION, name):
            if length == 5 and data[at : at + 5] == b"PURGE":
                return PURGED
        elif _is(buf, name_at, _MARKER_REASON, name):
            if length == 6 and data[at : at + 6] == b"MaxAge":
                return PURGED
            if length == 5 and data[at : at + 5] == b"Purge":
                return FORGOTTEN
        if length > 0:
            at += length
    return None


def read_rows(
    data: bytes,
    positions: cython.longlong[::1],
    count: cython.Py_ssize_t,
    base_offset: cython.longlong,
    base_timestamp: cython.longlong,
    append_time: cython.longlong,
    prefix: bytes,
    start: cython.longlong,
    rows: list[AppliedRow],
    escaped: list[int],
) -> int:
    """Append the `AppliedRow` of each record from offset `start` on to `rows`.

    `positions` are those of the batch's `count` records in `data`, as `record.batch` has checked
    them. `append_time` is the timestamp of all records, or -1. Records whose key does not begin
    with `prefix`, or is only that, are left out; returns how many. The prefix is cut off, and
    `escaped` gets the index of each row whose key is not plain, or too long: it has to be looked
    at.
    """
    row: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    key_at: cython.Py_ssize_t
    key_end: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    cut: cython.Py_ssize_t = len(prefix)
    offset: cython.longlong
    timestamp: cython.longlong
    skipped: cython.Py_ssize_t = 0
    headers: tuple
    buf: cython.const[cython.uchar][::1] = data
    if len(positions) < 8 * count:
        raise IndexError("positions is too small for the records")
    for row in range(count):
        slot = 8 * row
        offset = base_offset + positions[slot]
        if offset < start:
            continue
        key_at = positions[slot + 2]
        key_end = key_at + positions[slot + 3]
        if key_end - key_at <= cut or data[key_at : key_at + cut] != prefix:
            skipped += 1
            continue
        if key_end - key_at - cut > KEY_BYTES_MAX or (
            cut and not _is_plain(data, key_at + cut, key_end)
        ):
            escaped.append(len(rows))
        timestamp = append_time if append_time >= 0 else base_timestamp + positions[slot + 1]
        value_at = positions[slot + 4]
        headers = _NO_HEADERS
        if positions[slot + 5] >= 0 and positions[slot + 6] >= 0:
            headers = _headers(data, buf, positions[slot + 6], positions[slot + 7])
        elif positions[slot + 6] >= 0 and positions[slot + 7] > 0:
            headers = (_removal(data, buf, positions[slot + 6], positions[slot + 7]), None)
        rows.append(
            (
                data[key_at + cut : key_end],
                offset,
                timestamp,
                None
                if positions[slot + 5] < 0
                else data[value_at : value_at + positions[slot + 5]],
                headers[0],
                headers[1],
            )
        )
    return skipped


def note_rows(rows: list[AppliedRow], last: dict[bytes, int]) -> None:
    """For the key of each row twice its offset into `last`, plus 1 if it has a value."""
    row: tuple
    offset: cython.longlong
    for row in rows:
        offset = row[1]
        last[row[0]] = 2 * offset + (row[3] is not None)


def first_deadline(rows: list[AppliedRow], ttl_ms: cython.longlong) -> int:
    """The earliest end of a row's time to live, Unix time in milliseconds; -1 if none has one.

    `ttl_ms` is that of rows without their own; 0: none.
    """
    row: tuple
    own: object
    deadline: cython.longlong
    first: cython.longlong = -1
    for row in rows:
        own = row[5]
        if row[3] is None or (own is None and ttl_ms == 0) or own == 0:
            continue
        deadline = row[2]
        if own is None:
            deadline += ttl_ms
        else:
            deadline += own
        if first < 0 or deadline < first:
            first = deadline
    return first


def match_rows(
    rows: list[AppliedRow],
    literal: dict[bytes, Any],
    patterns: list[tuple[Any, Any]],
) -> list[tuple[AppliedRow, list[Any]]]:
    """The rows whose key is in `literal` or matches one of `patterns`, each with what these have.

    A pattern is a function of a key, and what is found where it returns true.
    """
    row: tuple
    pattern: tuple
    key: bytes
    found: list
    matched: list = []
    for row in rows:
        key = row[0]
        found = []
        if key in literal:
            found.append(literal[key])
        for pattern in patterns:
            if pattern[0](key):
                found.append(pattern[1])
        if found:
            matched.append((row, found))
    return matched
