"""Decode the usual forms of a structure by its program; see `wire.codec`, which makes programs.

A *program* is a tuple: the class, whether the version is flexible, and a step for each argument of
the constructor, in the order of the bytes. A step is an operation and what it needs:

    CONSTANT     the value, of a field that the version does not have or that has a tag
    a number     nothing
    STRING       whether it may be null
    STRUCTURES   whether the array may be null, the program of an item, least bytes of an item

The bytes are untrusted, so every position is checked against the end before it is read.
"""
# mypy: ignore-errors

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8

IS_COMPILED: bool = cython.compiled

CONSTANT = 0
INT8 = 1
INT16 = 2
INT32 = 4
INT64 = 8
BOOL = 16
UUID = 17
STRING = 18
STRUCTURES = 19

STRING_BYTES_MAX = 32_767

if cython.compiled:
    _CONSTANT = cython.declare(cython.int, 0)
    _INT64 = cython.declare(cython.int, 8)
    _BOOL = cython.declare(cython.int, 16)
    _UUID = cython.declare(cython.int, 17)
    _STRING = cython.declare(cython.int, 18)
    _STRING_BYTES_MAX = cython.declare(cython.Py_ssize_t, 32_767)
else:
    _CONSTANT, _INT64, _BOOL, _UUID, _STRING = CONSTANT, INT64, BOOL, UUID, STRING
    _STRING_BYTES_MAX = STRING_BYTES_MAX


@cython.cfunc
@cython.inline
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.longlong)
def _number(buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, size: cython.int):
    """The signed number of `size` bytes. The caller has checked the range."""
    value: cython.longlong = buf[at]
    position: cython.Py_ssize_t
    if value >= 128:
        value -= 256
    for position in range(at + 1, at + size):
        value = value * 256 + buf[position]
    return value


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
    """A length of `size` bytes, or a compact one, and the position behind it: -1 if it is cut short
    or has more than 32 bits."""
    value: cython.longlong = 0
    byte: cython.longlong
    shift: cython.int = 0
    if not flexible:
        if end - at < size:
            return 0, -1
        return _number(buf, at, size), at + size
    while at < end and shift < 35:
        byte = buf[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                return 0, -1
            return value - 1, at
        shift += 7
    return 0, -1


@cython.cfunc
def _text(
    buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, length: cython.Py_ssize_t
):
    """The text of `length` bytes. The caller has checked the range. Raises: UnicodeDecodeError."""
    if length == 0:
        return ""
    if cython.compiled:
        return PyUnicode_DecodeUTF8(
            cython.cast(cython.p_char, cython.address(buf[at])), length, cython.NULL
        )
    else:
        return bytes(buf[at : at + length]).decode()


@cython.cfunc
def _octets(
    buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, length: cython.Py_ssize_t
):
    """The bytes themselves. The caller has checked the range, which is not empty."""
    if cython.compiled:
        return PyBytes_FromStringAndSize(
            cython.cast(cython.p_char, cython.address(buf[at])), length
        )
    else:
        return bytes(buf[at : at + length])


@cython.cfunc
def _decode(
    program: tuple,
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
):
    """As `decode_structure`. Raises: UnicodeDecodeError."""
    flexible: cython.bint = program[1]
    arguments: list = []
    step: tuple
    operation: cython.int
    size: cython.Py_ssize_t
    length: cython.longlong
    row: cython.longlong
    items: list
    for step in program[2]:
        operation = step[0]
        if operation == _CONSTANT:
            arguments.append(step[1])
        elif operation <= _INT64:
            if end - at < operation:
                return None
            arguments.append(_number(buf, at, operation))
            at += operation
        elif operation == _STRING:
            length, at = _length(buf, at, end, flexible, 2)
            if at < 0 or length > end - at or length > _STRING_BYTES_MAX:
                return None
            if length < 0:
                if length != -1 or not step[1]:
                    return None
                arguments.append(None)
                continue
            arguments.append(_text(buf, at, length))
            at += length
        elif operation == _BOOL or operation == _UUID:  # noqa: PLR1714
            size = 1 if operation == _BOOL else 16
            if end - at < size:
                return None
            arguments.append(_octets(buf, at, 16) if size == 16 else buf[at] != 0)
            at += size
        else:
            length, at = _length(buf, at, end, flexible, 4)
            if at < 0 or length < -1 or (length > 0 and length > (end - at) // step[3]):
                return None
            if length < 0:
                if not step[1]:
                    return None
                arguments.append(None)
                continue
            items = []
            for row in range(length):  # noqa: B007
                found = _decode(step[2], buf, at, end)
                if found is None:
                    return None
                item, at = found
                items.append(item)
            arguments.append(items)
    if flexible:
        if at >= end or buf[at] != 0:
            return None
        at += 1
    return program[0](*arguments), at


def decode_structure(
    program: tuple,
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> tuple | None:
    """The structure that begins at `at`, and the position behind it.

    None for what the caller has to decode otherwise: bytes that are cut short or malformed, text
    that is not UTF-8, and tagged fields.
    """
    if at < 0 or end > len(buf):
        raise IndexError("the structure is not within the buffer")
    try:
        return _decode(program, buf, at, end)
    except UnicodeDecodeError:
        return None
