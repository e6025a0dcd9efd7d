"""Turn parsed NATS messages into the records of a batch, and collect their ack entries.

Messages are untrusted input: every length is checked before it is used. The layout of ack entries
is in `bascule.wire._hot`. The entry of a refused message has the message's size in place of the
record index.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.bascule.record._hot_varint import varint_bytes, write_varint
    from cython.cimports.libc.string import memcmp, memcpy
else:
    from bascule.record._hot_varint import varint_bytes, write_varint

IS_COMPILED: bool = cython.compiled


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
    """Copy `length` bytes; return the position after them. The caller checked both ranges."""
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
@cython.returns(cython.bint)
def _is(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    word: cython.p_char,
    length: cython.int,
    fold: cython.int,
):
    """Whether `word` is at `at`; `fold` 32 ignores case, 0 compares exactly.

    With `fold` 32 `word` is in lower case. The caller checked the range.
    """
    place: cython.int
    for place in range(length):
        if (buf[at + place] | fold) != word[place]:
            return False
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.bint)
def _same(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    text: cython.const[cython.uchar][::1],
):
    """Whether all of `text`, which is not empty, is at `at`. The caller checked the range."""
    same: cython.bint
    if cython.compiled:
        same = memcmp(cython.address(buf[at]), cython.address(text[0]), len(text)) == 0
    else:
        same = bytes(buf[at : at + len(text)]) == bytes(text)
    return same


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.longlong)
def _first_name(
    headers: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, size: cython.Py_ssize_t
):
    """1 or 2 if the first of the record headers at `at` is named `reply` or `subject`, else 0.

    The caller checked the range of `size` bytes.
    """
    # A name has its length before it, as a varint: 5 and 7 are 10 and 14.
    if size >= 6 and headers[at] == 10 and _is(headers, at + 1, b"reply", 5, 0):
        return 1
    if size >= 8 and headers[at] == 14 and _is(headers, at + 1, b"subject", 7, 0):
        return 2
    return 0


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.bint)
def _walk_headers(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
    out: cython.uchar[::1],
    to: cython.Py_ssize_t,
    found: cython.longlong[::1],
):
    """Walk a NATS header block; with `to` >= 0 also write it as record headers from there.

    `found` becomes: 0 header count, 1 their encoded bytes, 2 and 3 position and length of the key
    (-1 if none), 4 whether the first header left is named `reply` (1) or `subject` (2), 5 whether
    the message removes its key, 6 the requested ack policy (as in `wire._hot`; -1: it names none),
    7 whether a publish header is set (`Nats-...`, `Bascule-Payload-...`, or an unknown ack policy),
    8 whether the message is a chunk of a payload. False: the block is malformed.
    """
    end: cython.Py_ssize_t = at + length
    name_at: cython.Py_ssize_t
    name_end: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    value_end: cython.Py_ssize_t
    line_end: cython.Py_ssize_t
    count: cython.longlong = 0
    size: cython.longlong = 0
    byte: cython.uchar
    found[2] = found[3] = found[6] = -1
    found[4] = found[5] = found[7] = found[8] = 0
    # "NATS/1.0" CR LF: a version line with a status code does not come from a publisher.
    if (
        length < 12
        or buf[at] != 78
        or buf[at + 1] != 65
        or buf[at + 2] != 84
        or buf[at + 3] != 83
        or buf[at + 4] != 47
        or buf[at + 5] != 49
        or buf[at + 6] != 46
        or buf[at + 7] != 48
        or buf[at + 8] != 13
        or buf[at + 9] != 10
    ):
        return False
    at += 10
    while True:
        if end - at < 2:
            return False
        if buf[at] == 13 and buf[at + 1] == 10:
            break
        name_at = at
        name_end = -1
        line_end = -1
        while at < end - 1:
            byte = buf[at]
            if byte == 13 and buf[at + 1] == 10:
                line_end = at
                break
            if byte == 58 and name_end < 0:
                name_end = at
            # Names are ASCII without control characters: Kafka clients decode them as strings.
            if name_end < 0 and (byte < 33 or byte > 126):
                return False
            at += 1
        if line_end < 0 or name_end <= name_at:
            return False
        at = line_end + 2
        value_at = name_end + 1
        value_end = line_end
        while value_at < value_end and (buf[value_at] == 32 or buf[value_at] == 9):
            value_at += 1
        while value_end > value_at and (buf[value_end - 1] == 32 or buf[value_end - 1] == 9):
            value_end -= 1
        byte = buf[name_at] | 32
        if byte == 98 and name_end - name_at == 11:
            if found[2] < 0 and _is(buf, name_at, b"bascule-key", 11, 32):
                found[2] = value_at
                found[3] = value_end - value_at
                continue
            if _is(buf, name_at, b"bascule-ack", 11, 32):
                if value_end - value_at == 4 and _is(buf, value_at, b"none", 4, 32):
                    found[6] = 2
                elif value_end - value_at == 6 and _is(buf, value_at, b"leader", 6, 32):
                    found[6] = 1
                elif value_end - value_at == 3 and _is(buf, value_at, b"all", 3, 32):
                    found[6] = 0
                else:
                    found[7] = 1
        elif byte == 110 and name_end - name_at > 5 and _is(buf, name_at, b"nats-", 5, 32):
            found[7] = 1
        elif (
            byte == 98
            and name_end - name_at > 15
            and _is(buf, name_at, b"bascule-payload-", 16, 32)
        ):
            found[7] = 1
            found[8] |= name_end - name_at == 23 and _is(buf, name_at + 16, b"session", 7, 32)
        elif (
            byte == 107 and name_end - name_at == 12 and _is(buf, name_at, b"kv-operation", 12, 32)
        ):
            found[5] = (value_end - value_at == 3 and _is(buf, value_at, b"DEL", 3, 0)) or (
                value_end - value_at == 5 and _is(buf, value_at, b"PURGE", 5, 0)
            )
        if count == 0:
            if name_end - name_at == 5 and _is(buf, name_at, b"reply", 5, 0):
                found[4] = 1
            elif name_end - name_at == 7 and _is(buf, name_at, b"subject", 7, 0):
                found[4] = 2
        count += 1
        size += varint_bytes(name_end - name_at) + (name_end - name_at)
        size += varint_bytes(value_end - value_at) + (value_end - value_at)
        if to >= 0:
            to = write_varint(out, to, name_end - name_at)
            to = _put(buf, name_at, name_end - name_at, out, to)
            to = write_varint(out, to, value_end - value_at)
            to = _put(buf, value_at, value_end - value_at, out, to)
    found[0] = count
    found[1] = size
    return at + 2 == end


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _put_raw_block(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
    out: cython.uchar[::1],
    to: cython.Py_ssize_t,
):
    """Write a malformed header block unchanged, as the record header `Nats-Header-Block`."""
    name: cython.p_char = b"Nats-Header-Block"
    position: cython.int
    out[to] = 34
    for position in range(17):
        out[to + 1 + position] = name[position]
    to = write_varint(out, to + 18, length)
    return _put(buf, at, length, out, to)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _put_u16(out: cython.uchar[::1], to: cython.Py_ssize_t, value: cython.Py_ssize_t):
    out[to] = value & 255
    out[to + 1] = (value >> 8) & 255
    return to + 2


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _put_entry(
    buf: cython.const[cython.uchar][::1],
    kind: cython.int,
    policy: cython.int,
    number: cython.longlong,
    reply_at: cython.Py_ssize_t,
    reply_bytes: cython.Py_ssize_t,
    subject_at: cython.Py_ssize_t,
    subject_bytes: cython.Py_ssize_t,
    envelopes: cython.const[cython.longlong][::1],
    row: cython.Py_ssize_t,
    out: cython.uchar[::1],
    to: cython.Py_ssize_t,
):
    """Write one ack entry (layout: see the module); kind -1 writes none."""
    if kind < 0:
        return to
    out[to] = kind | (policy << 1)
    to = _put_u16(out, to + 1, number & 65535)
    to = _put_u16(out, to, (number >> 16) & 65535)
    if kind == 0:
        to = _put_u16(out, to, reply_bytes)
        return _put(buf, reply_at, reply_bytes, out, to)
    to = _put_u16(out, to, envelopes[row + 7])
    to = _put(buf, envelopes[row + 6], envelopes[row + 7], out, to)
    if envelopes[row + 9] > 0:
        to = _put_u16(out, to, envelopes[row + 9])
        to = _put(buf, envelopes[row + 8], envelopes[row + 9], out, to)
    else:
        to = _put_u16(out, to, 0)
    out[to] = envelopes[row + 10]
    to = _put_u16(out, to + 1, subject_bytes)
    return _put(buf, subject_at, subject_bytes, out, to)


def subject_bytes(messages: cython.const[cython.int][::1], count: cython.Py_ssize_t) -> int:
    """The sum of the lengths of the subjects of `count` messages."""
    index: cython.Py_ssize_t
    total: cython.Py_ssize_t = 0
    if len(messages) < 8 * count:
        raise IndexError("the array is too small for the messages")
    with cython.nogil:
        for index in range(count):
            total += messages[8 * index + 2]
    return total


def build_records(
    buf: cython.const[cython.uchar][::1],
    messages: cython.const[cython.int][::1],
    nexts: cython.const[cython.int][::1],
    first: cython.Py_ssize_t,
    message_bytes_max: cython.longlong,
    key_from_subject: cython.bint,
    implied_subject: cython.const[cython.uchar][::1],
    keeps_reply: cython.bint,
    ack_policy: cython.int,
    batch_bytes_max: cython.longlong,
    envelopes: cython.const[cython.longlong][::1],
    envelope_headers: cython.const[cython.uchar][::1],
    out: cython.uchar[::1],
    start: cython.Py_ssize_t,
    answers: cython.uchar[::1],
    refused: cython.uchar[::1],
    expected: cython.longlong[::1],
    found: cython.longlong[::1],
    chunks: cython.int[::1],
    state: cython.longlong[::1],
) -> int:
    """Write the chain of messages that begins at `first` as records to `out` from `start` on.

    Stops before a record that would take the records beyond `batch_bytes_max`; the first record is
    always written. `answers` and `refused` need as many bytes as the messages' operations have, and
    64 more for each message. `out` needs these, the bytes of the subjects once more, which may be
    header and key, and 1/128 of the operations: the two lengths of a header can take a byte more
    than the colon and the line's end (see `bascule.record` for what a record holds of a message).
    With `key_from_subject` the key of a message without a key is its subject. A record has a header
    `subject` unless its subject is `implied_subject`, and `reply` only with `keeps_reply`.
    `ack_policy` is that of messages that name none: as a header, else in their envelope.

    Set in `state`: 0 the end of the records, 1 the end of the ack entries, 2 the end of the refused
    entries, 3 the next message to continue with or -1, 8 how many records expect an offset, 9 the
    sum of 1 << policy of the policies among the ack entries, 10 how many messages are chunks of
    payloads: these are no records, and `chunks`, if it is not empty, gets their indexes. Added to
    in `state`: 4 envelopes, 5 malformed header blocks, stored unchanged, 6 messages refused for
    their size, 7 records with publish headers. `expected` gets two numbers for each record that
    expects an offset: its index and that offset. `found` is scratch for 9 numbers. `envelopes` and
    `envelope_headers` are the output of `wire.parse_envelopes`, or empty.

    Returns the number of records.
    """
    index: cython.Py_ssize_t = first
    slot: cython.Py_ssize_t
    at: cython.Py_ssize_t = start
    to: cython.Py_ssize_t
    answer_at: cython.Py_ssize_t = 0
    refused_at: cython.Py_ssize_t = 0
    count: cython.longlong = 0
    header_count: cython.longlong
    header_size: cython.longlong
    subject_at: cython.Py_ssize_t
    subject_bytes: cython.Py_ssize_t
    reply_at: cython.Py_ssize_t
    reply_bytes: cython.Py_ssize_t
    block_bytes: cython.Py_ssize_t
    body_at: cython.Py_ssize_t
    key_at: cython.Py_ssize_t
    key_bytes: cython.longlong
    value_at: cython.Py_ssize_t
    value_bytes: cython.longlong
    row: cython.Py_ssize_t
    is_envelope: cython.bint
    has_block: cython.bint
    is_raw_block: cython.bint
    is_marked: cython.bint
    has_subject: cython.bint
    has_reply: cython.bint
    first_name: cython.longlong
    implied_bytes: cython.Py_ssize_t = len(implied_subject)
    removes: cython.bint
    expects: cython.bint
    wanted: cython.longlong = 0
    expectations: cython.longlong = 0
    policy: cython.int
    policies: cython.int = 0
    size: cython.longlong
    wire_bytes: cython.longlong
    kind: cython.int
    chunk_count: cython.Py_ssize_t = 0
    no_room: cython.bint = False
    if start < 0 or len(state) < 11 or len(found) < 9:
        raise IndexError("start is negative, or an array is too short")
    with cython.nogil:
        while index >= 0:
            slot = 8 * index
            subject_at = messages[slot + 1]
            subject_bytes = messages[slot + 2]
            reply_at = messages[slot + 3]
            reply_bytes = messages[slot + 4]
            block_bytes = messages[slot + 5]
            body_at = messages[slot + 6]
            wire_bytes = messages[slot + 7]
            if (
                subject_at < 0
                or subject_bytes < 0
                or reply_at < 0
                or reply_bytes < 0
                or block_bytes < 0
                or body_at < 0
                or wire_bytes < block_bytes
                or subject_at + subject_bytes > len(buf)
                or reply_at + reply_bytes > len(buf)
                or body_at + wire_bytes > len(buf)
                or len(out) - at < wire_bytes + subject_bytes + reply_bytes + 64
                or len(answers) - answer_at < wire_bytes + subject_bytes + reply_bytes + 24
                or len(refused) - refused_at < wire_bytes + subject_bytes + reply_bytes + 24
            ):
                no_room = True
                break
            key_at = 0
            key_bytes = -1
            value_at = body_at + block_bytes
            value_bytes = wire_bytes - block_bytes
            policy = -1
            header_count = header_size = 0
            # 1 or 2 if the message's own first header is named `reply` or `subject`.
            first_name = 0
            has_block = expects = is_raw_block = removes = False
            if block_bytes > 0:
                if _walk_headers(buf, body_at, block_bytes, out, -1, found):
                    if found[8] and len(chunks) > 0:
                        chunks[chunk_count] = index
                        chunk_count += 1
                        index = nexts[index]
                        continue
                    has_block = True
                    header_count = found[0]
                    header_size = found[1]
                    key_at = found[2]
                    key_bytes = found[3]
                    first_name = found[4]
                    removes = found[5] != 0
                    policy = found[6]
                else:
                    is_raw_block = True
                    header_count = 1
                    header_size = 18 + varint_bytes(block_bytes) + block_bytes
            row = 13 * index
            is_envelope = row < len(envelopes) and envelopes[row] >= 0
            if is_envelope:
                if policy < 0:
                    # Liftbridge's numbers: 0 leader, which is its default, 1 all, 2 none.
                    policy = 2 if envelopes[row + 10] == 2 else 1 - envelopes[row + 10]
                if envelopes[row + 2] >= 0:
                    key_at = envelopes[row + 2]
                    key_bytes = envelopes[row + 3]
                if header_count == 0 and envelopes[row] > 0:
                    first_name = _first_name(
                        envelope_headers, envelopes[row + 1], envelopes[row + 11]
                    )
                header_count += envelopes[row]
                header_size += envelopes[row + 11]
            has_subject = (
                first_name == 2
                or implied_bytes == 0
                or subject_bytes != implied_bytes
                or not _same(buf, subject_at, implied_subject)
            )
            if has_subject:
                header_count += 1
                header_size += 8 + varint_bytes(subject_bytes) + subject_bytes
            has_reply = keeps_reply and reply_bytes > 0
            is_marked = first_name == 1 and not has_reply
            if has_reply:
                header_count += 1
                header_size += 6 + varint_bytes(reply_bytes) + reply_bytes
            elif is_marked:
                header_count += 1
                header_size += 7
            if key_bytes < 0 and key_from_subject:
                key_at = subject_at
                key_bytes = subject_bytes
            if policy < 0:
                policy = ack_policy
            kind = 0
            if is_envelope and envelopes[row + 7] > 0:
                kind = 1
            elif reply_bytes == 0:
                kind = -1
            if wire_bytes > message_bytes_max:
                refused_at = _put_entry(
                    buf, kind, policy, wire_bytes, reply_at, reply_bytes, subject_at, subject_bytes,
                    envelopes, row, refused, refused_at,
                )  # fmt: skip
                state[6] += 1
                index = nexts[index]
                continue
            if is_envelope:
                value_at = envelopes[row + 4]
                value_bytes = envelopes[row + 5]
                if envelopes[row + 12] > 0:
                    if 2 * expectations + 2 > len(expected):
                        no_room = True
                        break
                    wanted = envelopes[row + 12]
                    expects = True
            elif removes:
                value_bytes = -1
            size = 2 + varint_bytes(count) + varint_bytes(key_bytes) + varint_bytes(value_bytes)
            size += varint_bytes(header_count) + header_size
            if key_bytes > 0:
                size += key_bytes
            if value_bytes > 0:
                size += value_bytes
            to = at + size + varint_bytes(size)
            if to - start > batch_bytes_max and count > 0:
                break
            if to > len(out):
                no_room = True
                break
            if expects:
                expected[2 * expectations] = count
                expected[2 * expectations + 1] = wanted
                expectations += 1
            if is_raw_block or has_block and found[7] or is_envelope and envelopes[row] > 0:
                state[7] += 1
            at = write_varint(out, at, size)
            out[at] = 0
            out[at + 1] = 0
            at = write_varint(out, at + 2, count)
            at = write_varint(out, at, key_bytes)
            at = _put(buf, key_at, key_bytes, out, at)
            at = write_varint(out, at, value_bytes)
            at = _put(buf, value_at, value_bytes, out, at)
            at = write_varint(out, at, header_count)
            if has_subject:
                # The header name `subject` with its length.
                out[at] = 14
                out[at + 1] = 115
                out[at + 2] = 117
                out[at + 3] = 98
                out[at + 4] = 106
                out[at + 5] = 101
                out[at + 6] = 99
                out[at + 7] = 116
                at = write_varint(out, at + 8, subject_bytes)
                at = _put(buf, subject_at, subject_bytes, out, at)
            if has_reply or is_marked:
                # The header name `reply` with its length.
                out[at] = 10
                out[at + 1] = 114
                out[at + 2] = 101
                out[at + 3] = 112
                out[at + 4] = 108
                out[at + 5] = 121
                at = write_varint(out, at + 6, -1 if is_marked else reply_bytes)
                if has_reply:
                    at = _put(buf, reply_at, reply_bytes, out, at)
            if has_block:
                _walk_headers(buf, body_at, block_bytes, out, at, found)
                at += found[1]
            elif is_raw_block:
                at = _put_raw_block(buf, body_at, block_bytes, out, at)
                state[5] += 1
            if is_envelope:
                at = _put(envelope_headers, envelopes[row + 1], envelopes[row + 11], out, at)
                state[4] += 1
            if kind >= 0:
                policies |= 1 << policy
                answer_at = _put_entry(
                    buf, kind, policy, count, reply_at, reply_bytes, subject_at, subject_bytes,
                    envelopes, row, answers, answer_at,
                )  # fmt: skip
            count += 1
            index = nexts[index]
    if no_room:
        raise IndexError("a message is outside the buffer, or its record does not fit")
    state[0] = at
    state[1] = answer_at
    state[2] = refused_at
    state[3] = index
    state[8] = expectations
    state[9] = policies
    state[10] = chunk_count
    return count
