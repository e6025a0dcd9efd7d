"""Compaction interrupted at every file operation: old segments or new ones, never a mixture."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from itertools import count
from typing import NamedTuple

import pytest

from bascule.errors import CorruptData, LogFailed
from bascule.host.real import RealRandom
from bascule.record.batch import Record
from bascule.sim.disk import SHORT, RandomChoices, SimFiles
from bascule.storage.compaction import replacement_manifest
from bascule.storage.compaction.replacement_manifest import ReplacementManifest
from bascule.storage.compaction.run import CompactionConfig, grouped
from bascule.storage.partition_log import PartitionLog
from support.keyed_logs import (
    Model,
    append_keyed,
    check,
    close_segment,
    closed_end,
    compact,
    compaction,
    held,
    open_keyed,
    tail_of,
    verify_all,
)
from support.stored_batches import DIRECTORY

NOW = 9_000
ERRORS = pytest.mark.parametrize("error", [errno.EIO, SHORT], ids=["EIO", "short"])


class Prepared(NamedTuple):
    """A log that was compacted once and is dirty again."""

    log: PartitionLog
    before: Model
    after: Model
    ranges: list[tuple[int, int]]
    """The offset range of each group of segments that is replaced at once."""


def prepare(files: SimFiles) -> Prepared:
    log, model = open_keyed(files), Model()
    dice = RandomChoices(RealRandom(1))

    def write(batches: int, keys: int) -> None:
        for _ in range(batches):
            pairs: list[tuple[bytes | None, bytes | None]] = [
                (b"%d" % dice.below(keys), dice.pick((0, 1, 2)) * b"value" * 4 or None)
                for _ in range(5)
            ]
            append_keyed(log, model, [*pairs, (None, b"no key")])

    write(20, 25)
    close_segment(log)
    done = compact(files, log, now_ms=7_000)
    model.compact(done.clean_offset, 7_000, tail=tail_of(log))
    check(log, model)
    write(14, 25)
    close_segment(log)
    write(2, 25)
    log.sync()
    after = deepcopy(model)
    after.compact(closed_end(log), NOW, tail=tail_of(log))
    closed, sizes = log.replacement.closed_segments(), CompactionConfig(2_000, 0)
    ranges = [
        (group[0][0].base_offset, group[-1][1]) for group in grouped(closed, sizes, lambda _: None)
    ]
    assert len(ranges) >= 2
    assert len(ranges) < len(closed)
    return Prepared(log, model, after, ranges)


def check_old_or_new(log: PartitionLog, prepared: Prepared) -> None:
    found = held(log)
    old, new = prepared.before.records(), prepared.after.records()
    for start, end in [*prepared.ranges, (prepared.ranges[-1][1], log.end.offset)]:
        part = _within(found, start, end)
        assert part in (_within(old, start, end), _within(new, start, end))
    assert log.end.offset == prepared.before.records()[-1].offset + 1
    verify_all(log)


def _within(records: list[Record], start: int, end: int) -> list[Record]:
    return [record for record in records if start <= record.offset < end]


def faults(error: int, *, step: int = 1) -> Iterator[tuple[SimFiles, Prepared]]:
    """A compaction for each n, or each `step`-th n, in which file operation n has failed."""
    for n in count(1, step):
        files = SimFiles(RealRandom(n))
        prepared = prepare(files)
        files.fail(n, error)
        try:
            compact(files, prepared.log, now_ms=NOW)
        except (OSError, CorruptData):
            pass
        else:
            if files.fault_pending():
                assert n > 100, "the run has too few operations for this test"
                return
        files.forget_faults()
        yield files, prepared


def finish_and_check(files: SimFiles, log: PartitionLog, prepared: Prepared) -> None:
    check_old_or_new(log, prepared)
    compact(files, log, now_ms=NOW)
    check(log, prepared.after)
    verify_all(log)


@ERRORS
def test_the_process_continues_after_any_failure(error: int) -> None:
    for files, prepared in faults(error, step=1 if error == errno.EIO else 3):
        log = prepared.log
        check_old_or_new(log, prepared)
        log.checkpoint(high_watermark=log.end.offset)
        finish_and_check(files, log, prepared)
        log.close()
        check(open_keyed(files), prepared.after)
        leftovers = [n for n in files.list_dir(DIRECTORY) if n.endswith((".cleaned", "swap"))]
        assert not leftovers


def test_a_restart_after_any_failure() -> None:
    for files, prepared in faults(SHORT):
        log = open_keyed(files)
        finish_and_check(files, log, prepared)


def test_a_power_loss_after_any_operation() -> None:
    for files, prepared in faults(errno.EIO):
        files.crash()
        log = open_keyed(files)
        # Once more, for the unsynced operations of the opening.
        files.crash()
        log = open_keyed(files)
        finish_and_check(files, log, prepared)


def test_a_power_loss_while_opening_completes_a_segment_replacement() -> None:
    """A crash at each operation of the replacement, then at operations of the completing open."""
    dice = RandomChoices(RealRandom(1))
    for files, prepared in faults(errno.EIO, step=2):
        files.crash()
        for _ in range(3):
            files.fail(1 + dice.below(25), errno.EIO)
            try:
                open_keyed(files)
            except OSError:
                pass
            files.crash()
        finish_and_check(files, open_keyed(files), prepared)


def test_a_cancelled_run_leaves_no_files() -> None:
    for steps in count(1):
        files = SimFiles(RealRandom(steps))
        prepared = prepare(files)
        run = compaction(files, prepared.log, now_ms=NOW).steps()
        taken = sum(1 for _ in zip(range(steps), run, strict=False))
        run.close()
        assert not [n for n in files.list_dir(DIRECTORY) if n.endswith(".cleaned")]
        check_old_or_new(prepared.log, prepared)
        if taken < steps:
            break
    check(prepared.log, prepared.after)
    assert steps > 6


def test_retention_may_remove_segments_during_a_compaction() -> None:
    for step in count(1):
        files = SimFiles(RealRandom(step))
        prepared = prepare(files)
        log = prepared.log
        run = compaction(files, log, now_ms=NOW).steps()
        taken = sum(1 for _ in zip(range(step), run, strict=False))
        start = (prepared.ranges[0][1] + prepared.ranges[1][1]) // 2
        log.advance_start(start, high_watermark=log.end.offset)
        for _ in run:
            pass
        expected = [r for r in prepared.after.records() if r.offset >= start]
        newest = {r.key: r for r in expected if r.key is not None}
        assert [r for r in held(log) if r.key is None] == [r for r in expected if r.key is None]
        for record in held(log):
            if record.key is not None and record.offset < prepared.ranges[-1][1]:
                assert newest[record.key].offset >= record.offset
        log.close()
        log = open_keyed(files)
        assert held(log)[0].offset >= start
        verify_all(log)
        if taken < step:
            return


def test_a_damaged_manifest_is_refused_and_nothing_is_removed() -> None:
    files = SimFiles(RealRandom(1))
    prepared = prepare(files)
    prepared.log.close()
    names = files.list_dir(DIRECTORY)
    data = replacement_manifest.encode_manifest(ReplacementManifest((0, 12), ((0, 77),)))
    path = f"{DIRECTORY}/{replacement_manifest.FILE_NAME}"
    for at in range(len(data)):
        file = files.open(path, create=True)
        file.truncate(0)
        file.append(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(CorruptData) as refused:
            open_keyed(files)
        assert refused.value.file == path
        assert files.list_dir(DIRECTORY) == sorted([*names, replacement_manifest.FILE_NAME])
    file = files.open(path)
    file.truncate(0)
    file.append(data)
    with pytest.raises(CorruptData, match="77 bytes"):
        open_keyed(files)
    assert files.list_dir(DIRECTORY) == sorted([*names, replacement_manifest.FILE_NAME])


@ERRORS
def test_nothing_is_compacted_where_recovery_may_begin_after_a_failed_truncation(
    error: int,
) -> None:
    """The lower checkpoint may be on the disk although its directory could not be synced."""
    for number in count(1):
        files = SimFiles(RealRandom(1))
        log, model = open_keyed(files), Model()
        for _ in range(30):
            append_keyed(log, model, [(b"k", b"a" * 300)])
        close_segment(log)
        files.fail(number, error)
        with suppress(OSError, LogFailed):
            log.truncate_to(10, 1, high_watermark=10)
        if files.fault_pending():
            return
        if log.failure is None and log.end.offset == 30:
            compact(files, log, now_ms=NOW)
            assert open_keyed(files).end.offset == 30
            log.checkpoint(high_watermark=10)
            compact(files, log, now_ms=NOW)
            assert open_keyed(files).end.offset == 30


def test_a_log_that_loses_what_was_not_synced_ends_with_a_batch() -> None:
    """No copy reaches the end of a log that ends with removed records. Its leader sends nothing,
    and where too few replicas are in sync, takes no record that would help."""
    files = SimFiles(RealRandom(9))
    log, model = open_keyed(files), Model()
    append_keyed(log, model, [(b"a", b"1"), (b"b", b"1")])
    append_keyed(log, model, [(b"a", None)])
    close_segment(log)
    append_keyed(log, model, [(b"c", b"1")])
    for now_ms in (10_000, 20_000):
        compact(files, log, now_ms=now_ms, retention_ms=500)
    files.crash()
    after = open_keyed(files)
    assert after.end.offset == 3
    assert [(r.offset, r.key, r.value) for r in held(after)] == [(1, b"b", b"1"), (2, b"a", None)]
    append_keyed(after, model, [(b"c", b"1")])
    after.sync()
    compact(files, after, now_ms=30_000, retention_ms=500)
    assert [r.key for r in held(after)] == [b"b", b"c"]
