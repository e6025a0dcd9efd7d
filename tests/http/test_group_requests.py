"""What requests about groups may say."""

from __future__ import annotations

import pytest

from bascule.http.groups import ResetOffsetsRequest
from bascule.http.requests import NUMBER_MAX as LARGEST
from bascule.http.requests import MalformedRequest, PurgeRequest, decode_body


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{}", "exactly one of"),
        ('{"to": "latest", "offset": 1}', "exactly one of"),
        ('{"offset": -1}', "offset must be at least 0, got -1"),
        (f'{{"offset": {LARGEST + 1}}}', f"offset must be at most {LARGEST}, got {LARGEST + 1}"),
        (f'{{"timestamp_ms": {1 << 70}}}', f"timestamp_ms must be at most {LARGEST}, got"),
        (f'{{"shift_by": {1 << 70}}}', f"shift_by must be at most {LARGEST}, got"),
        (f'{{"shift_by": {-(1 << 70)}}}', f"shift_by must be at least {-LARGEST}, got"),
        (f'{{"to": "latest", "stream": "s", "partition": {1 << 70}}}', "partition must be at most"),
        ('{"to": "latest", "partition": 0}', "partition needs stream"),
    ],
)
def test_resets_that_are_refused(body: str, says: str) -> None:
    with pytest.raises(MalformedRequest, match=says):
        decode_body(body.encode(), ResetOffsetsRequest)


def test_numbers_of_any_request_have_64_bits() -> None:
    with pytest.raises(MalformedRequest, match=f"to_offset must be at most {LARGEST}, got"):
        decode_body(b'{"to_offset": %d}' % (1 << 64), PurgeRequest)


@pytest.mark.parametrize("by", [-LARGEST, -1, 0, LARGEST])
def test_a_shift_may_go_past_the_ends(by: int) -> None:
    asked = decode_body(b'{"shift_by": %d}' % by, ResetOffsetsRequest)
    assert asked.shift_by == by
