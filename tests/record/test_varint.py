"""One reader of varints in all hot modules: vectors, and what any bytes give on both twins."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.record._hot_varint import read_varint
from bascule.record.builder import encode_varint

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
"""Bytes -> the number, or None where they are refused."""


def read_compiled(hot: ModuleType, data: bytes) -> tuple[int, int]:
    """What a hot module reads as a record's timestamp delta; nothing follows it in the record."""
    body = b"\0" + data
    record = encode_varint(len(body)) + body
    whole = record[:1] + body + b"\0\1\1\0"
    whole = encode_varint(len(whole) - 1) + whole[1:]
    positions, state = array("q", bytes(64)), array("q", bytes(32))
    if hot.index_records(whole, 0, len(whole), 1, positions, state) == 1:
        return positions[1], len(whole) - 6
    return 0, -1


@pytest.mark.parametrize("text", VECTORS)
def test_vectors(text: str, hot: Hot) -> None:
    data, expected = bytes.fromhex(text), VECTORS[text]
    found = (0, -1) if expected is None else (expected, len(data))
    assert read_varint(data, 0, len(data)) == found
    assert read_varint(b"\xff" + data + b"\0", 1, 1 + len(data))[0] == found[0]
    if data and data[-1] < 0x80:
        assert read_compiled(hot("record"), data) == found


@given(st.integers(-LIMIT, LIMIT - 1), st.binary(max_size=4))
def test_what_is_written_is_read(value: int, after: bytes) -> None:
    data = encode_varint(value)
    assert len(data) <= 10
    assert read_varint(data + after, 0, len(data) + len(after)) == (value, len(data))
    for end in range(len(data)):
        assert read_varint(data + after, 0, end) == (0, -1)


@given(st.lists(st.integers(0x80, 0xFF), max_size=11), st.integers(0, 0x7F))
def test_twins_agree_on_any_varint(hot: Hot, head: list[int], last: int) -> None:
    data = bytes([*head, last])
    assert read_compiled(hot("record"), data) == read_varint(data, 0, len(data))
    if len(data) > 10:
        assert read_varint(data, 0, len(data)) == (0, -1)
