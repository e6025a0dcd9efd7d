"""Hostile variants of valid bytes: flipped, cut, extended, spliced, or with boundary values."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

NUMBERS = (
    0,
    1,
    -1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0x7FFFFFFF,
    0x80000000,
    (1 << 63) - 1,
    1 << 63,
)
"""Bounds of the integer types; each is written in several widths."""
PIECES = (
    b"", b"\0", b"\r\n", b"\n", b" ", b":", b'"', b"{}", b"[", b"9" * 20, b"\xff" * 5,
    b"\x80\x80\x80\x80\x0f", b"\xff\xff\xff\xff\x0f",
    b"NATS/1.0\r\n\r\n", b"PING\r\n", b"null", b"\xed\xa0\x80", b"-0",
)  # fmt: skip
"""Bytes that begin, end or count something in one of the formats."""
STEPS_MAX = 6


def mutate(seed: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """A variant of `seed`; `others` lend parts of themselves."""
    data = bytearray(seed)
    for _ in range(random.randint(1, STEPS_MAX)):
        STEPS[random.randrange(len(STEPS))](data, random, others)
    return bytes(data)


def _flip(data: bytearray, random: Random, _: Sequence[bytes]) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _overwrite(data: bytearray, random: Random, _: Sequence[bytes]) -> None:
    if data:
        data[random.randrange(len(data))] = random.randrange(256)


def _number(data: bytearray, random: Random, _: Sequence[bytes]) -> None:
    width = (1, 2, 4, 8)[random.randrange(4)]
    number = NUMBERS[random.randrange(len(NUMBERS))] + random.randint(-1, 1)
    at = random.randint(0, max(len(data) - width, 0))
    data[at : at + width] = (number & ((1 << 8 * width) - 1)).to_bytes(width, "big")


def _digit(data: bytearray, random: Random, _: Sequence[bytes]) -> None:
    """Another decimal number where there is one."""
    digits = [at for at, byte in enumerate(data) if 48 <= byte <= 57]
    if digits:
        at = digits[random.randrange(len(digits))]
        number = NUMBERS[random.randrange(len(NUMBERS))]
        data[at : at + 1] = (
            (b"%d" % number) if random.randrange(2) else b"%d" % random.randint(0, 99)
        )


def _insert(data: bytearray, random: Random, _: Sequence[bytes]) -> None:
    at = random.randint(0, len(data))
    piece = PIECES[random.randrange(len(PIECES))]
    data[at:at] = piece or random.randbytes(random.randint(1, 8))


def _remove(data: bytearray, random: Random, _: Sequence[bytes]) -> None:
    start, end = _range(data, random)
    del data[start:end]


def _repeat(data: bytearray, random: Random, _: Sequence[bytes]) -> None:
    start, end = _range(data, random)
    data[end:end] = data[start:end] * random.randint(1, 3)


def _zero(data: bytearray, random: Random, _: Sequence[bytes]) -> None:
    start, end = _range(data, random)
    data[start:end] = bytes(end - start)


def _cut(data: bytearray, random: Random, _: Sequence[bytes]) -> None:
    del data[random.randint(0, len(data)) :]


def _splice(data: bytearray, random: Random, others: Sequence[bytes]) -> None:
    other = others[random.randrange(len(others))]
    start, end = _range(other, random)
    at, to = _range(data, random)
    data[at:to] = other[start:end]


def _range(data: bytes | bytearray, random: Random) -> tuple[int, int]:
    """A short range as often as a long one."""
    start = random.randint(0, len(data))
    longest = len(data) - start
    length = random.randint(0, min(longest, 16) if random.randrange(2) else longest)
    return start, start + length


STEPS = (_flip, _flip, _overwrite, _number, _digit, _insert, _remove, _repeat, _zero, _cut, _splice)
