"""Records of internal streams, encoded by the compiled function and its interpreted twin."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.record.builder import encode_record

Hot = Callable[[str], ModuleType]

VALUES = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=100), VALUES), max_size=4).map(tuple)
RECORDS = st.lists(st.tuples(VALUES, VALUES, HEADERS), min_size=1, max_size=150)


@given(records=RECORDS, room=st.integers(0, 70))
def test_records_are_those_of_the_builder(hot: Hot, records: list[object], room: int) -> None:
    expected = b"".join(
        encode_record(key, value, headers, offset_delta=row)
        for row, (key, value, headers) in enumerate(records)  # type: ignore[misc]
    )
    assert hot("record/_hot_encode").encode_records(records, room) == bytes(room) + expected


def test_lengths_of_several_bytes(hot: Hot) -> None:
    record = (bytes(63), bytes(64), (("x" * 8_191, bytes(8_192)), ("n", bytes(1 << 20))))
    expected = encode_record(*record, offset_delta=0)
    assert hot("record/_hot_encode").encode_records([record], 0) == expected


def test_what_is_not_bytes_is_refused(hot: Hot) -> None:
    with pytest.raises((TypeError, AttributeError)):
        hot("record/_hot_encode").encode_records([(b"", 5, ())], 0)
