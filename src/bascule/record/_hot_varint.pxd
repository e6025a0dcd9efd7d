# The compiled twin of _hot_varint.py: hot modules cimport it, and the C compiler inlines it.

cimport cython


cdef inline (long long, Py_ssize_t) read_varint(
    const unsigned char[::1] buf, Py_ssize_t at, Py_ssize_t end
) noexcept nogil:
    cdef unsigned long long byte
    cdef unsigned long long raw
    cdef unsigned long long negative
    cdef long long value
    cdef int shift = 7
    # A decorator has no effect on a function in a .pxd.
    with cython.boundscheck(False):
        if at >= end:
            return 0, -1
        byte = buf[at]
        at += 1
        raw = byte & 0x7F
        while byte >= 0x80:
            if at >= end or shift > 63:
                return 0, -1
            byte = buf[at]
            at += 1
            if shift == 63 and byte > 1:
                return 0, -1
            raw |= (byte & 0x7F) << shift
            shift += 7
        negative = raw & 1
        raw >>= 1
        value = raw
        if negative:
            value = -1 - value
        return value, at


cdef inline Py_ssize_t write_varint(
    unsigned char[::1] out, Py_ssize_t to, long long value
) noexcept nogil:
    cdef unsigned long long raw = value
    raw <<= 1
    if value < 0:
        raw = ~raw
    with cython.boundscheck(False):
        while raw >= 0x80:
            out[to] = (raw & 0x7F) | 0x80
            raw >>= 7
            to += 1
        out[to] = raw
    return to + 1


cdef inline Py_ssize_t varint_bytes(long long value) noexcept nogil:
    cdef Py_ssize_t size = 1
    while value >= 64:
        value >>= 7
        size += 1
    return size
