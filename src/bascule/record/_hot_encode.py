"""Encode the records of a batch: those of small internal streams, which come as objects.

Ingest does not use this module: its records come as bytes, and `ingest._hot` copies them.
"""
# mypy: ignore-errors

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython

if cython.compiled:
    from cython.cimports.bascule.record._hot_varint import varint_bytes, write_varint
    from cython.cimports.libc.string import memcpy
else:
    from bascule.record._hot_varint import varint_bytes, write_varint

IS_COMPILED: bool = cython.compiled


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
@cython.returns(cython.Py_ssize_t)
def _sized_bytes(value: bytes | None):
    """The bytes of a value, which may be None, behind its length."""
    if value is None:
        return 1
    return varint_bytes(len(value)) + len(value)


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
@cython.returns(cython.Py_ssize_t)
def _write_sized(out: cython.uchar[::1], to: cython.Py_ssize_t, value: bytes | None):
    """Write a value behind its length; return the position behind it. There is room for it."""
    length: cython.Py_ssize_t
    source: cython.p_char
    if value is None:
        return write_varint(out, to, -1)
    length = len(value)
    to = write_varint(out, to, length)
    if length > 0:
        if cython.compiled:
            source = value
            memcpy(cython.address(out[to]), source, length)
        else:
            out[to : to + length] = value
    return to + length


def encode_headers(headers: tuple) -> bytes:
    """The headers of a record behind their number; each is a name and a value (bytes or None)."""
    header: tuple
    name: bytes
    at: cython.Py_ssize_t
    size: cython.Py_ssize_t = varint_bytes(len(headers))
    for header in headers:
        name = header[0].encode()
        size += _sized_bytes(name) + _sized_bytes(header[1])
    block: bytearray = bytearray(size)
    out: cython.uchar[::1] = memoryview(block)
    at = write_varint(out, 0, len(headers))
    for header in headers:
        name = header[0].encode()
        at = _write_sized(out, at, name)
        at = _write_sized(out, at, header[1])
    assert at == size
    return bytes(block)


def encode_records(records: list, room: cython.Py_ssize_t) -> bytearray:
    """Records with the offset deltas 0, 1, 2, ... and no timestamp deltas, behind `room` bytes.

    A record is a tuple of key, value (bytes or None) and headers: tuples of a name and a value
    (bytes or None), or the bytes of `encode_headers`.
    """
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t = room
    size: cython.Py_ssize_t
    sizes: list = []
    total: cython.Py_ssize_t = room
    record: tuple
    headers: bytes
    length: cython.Py_ssize_t
    source: cython.p_char
    encoded: list = []
    for row in range(len(records)):
        record = records[row]
        headers = record[2] if type(record[2]) is bytes else encode_headers(record[2])
        encoded.append(headers)
        size = 2 + varint_bytes(row) + _sized_bytes(record[0]) + _sized_bytes(record[1])
        size += len(headers)
        sizes.append(size)
        total += varint_bytes(size) + size
    batch: bytearray = bytearray(total)
    out: cython.uchar[::1] = memoryview(batch)
    for row in range(len(records)):
        record = records[row]
        headers = encoded[row]
        at = write_varint(out, at, sizes[row])
        out[at] = 0  # attributes
        out[at + 1] = 0  # timestamp delta
        at = write_varint(out, at + 2, row)
        at = _write_sized(out, at, record[0])
        at = _write_sized(out, at, record[1])
        length = len(headers)
        if cython.compiled:
            source = headers
            memcpy(cython.address(out[at]), source, length)
        else:
            out[at : at + length] = headers
        at += length
    assert at == total
    return batch
