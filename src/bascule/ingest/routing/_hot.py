"""Find the slot of every parsed NATS message, and sort messages by slot.

Messages are untrusted input: every length is checked before it is used.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

IS_COMPILED: bool = cython.compiled

BY_SUBJECT = 0
BY_KEY = 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.ulonglong)
def _murmur2(
    data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, length: cython.Py_ssize_t
):
    """MurmurHash2 of 32 bits with Kafka's seed. The caller checked the range."""
    mask: cython.ulonglong = 0xFFFFFFFF
    factor: cython.ulonglong = 0x5BD1E995
    seed: cython.ulonglong = 0x9747B28C
    state: cython.ulonglong = length
    word: cython.ulonglong
    left: cython.Py_ssize_t = length
    shift: cython.int
    state = (state ^ seed) & mask
    while left >= 4:
        word = data[at + 3]
        word = (word << 8) | data[at + 2]
        word = (word << 8) | data[at + 1]
        word = (word << 8) | data[at]
        word = (word * factor) & mask
        word ^= word >> 24
        word = (word * factor) & mask
        state = ((state * factor) & mask) ^ word
        at += 4
        left -= 4
    if left > 0:
        shift = 8 * (left - 1)
        while left > 0:
            left -= 1
            word = data[at + left]
            state ^= word << shift
            shift -= 8
        state = (state * factor) & mask
    state ^= state >> 13
    state = (state * factor) & mask
    state ^= state >> 15
    return state


def murmur2(data: cython.const[cython.uchar][::1]) -> int:
    """MurmurHash2 as an unsigned 32-bit number, as Kafka's Java client hashes keys."""
    return _murmur2(data, 0, len(data))


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.longlong)
def _find_key(
    buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, length: cython.Py_ssize_t
):
    """Position and length of the value of the first `Bascule-Key` in a header block.

    Returns start << 32 | length, or -1 where there is none. The caller checked the range.
    """
    end: cython.Py_ssize_t = at + length - 2
    stop: cython.Py_ssize_t
    name: cython.p_char = b"bascule-key:"
    place: cython.int
    found: cython.longlong
    while at < end:
        # Skip to the end of a line.
        if buf[at] != 13 or buf[at + 1] != 10:
            at += 1
            continue
        at += 2
        if end - at < 12 or (buf[at] | 32) != 98:
            continue
        for place in range(12):
            if (buf[at + place] | 32) != (name[place] | 32):
                break
        else:
            at += 12
            stop = at
            while stop < end and (buf[stop] != 13 or buf[stop + 1] != 10):
                stop += 1
            while at < stop and (buf[at] == 32 or buf[at] == 9):
                at += 1
            while stop > at and (buf[stop - 1] == 32 or buf[stop - 1] == 9):
                stop -= 1
            found = at
            return (found << 32) | (stop - at)
    return -1


def assign_slots(
    buf: cython.const[cython.uchar][::1],
    messages: cython.int[::1],
    count: cython.Py_ssize_t,
    envelopes: cython.const[cython.longlong][::1],
    envelope_fields: cython.Py_ssize_t,
    sids: cython.const[cython.int][::1],
    table: cython.const[cython.int][::1],
) -> None:
    """Replace each message's sid by its slot, or by -1 where the sid has no route.

    `sids` has three numbers for each sid: the start of its slots in `table`, their count, and
    whether subject (0) or key (1) selects one. A message without a key is routed by its subject.
    """
    index: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    row: cython.Py_ssize_t
    sid: cython.Py_ssize_t
    first: cython.Py_ssize_t
    slots: cython.Py_ssize_t
    at: cython.Py_ssize_t
    size: cython.Py_ssize_t
    key: cython.longlong
    chosen: cython.longlong
    bad: cython.bint = False
    if len(messages) < 8 * count:
        raise IndexError("the array is too small for the messages")
    with cython.nogil:
        for index in range(count):
            slot = 8 * index
            sid = messages[slot]
            if sid < 0 or 3 * sid + 3 > len(sids):
                messages[slot] = -1
                continue
            first = sids[3 * sid]
            slots = sids[3 * sid + 1]
            if slots <= 0 or first < 0 or first + slots > len(table):
                messages[slot] = -1
                continue
            if slots == 1:
                messages[slot] = table[first]
                continue
            at = messages[slot + 1]
            size = messages[slot + 2]
            if sids[3 * sid + 2] == 1:
                row = envelope_fields * index
                if (
                    row + envelope_fields <= len(envelopes)
                    and envelopes[row] >= 0
                    and (envelopes[row + 2] >= 0)
                ):
                    at = envelopes[row + 2]
                    size = envelopes[row + 3]
                elif messages[slot + 5] > 0:
                    if messages[slot + 6] < 0 or messages[slot + 6] + messages[slot + 5] > len(buf):
                        bad = True
                        break
                    key = _find_key(buf, messages[slot + 6], messages[slot + 5])
                    if key >= 0:
                        at = key >> 32
                        size = key - (key >> 32 << 32)
            if at < 0 or size < 0 or at + size > len(buf):
                bad = True
                break
            chosen = (_murmur2(buf, at, size) & 0x7FFFFFFF) % slots
            messages[slot] = table[first + chosen]
    if bad:
        raise IndexError("a message is outside the buffer")


def group_by_slot(
    messages: cython.const[cython.int][::1],
    count: cython.Py_ssize_t,
    heads: cython.int[::1],
    nexts: cython.int[::1],
    touched: cython.int[::1],
) -> int:
    """Chain the messages of each slot in order; return the number of slots.

    `heads[slot]` is -1 on entry and becomes the slot's first message, `nexts[i]` the one after
    message i or -1, `touched` the slots found. Messages whose slot is not an index of `heads` are
    skipped.
    """
    index: cython.Py_ssize_t = count
    found: cython.Py_ssize_t = 0
    slot: cython.int
    if len(messages) < 8 * count or len(nexts) < count or len(touched) < count:
        raise IndexError("arrays are too small for the messages")
    with cython.nogil:
        while index > 0:
            index -= 1
            slot = messages[8 * index]
            if slot < 0 or slot >= len(heads):
                continue
            if heads[slot] < 0:
                touched[found] = slot
                found += 1
            nexts[index] = heads[slot]
            heads[slot] = index
    return found
