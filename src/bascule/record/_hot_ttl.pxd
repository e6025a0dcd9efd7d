# The compiled twin of _hot_ttl.py: hot modules cimport it, and the C compiler inlines it.


cdef inline long long read_ttl(
    const unsigned char[::1] buf, Py_ssize_t at, Py_ssize_t end
) noexcept nogil:
    cdef long long total = 0
    cdef bint has_unit = False
    cdef long long value
    cdef long long unit
    cdef long long fraction
    cdef long long scale
    cdef Py_ssize_t digits
    if end - at < 1 or end - at > 32:
        return -1
    if (
        end - at == 5
        and buf[at] | 32 == 110
        and buf[at + 1] | 32 == 101
        and buf[at + 2] | 32 == 118
        and buf[at + 3] | 32 == 101
        and buf[at + 4] | 32 == 114
    ):
        return 0
    while at < end:
        value = fraction = digits = 0
        scale = 1
        while at < end and 48 <= buf[at] <= 57:
            value = 10 * value + buf[at] - 48
            digits += 1
            at += 1
            if digits > 10:
                return -1
        if digits == 0:
            return -1
        if at == end:
            if has_unit:
                return -1
            unit = 1000
        else:
            if buf[at] == 46:
                at += 1
                if at == end or not 48 <= buf[at] <= 57:
                    return -1
                while at < end and 48 <= buf[at] <= 57:
                    if scale < 1000000000:
                        fraction = 10 * fraction + buf[at] - 48
                        scale *= 10
                    at += 1
                if at == end:
                    return -1
            if buf[at] == 104:
                unit = 3600000
            elif buf[at] == 109 and at + 1 < end and buf[at + 1] == 115:
                unit = 1
                at += 1
            elif buf[at] == 109:
                unit = 60000
            elif buf[at] == 115:
                unit = 1000
            else:
                return -1
            at += 1
            has_unit = True
        total += value * unit + fraction * unit // scale
        if total // 1000000 >= 3155760:
            return -1
    return total if total >= 1000 else -1
