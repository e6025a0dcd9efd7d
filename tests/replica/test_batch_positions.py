"""The byte position of an offset in a log."""

from __future__ import annotations

import pytest

from bascule.host.real import RealRandom
from bascule.replica.roles.batch_positions import position_of
from bascule.sim.disk import SimFiles
from support.keyed_logs import Model, append_keyed, close_segment, compact, held, open_keyed


@pytest.mark.parametrize("nowait", [False, True])
def test_an_offset_that_only_removed_records_follow_is_the_end(nowait: bool) -> None:
    """A truncation after an unclean election may leave that."""
    files = SimFiles(RealRandom(1))
    log, model = open_keyed(files), Model()
    append_keyed(log, model, [(b"a", b"1")])
    append_keyed(log, model, [(b"c", b"1")])
    append_keyed(log, model, [(b"a", None)])
    close_segment(log)
    append_keyed(log, model, [(b"z", b"1")])
    close_segment(log)
    log.sync()
    for now_ms in (10, 20_000):
        compact(files, log, now_ms=now_ms, committed_end=4)
    log.truncate_to(3, 1, high_watermark=0)
    assert [each.offset for each in held(log)] == [1]
    assert position_of(log, 2, nowait=nowait) == log.end
    found = position_of(log, 1, nowait=nowait)
    assert found is not None
    assert found.offset == 1
