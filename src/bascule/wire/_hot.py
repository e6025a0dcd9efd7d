"""The per-message work of the NATS protocol: parse messages from a server, format acks.

The bytes are untrusted, so every position is checked against the end before it is read.

An *ack entry* holds what an ack needs. `bascule.ingest` writes entries, `format_acks` reads them::

    kind 0: form u8 | record index u32 | length u16, reply subject
    kind 1: form u8 | record index u32 | length u16, ack inbox | length u16, correlation id
              | ack policy u8 | length u16, message subject

Numbers are little-endian. The form is the kind plus twice the policy that decides when the ack is
sent: `POLICY_ALL`, `POLICY_LEADER` or `POLICY_NONE`. The ack for kind 0 is JSON, for kind 1 a
Liftbridge Ack envelope, which repeats the policy of the message in Liftbridge's numbers.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.libc.string import memcpy

IS_COMPILED: bool = cython.compiled

MESSAGE_FIELDS = 8
"""Numbers per message from `parse_messages`: sid, subject at, subject length, reply at, reply
length, header bytes, body at, body bytes (headers and payload). Lengths of 0 mean absent."""

POLICY_ALL = 0
POLICY_LEADER = 1
POLICY_NONE = 2

NEED_DATA = 0
MESSAGES_FULL = 1
CONTROL_LINE = 2
MALFORMED = 3


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.longlong)
def _number(buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t):
    """The decimal number in `buf[at:end]`, or -1. The caller has checked the range."""
    value: cython.longlong = 0
    digit: cython.int
    position: cython.Py_ssize_t
    if at >= end or end - at > 10:
        return -1
    for position in range(at, end):
        digit = buf[position] - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _line_end(buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t):
    """The position of the CR of the next CR LF, or -1. The caller has checked the range."""
    position: cython.Py_ssize_t = at
    while position < end - 1:
        if buf[position] == 13 and buf[position + 1] == 10:
            return position
        position += 1
    return -1


def parse_messages(
    buf: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    body_bytes_max: cython.longlong,
    line_bytes_max: cython.Py_ssize_t,
    messages: cython.int[::1],
    state: cython.longlong[::1],
) -> int:
    """Parse MSG and HMSG operations from `buf[start:end]`; returns how many were found.

    Writes 8 numbers per message to `messages` (`MESSAGE_FIELDS`). Positions are absolute in `buf`.
    Parsing stops at the first operation that is not a complete message. `state` is then

    0. the position of that operation: everything before it is consumed;
    1. the reason: NEED_DATA, MESSAGES_FULL, CONTROL_LINE (PING, INFO, -ERR ...: the line is
       `buf[state[0]:state[2]]` without CR LF, and the next operation is at `state[2] + 2`) or
       MALFORMED;
    2. for CONTROL_LINE see there; for NEED_DATA the minimum size of the operation in bytes.

    A body longer than `body_bytes_max` or a line longer than `line_bytes_max` is MALFORMED.
    """
    at: cython.Py_ssize_t = start
    op: cython.Py_ssize_t = start
    count: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = len(messages) // 8
    slot: cython.Py_ssize_t
    line_end: cython.Py_ssize_t
    byte: cython.uchar
    has_headers: cython.bint
    tokens: cython.int
    wanted: cython.int
    t0: cython.Py_ssize_t = 0
    e0: cython.Py_ssize_t = 0
    t1: cython.Py_ssize_t = 0
    e1: cython.Py_ssize_t = 0
    t2: cython.Py_ssize_t = 0
    e2: cython.Py_ssize_t = 0
    t3: cython.Py_ssize_t = 0
    e3: cython.Py_ssize_t = 0
    t4: cython.Py_ssize_t = 0
    e4: cython.Py_ssize_t = 0
    token_at: cython.Py_ssize_t
    sid: cython.longlong
    header_bytes: cython.longlong
    body_bytes: cython.longlong
    reason: cython.int = 0
    needed: cython.Py_ssize_t = 0
    if start < 0 or end > len(buf) or start > end or end > 2147483647:
        raise IndexError("the range is not within the buffer")
    with cython.nogil:
        while True:
            op = at
            needed = 1
            if at >= end:
                break
            if count >= room:
                reason = 1
                break
            byte = buf[at]
            has_headers = byte == 72 or byte == 104
            if not has_headers and byte != 77 and byte != 109:
                line_end = _line_end(buf, at, end)
                if line_end < 0:
                    needed = end - op + 1
                    if end - op > line_bytes_max:
                        reason = 3
                    break
                reason = 2
                needed = line_end
                break
            if has_headers:
                at += 1
            # "MSG" in upper or lower case, and a space or tab.
            if end - at < 4:
                needed = end - op + 1
                break
            if (
                (buf[at] | 32) != 109
                or (buf[at + 1] | 32) != 115
                or (buf[at + 2] | 32) != 103
                or (buf[at + 3] != 32 and buf[at + 3] != 9)
            ):
                reason = 3
                break
            at += 4
            tokens = 0
            token_at = -1
            line_end = -1
            while at < end:
                byte = buf[at]
                if byte > 32:
                    if token_at < 0:
                        token_at = at
                elif byte == 32 or byte == 9 or byte == 13:
                    if token_at >= 0:
                        if tokens == 0:
                            t0 = token_at
                            e0 = at
                        elif tokens == 1:
                            t1 = token_at
                            e1 = at
                        elif tokens == 2:
                            t2 = token_at
                            e2 = at
                        elif tokens == 3:
                            t3 = token_at
                            e3 = at
                        elif tokens == 4:
                            t4 = token_at
                            e4 = at
                        tokens += 1
                        token_at = -1
                    if byte == 13:
                        line_end = at
                        break
                else:
                    reason = 3
                    break
                at += 1
            if reason == 3:
                break
            if line_end < 0:
                needed = end - op + 1
                if end - op > line_bytes_max:
                    reason = 3
                break
            if line_end + 2 > end:
                needed = line_end + 2 - op
                break
            wanted = 4 if has_headers else 3
            if buf[line_end + 1] != 10 or (tokens != wanted and tokens != wanted + 1):
                reason = 3
                break
            sid = _number(buf, t1, e1)
            slot = 8 * count
            header_bytes = 0
            if tokens == wanted + 1:
                messages[slot + 3] = t2
                messages[slot + 4] = e2 - t2
                t2 = t3
                e2 = e3
                t3 = t4
                e3 = e4
            else:
                messages[slot + 3] = 0
                messages[slot + 4] = 0
            if has_headers:
                header_bytes = _number(buf, t2, e2)
                body_bytes = _number(buf, t3, e3)
            else:
                body_bytes = _number(buf, t2, e2)
            if (
                sid < 0
                or sid > 2147483647
                or header_bytes < 0
                or body_bytes < header_bytes
                or body_bytes > body_bytes_max
            ):
                reason = 3
                break
            at = line_end + 2
            if body_bytes + 2 > end - at:
                needed = at - op + body_bytes + 2
                break
            if buf[at + body_bytes] != 13 or buf[at + body_bytes + 1] != 10:
                reason = 3
                break
            messages[slot] = sid
            messages[slot + 1] = t0
            messages[slot + 2] = e0 - t0
            messages[slot + 5] = header_bytes
            messages[slot + 6] = at
            messages[slot + 7] = body_bytes
            at += body_bytes + 2
            count += 1
    state[0] = op
    state[1] = reason
    state[2] = needed
    return count


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
@cython.returns(cython.Py_ssize_t)
def _put_number(out: cython.uchar[::1], to: cython.Py_ssize_t, value: cython.longlong):
    """Write a non-negative number in decimal. The caller has checked that there is room."""
    digits: cython.Py_ssize_t = 1
    left: cython.longlong = value
    position: cython.Py_ssize_t
    while left >= 10:
        left //= 10
        digits += 1
    position = to + digits
    while position > to:
        position -= 1
        out[position] = 48 + value % 10
        value //= 10
    return to + digits


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _number_bytes(value: cython.longlong):
    digits: cython.Py_ssize_t = 1
    while value >= 10:
        value //= 10
        digits += 1
    return digits


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _put_base128(out: cython.uchar[::1], to: cython.Py_ssize_t, value: cython.ulonglong):
    while value >= 128:
        out[to] = (value & 127) | 128
        value >>= 7
        to += 1
    out[to] = value
    return to + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _put_field(
    out: cython.uchar[::1],
    to: cython.Py_ssize_t,
    tag: cython.uchar,
    source: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
):
    """Write a length-delimited protobuf field. An empty field is omitted, as in proto3."""
    if length <= 0:
        return to
    out[to] = tag
    to = _put_base128(out, to + 1, length)
    return _put(source, at, length, out, to)


def format_acks(
    entries: cython.const[cython.uchar][::1],
    head: cython.const[cython.uchar][::1],
    middle: cython.const[cython.uchar][::1],
    tail: cython.const[cython.uchar][::1],
    stream: cython.const[cython.uchar][::1],
    stream_subject: cython.const[cython.uchar][::1],
    base_offset: cython.longlong,
    received_ns: cython.longlong,
    committed_ns: cython.longlong,
    error: cython.int,
    policies: cython.int,
    out: cython.uchar[::1],
) -> int:
    """Write a PUB for the ack entries of `policies`; returns the number of bytes written.

    `policies` is the sum of 1 << policy of those that are answered.
    The JSON text is `head`, sequence (offset + 1), `middle`, offset, `tail`. If `middle` is empty,
    there is no sequence; if `tail` is empty, there is no offset. If `error` > 0, a Liftbridge Ack
    has that error and no offset. Record i has offset base_offset + i.

    For each entry `out` needs 200 bytes, twice the size of the entry, and the lengths of `head`,
    `middle`, `tail`, `stream` and `stream_subject`.
    """
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(entries)
    to: cython.Py_ssize_t = 0
    kind: cython.int
    policy_bit: cython.int
    number: cython.longlong
    offset: cython.longlong
    inbox_at: cython.Py_ssize_t
    inbox: cython.Py_ssize_t
    correlation_at: cython.Py_ssize_t = 0
    correlation: cython.Py_ssize_t = 0
    subject_at: cython.Py_ssize_t = 0
    subject: cython.Py_ssize_t = 0
    policy: cython.int = 0
    size: cython.longlong
    fixed: cython.Py_ssize_t
    body: cython.Py_ssize_t
    digit: cython.int
    bad: cython.bint = False
    fixed = len(head) + len(middle) + len(tail)
    fixed += len(stream) + len(stream_subject) + 200
    with cython.nogil:
        while at < end:
            if end - at < 7:
                bad = True
                break
            kind = entries[at] & 1
            policy_bit = entries[at] >> 1
            if policy_bit > 2:
                bad = True
                break
            policy_bit = 1 << policy_bit
            number = entries[at + 1]
            number |= (entries[at + 2] << 8) | (entries[at + 3] << 16)
            size = entries[at + 4]
            number |= size << 24
            inbox = entries[at + 5] | (entries[at + 6] << 8)
            inbox_at = at + 7
            at = inbox_at + inbox
            if kind == 1:
                if end - at < 5:
                    bad = True
                    break
                correlation = entries[at] | (entries[at + 1] << 8)
                correlation_at = at + 2
                at = correlation_at + correlation
                if end - at < 3:
                    bad = True
                    break
                policy = entries[at]
                subject = entries[at + 1] | (entries[at + 2] << 8)
                subject_at = at + 3
                at = subject_at + subject
            if at > end or len(out) - to < fixed + 2 * (at - inbox_at):
                bad = True
                break
            if not policies & policy_bit:
                continue
            offset = base_offset + number
            out[to] = 80
            out[to + 1] = 85
            out[to + 2] = 66
            out[to + 3] = 32
            to = _put(entries, inbox_at, inbox, out, to + 4)
            out[to] = 32
            to += 1
            if kind == 0:
                size = len(head)
                if len(middle) > 0:
                    size += len(middle) + _number_bytes(offset + 1)
                if len(tail) > 0:
                    size += len(tail) + _number_bytes(offset)
                to = _put_number(out, to, size)
                out[to] = 13
                out[to + 1] = 10
                to = _put(head, 0, len(head), out, to + 2)
                if len(middle) > 0:
                    to = _put_number(out, to, offset + 1)
                    to = _put(middle, 0, len(middle), out, to)
                if len(tail) > 0:
                    to = _put_number(out, to, offset)
                    to = _put(tail, 0, len(tail), out, to)
            else:
                # The size precedes the body but is known after it, so five digits are reserved.
                body = to + 7
                out[body] = 0xB9
                out[body + 1] = 0x0E
                out[body + 2] = 0x43
                out[body + 3] = 0xB4
                out[body + 4] = 0
                out[body + 5] = 8
                out[body + 6] = 0
                out[body + 7] = 1
                size = body
                body = _put_field(out, body + 8, 10, stream, 0, len(stream))
                body = _put_field(out, body, 18, stream_subject, 0, len(stream_subject))
                body = _put_field(out, body, 26, entries, subject_at, subject)
                if error == 0 and offset > 0:
                    out[body] = 32
                    body = _put_base128(out, body + 1, offset)
                body = _put_field(out, body, 42, entries, inbox_at, inbox)
                body = _put_field(out, body, 50, entries, correlation_at, correlation)
                if policy > 0:
                    out[body] = 56
                    body = _put_base128(out, body + 1, policy)
                if received_ns > 0:
                    out[body] = 64
                    body = _put_base128(out, body + 1, received_ns)
                if error == 0 and committed_ns > 0:
                    out[body] = 72
                    body = _put_base128(out, body + 1, committed_ns)
                if error > 0:
                    out[body] = 80
                    body = _put_base128(out, body + 1, error)
                size = body - size
                for digit in range(5):
                    out[to + 4 - digit] = 48 + size % 10
                    size //= 10
                out[to + 5] = 13
                out[to + 6] = 10
                to = body
            out[to] = 13
            out[to + 1] = 10
            to += 2
    if bad:
        raise IndexError("an ack entry is incomplete, or `out` is too small for its ack")
    return to
