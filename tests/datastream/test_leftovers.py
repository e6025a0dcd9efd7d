"""Payloads that no record names are removed after some time."""

from __future__ import annotations

import errno

import pytest

from bascule.datastream.disk.leftovers import Leftovers
from bascule.datastream.limits import DataStreamCounts, DataStreamLimits
from bascule.host.real import RealRandom
from bascule.record.payload_links import Payload
from bascule.sim.disk import SimClock, SimFiles
from support.payload_logs import have_whole, id_of, opened

STREAM = b"s" * 16


def test_one_that_cannot_be_removed_keeps_no_other() -> None:
    files, clock, counts = SimFiles(RealRandom(1)), SimClock(0), DataStreamCounts()
    log = opened(files)
    for number in range(5):
        have_whole(log.payloads, Payload(id_of(number), 100, 7), bytes(100))
    limits = DataStreamLimits()
    leftovers = Leftovers(clock, limits, counts, is_used=lambda _: False)
    leftovers.remove(STREAM, 0, log)
    assert len(log.payloads.whole_ids()) == 5
    clock.ms += limits.unlinked_ms_max + 1
    files.fail(2, errno.EIO)
    with pytest.raises(OSError, match="EIO"):
        leftovers.remove(STREAM, 0, log)
    assert (counts.unlinked_removed, counts.unlinked_bytes_removed) == (4, 400)
    leftovers.remove(STREAM, 0, log)
    assert log.payloads.whole_ids() == []
    assert counts.unlinked_removed == 5
