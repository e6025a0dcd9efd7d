"""Read a time to live: the interpreted twin of _hot_ttl.pxd, which hot modules inline.

The text is that of the header `Nats-TTL`: whole seconds (`90`), a duration as Go writes it, of
hours, minutes, seconds and milliseconds (`1h30m`, `1.5s`), or `never`. It is 1 s to 100 years.
"""

from __future__ import annotations

_SECOND = 1_000
_UNITS = {b"h": 3_600_000, b"m": 60_000, b"s": _SECOND, b"ms": 1}
_DIGITS = b"0123456789"
_TEXT_BYTES_MAX = 32
_WHOLE_DIGITS_MAX = 10
_FRACTION_DIGITS_MAX = 9
_MS_END = 3_155_760_000_000


def read_ttl(buf: bytes | bytearray | memoryview, at: int, end: int) -> int:
    """The milliseconds that `buf[at:end]` says; 0 for never, -1 for anything else."""
    text = bytes(buf[at:end])
    if not 1 <= len(text) <= _TEXT_BYTES_MAX:
        return -1
    if text.lower() == b"never":
        return 0
    total, has_unit = 0, False
    while text:
        whole = text[: len(text) - len(text.lstrip(_DIGITS))]
        if not 1 <= len(whole) <= _WHOLE_DIGITS_MAX:
            return -1
        text = text[len(whole) :]
        fraction = b""
        if not text:
            if has_unit:
                return -1
            unit = b"s"
        else:
            if text[:1] == b".":
                fraction = text[1 : len(text) - len(text[1:].lstrip(_DIGITS))]
                text = text[1 + len(fraction) :]
                if not fraction or not text:
                    return -1
            unit = text[:2] if text[:2] == b"ms" else text[:1]
            if unit not in _UNITS:
                return -1
            text = text[len(unit) :]
            has_unit = True
        fraction = fraction[:_FRACTION_DIGITS_MAX]
        total += int(whole) * _UNITS[unit]
        total += int(fraction or b"0") * _UNITS[unit] // 10 ** len(fraction)
        if total >= _MS_END:
            return -1
    return total if total >= _SECOND else -1
