"""Compaction may make a segment larger: a delete horizon changes the timestamp deltas."""

from __future__ import annotations

from bascule.host.real import RealRandom
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.sim.disk import SimFiles
from bascule.storage.partition_log import LogConfig
from support.keyed_logs import close_segment, compact
from support.stored_batches import open_log, read_records

DAY_MS = 86_400_000


def test_an_end_from_before_is_read_up_to_the_end_of_the_larger_segment() -> None:
    files = SimFiles(RealRandom(1))
    log = open_log(files, LogConfig(gaps_allowed=True))
    log.append(build_batch([Record(0, 1_000, b"k", None)], base_offset=0, log_append_time=True))
    end = log.end
    close_segment(log)
    size = log.segments_info()[0].bytes
    compact(files, log, now_ms=1_000 + 7 * DAY_MS, retention_ms=DAY_MS)
    assert log.segments_info()[0].bytes > size
    piece = log.plan_read(0, bytes_max=1 << 20, end=end)
    assert piece is not None
    assert piece.length == log.segments_info()[0].bytes
    assert [record.key for record in read_records(log)] == [b"k"]
