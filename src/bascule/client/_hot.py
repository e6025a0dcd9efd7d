"""Read the acks of many publishes from the bytes that the NATS connection received.

An ack is a JSON object on `<inbox>.<window>.<index>`. The common form, with the six known fields
and plain values, is read here. Everything else (errors, no responders, unknown fields, escapes) is
left to the caller, row by row. All input is range-checked, because it comes from the network.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

IS_COMPILED: bool = cython.compiled

SYNCED = 32768
DUPLICATE = 16384
"""Bits of `details` beside the number of replicas."""


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns((cython.longlong, cython.Py_ssize_t))
def _number(buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t):
    """The decimal number at `at` and the position after it; -1 if there is no number."""
    value: cython.longlong = 0
    digit: cython.int
    first: cython.Py_ssize_t = at
    while at < end and at - first < 18:
        digit = buf[at] - 48
        if digit < 0 or digit > 9:
            break
        value = value * 10 + digit
        at += 1
    if at == first:
        return -1, at
    return value, at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _blanks(buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t):
    """The first position from `at` that is not a blank."""
    while at < end and buf[at] == 32:
        at += 1
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _string(buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t):
    """The position of the quote that ends the plain string at `at`, or -1."""
    if at >= end or buf[at] != 34:
        return -1
    at += 1
    while at < end:
        if buf[at] == 34:
            return at
        if buf[at] == 92 or buf[at] < 32:
            return -1
        at += 1
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.longlong)
def _word(buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t):
    """The last eight bytes of `buf[at:end]` as one integer."""
    word: cython.longlong = 0
    if end - at > 8:
        at = end - 8
    while at < end:
        word = word * 256 + buf[at]
        at += 1
    return word


def collect_acks(
    buf: cython.const[cython.uchar][::1],
    positions: cython.int[::1],
    count: cython.Py_ssize_t,
    inbox_bytes: cython.Py_ssize_t,
    run: cython.longlong,
    stream: cython.const[cython.uchar][::1],
    offsets: cython.longlong[::1],
    partitions: cython.int[::1],
    details: cython.ushort[::1],
    leftover: cython.int[::1],
    state: cython.longlong[::1],
    first: cython.longlong = 0,
) -> int:
    """Store the acks of window `run` from `stream` in its columns, at their indexes.

    `positions` is the output of `wire._hot.parse_messages`. `inbox_bytes` is the length of the
    inbox with its final dot. Entry 0 of the columns is index `first`; acks with a lower index are
    old and go to `leftover`. An index that has an offset (>= 0) keeps its first ack. Row numbers of
    messages that are not a common ack of this window go to `leftover`; `state[0]` is their count.
    Returns the number of indexes that received their ack.
    """
    row: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    key_at: cython.Py_ssize_t
    key_end: cython.Py_ssize_t
    position: cython.Py_ssize_t
    number: cython.longlong
    index: cython.longlong
    offset: cython.longlong
    partition: cython.longlong
    replicas: cython.longlong
    synced: cython.longlong
    duplicate: cython.longlong
    fields: cython.int
    key: cython.longlong
    # Field names as `_word` returns them.
    stream_key: cython.longlong = 0x73747265616D
    synced_key: cython.longlong = 0x73796E636564
    offset_key: cython.longlong = 0x6F6666736574
    seq_key: cython.longlong = 0x736571
    artition_key: cython.longlong = 0x6172746974696F6E
    replicas_key: cython.longlong = 0x7265706C69636173
    uplicate_key: cython.longlong = 0x75706C6963617465
    added: cython.Py_ssize_t = 0
    left: cython.Py_ssize_t = 0
    good: cython.bint
    size: cython.Py_ssize_t = len(buf)
    total: cython.Py_ssize_t = len(offsets)
    name_bytes: cython.Py_ssize_t = len(stream)
    if (
        count < 0
        or len(positions) < 8 * count
        or len(leftover) < count
        or len(partitions) < total
        or len(details) < total
        or inbox_bytes < 0
    ):
        raise IndexError("buffers are too small for the messages given")
    with cython.nogil:
        for row in range(count):
            slot = 8 * row
            good = False
            index = -1
            offset = -1
            partition = 0
            replicas = 1
            synced = -1
            duplicate = 0
            fields = 0
            at = positions[slot + 1]
            end = at + positions[slot + 2]
            if at >= 0 and end <= size and positions[slot + 5] == 0:
                at += inbox_bytes
                number, at = _number(buf, at, end)
                if number == run and at < end and buf[at] == 46:
                    index, at = _number(buf, at + 1, end)
                    index -= first
                    if at != end or index >= total:
                        index = -1
            if index >= 0:
                at = positions[slot + 6]
                end = at + positions[slot + 7]
                if at >= 0 and end <= size and at < end and buf[at] == 123:
                    good = True
                    at += 1
            while good:
                # One `"key": value` pair and the following comma or brace. Known keys are compared
                # as integers.
                good = False
                at = _blanks(buf, at, end)
                key_end = _string(buf, at, end)
                if key_end < 0:
                    break
                key_at = at + 1
                at = _blanks(buf, key_end + 1, end)
                if at >= end or buf[at] != 58:
                    break
                at = _blanks(buf, at + 1, end)
                if at >= end:
                    break
                key = _word(buf, key_at, key_end)
                if buf[at] == 34:
                    # The field "stream". Any other text field ("domain") is ignored.
                    position = _string(buf, at, end)
                    if position < 0:
                        break
                    if key == stream_key:
                        if position - at - 1 != name_bytes:
                            break
                        at += 1
                        while at < position and buf[at] == stream[at - position + name_bytes]:
                            at += 1
                        if at != position:
                            break
                        fields |= 1
                    at = position + 1
                elif buf[at] == 116 or buf[at] == 102:
                    if key == synced_key:
                        synced = 1 if buf[at] == 116 else 0
                    elif key == uplicate_key and key_end - key_at == 9 and buf[key_at] == 100:
                        duplicate = 1 if buf[at] == 116 else 0
                    else:
                        break
                    while at < end and buf[at] >= 97 and buf[at] <= 122:
                        at += 1
                else:
                    number, at = _number(buf, at, end)
                    if number < 0:
                        break
                    if key == offset_key:
                        offset = number
                        fields |= 2
                    elif key == seq_key:
                        fields |= 4
                    elif key == artition_key and key_end - key_at == 9 and buf[key_at] == 112:
                        partition = number
                    elif key == replicas_key and key_end - key_at == 8:
                        replicas = number
                    else:
                        break
                at = _blanks(buf, at, end)
                if at >= end:
                    break
                if buf[at] == 125:
                    good = (
                        at == end - 1
                        and fields == 7
                        and synced >= 0
                        and partition <= 2147483647
                        and replicas < 16384
                    )
                    break
                if buf[at] != 44:
                    break
                at += 1
                good = True
            if not good:
                leftover[left] = row
                left += 1
            elif offsets[index] < 0:
                offsets[index] = offset
                partitions[index] = partition
                details[index] = replicas + 32768 * synced + 16384 * duplicate
                added += 1
    state[0] = left
    return added


def first_unacked(
    offsets: cython.longlong[::1], start: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> int:
    """The first index in [start, end) without an offset, or `end`."""
    index: cython.Py_ssize_t = start
    if start < 0 or end > len(offsets):
        raise IndexError("the range is not within the column")
    while index < end and offsets[index] >= 0:
        index += 1
    return index


def tally_acks(
    offsets: cython.const[cython.longlong][::1],
    partitions: cython.const[cython.int][::1],
    details: cython.const[cython.ushort][::1],
    streams: cython.const[cython.ushort][::1],
    count: cython.Py_ssize_t,
    places: cython.longlong,
    table: cython.longlong[::1],
) -> int:
    """Count the first `count` acks in `table`, which has five numbers for each pair of a stream and
    a partition below `places`: messages, duplicates, unsynced messages, lowest offset, highest
    offset.

    Returns the number of acks counted; less than `count` if the table has no entry for the next
    one.
    """
    at: cython.Py_ssize_t
    slot: cython.longlong
    if (
        count > len(offsets)
        or count > len(partitions)
        or count > len(details)
        or count > len(streams)
    ):
        raise IndexError("the columns are shorter than the count")
    for at in range(count):
        slot = streams[at]
        slot = 5 * (slot * places + partitions[at])
        if partitions[at] < 0 or partitions[at] >= places or slot + 5 > len(table):
            return at
        if table[slot] == 0 or offsets[at] < table[slot + 3]:
            table[slot + 3] = offsets[at]
        if table[slot] == 0 or offsets[at] > table[slot + 4]:
            table[slot + 4] = offsets[at]
        table[slot] += 1
        if details[at] & 16384:
            table[slot + 1] += 1
        if details[at] & 32768 == 0:
            table[slot + 2] += 1
    return count


def walk_batches(
    buf: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    state: cython.longlong[::1],
) -> int:
    """Walk the complete record batches of `buf[start:end]` by their headers.

    Returns their number. `state[0]` is the first offset after the last one, `state[1]` the position
    of the remaining bytes. CRCs are not checked: the result only decides the next fetch, before the
    bytes are decoded.
    """
    at: cython.Py_ssize_t = start
    count: cython.Py_ssize_t = 0
    base: cython.longlong
    length: cython.longlong
    delta: cython.longlong
    byte: cython.Py_ssize_t
    if start < 0 or end > len(buf) or len(state) < 2:
        raise IndexError("the range is not within the buffer")
    with cython.nogil:
        while end - at >= 61:
            base = 0
            for byte in range(8):
                base = base * 256 + buf[at + byte]
            length = 0
            for byte in range(4):
                length = length * 256 + buf[at + 8 + byte]
            if length < 49 or length > end - at - 12:
                break
            delta = 0
            for byte in range(4):
                delta = delta * 256 + buf[at + 23 + byte]
            # Offsets beyond 62 bits are invalid; their end could overflow.
            if base < 0 or base >> 62 or delta > 2147483647:
                break
            state[0] = base + delta + 1
            at += 12 + length
            count += 1
    state[1] = at
    return count
