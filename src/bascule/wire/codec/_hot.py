"""Decode and encode the usual forms of a structure by its program, which `programs` makes.

A *program* is a tuple: the class, whether the version is flexible, and a step for each argument of
the constructor, in the order of the bytes. A step is an operation, the name of the field, and what
the operation needs:

    CONSTANT     the value, of a field that the version does not have
    TAGGED       the default, of a field with a tag: it is not sent
    a number     nothing
    STRING       whether it may be null
    STRUCTURES   whether the array may be null, the program of an item, least bytes of an item

The bytes are untrusted, so every position is checked against the end before it is read.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython

if cython.compiled:
    from cython.cimports.bascule._hot_number import read_number
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy
else:
    from bascule._hot_number import read_number

IS_COMPILED: bool = cython.compiled

CONSTANT = 0
INT8 = 1
INT16 = 2
INT32 = 4
INT64 = 8
BOOL = 9
UUID = 10
STRING = 11
STRUCTURES = 12
TAGGED = 13

STRING_BYTES_MAX = 32_767

if cython.compiled:
    # The same numbers in C.
    _CONSTANT = cython.declare(cython.int, 0)
    _INT64 = cython.declare(cython.int, 8)
    _BOOL = cython.declare(cython.int, 9)
    _UUID = cython.declare(cython.int, 10)
    _STRING = cython.declare(cython.int, 11)
    _STRUCTURES = cython.declare(cython.int, 12)
    _TAGGED = cython.declare(cython.int, 13)
    _STRING_BYTES_MAX = cython.declare(cython.Py_ssize_t, 32_767)
else:
    _CONSTANT, _INT64, _BOOL, _UUID, _STRING = CONSTANT, INT64, BOOL, UUID, STRING
    _STRUCTURES, _TAGGED, _STRING_BYTES_MAX = STRUCTURES, TAGGED, STRING_BYTES_MAX


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
        return read_number(buf, at, size), at + size
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
@cython.inline
@cython.returns(bytes)
def _octets(buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, length: cython.Py_ssize_t):
    """The bytes themselves. The caller has checked the range."""
    if cython.compiled:
        data: bytes = PyBytes_FromStringAndSize(cython.NULL, length)
        target: cython.p_char = data
        if length > 0:
            memcpy(target, cython.address(buf[at]), length)
        return data
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
        if operation == _CONSTANT or operation == _TAGGED:  # noqa: PLR1714
            arguments.append(step[2])
        elif operation <= _INT64:
            if end - at < operation:
                return None
            arguments.append(read_number(buf, at, operation))
            at += operation
        elif operation == _STRING:
            length, at = _length(buf, at, end, flexible, 2)
            if at < 0 or length > end - at or length > _STRING_BYTES_MAX:
                return None
            if length < 0:
                if length != -1 or not step[2]:
                    return None
                arguments.append(None)
                continue
            arguments.append(_octets(buf, at, length).decode())
            at += length
        elif operation == _STRUCTURES:
            length, at = _length(buf, at, end, flexible, 4)
            if at < 0 or length < -1 or (length > 0 and length > (end - at) // step[4]):
                return None
            if length < 0:
                if not step[2]:
                    return None
                arguments.append(None)
                continue
            items = []
            for row in range(length):  # noqa: B007
                found = _decode(step[3], buf, at, end)
                if found is None:
                    return None
                item, at = found
                items.append(item)
            arguments.append(items)
        else:
            size = 1 if operation == _BOOL else 16
            if end - at < size:
                return None
            arguments.append(_octets(buf, at, 16) if size == 16 else buf[at] != 0)
            at += size
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


@cython.cfunc
@cython.returns(cython.bint)
@cython.exceptval(-1)
def _put_number(out: bytearray, number: cython.longlong, size: cython.int):
    """Append a signed number of `size` bytes; False if it does not fit."""
    limit: cython.longlong
    shift: cython.int
    if size < 8:
        limit = 1
        limit <<= 8 * size - 1
        if number < -limit or number >= limit:
            return False
    for shift in range(8 * (size - 1), -1, -8):
        out.append((number >> shift) & 0xFF)
    return True


@cython.cfunc
@cython.returns(cython.bint)
@cython.exceptval(-1)
def _put_length(out: bytearray, length: cython.longlong, flexible: cython.bint, size: cython.int):
    """Append a length, -1 for null; False if it does not fit."""
    if not flexible:
        return _put_number(out, length, size)
    length += 1
    while length >= 128:
        out.append((length & 0x7F) | 0x80)
        length >>= 7
    out.append(length)
    return True


@cython.cfunc
@cython.returns(cython.bint)
@cython.exceptval(-1)
def _encode(program: tuple, message: object, out: bytearray):
    """Append a structure; False where the caller has to encode it otherwise. Raises: as Python."""
    flexible: cython.bint = program[1]
    step: tuple
    operation: cython.int
    data: bytes
    for step in program[2]:
        operation = step[0]
        if operation == _CONSTANT:
            continue
        value = getattr(message, step[1])
        if operation <= _INT64:
            if not _put_number(out, value, operation):
                return False
        elif operation == _TAGGED:
            if value != step[2]:
                return False
        elif value is None:
            if operation < _STRING or not step[2]:
                return False
            _put_length(out, -1, flexible, 2 if operation == _STRING else 4)
        elif operation == _STRING:
            data = value.encode()
            if len(data) > _STRING_BYTES_MAX:
                return False
            _put_length(out, len(data), flexible, 2)
            out += data
        elif operation == _STRUCTURES:
            if not _put_length(out, len(value), flexible, 4):
                return False
            for item in value:
                if not _encode(step[3], item, out):
                    return False
        elif operation == _BOOL:
            out.append(1 if value else 0)
        else:
            if len(value) != 16:
                return False
            out += value
    if flexible:
        out.append(0)
    return True


def encode_structure(program: tuple, message: object, head: bytes) -> bytes | None:
    """The frame of a structure behind its header `head`: its size, then both.

    None for what the caller has to encode otherwise: values that do not fit, tagged fields.
    """
    out: bytearray = bytearray(4)
    size: cython.longlong
    out += head
    try:
        if not _encode(program, message, out):
            return None
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None
    size = len(out) - 4
    if size > 0x7FFFFFFF:
        return None
    out[0] = size >> 24
    out[1] = (size >> 16) & 0xFF
    out[2] = (size >> 8) & 0xFF
    out[3] = size & 0xFF
    return bytes(out)
