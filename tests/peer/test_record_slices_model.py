"""`plan_records` while its log changes between the look-ups, against a plain list of batches."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bascule.errors import BasculeError
from bascule.host.real import RealRandom
from bascule.peer.record_slices import SEGMENTS_MAX, plan_records
from bascule.record.batch import scan_batches
from bascule.record.header import read_header
from bascule.sim.disk import SimFiles
from bascule.storage.compaction.run import Compaction, CompactionConfig
from bascule.storage.partition_log import FileSlice, LogConfig, PartitionLog
from bascule.storage.segment import FileSlices
from support.keyed_logs import SECRET
from support.stored_batches import make_batch, open_log

CHANGES = st.sampled_from(("append", "roll", "roll twice", "start", "merge", "checkpoint", "cold"))


class ChangingLog:
    def __init__(self, data: st.DataObject) -> None:
        self.data, self.files = data, SimFiles(RealRandom(1))
        self.files.has_operations = False
        self.gaps = data.draw(st.booleans())
        size = data.draw(st.sampled_from((150, 400, 2_000)))
        self.log: PartitionLog = open_log(
            self.files, LogConfig(segment_bytes_max=size, gaps_allowed=self.gaps)
        )
        self.batches: list[bytes] = []

    def change(self, what: str) -> None:
        draw, log = self.data.draw, self.log
        if what == "append":
            for count, size, gap in draw(
                st.lists(
                    st.tuples(
                        st.integers(1, 4), st.sampled_from((10, 200)), st.sampled_from((0, 0, 3))
                    ),
                    min_size=1, max_size=8,
                )
            ):  # fmt: skip
                base = log.end.offset + (gap if self.gaps else 0)
                self.batches.append(make_batch(base, count, size=size))
                log.append_as_follower(self.batches[-1])
            log.sync()
        elif what.startswith("roll"):
            log.roll()
            log.sync()
            log.roll()
        elif what == "start":
            log.sync()
            log.advance_start(draw(st.integers(0, log.end.offset)), high_watermark=log.end.offset)
        elif what == "checkpoint":
            log.sync()
            log.checkpoint(high_watermark=0)
            log.checkpoint(high_watermark=0)
        elif what == "cold":
            self.files.cold = not self.files.cold
        elif what == "merge":
            log.sync()
            log.checkpoint(high_watermark=0)
            closed = log.replacement.closed_segments()
            if closed:
                config = CompactionConfig(draw(st.sampled_from((300, 900, 5_000))), 0)
                end = draw(st.sampled_from([end for _, end in closed]))
                self.gaps = True
                for _ in Compaction(
                    self.files, log, config, end_offset=end, now_ms=9_000, secret=SECRET
                ).steps():
                    pass


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_slices_follow_each_other(data: st.DataObject) -> None:
    changing = ChangingLog(data)
    log = changing.log
    for what in ["append", *data.draw(st.lists(CHANGES, max_size=8))]:
        changing.change(what)
    changing.files.cold = False
    plan, during, calls = log.plan_read, data.draw(st.lists(CHANGES, max_size=6)), 0

    def planned(offset: int, **more: Any) -> FileSlice | None:
        nonlocal calls
        calls += 1
        if calls > 1 and during:
            changing.change(during.pop())
        return plan(offset, **more)

    log.plan_read = planned  # type: ignore[method-assign]
    start, end = log.start_offset, log.end
    offset = data.draw(st.integers(start, end.offset))
    bytes_max = data.draw(st.sampled_from((1, 200, 1_000, 1 << 20)))
    known = [b for b in changing.batches if read_header(b).end_offset > offset]
    try:
        piece = plan_records(
            log, offset, bytes_max=bytes_max, end=end, nowait=data.draw(st.booleans())
        )
    except BasculeError:
        raise AssertionError("nothing has changed before the first look-up") from None
    if piece is None:
        return
    slices = piece.slices if isinstance(piece, FileSlices) else (piece,)
    assert len(slices) <= SEGMENTS_MAX
    assert piece.length <= bytes_max or len(slices) == 1
    got = b"".join(each.file.read_at(each.position, each.length) for each in slices)
    assert len(got) == piece.length
    found = [got[b.start : b.end] for b in scan_batches(got, origin="", origin_position=0)]
    assert found == known[: len(found)]
    assert bool(found) == any(read_header(b).base_offset < end.offset for b in known)
    if any(info.base_offset == end.segment_base for info in log.segments_info()):
        assert all(read_header(b).end_offset <= end.offset for b in found)
