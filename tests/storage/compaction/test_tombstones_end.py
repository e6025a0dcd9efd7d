"""The end of the tombstones that a log lacks: it is on the disk before the first of them goes."""

from __future__ import annotations

import pytest

from bascule.host.real import RealRandom
from bascule.sim.disk import SimFiles
from bascule.storage.appended_batches import GAPS_FILE_NAME
from bascule.storage.compaction.tombstones_end import (
    FILE_NAME,
    raise_tombstones_end,
    read_tombstones_end,
)
from support.keyed_logs import Model, append_keyed, close_segment, compact, held, open_keyed
from support.stored_batches import DIRECTORY

PATH = f"{DIRECTORY}/{FILE_NAME}"


def known(files: SimFiles) -> int:
    return read_tombstones_end(files, DIRECTORY, log_end=99)


def test_a_run_notes_the_last_tombstone_that_it_removes() -> None:
    files = SimFiles(RealRandom(1))
    log, model = open_keyed(files), Model()
    assert known(files) == 0, "nothing was ever removed"
    append_keyed(log, model, [(b"a", b"1"), (b"a", None)])
    append_keyed(log, model, [(b"b", b"1"), (b"b", None), (b"c", b"1")])
    append_keyed(log, model, [(b"d", b"1")])
    close_segment(log)
    append_keyed(log, model, [(b"z", b"1")])
    log.sync()
    compact(files, log, now_ms=10)
    assert known(files) == 0, "the tombstones are still there"
    compact(files, log, now_ms=20_000)
    assert [each.key for each in held(log)] == [b"c", b"d", b"z"]
    assert known(files) == 5, "the end of the batch of the last one"
    files.crash()
    assert known(files) == 5
    log.start_at(40, 0)
    assert known(files) == 0


def test_a_crash_in_a_run_leaves_no_removed_tombstone_unnoted() -> None:
    for operation in range(1, 200):
        files = SimFiles(RealRandom(operation))
        log, model = open_keyed(files), Model()
        append_keyed(log, model, [(b"a", b"1"), (b"a", None), (b"b", b"1")])
        close_segment(log)
        append_keyed(log, model, [(b"z", b"1")])
        log.sync()
        compact(files, log, now_ms=10)
        files.fail(operation, 5)
        try:
            compact(files, log, now_ms=20_000)
        except OSError:
            pass
        is_hit = not files.fault_pending()
        files.crash()
        log = open_keyed(files)
        has_tombstone = any(each.value is None for each in held(log))
        assert has_tombstone or known(files) == 3
        if not is_hit:
            assert operation > 10
            return
    pytest.fail("the faults do not end")


def test_it_only_grows_and_damage_counts_as_everything() -> None:
    files = SimFiles(RealRandom(1))
    open_keyed(files)
    for end, expected in ((7, 7), (3, 7), (9, 9)):
        raise_tombstones_end(files, DIRECTORY, end, log_end=99)
        assert known(files) == expected
    data = files.read_bytes(PATH)
    for at in (0, 8, 12, 19):
        file = files.open(PATH)
        file.write_at(at, bytes([data[at] ^ 1]))
        assert known(files) == 99
        file.write_at(at, data[at : at + 1])
    assert known(files) == 9


@pytest.mark.parametrize("name", [GAPS_FILE_NAME, "clean-offset"])
def test_a_log_that_an_earlier_release_compacted_may_lack_anything(name: str) -> None:
    files = SimFiles(RealRandom(1))
    open_keyed(files)
    files.open(f"{DIRECTORY}/{name}", create=True)
    assert known(files) == 99
    raise_tombstones_end(files, DIRECTORY, 0, log_end=50)
    assert known(files) == 50


def test_the_last_committed_record_stays_though_others_follow() -> None:
    """These may be lost. A copy of a log that ends with removed records would not reach its end."""
    files = SimFiles(RealRandom(1))
    log, model = open_keyed(files), Model()
    append_keyed(log, model, [(b"a", b"1")])
    append_keyed(log, model, [(b"a", None)])
    close_segment(log)
    append_keyed(log, model, [(b"z", b"1")])
    log.sync()
    for now_ms in (10, 20_000):
        compact(files, log, now_ms=now_ms, committed_end=2)
    assert [each.offset for each in held(log)] == [1, 2]
    log.truncate_to(2, 0, high_watermark=2)
    piece = log.plan_read(1, bytes_max=1 << 20, end=log.end)
    assert piece is not None
    assert piece.length > 0
    append_keyed(log, model, [(b"y", b"1")])
    log.sync()
    compact(files, log, now_ms=40_000, committed_end=3)
    assert [each.offset for each in held(log)] == [2]
