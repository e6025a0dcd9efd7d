"""Tell commits of offsets apart: what a request repeats of an earlier one, and what is new in it.

A member commits the same partitions again and again. Its requests differ in the correlation id, the
offsets and the leader epochs, which have a fixed size. The rest is the *form* of a request.

    int16 api key 8, int16 version, int32 correlation id *, nullable string client id,
    string group, int32 generation, string member, nullable string instance (7+),
    int64 retention (2-4), array of topics: string name (to 9) or uuid (10), array of partitions:
        int32 index, int64 offset *, int32 leader epoch * (6+), nullable string metadata

From version 8 on lengths are compact, and each structure ends with tagged fields, of which there
are none in a usual request. The fields with a star are zero in the form.

The bytes are untrusted, so every position is checked against the end before it is read.
"""
# mypy: ignore-errors

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython

if cython.compiled:
    from cython.cimports.bascule._hot_number import read_number
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy, memset
else:
    from bascule._hot_number import read_number

IS_COMPILED: bool = cython.compiled


@cython.cfunc
@cython.inline
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns((cython.longlong, cython.Py_ssize_t))
def _length(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    flexible: cython.bint,
    size: cython.int,
):
    """A length of `size` bytes, or a compact one of up to two bytes, -1 for null, and the position
    behind it: -1 if it is cut short or longer."""
    value: cython.longlong
    if not flexible:
        if end - at < size:
            return 0, -1
        return read_number(buf, at, size), at + size
    if at >= end:
        return 0, -1
    value = buf[at]
    if value < 0x80:
        return value - 1, at + 1
    if end - at < 2 or buf[at + 1] >= 0x80:
        return 0, -1
    value = (value & 0x7F) + 128 * buf[at + 1]
    return value - 1, at + 2


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _skip_string(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    flexible: cython.bint,
):
    """The position behind a string, which may be null; -1 if it is cut short."""
    length: cython.longlong
    if at < 0:
        return -1
    length, at = _length(buf, at, end, flexible, 2)
    if at < 0 or length < -1 or length > end - at:
        return -1
    return at if length < 0 else at + length


@cython.cfunc
@cython.inline
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _skip_tags(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    flexible: cython.bint,
):
    """The position behind an empty list of tagged fields; -1 for any other one."""
    if not flexible or at < 0:
        return at
    return at + 1 if at < end and buf[at] == 0 else -1


@cython.boundscheck(False)
def split_commit(frame: cython.const[cython.uchar][::1]) -> tuple | None:
    """The form of a request to commit offsets, and its offsets and leader epochs in turn.

    The leader epoch is -1 in versions that have none. None for other requests, and for unusual
    ones: with tagged fields, bytes behind the request, or lengths that do not fit. Strings are not
    looked at.
    """
    end: cython.Py_ssize_t = len(frame)
    at: cython.Py_ssize_t = 8
    version: cython.longlong
    topics: cython.longlong
    partitions: cython.longlong
    flexible: cython.bint
    target: cython.p_uchar
    values: list = []
    if end < 8 or read_number(frame, 0, 2) != 8:
        return None
    version = read_number(frame, 2, 2)
    if version < 2 or version > 10:
        return None
    flexible = version >= 8
    if cython.compiled:
        form: bytes = PyBytes_FromStringAndSize(cython.NULL, end)
        target = form
        memcpy(target, cython.address(frame[0]), end)
        memset(target + 4, 0, 4)
    else:
        form = bytearray(frame)
        form[4:8] = bytes(4)
    at = _skip_tags(frame, _skip_string(frame, at, end, False), end, flexible)
    at = _skip_string(frame, at, end, flexible)
    if at < 0 or end - at < 4:
        return None
    at = _skip_string(frame, at + 4, end, flexible)
    if version >= 7:
        at = _skip_string(frame, at, end, flexible)
    if at < 0:
        return None
    if version <= 4:
        at += 8
    topics, at = _length(frame, at, end, flexible, 4)
    if at < 0:
        return None
    while topics > 0:
        topics -= 1
        at = _skip_string(frame, at, end, flexible) if version < 10 else at + 16
        if at < 0:
            return None
        partitions, at = _length(frame, at, end, flexible, 4)
        if at < 0:
            return None
        while partitions > 0:
            partitions -= 1
            if end - at < (16 if version >= 6 else 12):
                return None
            values.append(read_number(frame, at + 4, 8))
            if cython.compiled:
                memset(target + at + 4, 0, 8)
            else:
                form[at + 4 : at + 12] = bytes(8)
            at += 12
            if version >= 6:
                values.append(read_number(frame, at, 4))
                if cython.compiled:
                    memset(target + at, 0, 4)
                else:
                    form[at : at + 4] = bytes(4)
                at += 4
            else:
                values.append(-1)
            at = _skip_tags(frame, _skip_string(frame, at, end, flexible), end, flexible)
            if at < 0:
                return None
        at = _skip_tags(frame, at, end, flexible)
        if at < 0:
            return None
    if _skip_tags(frame, at, end, flexible) != end:
        return None
    return bytes(form), values
