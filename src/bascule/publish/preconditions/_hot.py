"""Evaluate publish headers, maintain the window of message ids, drop refused records.

The layout of the rows is in `bascule.publish.headers._hot`.

`ring` holds the ids of a window in the order of their offsets, three numbers each (hash, hash,
offset). `table` is a hash table with open addressing: index in the ring plus one, or 0 for a free
entry. The sizes of both are powers of two. `state` is 0 the number of the oldest id, 1 that of the
next one; an id's index in the ring is its number modulo the ring's size.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.bascule.record._hot_varint import read_varint
    from cython.cimports.libc.string import memmove
else:
    from bascule.record._hot_varint import read_varint

IS_COMPILED: bool = cython.compiled

ACCEPTED = 0
DUPLICATE = 1
WRONG_SEQUENCE = 2
WRONG_ID = 3
WRONG_STREAM = 4
NOT_A_NUMBER = 5
NOT_SUPPORTED = 6
NO_POLICY = 7
OVER_RECORDS = 8
OVER_BYTES = 9
NO_TABLE = 10
NO_KEY = 11
NOT_CAUGHT_UP = 12
WRONG_KEY_SEQUENCE = 13
BAD_TTL = 14
VERDICTS = 15
NOT_COMMITTED = 15
"""Of `find_known`: a duplicate of a message that is not committed yet."""

NO_KEY_OF_TABLE = -2
UNKNOWN_VERSION = -3


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
def _find(
    ring: cython.longlong[::1],
    table: cython.int[::1],
    first: cython.longlong,
    second: cython.longlong,
):
    """The table index of an id, or the free index for it; at least one must be free."""
    mask: cython.Py_ssize_t = len(table) - 1
    slot: cython.Py_ssize_t = first & mask
    place: cython.Py_ssize_t
    while table[slot] != 0:
        place = 3 * (table[slot] - 1)
        if ring[place] == first and ring[place + 1] == second:
            break
        slot = (slot + 1) & mask
    return slot


@cython.cfunc
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.void)
def _remove(ring: cython.longlong[::1], table: cython.int[::1], number: cython.longlong):
    """Remove id `number` from the table and close the gap."""
    mask: cython.Py_ssize_t = len(table) - 1
    ring_mask: cython.longlong = len(ring) // 3 - 1
    place: cython.Py_ssize_t = number & ring_mask
    gap: cython.Py_ssize_t = _find(ring, table, ring[3 * place], ring[3 * place + 1])
    slot: cython.Py_ssize_t = gap
    home: cython.Py_ssize_t
    if table[gap] != place + 1:
        return
    while True:
        slot = (slot + 1) & mask
        if table[slot] == 0:
            break
        home = ring[3 * (table[slot] - 1)] & mask
        # Move an entry whose probe sequence passes the gap.
        if ((slot - home) & mask) >= ((slot - gap) & mask):
            table[gap] = table[slot]
            gap = slot
    table[gap] = 0


def window_add(
    ring: cython.longlong[::1],
    table: cython.int[::1],
    state: cython.longlong[::1],
    rows: cython.const[cython.longlong][::1],
    count: cython.Py_ssize_t,
    base_offset: cython.longlong,
) -> None:
    """Add the ids in `count` rows of a batch at `base_offset`. A known id gets the new offset: its
    place in the ring before counts as long as it stays there, and the hash table leads to the new
    one.

    There must be space for all of them.
    """
    row: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    place: cython.Py_ssize_t
    places: cython.longlong = len(ring) // 3
    if (
        len(rows) < 8 * count
        or len(state) < 2
        or len(table) <= places
        or state[1] - state[0] + count > places
    ):
        raise IndexError("the window has no space for the ids")
    with cython.nogil:
        for row in range(0, 8 * count, 8):
            if not rows[row + 1] & 1:
                continue
            slot = _find(ring, table, rows[row + 2], rows[row + 3])
            place = state[1] & (places - 1)
            ring[3 * place] = rows[row + 2]
            ring[3 * place + 1] = rows[row + 3]
            ring[3 * place + 2] = base_offset + rows[row]
            table[slot] = place + 1
            state[1] += 1


def window_drop(
    ring: cython.longlong[::1],
    table: cython.int[::1],
    state: cython.longlong[::1],
    below: cython.longlong,
    from_: cython.longlong,
) -> None:
    """Drop the ids with offsets below `below`, and those from `from_` on."""
    ring_mask: cython.longlong = len(ring) // 3 - 1
    if len(state) < 2 or len(table) <= ring_mask + 1:
        raise IndexError("the window is damaged")
    with cython.nogil:
        while state[0] < state[1] and ring[3 * (state[0] & ring_mask) + 2] < below:
            _remove(ring, table, state[0])
            state[0] += 1
        while state[0] < state[1] and ring[3 * ((state[1] - 1) & ring_mask) + 2] >= from_:
            state[1] -= 1
            _remove(ring, table, state[1])


def window_copy(
    old: cython.longlong[::1],
    state: cython.longlong[::1],
    ring: cython.longlong[::1],
    table: cython.int[::1],
) -> None:
    """Copy the ids of `old` into an empty window of another size; `state` stays valid."""
    number: cython.longlong
    source: cython.Py_ssize_t
    place: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    old_mask: cython.longlong = len(old) // 3 - 1
    mask: cython.longlong = len(ring) // 3 - 1
    if len(state) < 2 or state[1] - state[0] > mask + 1 or len(table) <= mask + 1:
        raise IndexError("the window has no space for the ids")
    with cython.nogil:
        number = state[0]
        while number < state[1]:
            source = 3 * (number & old_mask)
            place = number & mask
            ring[3 * place] = old[source]
            ring[3 * place + 1] = old[source + 1]
            ring[3 * place + 2] = old[source + 2]
            slot = _find(ring, table, old[source], old[source + 1])
            table[slot] = place + 1
            number += 1


def find_known(
    rows: cython.const[cython.longlong][::1],
    count: cython.Py_ssize_t,
    stream: cython.longlong,
    ring: cython.longlong[::1],
    table: cython.int[::1],
    end: cython.longlong,
    verdicts: cython.uchar[::1],
    numbers: cython.longlong[::1],
) -> int:
    """Find the records whose id is in the window; return how many there are.

    The verdict of such a record becomes `DUPLICATE`, or `NOT_COMMITTED` if the original is at `end`
    or later, and its number the offset of the original. Others stay as they are, and so do those
    that `evaluate` would refuse before it looks at their id. `stream` is as in `evaluate`.
    """
    row: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    offset: cython.longlong
    found: cython.Py_ssize_t = 0
    bad: cython.bint = False
    if len(rows) < 8 * count or len(table) <= len(ring) // 3:
        raise IndexError("an array is too short for the headers or the ids")
    with cython.nogil:
        for row in range(0, 8 * count, 8):
            if rows[row] < 0 or rows[row] >= len(verdicts) or rows[row] >= len(numbers):
                bad = True
                break
            if not rows[row + 1] & 1 or rows[row + 1] & 112:
                continue
            if rows[row + 1] & 8 and rows[row + 7] != stream:
                continue
            slot = _find(ring, table, rows[row + 2], rows[row + 3])
            if table[slot] == 0:
                continue
            offset = ring[3 * (table[slot] - 1) + 2]
            verdicts[rows[row]] = 1 if offset < end else 15
            numbers[rows[row]] = offset
            found += 1
    if bad:
        raise IndexError("the headers do not match the batch")
    return found


def evaluate(
    batch: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    record_count: cython.Py_ssize_t,
    rows: cython.const[cython.longlong][::1],
    count: cython.Py_ssize_t,
    next_offset: cython.longlong,
    stream: cython.longlong,
    records_max: cython.longlong,
    bytes_max: cython.longlong,
    ring: cython.longlong[::1],
    table: cython.int[::1],
    state: cython.longlong[::1],
    verdicts: cython.uchar[::1],
    numbers: cython.longlong[::1],
    is_table: cython.bint,
    keys: cython.const[cython.longlong][::1],
    versions: cython.longlong[::1],
) -> int:
    """Evaluate each record of a batch at `next_offset`; return how many are accepted.

    `stream` is the half of the stream name's hash that rows carry. At most `records_max` records
    and `bytes_max` bytes of records are accepted. `state[2:5]` is the id of the log's last
    record and whether it has one. Accepted records update it and the window (where `table` is not
    empty). `verdicts[i]` becomes `ACCEPTED` or the reason of the refusal; what is refused already
    stays so. `numbers[i]` becomes the
    record's index among the accepted ones; for a duplicate the offset of the original; for others
    the last offset of the log at that point, or of the key.

    Where a record expects a sequence of its key in a table, `keys` has two numbers for each record:
    the number of its key, or -1, and whether it has a value. `versions` has two numbers for each
    key: the offset of its last record (-1: none, `NO_KEY_OF_TABLE`, `UNKNOWN_VERSION`), and whether
    it has a value. Accepted records update it.
    """
    index: cython.Py_ssize_t
    at: cython.Py_ssize_t = start
    stop: cython.Py_ssize_t
    row: cython.Py_ssize_t = 0
    slot: cython.Py_ssize_t = 0
    place: cython.Py_ssize_t
    places: cython.longlong = len(ring) // 3
    accepted: cython.longlong = 0
    size: cython.longlong
    taken: cython.longlong = 0
    flags: cython.longlong
    verdict: cython.uchar
    bad: cython.bint = False
    remembers: cython.bint = len(table) > 0
    has_keys: cython.bint = len(keys) > 0
    key: cython.longlong
    if has_keys:
        if len(keys) < 2 * record_count:
            raise IndexError("there are fewer keys than records")
        for index in range(record_count):
            if keys[2 * index] * 2 + 1 >= len(versions):
                raise IndexError("a key has no version")
    if (
        len(verdicts) < record_count
        or len(numbers) < record_count
        or len(rows) < 8 * count
        or len(state) < 5
        or (remembers and (len(table) <= places or state[1] - state[0] + count > places))
    ):
        raise IndexError("an array is too short for the verdicts or the ids")
    with cython.nogil:
        for index in range(record_count):
            size, stop = read_varint(batch, at, len(batch))
            if stop < 0:
                bad = True
                break
            if size < 0 or size > len(batch) - stop:
                bad = True
                break
            size += stop - at
            at += size
            verdict = verdicts[index]
            flags = 0
            if row < 8 * count and rows[row] == index:
                flags = rows[row + 1]
                row += 8
            numbers[index] = next_offset + accepted - 1
            if flags and verdict == 0:
                if flags & 32:
                    verdict = 6
                elif flags & 16:
                    verdict = 5
                elif flags & 64:
                    verdict = 7
                elif flags & 8 and rows[row - 1] != stream:
                    verdict = 4
                elif flags & 1 and remembers:
                    slot = _find(ring, table, rows[row - 6], rows[row - 5])
                    if table[slot] != 0:
                        verdict = 1
                        numbers[index] = ring[3 * (table[slot] - 1) + 2]
                if verdict == 0:
                    if flags & 2 and rows[row - 4] != next_offset + accepted:
                        verdict = 2
                    elif flags & 4 and (
                        not state[4] or rows[row - 3] != state[2] or rows[row - 2] != state[3]
                    ):
                        verdict = 3
                    elif flags & 896 and not is_table:
                        verdict = 10
                    elif flags & 1024:
                        verdict = 14
                    elif flags & 128:
                        key = keys[2 * index] if has_keys else -1
                        if key < 0:
                            verdict = 12
                        elif versions[2 * key] == -2:
                            verdict = 11
                        elif versions[2 * key] == -3:
                            verdict = 12
                        elif rows[row - 4] != versions[2 * key] + 1 and (
                            rows[row - 4] != 0 or versions[2 * key + 1] != 0
                        ):
                            verdict = 13
                            numbers[index] = versions[2 * key]
            if verdict == 0:
                if accepted >= records_max:
                    verdict = 8
                elif taken + size > bytes_max:
                    verdict = 9
            verdicts[index] = verdict
            if verdict == 0:
                if flags & 1 and remembers:
                    place = state[1] & (places - 1)
                    ring[3 * place] = rows[row - 6]
                    ring[3 * place + 1] = rows[row - 5]
                    ring[3 * place + 2] = next_offset + accepted
                    table[slot] = place + 1
                    state[1] += 1
                state[4] = flags & 1
                if flags & 1:
                    state[2] = rows[row - 6]
                    state[3] = rows[row - 5]
                if has_keys:
                    key = keys[2 * index]
                    if key >= 0 and versions[2 * key] >= -1:
                        versions[2 * key] = next_offset + accepted
                        versions[2 * key + 1] = keys[2 * index + 1]
                numbers[index] = accepted
                accepted += 1
                taken += size
    if bad:
        raise IndexError("the records do not match the batch")
    return accepted


def drop_records(
    batch: cython.uchar[::1],
    start: cython.Py_ssize_t,
    record_count: cython.Py_ssize_t,
    verdicts: cython.const[cython.uchar][::1],
) -> int:
    """Move the accepted records together and renumber them; return their end.

    The records were evaluated, so they are complete.
    """
    index: cython.Py_ssize_t
    at: cython.Py_ssize_t = start
    to: cython.Py_ssize_t = start
    end: cython.Py_ssize_t = len(batch)
    stop: cython.Py_ssize_t
    delta_at: cython.Py_ssize_t
    delta_end: cython.Py_ssize_t
    record_end: cython.Py_ssize_t
    size: cython.longlong
    skipped: cython.longlong
    raw: cython.ulonglong
    attributes: cython.uchar
    delta_bytes: cython.int
    accepted: cython.longlong = 0
    bad: cython.bint = False
    if len(verdicts) < record_count or start < 0:
        raise IndexError("there are fewer verdicts than records")
    with cython.nogil:
        for index in range(record_count):
            size, stop = read_varint(batch, at, end)
            if stop < 0:
                bad = True
                break
            if size < 3 or size > end - stop:
                bad = True
                break
            record_end = stop + size
            if verdicts[index]:
                at = record_end
                continue
            if to == at:
                at = record_end
                to = at
                accepted += 1
                continue
            attributes = batch[stop]
            skipped, delta_at = read_varint(batch, stop + 1, record_end)
            delta_end = -1
            if delta_at >= 0:
                skipped, delta_end = read_varint(batch, delta_at, record_end)
            if delta_end < 0 or delta_at != stop + 2:
                bad = True
                break
            delta_bytes = 1
            raw = 2 * accepted
            while raw >= 128:
                delta_bytes += 1
                raw >>= 7
            size -= (delta_end - delta_at) - delta_bytes
            raw = 2 * size
            while raw >= 128:
                batch[to] = (raw & 127) | 128
                raw >>= 7
                to += 1
            batch[to] = raw
            batch[to + 1] = attributes
            batch[to + 2] = 0
            to += 3
            raw = 2 * accepted
            while raw >= 128:
                batch[to] = (raw & 127) | 128
                raw >>= 7
                to += 1
            batch[to] = raw
            to += 1
            if cython.compiled:
                memmove(
                    cython.address(batch[to]), cython.address(batch[delta_end]),
                    record_end - delta_end,
                )  # fmt: skip
            else:
                batch[to : to + record_end - delta_end] = batch[delta_end:record_end]
            to += record_end - delta_end
            at = record_end
            accepted += 1
    if bad:
        raise IndexError("the records do not match the batch")
    return to


def split_ack_entries(
    ack_entries: cython.const[cython.uchar][::1],
    verdicts: cython.const[cython.uchar][::1],
    numbers: cython.const[cython.longlong][::1],
    verdict: cython.int,
    base: cython.longlong,
    out: cython.uchar[::1],
) -> int:
    """Copy the ack entries of records with `verdict`; return the bytes written.

    Their record index becomes the record's number less `base`. `out` is at least as long as
    `ack_entries`."""
    at: cython.Py_ssize_t = 0
    to: cython.Py_ssize_t = 0
    place: cython.Py_ssize_t
    end: cython.Py_ssize_t
    index: cython.longlong
    number: cython.longlong
    high: cython.longlong
    bad: cython.bint = False
    if len(out) < len(ack_entries):
        raise IndexError("the output is too short for the ack entries")
    with cython.nogil:
        while at < len(ack_entries):
            if len(ack_entries) - at < 7:
                bad = True
                break
            index = ack_entries[at + 1] | (ack_entries[at + 2] << 8) | (ack_entries[at + 3] << 16)
            high = ack_entries[at + 4]
            index |= high << 24
            end = at + 7 + (ack_entries[at + 5] | (ack_entries[at + 6] << 8))
            if ack_entries[at] & 1:
                if len(ack_entries) - end < 2:
                    bad = True
                    break
                end += 2 + (ack_entries[end] | (ack_entries[end + 1] << 8))
                if len(ack_entries) - end < 3:
                    bad = True
                    break
                end += 3 + (ack_entries[end + 1] | (ack_entries[end + 2] << 8))
            if end > len(ack_entries) or index >= len(verdicts) or index >= len(numbers):
                bad = True
                break
            if verdicts[index] == verdict:
                number = numbers[index] - base
                out[to] = ack_entries[at]
                out[to + 1] = number & 255
                out[to + 2] = (number >> 8) & 255
                out[to + 3] = (number >> 16) & 255
                out[to + 4] = (number >> 24) & 255
                for place in range(5, end - at):
                    out[to + place] = ack_entries[at + place]
                to += end - at
            at = end
    if bad:
        raise IndexError("an ack entry is cut short")
    return to
