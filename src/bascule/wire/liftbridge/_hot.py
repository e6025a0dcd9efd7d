"""Parse Liftbridge envelopes in NATS messages.

The bytes are untrusted, so every position is checked against the end before it is read.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.bascule.record._hot_varint import write_varint
    from cython.cimports.libc.string import memcpy
else:
    from bascule.record._hot_varint import write_varint

IS_COMPILED: bool = cython.compiled

ENVELOPE_FIELDS = 13
"""Numbers per message from `parse_envelopes`."""


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
    """Copy `length` bytes; returns the position after them. The caller has checked both ranges."""
    if length > 0:
        if cython.compiled:
            memcpy(cython.address(out[to]), cython.address(source[at]), length)
        else:
            out[to : to + length] = source[at : at + length]
        return to + length
    return to


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns((cython.ulonglong, cython.Py_ssize_t))
def _base128(buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t):
    """Read a protobuf varint: its value and the position after it, or (0, -1)."""
    byte: cython.ulonglong
    value: cython.ulonglong = 0
    shift: cython.int = 0
    while at < end and shift < 64:
        byte = buf[at]
        at += 1
        if shift == 63 and byte > 1:
            return 0, -1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return 0, -1


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _skip_field(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    wire_type: cython.int,
):
    """The position after an unknown protobuf field that is not length-delimited, or -1."""
    value: cython.ulonglong
    if wire_type == 0:
        value, at = _base128(buf, at, end)
        return at
    if wire_type == 1:
        return at + 8 if end - at >= 8 else -1
    if wire_type == 5:
        return at + 4 if end - at >= 4 else -1
    return -1


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _map_entry(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    out: cython.uchar[::1],
    to: cython.Py_ssize_t,
):
    """Write one entry of the envelope's header map as a record header; returns its size, or -1."""
    tag: cython.ulonglong
    size: cython.ulonglong
    name_at: cython.Py_ssize_t = at
    name_bytes: cython.Py_ssize_t = 0
    value_at: cython.Py_ssize_t = at
    value_bytes: cython.Py_ssize_t = 0
    position: cython.Py_ssize_t
    start: cython.Py_ssize_t
    left: cython.ulonglong
    while at < end:
        tag, at = _base128(buf, at, end)
        if at < 0:
            return -1
        if tag == 10 or tag == 18:
            size, at = _base128(buf, at, end)
            if at < 0:
                return -1
            left = end - at
            if size > left:
                return -1
            if tag == 10:
                name_at = at
                name_bytes = size
            else:
                value_at = at
                value_bytes = size
            at += size
        else:
            at = _skip_field(buf, at, end, tag & 7)
            if at < 0:
                return -1
    for position in range(name_at, name_at + name_bytes):
        if buf[position] < 33 or buf[position] > 126:
            return -1
    start = to
    to = write_varint(out, to, name_bytes)
    to = _put(buf, name_at, name_bytes, out, to)
    to = write_varint(out, to, value_bytes)
    to = _put(buf, value_at, value_bytes, out, to)
    return to - start


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _walk_envelope(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
    crc_table: cython.const[cython.uint][::1],
    out: cython.uchar[::1],
    to: cython.Py_ssize_t,
    found: cython.longlong[::1],
    base: cython.Py_ssize_t,
):
    """Parse a payload as a Liftbridge Publish envelope and write its headers to `out` from `to` on.

    Writes the 13 numbers of `parse_envelopes` to `found` from `base` on. Returns the position after
    the written headers, or -1 if the payload is not such an envelope.
    """
    end: cython.Py_ssize_t = at + length
    position: cython.Py_ssize_t
    tag: cython.ulonglong
    size: cython.ulonglong
    left: cython.ulonglong
    ones: cython.uint = 0xFFFFFFFF
    largest: cython.ulonglong = 0x7FFFFFFFFFFFFFFF
    crc: cython.uint
    expected: cython.uint
    field: cython.int
    entry: cython.Py_ssize_t
    if (
        length < 8
        or buf[at] != 0xB9
        or buf[at + 1] != 0x0E
        or buf[at + 2] != 0x43
        or buf[at + 3] != 0xB4
        or buf[at + 4] != 0
        or buf[at + 7] != 0
    ):
        return -1
    if buf[at + 6] & 1:
        if buf[at + 5] != 12 or length < 12:
            return -1
        crc = ones
        for position in range(at + 12, end):
            crc = (crc >> 8) ^ crc_table[(crc ^ buf[position]) & 255]
        crc = crc ^ ones
        expected = buf[at + 8]
        expected = (expected << 8) | buf[at + 9]
        expected = (expected << 8) | buf[at + 10]
        expected = (expected << 8) | buf[at + 11]
        if crc != expected:
            return -1
        at += 12
    elif buf[at + 5] == 8:
        at += 8
    else:
        return -1
    for position in range(13):
        found[base + position] = -1
    found[base] = 0
    found[base + 1] = to
    found[base + 10] = 0
    while at < end:
        tag, at = _base128(buf, at, end)
        if at < 0 or tag < 8 or tag > ones:
            return -1
        if tag & 7 == 2:
            size, at = _base128(buf, at, end)
            if at < 0:
                return -1
            left = end - at
            if size > left:
                return -1
            field = -1
            if tag == 18:
                field = 2
            elif tag == 26:
                field = 4
            elif tag == 82:
                field = 6
            elif tag == 90:
                field = 8
            if field >= 0:
                found[base + field] = at
                found[base + field + 1] = size
            elif tag == 74:
                entry = _map_entry(buf, at, at + size, out, to)
                if entry < 0:
                    return -1
                found[base] += 1
                to += entry
            at += size
        elif tag == 8:
            # Encoders omit zero, so zero means no expected offset. So does -1.
            size, at = _base128(buf, at, end)
            if at < 0:
                return -1
            found[base + 12] = size if 0 < size < largest else -1
        elif tag == 96:
            size, at = _base128(buf, at, end)
            if at < 0:
                return -1
            found[base + 10] = 2 if size == 2 else (1 if size == 1 else 0)
        else:
            at = _skip_field(buf, at, end, tag & 7)
            if at < 0:
                return -1
    # An ack inbox is a subject to publish to, so blanks in it would break the protocol. Ack entries
    # store lengths in 16 bits. The control line of NATS is limited to 4096 bytes, for the inbox and
    # the size of the ack: a server closes the connection of a node that sends a longer one.
    if found[base + 7] > 4000 or found[base + 9] > 65535:
        return -1
    if found[base + 7] > 0:
        for position in range(found[base + 6], found[base + 6] + found[base + 7]):
            if buf[position] < 33 or buf[position] == 127:
                return -1
    found[base + 11] = to - found[base + 1]
    return to


def parse_envelopes(
    buf: cython.const[cython.uchar][::1],
    messages: cython.const[cython.int][::1],
    count: cython.Py_ssize_t,
    crc_table: cython.const[cython.uint][::1],
    rows: cython.longlong[::1],
    headers: cython.uchar[::1],
) -> int:
    """Parse the Liftbridge Publish envelopes among `count` parsed messages; returns their number.

    Writes 13 numbers per message to `rows`: 0 the header count, or -1 if the message is not an
    envelope; 1 the position in `headers` of its headers, which are encoded as record headers; 2-3
    key, 4-5 value, 6-7 ack inbox, 8-9 correlation id (position in `buf` and length, -1 if absent);
    10 ack policy; 11 size of the headers; 12 expected offset, -1 if absent. `headers` needs twice
    the size of the bodies. If the result is 0, `rows` is undefined. Source: Liftbridge envelope
    protocol; api.proto, message Message.
    """
    index: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    at: cython.Py_ssize_t
    size: cython.Py_ssize_t
    to: cython.Py_ssize_t = 0
    next_to: cython.Py_ssize_t
    envelopes: cython.Py_ssize_t = 0
    rows_wanted: cython.bint = False
    bad: cython.bint = False
    if len(messages) < 8 * count or len(rows) < 13 * count or len(crc_table) < 256:
        raise IndexError("arrays are too small for the messages")
    with cython.nogil:
        # Usually there is no envelope, and then nothing is written.
        for index in range(count):
            slot = 8 * index
            at = messages[slot + 6] + messages[slot + 5]
            size = messages[slot + 7] - messages[slot + 5]
            if at < 0 or size < 0 or at + size > len(buf):
                bad = True
                break
            rows_wanted |= size >= 8 and buf[at] == 0xB9
        for index in range(count if rows_wanted and not bad else 0):
            slot = 8 * index
            at = messages[slot + 6] + messages[slot + 5]
            size = messages[slot + 7] - messages[slot + 5]
            if size >= 8 and buf[at] == 0xB9:
                if len(headers) - to < 2 * size:
                    bad = True
                    break
                next_to = _walk_envelope(buf, at, size, crc_table, headers, to, rows, 13 * index)
                if next_to >= 0:
                    envelopes += 1
                    to = next_to
                    continue
            rows[13 * index] = -1
    if bad:
        raise IndexError("a message is outside the buffer, or `headers` is too small")
    return envelopes
