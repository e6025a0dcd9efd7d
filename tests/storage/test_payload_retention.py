"""Retention by bytes counts payloads with their records."""

from __future__ import annotations

import errno

import pytest

from bascule.host.real import RealRandom
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.header import LOG_APPEND_TIME, PAYLOAD_LINKS, seal
from bascule.record.payload_links import Payload
from bascule.sim.disk import SimFiles
from bascule.storage.partition_log import LogConfig
from bascule.storage.payloads.payload_log import PayloadLog
from bascule.storage.retention import RetentionLimits, exceeds_limits, plan_retention, segments_of
from support.payload_logs import have_whole, opened

SIZE = 10_000
LIMITS = RetentionLimits(bytes_max=8 * SIZE)


def append(log: PayloadLog, number: int) -> None:
    """A record with a payload of SIZE bytes."""
    payload = Payload(f"{number:032x}", SIZE, 7)
    have_whole(log.payloads, payload, bytes(SIZE))
    offset = log.end.offset
    batch = build_batch([Record(offset, 0, b"k", b"", payload.headers())], base_offset=offset)
    seal(
        batch, record_count=1, base_timestamp=1, max_timestamp=1,
        attributes=LOG_APPEND_TIME | PAYLOAD_LINKS, base_offset=offset, leader_epoch=0,
    )  # fmt: skip
    log.append(batch)
    log.sync()


@pytest.mark.parametrize("operation", range(1, 7))
def test_one_file_that_cannot_be_removed_keeps_no_other(operation: int) -> None:
    files = SimFiles(RealRandom(1))
    log = opened(files, LogConfig(segment_messages_max=2))
    for number in range(8):
        append(log, number)
    log.advance_start(6, high_watermark=8)
    files.fail(operation, errno.EIO)
    with pytest.raises(OSError, match="EIO"):
        log.sweep()
    assert log.payloads.linked_bytes == 3 * SIZE
    assert log.sweep() == SIZE
    assert log.payloads.linked_bytes == 2 * SIZE


def test_segments_have_the_bytes_of_their_payloads() -> None:
    files = SimFiles(RealRandom(1))
    log = opened(files, LogConfig(segment_messages_max=2))
    for number in range(4):
        append(log, number)
        here = SIZE * (number % 2 + 1)
        assert here < log.active_bytes < here + 1_000
    assert not exceeds_limits(log, RetentionLimits(bytes_max=100 * SIZE))
    for number in range(4, 12):
        append(log, number)
    assert exceeds_limits(log, LIMITS)
    assert 12 * SIZE < log.size_bytes() < 13 * SIZE
    plan = plan_retention(
        segments_of(log), LIMITS, start_offset=0, now_ms=0, end_offset=log.end.offset
    )
    assert plan.start_offset == 4, "what remains has the limit still"
    log.advance_start(plan.start_offset, high_watermark=log.end.offset)
    log.sweep()
    assert 8 * SIZE < log.size_bytes() < 9 * SIZE
    assert log.payloads.linked_bytes == 8 * SIZE
    sized, plain = segments_of(log), log.segments_info()
    assert [a.bytes - b.bytes for a, b in zip(sized, plain, strict=True)] == [2 * SIZE] * 4
    log.truncate_to(10, 0, high_watermark=10)
    assert log.payloads.linked_bytes == 6 * SIZE, "one without a record does not count"
