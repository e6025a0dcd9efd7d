"""The varint reader and writer of all hot modules: vectors, and arbitrary bytes on both twins."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.record._hot_varint import read_varint, varint_bytes, write_varint
from bascule.record.builder import encode_varint
from bascule.wire.liftbridge import CRC32C_TABLE
from bascule.wire.primitives import uvarint

Hot = Callable[[str], ModuleType]
LIMIT = 1 << 63
VECTORS = {
    "00": 0,
    "01": -1,
    "02": 1,
    "7f": -64,
    "8001": 64,
    "ffffffff0f": -(1 << 31),
    "feffffff0f": (1 << 31) - 1,
    "feffffffffffffffff01": LIMIT - 1,
    "ffffffffffffffffff01": -LIMIT,
    "8000": 0,
    "80808080808080808000": 0,
    "": None,
    "80": None,
    "ffffffffffffffffff": None,
    "feffffffffffffffff03": None,
    "80808080808080808002": None,
    "8080808080808080808000": None,
}
"""Bytes -> the number, or None if they are refused."""


def read_compiled(hot: ModuleType, data: bytes) -> tuple[int, int]:
    """Read a record's timestamp delta with a hot module. Nothing follows it in the record."""
    body = b"\0" + data
    record = encode_varint(len(body)) + body
    whole = record[:1] + body + b"\0\1\1\0"
    whole = encode_varint(len(whole) - 1) + whole[1:]
    positions, state = array("q", bytes(64)), array("q", bytes(32))
    if hot.index_records(whole, 0, len(whole), 1, positions, state) == 1:
        return positions[1], len(whole) - 6
    return 0, -1


@pytest.mark.parametrize("text", VECTORS)
def test_vectors_are_read(text: str, hot: Hot) -> None:
    data, expected = bytes.fromhex(text), VECTORS[text]
    found = (0, -1) if expected is None else (expected, len(data))
    assert read_varint(data, 0, len(data)) == found
    assert read_varint(b"\xff" + data + b"\0", 1, 1 + len(data))[0] == found[0]
    if data and data[-1] < 0x80:
        assert read_compiled(hot("record"), data) == found


@given(st.integers(-LIMIT, LIMIT - 1), st.binary(max_size=4))
def test_encoded_numbers_are_read(value: int, after: bytes) -> None:
    data = encode_varint(value)
    assert len(data) <= 10
    assert read_varint(data + after, 0, len(data) + len(after)) == (value, len(data))
    for end in range(len(data)):
        assert read_varint(data + after, 0, end) == (0, -1)


@given(st.lists(st.integers(0x80, 0xFF), max_size=11), st.integers(0, 0x7F))
def test_twins_read_arbitrary_bytes_alike(hot: Hot, head: list[int], last: int) -> None:
    data = bytes([*head, last])
    assert read_compiled(hot("record"), data) == read_varint(data, 0, len(data))
    if len(data) > 10:
        assert read_varint(data, 0, len(data)) == (0, -1)


def write_compiled(hot: ModuleType, length: int) -> bytes:
    """The varint that a hot module writes for the length of a record header's value."""
    entry = b"\x0a\x01n\x12" + uvarint(length) + bytes(length)
    payload = bytes.fromhex("b90e43b400080000") + b"\x4a" + uvarint(len(entry)) + entry
    messages = array("i", (1, 0, 0, 0, 0, 0, 0, len(payload)))
    rows, headers = array("q", bytes(8 * 13)), bytearray(2 * len(payload))
    assert hot.parse_envelopes(payload, messages, 1, CRC32C_TABLE, rows, headers) == 1
    assert headers[:2] == b"\x02n"
    return bytes(headers[2 : rows[11] - length])


def write(value: int) -> bytes:
    out = bytearray(12)
    end = write_varint(out, 1, value)
    assert out[end:] == bytes(12 - end), "nothing is written after the number"
    return bytes(out[1:end])


@pytest.mark.parametrize("value", [0, 1, 63, 64, 8_191, 8_192, (1 << 20) - 1, 1 << 20])
def test_twins_write_vectors_alike(value: int, hot: Hot) -> None:
    assert write_compiled(hot("wire/liftbridge"), value) == write(value) == encode_varint(value)


@given(st.integers(-LIMIT, LIMIT - 1))
def test_written_numbers_are_read(value: int) -> None:
    data = write(value)
    assert data == encode_varint(value)
    assert read_varint(data, 0, len(data)) == (value, len(data))


@given(st.integers(-1, LIMIT - 1))
def test_the_bytes_of_a_number_are_known_before_it_is_written(value: int) -> None:
    assert varint_bytes(value) == len(write(value))
