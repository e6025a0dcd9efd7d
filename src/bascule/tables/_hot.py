"""Make rows of a table of the records of a batch."""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.bascule.record._hot_varint import read_varint
else:
    from bascule.record._hot_varint import read_varint

IS_COMPILED: bool = cython.compiled

KEY_BYTES_MAX = 1024
"""As in `wire.tables.keys`."""
CONTENT_TYPE_BYTES_MAX = 255
"""A longer one is as good as none: those that are registered have at most 127 characters."""
_NAME: bytes = b"content-type"


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
@cython.returns(object)
def _content_type(
    data: bytes,
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    count: cython.longlong,
):
    """The first header `Content-Type` among the `count` headers at `at`, or None.

    The headers were checked by `record.index_records`. One that is empty, too long, or not of
    printable ASCII is none: it becomes a header of a response.
    """
    header: cython.longlong
    length: cython.longlong
    position: cython.Py_ssize_t
    end: cython.Py_ssize_t = len(buf)
    byte: cython.int
    found: cython.bint
    for header in range(count):
        length, at = read_varint(buf, at, end)
        if at < 0 or length < 0 or length > end - at:
            return None
        found = length == 12
        if found:
            for position in range(12):
                # Only letters differ from those of the name by this bit.
                if (buf[at + position] | 32) != _NAME[position]:
                    found = False
                    break
        at += length
        length, at = read_varint(buf, at, end)
        if at < 0 or length > end - at:
            return None
        if found:
            if length < 1 or length > CONTENT_TYPE_BYTES_MAX:
                return None
            for position in range(length):
                byte = buf[at + position]
                if byte < 32 or byte > 126:
                    return None
            return data[at : at + length].decode("ascii")
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
    rows: list[tuple[bytes, int, int, bytes | None, str | None]],
    escaped: list[int],
) -> int:
    """Append the key, offset, timestamp, value and content type of each record from offset `start`
    on to `rows`.

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
        rows.append(
            (
                data[key_at + cut : key_end],
                offset,
                timestamp,
                None
                if positions[slot + 5] < 0
                else data[value_at : value_at + positions[slot + 5]],
                None
                if positions[slot + 5] < 0 or positions[slot + 6] < 0
                else _content_type(data, buf, positions[slot + 6], positions[slot + 7]),
            )
        )
    return skipped


def note_rows(
    rows: list[tuple[bytes, int, int, bytes | None, str | None]], last: dict[bytes, int]
) -> None:
    """For the key of each row twice its offset into `last`, plus 1 if it has a value."""
    row: tuple
    offset: cython.longlong
    for row in rows:
        offset = row[1]
        last[row[0]] = 2 * offset + (row[3] is not None)


def match_rows(
    rows: list[tuple[bytes, int, int, bytes | None, str | None]],
    literal: dict[bytes, Any],
    patterns: list[tuple[Any, Any]],
) -> list[tuple[tuple[bytes, int, int, bytes | None, str | None], list[Any]]]:
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
