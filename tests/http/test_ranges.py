"""Which bytes a request asks for."""

from __future__ import annotations

import pytest

from bascule.http.payloads.ranges import range_of

SIZE = 1_000


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=990-", (990, SIZE)),
        ("bytes=-10", (990, SIZE)),
        ("bytes=-5000", (0, SIZE)),
        ("Bytes=0-1", (0, 2)),
        ("BYTES=-1", (999, SIZE)),
        ("bytes=0-" + "9" * 19, (0, SIZE)),
        ("bytes=0-" + "9" * 9_000, (0, SIZE)),
        ("bytes=-" + "9" * 40, (0, SIZE)),
        ("bytes=" + "0" * 30 + "5-" + "0" * 30 + "6", (5, 7)),
        ("bytes=-", None),
        ("bytes=9-8", None),
        ("bytes=" + "9" * 30 + "-8", None),
        ("bytes=0-1,5-6", None),
        ("bytes=\u0661-", None),
        ("items=0-1", None),
        ("", None),
    ],
)
def test_ranges(field: str, expected: tuple[int, int] | None) -> None:
    assert range_of({"range": field}, '"a"', SIZE) == expected


@pytest.mark.parametrize(
    "field", ["bytes=1000-", "bytes=1000-2000", "bytes=-0", "bytes=" + "9" * 30 + "-"]
)
def test_ranges_without_a_byte(field: str) -> None:
    with pytest.raises(ValueError, match="range"):
        range_of({"range": field}, '"a"', SIZE)
