"""Times to live as the header `Nats-TTL` has them, by both twins."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.record import _hot as record_hot
from bascule.record._hot_ttl import read_ttl
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.header import HEADER_BYTES

MINUTE, HOUR = 60_000, 3_600_000
TEXTS = {
    b"1": 1_000,
    b"90": 90_000,
    b"0090": 90_000,
    b"1s": 1_000,
    b"1.5s": 1_500,
    b"1.0004s": 1_000,
    b"1500ms": 1_500,
    b"1h30m": HOUR + 30 * MINUTE,
    b"1h0m1s": HOUR + 1_000,
    b"2.5h": 2 * HOUR + 30 * MINUTE,
    b"3155759999": 3_155_759_999_000,
    b"3155760000": None,
    b"99999999999": None,
    b"9999999999h": None,
    b"876600h": None,
    b"0": None,
    b"999ms": None,
    b"0s": None,
    b"1d": None,
    b"1h30": None,
    b"1.s": None,
    b".5s": None,
    b"1.5": None,
    b"1 s": None,
    b"-5s": None,
    b"1m s": None,
    b"1sm": None,
    b"never": 0,
    b"NEVER": 0,
    b"nevers": None,
    b"": None,
    b"1s" * 17: None,
}
"""Text -> milliseconds, 0 for never; None if it is refused."""


def in_a_row(hot: Callable[[str], ModuleType], text: bytes) -> int | None:
    """The time to live that a table has for a record with this header."""
    data = bytes(build_batch([Record(0, 0, b"k", b"v", (("Nats-TTL", text),))], base_offset=0))
    positions = array("q", bytes(8 * record_hot.POSITION_FIELDS))
    record_hot.index_records(data, HEADER_BYTES, len(data), 1, positions, array("q", [0] * 4))
    rows: list[tuple[bytes, int, int, bytes | None, str | None, int | None]] = []
    hot("tables").read_rows(data, positions, 1, 0, 0, -1, b"", 0, rows, [])
    return rows[0][5]


@pytest.mark.parametrize("text", TEXTS)
def test_a_time_to_live(hot: Callable[[str], ModuleType], text: bytes) -> None:
    assert in_a_row(hot, text) == TEXTS[text]


@given(st.text("0123456789.hms neverx", max_size=12))
def test_any_text_is_read_alike(hot: Callable[[str], ModuleType], text: str) -> None:
    data = b"<" + text.encode() + b">9"
    found = read_ttl(data, 1, 1 + len(text))
    assert found == -1 or found == 0 or found >= 1_000
    assert in_a_row(hot, text.encode()) == (None if found < 0 else found)
