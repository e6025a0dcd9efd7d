# The compiled twin of _hot_number.py: hot modules cimport it, and the C compiler inlines it.

cimport cython


cdef inline long long read_number(
    const unsigned char[::1] buf, Py_ssize_t at, int size
) noexcept nogil:
    cdef long long value
    cdef Py_ssize_t position
    # A decorator has no effect on a function in a .pxd.
    with cython.boundscheck(False):
        value = buf[at]
        if value >= 128:
            value -= 256
        for position in range(at + 1, at + size):
            value = value * 256 + buf[position]
        return value
