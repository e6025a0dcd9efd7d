"""Read the publish headers from the records of a batch.

A message id is represented by a keyed hash of 128 bits (SipHash-1-3), so that no publisher can
construct a collision. Records are untrusted input: every length is checked before it is used.

A row is 8 numbers: 0 offset delta of the record in its batch, 1 flags (`HAS_ID` and so
on), 2 and 3 hash of the message id, 4 expected last sequence, 5 and 6 hash of the expected last
message id, 7 half of the hash of the expected stream's name. With `EXPECTS_KEY_SEQUENCE`, 4 is the
expected last sequence of the record's key. With `UNSUPPORTED`, 4 is the position in the batch of
the first unsupported header's name instead, times 65536, plus the name's length, at most 32767.
Of a malformed header block (`Nats-Header-Block`) it is what makes it malformed, plus `OF_A_BLOCK`.
"""

from __future__ import annotations

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

HEADER_FIELDS = 8
HAS_ID = 1
EXPECTS_SEQUENCE = 2
EXPECTS_ID = 4
EXPECTS_STREAM = 8
MALFORMED = 16
UNSUPPORTED = 32
UNKNOWN_POLICY = 64
EXPECTS_KEY_SEQUENCE = 128
ROLLUP_KEY = 256
HAS_TTL = 512
MALFORMED_TTL = 1024
OF_A_BLOCK = 32768


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.returns(cython.ulonglong)
def _rotl(value: cython.ulonglong, bits: cython.int):
    mask: cython.ulonglong = 0xFFFFFFFFFFFFFFFF
    return ((value << bits) & mask) | (value >> (64 - bits))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.returns(cython.longlong)
def _signed(value: cython.ulonglong):
    if not cython.compiled:
        return value - (1 << 64) if value >> 63 else value
    return value


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.void)
def _hash(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
    hash_key: cython.const[cython.ulonglong][::1],
    out: cython.longlong[::1],
    to: cython.Py_ssize_t,
):
    """SipHash-1-3 of 128 bits into `out[to:to + 2]`. The caller checked the ranges."""
    mask: cython.ulonglong = 0xFFFFFFFFFFFFFFFF
    c0: cython.ulonglong = 0x736F6D6570736575
    c1: cython.ulonglong = 0x646F72616E646F6D
    c2: cython.ulonglong = 0x6C7967656E657261
    c3: cython.ulonglong = 0x7465646279746573
    v0: cython.ulonglong = hash_key[0] ^ c0
    v1: cython.ulonglong = hash_key[1] ^ c1 ^ 0xEE
    v2: cython.ulonglong = hash_key[0] ^ c2
    v3: cython.ulonglong = hash_key[1] ^ c3
    word: cython.ulonglong
    left: cython.Py_ssize_t = length
    place: cython.int
    stage: cython.int = 0
    rounds: cython.int
    while stage < 3:
        rounds = 3
        if stage == 0:
            rounds = 1
            word = 0
            if left >= 8:
                for place in range(7, -1, -1):
                    word = (word << 8) | buf[at + place]
                at += 8
            else:
                word = length & 255
                for place in range(7 - 1, -1, -1):
                    word = word << 8
                    if place < left:
                        word |= buf[at + place]
            left -= 8
            v3 ^= word
        elif stage == 1:
            v2 ^= 0xEE
        else:
            v1 ^= 0xDD
        for place in range(rounds):
            v0 = (v0 + v1) & mask
            v1 = _rotl(v1, 13) ^ v0
            v0 = _rotl(v0, 32)
            v2 = (v2 + v3) & mask
            v3 = _rotl(v3, 16) ^ v2
            v0 = (v0 + v3) & mask
            v3 = _rotl(v3, 21) ^ v0
            v2 = (v2 + v1) & mask
            v1 = _rotl(v1, 17) ^ v2
            v2 = _rotl(v2, 32)
        if stage == 0:
            v0 ^= word
            if left < 0:
                stage = 1
        else:
            out[to + stage - 1] = _signed(v0 ^ v1 ^ v2 ^ v3)
            stage += 1


def hash_text(
    text: cython.const[cython.uchar][::1],
    hash_key: cython.const[cython.ulonglong][::1],
    out: cython.longlong[::1],
) -> None:
    """SipHash-1-3 of 128 bits of `text` into `out[:2]`. The hash key is two numbers."""
    if len(hash_key) < 2 or len(out) < 2:
        raise IndexError("a key and a hash are two numbers each")
    _hash(text, 0, len(text), hash_key, out, 0)


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
):
    """Whether `word`, in lower case, is at `at` in any case. The caller checked the range."""
    place: cython.int
    for place in range(length):
        if (buf[at + place] | 32) != word[place]:
            return False
    return True


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.bint)
def _requests_nothing(
    buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, name: cython.Py_ssize_t
):
    """Whether a `Nats-` header only informs: servers and clients add it to what they deliver.

    `Nats-Trace-*` is for the servers on the way. The others describe a message that JetStream
    republished, sourced or delivered, or the request or reply of a service. `Nats-Header-Block` is
    a malformed header block (see `bascule.record`). The caller checked the range and `nats-`.
    """
    # The names without `nats-`, each before a space. One loop
    # instead of a call for each name: names that request nothing are rare.
    known: cython.p_char = (
        b"stream pin-id subject sequence msg-size time-stamp num-pending last-stream server-xkey "
        b"header-block request-info last-sequence upto-sequence stream-source last-consumer "
        b"marker-reason response-type pending-bytes service-error counter-sources "
        b"consumer-stalled pending-messages service-error-code "
    )
    size: cython.Py_ssize_t = 294
    place: cython.Py_ssize_t = 0
    matched: cython.Py_ssize_t
    if name >= 11 and _is(buf, at, b"nats-trace-", 11):
        return True
    at += 5
    name -= 5
    while place < size:
        matched = 0
        while (
            matched < name
            and known[place + matched] != 32
            and (buf[at + matched] | 32) == known[place + matched]
        ):
            matched += 1
        if matched == name and known[place + matched] == 32:
            return True
        place += matched
        while known[place] != 32:
            place += 1
        place += 1
    return False


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.bint)
def _asks(buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, name: cython.Py_ssize_t):
    """Whether a header of this name has an effect, or is refused. The caller checked the range."""
    while name > 0 and (buf[at + name - 1] == 32 or buf[at + name - 1] == 9):
        name -= 1
    if name > 5 and _is(buf, at, b"nats-", 5):
        return not _requests_nothing(buf, at, name)
    if name == 11:
        return _is(buf, at, b"bascule-key", 11) or _is(buf, at, b"bascule-ack", 11)
    if name == 12:
        return _is(buf, at, b"kv-operation", 12)
    return name > 15 and _is(buf, at, b"bascule-payload-", 16)


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.longlong)
def _asks_in_vain(
    buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, length: cython.Py_ssize_t
):
    """What makes a header block malformed that has a line which asks for something, as in a row; 0
    if none does. `ingest._hot` uses no line of such a block. The caller checked the range.
    """
    end: cython.Py_ssize_t = at + length
    line: cython.Py_ssize_t = at
    stop: cython.Py_ssize_t
    colon: cython.Py_ssize_t
    size: cython.Py_ssize_t
    bad: cython.bint
    piece: cython.longlong
    odd: cython.longlong = 0
    asking: cython.longlong = 0
    while line < end:
        stop = line
        colon = -1
        bad = False
        while stop < end and not (buf[stop] == 13 and stop + 1 < end and buf[stop + 1] == 10):
            if colon < 0:
                if buf[stop] == 58:
                    colon = stop
                elif buf[stop] < 33 or buf[stop] > 126:
                    bad = True
            stop += 1
        size = (stop if colon < 0 else colon) - line
        piece = line
        piece = piece * 65536 + 32768 + (size if size < 32768 else 32767)
        if line == at:
            bad = size != 8 or not _is(buf, line, b"nats/1.0", 8)
        elif stop > line:
            bad = bad or colon <= line
            if asking == 0 and _asks(buf, line, size):
                asking = piece
        if bad and odd == 0:
            odd = piece
        line = stop + 2
    if asking == 0 or odd == 0:
        return asking
    return odd


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.int)
def _read_header(
    buf: cython.const[cython.uchar][::1],
    name_at: cython.Py_ssize_t,
    name: cython.Py_ssize_t,
    at: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
    flags: cython.int,
    hash_key: cython.const[cython.ulonglong][::1],
    rows: cython.longlong[::1],
    row: cython.Py_ssize_t,
    own_links: cython.bint,
):
    """Add one header to the row at `row`; return the new flags."""
    value: cython.longlong = 0
    place: cython.Py_ssize_t
    first: cython.uchar = buf[name_at] | 32
    if first == 98:
        if name == 11 and _is(buf, name_at, b"bascule-ack", 11):
            if not (
                (length == 4 and _is(buf, at, b"none", 4))
                or (length == 3 and _is(buf, at, b"all", 3))
                or (length == 6 and _is(buf, at, b"leader", 6))
            ):
                flags |= 64
        elif (
            name > 15
            and not own_links
            and not flags & 32
            and _is(buf, name_at, b"bascule-payload-", 16)
        ):
            value = name_at
            rows[row + 4] = value * 65536 + (name if name < 32768 else 32767)
            flags |= 32
        return flags
    if first != 110 or not _is(buf, name_at, b"nats-", 5):
        return flags
    if name == 11 and _is(buf, name_at, b"nats-msg-id", 11):
        if length > 0 and not flags & 1:
            _hash(buf, at, length, hash_key, rows, row + 2)
            flags |= 1
    elif (name == 27 and _is(buf, name_at, b"nats-expected-last-sequence", 27)) or (
        name == 35 and _is(buf, name_at, b"nats-expected-last-subject-sequence", 35)
    ):
        if length < 1 or length > 18:
            return flags | 16
        for place in range(at, at + length):
            if buf[place] < 48 or buf[place] > 57:
                return flags | 16
            value = 10 * value + buf[place] - 48
        if not flags & 32:
            rows[row + 4] = value
        # One number a row: a message that expects both sequences is refused.
        if name == 27:
            flags |= 18 if flags & 128 else 2
        else:
            flags |= 144 if flags & 2 else 128
    elif (
        name == 11
        and _is(buf, name_at, b"nats-rollup", 11)
        and length == 3
        and _is(buf, at, b"sub", 3)
    ):
        flags |= 256
    elif name == 8 and _is(buf, name_at, b"nats-ttl", 8):
        flags |= 512
        if length < 1 or read_ttl(buf, at, at + length) < 0:
            flags |= 1024
    elif name == 25 and _is(buf, name_at, b"nats-expected-last-msg-id", 25):
        if length > 0:
            _hash(buf, at, length, hash_key, rows, row + 5)
            flags |= 4
    elif name == 20 and _is(buf, name_at, b"nats-expected-stream", 20):
        if length > 0:
            # The second half is overwritten by the next row, or is in the spare one.
            _hash(buf, at, length, hash_key, rows, row + 7)
            flags |= 8
    elif name == 17 and _is(buf, name_at, b"nats-header-block", 17):
        value = 0 if flags & 32 else _asks_in_vain(buf, at, length)
        if value:
            rows[row + 4] = value
            flags |= 32
    elif not flags & 32 and not _requests_nothing(buf, name_at, name):
        value = name_at
        rows[row + 4] = value * 65536 + (name if name < 32768 else 32767)
        flags |= 32
    return flags


def has_flags(
    rows: cython.const[cython.longlong][::1], count: cython.Py_ssize_t, flags: cython.longlong
) -> bool:
    """Whether one of `count` rows has one of the flags."""
    row: cython.Py_ssize_t
    found: cython.bint = False
    if len(rows) < 8 * count:
        raise IndexError("there are fewer rows")
    with cython.nogil:
        for row in range(0, 8 * count, 8):
            if rows[row + 1] & flags:
                found = True
                break
    return found


def read_publish_headers(
    batch: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    record_count: cython.Py_ssize_t,
    hash_key: cython.const[cython.ulonglong][::1],
    expected: cython.const[cython.longlong][::1],
    rows: cython.longlong[::1],
    own_links: cython.bint = False,
) -> int:
    """Read the publish headers of a batch's records from byte `start` on; return how many rows.

    `expected` has pairs of a record's index and the offset its envelope expects. `rows` has room
    for a row a record and one more. `own_links`: headers `Bascule-Payload-*` are the node's own,
    else they are not supported. -1: the records do not match the batch.
    """
    end: cython.Py_ssize_t = len(batch)
    at: cython.Py_ssize_t = start
    stop: cython.Py_ssize_t
    record_end: cython.Py_ssize_t
    name_at: cython.Py_ssize_t
    index: cython.Py_ssize_t
    row: cython.Py_ssize_t = 0
    expectation: cython.Py_ssize_t = 0
    size: cython.longlong
    name: cython.longlong
    headers: cython.longlong
    delta: cython.longlong
    flags: cython.int
    bad: cython.bint = False
    if len(rows) < 8 * (record_count + 1) or len(hash_key) < 2 or start < 0:
        raise IndexError("the array is too short for the rows")
    with cython.nogil:
        for index in range(record_count):
            size, stop = read_varint(batch, at, end)
            if stop < 0:
                bad = True
                break
            if size < 6 or size > end - stop:
                bad = True
                break
            record_end = stop + size
            # Attributes, timestamp delta (0 here), offset delta.
            delta, at = read_varint(batch, stop + 1, record_end)
            if at < 0:
                bad = True
                break
            delta, stop = read_varint(batch, at, record_end)
            if stop < 0 or delta < 0 or delta >> 31 != 0:
                bad = True
                break
            flags = 0
            # Key and value.
            for _ in range(2):
                at = stop
                size, stop = read_varint(batch, at, record_end)
                if stop < 0:
                    bad = True
                    break
                if size > record_end - stop:
                    bad = True
                    break
                if size > 0:
                    stop += size
            if bad:
                break
            at = stop
            headers, stop = read_varint(batch, at, record_end)
            if stop < 0:
                bad = True
                break
            while headers > 0:
                headers -= 1
                at = stop
                name, stop = read_varint(batch, at, record_end)
                if stop < 0:
                    bad = True
                    break
                name_at = stop
                if name < 0 or name > record_end - stop:
                    bad = True
                    break
                at = stop + name
                size, stop = read_varint(batch, at, record_end)
                if stop < 0:
                    bad = True
                    break
                if size > record_end - stop:
                    bad = True
                    break
                if name > 5 and name != 7 or name == 7 and batch[name_at] | 32 == 110:
                    flags = _read_header(
                        batch, name_at, name, stop, size, flags, hash_key, rows, row, own_links
                    )
                if size > 0:
                    stop += size
            if bad:
                break
            while 2 * expectation + 1 < len(expected) and expected[2 * expectation] < index:
                expectation += 1
            if 2 * expectation + 1 < len(expected) and expected[2 * expectation] == index:
                if not flags & 32:
                    rows[row + 4] = expected[2 * expectation + 1]
                flags |= 18 if flags & 128 else 2
            if flags:
                rows[row] = delta
                rows[row + 1] = flags
                row += 8
            at = record_end
    if bad:
        return -1
    return row // 8
