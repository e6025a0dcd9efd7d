"""Walk what a NATS server sends: messages into numbers, everything else handed back.

Bytes come from strangers, so every position is checked against the end before it is read.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

IS_COMPILED: bool = cython.compiled

MESSAGE_FIELDS = 8
"""Numbers per message from `parse_messages`: sid, subject at, subject length, reply at, reply
length, header bytes, body at, body bytes (headers and payload). Lengths of 0 mean absent."""

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
    """The decimal number that fills `buf[at:end]`, or -1; the caller checked the range."""
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
    """The position of the CR of the next CR LF, or -1; the caller checked the range."""
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
    """Parse MSG and HMSG operations from `buf[start:end]` and return how many were found.

    `messages` takes 8 numbers each (`MESSAGE_FIELDS`), positions absolute in `buf`. Parsing stops at
    what is not a complete message; then `state` holds

    0. the position up to which everything is consumed;
    1. why: NEED_DATA, MESSAGES_FULL, CONTROL_LINE (PING, INFO, -ERR ...: the line is
       `buf[state[0]:state[2]]` without CR LF, the next operation at `state[2] + 2`) or MALFORMED;
    2. see CONTROL_LINE; with NEED_DATA how many bytes the operation at `state[0]` takes at least.

    Longer bodies than `body_bytes_max` and longer lines than `line_bytes_max` are MALFORMED.
    """
    at: cython.Py_ssize_t = start
    op: cython.Py_ssize_t = start
    count: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = messages.shape[0] // 8
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
    if start < 0 or end > buf.shape[0] or start > end or end > 2147483647:
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
            # "MSG" and one blank, however it is spelled.
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
