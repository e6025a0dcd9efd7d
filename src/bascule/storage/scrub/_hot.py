"""Digest the latest values of the keys of a log."""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from bascule import _cython_stub as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.bascule._hot_number import read_number
    from cython.cimports.bascule.record._hot_varint import read_varint
else:
    from bascule._hot_number import read_number
    from bascule.record._hot_varint import read_varint

IS_COMPILED: bool = cython.compiled

LATEST_FIELDS = 2
"""Numbers of `sums` of `digest_latest`: the sum of the hashes, the count of the records."""


@cython.cfunc
@cython.inline
@cython.nogil
@cython.boundscheck(False)
@cython.exceptval(check=False)
@cython.returns(cython.ulonglong)
def _hash(
    buf: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    offset: cython.longlong,
):
    """As FNV-1a, begun with the offset, and mixed as at the end of splitmix64.

    The constants have 63 bits: Cython takes larger ones for Python objects.
    """
    step: cython.Py_ssize_t
    all_bits: cython.ulonglong = 0x7FFFFFFFFFFFFFFF
    basis: cython.ulonglong = 0x4BF29CE484222325
    prime: cython.ulonglong = 0x100000001B3
    first: cython.ulonglong = 0x3F58476D1CE4E5B9
    second: cython.ulonglong = 0x14D049BB133111EB
    hashed: cython.ulonglong = offset
    all_bits = all_bits * 2 + 1
    hashed = hashed ^ basis
    for step in range(at, stop):
        hashed = ((hashed ^ buf[step]) * prime) & all_bits
    hashed = ((hashed ^ (hashed >> 30)) * first) & all_bits
    hashed = ((hashed ^ (hashed >> 27)) * second) & all_bits
    return hashed ^ (hashed >> 31)


def digest_latest(
    buf: cython.const[cython.uchar][::1],
    plans: cython.const[cython.longlong][::1],
    count: cython.Py_ssize_t,
    actions: cython.const[cython.uchar][::1],
    sums: cython.ulonglong[::1],
) -> bool:
    """Add the records with action 1 of `count` batches of `plans` to a digest.

    `plans` and `actions` are the results of `compaction.keys._hot.plan_batches` on the same bytes.
    `sums[0]` grows by a hash of offset, key, value and headers of each record, `sums[1]` by their
    number. Timestamps are left out: compaction writes them anew. Returns False if the records do
    not match the plans.
    """
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    body: cython.Py_ssize_t
    rest: cython.Py_ssize_t
    record: cython.Py_ssize_t
    first: cython.longlong
    records: cython.longlong
    base: cython.longlong
    number: cython.longlong
    delta: cython.longlong
    all_bits: cython.ulonglong = 0x7FFFFFFFFFFFFFFF
    total: cython.ulonglong = sums[0]
    found: cython.longlong = 0
    good: cython.bint = True
    all_bits = all_bits * 2 + 1
    if len(plans) < 3 * count or len(sums) < 2:
        raise IndexError(f"plans or sums are too small for {count} batches")
    with cython.nogil:
        for row in range(count):
            at = plans[3 * row]
            stop = plans[3 * row + 1]
            first = plans[3 * row + 2]
            if first < 0:
                continue
            good = False
            if at < 0 or stop - at < 61 or stop > len(buf):
                break
            base = read_number(buf, at, 8)
            records = read_number(buf, at + 53, 8) & 0x7FFFFFFF
            if first + records > len(actions):
                break
            good = True
            at += 61
            for record in range(first, first + records):
                good = False
                number, body = read_varint(buf, at, stop)
                if body < 0 or number < 1 or number > stop - body:
                    break
                at = body + number
                good = True
                if actions[record] == 1:
                    good = False
                    number, rest = read_varint(buf, body + 1, at)
                    if rest < 0:
                        break
                    delta, rest = read_varint(buf, rest, at)
                    if rest < 0:
                        break
                    good = True
                    total = (total + _hash(buf, rest, at, base + delta)) & all_bits
                    found += 1
            if not good:
                break
    sums[0] = total
    sums[1] = sums[1] + found
    return good
