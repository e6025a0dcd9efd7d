"""The limits of a stream, the tightest of which says how much of a batch comes in, and why."""

from __future__ import annotations

import pytest

from bascule.model import Discard, StreamConfig, StreamDefinition
from bascule.publish.acks import (
    DISCARDED_BYTES,
    DISCARDED_MESSAGES,
    RATE_BYTES,
    RATE_MESSAGES,
    AckError,
    AckFormat,
)
from bascule.publish.admission import Admission, LogState
from bascule.publish.headers import HashKey
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.header import HEADER_BYTES

FORM = AckFormat(stream="s", subject="s.>", partition=0, replicas=1, synced=True)
COUNT = 10
RECORD_BYTES = 20
"""Of each record in a batch, its length included."""


def batch() -> UnstampedBatch:
    records = [Record(n, 0, None, bytes(13)) for n in range(COUNT)]
    batch = memoryview(build_batch(records, base_offset=0, log_append_time=True))
    assert len(batch) == HEADER_BYTES + COUNT * RECORD_BYTES
    inboxes = b"".join(b"\0" + n.to_bytes(4, "little") + b"\2\0in" for n in range(COUNT))
    return UnstampedBatch(batch, COUNT, inboxes)


def admission(**limits: int) -> Admission:
    config = StreamConfig("s.>", discard=Discard.NEW, **limits)  # type: ignore[arg-type]
    return Admission(StreamDefinition("s", b"i" * 16, 0, config), FORM, HashKey(bytes(16)))


@pytest.mark.parametrize(
    ("limits", "taken", "error"),
    [
        ({"rate_messages_max": 4}, 4, RATE_MESSAGES),
        ({"retention_messages_max": 7}, 5, DISCARDED_MESSAGES),
        ({"retention_messages_max": 1}, 0, DISCARDED_MESSAGES),
        ({"rate_messages_max": 4, "retention_messages_max": 7}, 4, RATE_MESSAGES),
        ({"rate_messages_max": 6, "retention_messages_max": 7}, 5, DISCARDED_MESSAGES),
        ({"rate_bytes_max": 70, "message_bytes_max": 1}, 3, RATE_BYTES),
        ({"retention_bytes_max": 1_000 + HEADER_BYTES + 45}, 2, DISCARDED_BYTES),
        ({"retention_bytes_max": 1}, 0, DISCARDED_BYTES),
        (
            {"rate_bytes_max": 110, "retention_bytes_max": 1_000 + HEADER_BYTES + 45},
            2,
            DISCARDED_BYTES,
        ),
        ({"rate_bytes_max": 110, "message_bytes_max": 1, "rate_messages_max": 3}, 3, RATE_MESSAGES),
        ({"rate_bytes_max": 110, "message_bytes_max": 1, "rate_messages_max": 8}, 5, RATE_BYTES),
    ],
)
def test_the_tightest_limit_is_named(limits: dict[str, int], taken: int, error: AckError) -> None:
    made = batch()
    evaluation = admission(**limits).admit(made, LogState(12, 10, 1_000), now_ms=1, now_ns=1)
    assert evaluation is not None
    assert made.record_count == taken
    assert len(made.data) == HEADER_BYTES + taken * RECORD_BYTES
    assert evaluation.refusals.count(b"PUB in ") == COUNT - taken
    assert evaluation.refusals.count(b'"description":"%s"' % error.description.encode()) == (
        COUNT - taken
    )


@pytest.mark.parametrize("limits", [{}, {"rate_messages_max": COUNT}, {"rate_bytes_max": 1_000}])
def test_what_no_limit_forbids_comes_in_whole(limits: dict[str, int]) -> None:
    made = batch()
    assert admission(**limits).admit(made, LogState(0, 0, 0), now_ms=1, now_ns=1) is None
    assert made.record_count == COUNT


def test_a_message_larger_than_a_second_of_the_rate_goes_when_nothing_else_went() -> None:
    made, limited = batch(), admission(rate_bytes_max=1, message_bytes_max=5 * RECORD_BYTES)
    limited.admit(made, LogState(0, 0, 0), now_ms=1, now_ns=1)
    assert made.record_count >= 5
    limited.admit(late := batch(), LogState(made.record_count, 0, 0), now_ms=1, now_ns=2)
    assert late.record_count == 0
