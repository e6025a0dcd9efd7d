"""Compaction against a model of plain dicts, with appends, purges and reopening."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.errors import CorruptData
from bascule.host.real import RealRandom
from bascule.model import Compression
from bascule.sim.disk import SimFiles
from bascule.storage.compaction import batch_filter as batch_filter_module
from bascule.storage.compaction.clean_offset import read_clean_offset
from bascule.storage.compaction.keys import key_map as key_map_module
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

FEW_KEYS = st.sampled_from([None, b"", *(b"key-%d" % n for n in range(9)), b"a longer key" * 3])
KEYS = st.one_of(FEW_KEYS, FEW_KEYS, st.integers(0, 200).map(lambda n: b"%d" % n))
VALUES = st.sampled_from([None, b"", b"v", b"value" * 9])
BATCH = st.tuples(
    st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=12),
    st.sampled_from(["plain", "plain", "plain", "gzip", "zstd", "create", "control"]),
)
AFTER = st.one_of(
    st.just("compact"),
    st.just("compact"),
    st.sampled_from(["reopen", "verify", "close"]),
    st.tuples(st.just("purge"), st.floats(0, 1)),
)
ROUND = st.tuples(st.lists(BATCH, min_size=1, max_size=25), st.lists(AFTER, max_size=3))
"""Batches, a roll of their segment, and actions after it."""


@contextmanager
def on_twin(hot: Callable[[str], ModuleType]) -> Iterator[None]:
    keys, copying = hot("storage/compaction/keys"), hot("storage/compaction")
    before = key_map_module._hot, batch_filter_module._hot
    key_map_module._hot = batch_filter_module.key_hot = keys  # type: ignore[assignment]
    batch_filter_module._hot = copying  # type: ignore[assignment]
    try:
        yield
    finally:
        key_map_module._hot, batch_filter_module._hot = before
        batch_filter_module.key_hot = before[0]


@settings(max_examples=60)
@given(
    rounds=st.lists(ROUND, min_size=1, max_size=5), map_bytes=st.sampled_from([1, 3_000, 1 << 20])
)
def test_a_log_agrees_with_a_model(
    hot: Callable[[str], ModuleType],
    rounds: list[tuple[list[object], list[object]]],
    map_bytes: int,
) -> None:
    actions = [action for batches, after in rounds for action in (*batches, "close", *after)]
    with on_twin(hot):
        _run([*actions, "compact"], map_bytes)


def _run(actions: list[object], map_bytes: int) -> None:
    files = SimFiles(RealRandom(1))
    log, model, now = open_keyed(files), Model(), 10_000
    for action in actions:
        now += 300
        match action:
            case "close":
                close_segment(log)
            case "compact":
                # A full map ends the run early, so repeat runs until one is complete.
                while True:
                    before = model.clean_offset
                    done = compact(files, log, now_ms=now, map_bytes_max=map_bytes)
                    model.compact(done.clean_offset, now, tail=tail_of(log))
                    check(log, model)
                    assert done.clean_offset >= before
                    if not done.map_is_full:
                        break
                    assert done.clean_offset > before, "each run makes progress"
                assert read_clean_offset(files, DIRECTORY) == (
                    model.clean_offset,
                    model.horizon_ms(now_ms=now, tail=tail_of(log)),
                )
            case "reopen":
                log.close(high_watermark=log.end.offset)
                log = open_keyed(files)
            case "verify":
                verify_all(log)
            case ("purge", float(share)):
                log.sync()
                span = log.end.offset - log.start_offset
                offset = log.start_offset + int(share * span)
                log.advance_start(offset, high_watermark=log.end.offset)
                model.start_offset = log.start_offset
            case (list(pairs), str(kind)):
                codec = Compression(kind) if kind in ("gzip", "zstd") else Compression.NONE
                append_keyed(
                    log, model, pairs, codec=codec,
                    append_time=kind != "create", control=kind == "control",
                )  # fmt: skip
    log.close(high_watermark=log.end.offset)
    log = open_keyed(files)
    check(log, model)
    verify_all(log)


def test_after_a_run_each_key_has_one_record_below_the_clean_offset() -> None:
    files = SimFiles(RealRandom(2))
    log, model = open_keyed(files), Model()
    dice = RealRandom(3)
    for _ in range(60):
        keys = [b"%d" % int(dice.uniform(0, 40)) for _ in range(8)]
        append_keyed(log, model, [(key, b"v") for key in keys])
    close_segment(log)
    append_keyed(log, model, [(b"1", b"in the active segment")])
    done = compact(files, log, now_ms=5_000)
    below = [r.key for r in held(log) if r.offset < done.clean_offset]
    assert done.clean_offset == closed_end(log)
    assert len(below) == len(set(below)) == 40
    assert done.records_removed == 480 - 40
    assert held(log)[-1].value == b"in the active segment"
    sizes = [info.bytes for info in log.segments_info()]
    assert log.size_bytes() == sum(sizes)
    second = compact(files, log, now_ms=6_000)
    assert second.records_removed == 0
    assert second.keys == 0
    assert len(log.segments_info()) == 2, "small adjacent segments are merged"


@pytest.mark.parametrize("codec", Compression)
def test_a_record_that_is_there_is_found_by_its_time(codec: Compression) -> None:
    """Batches keep the offsets that they had, whatever is left of them."""
    files, model = SimFiles(RealRandom(1)), Model()
    log = open_keyed(files)
    for n in range(40):
        pairs: list[tuple[bytes | None, bytes | None]] = [
            (b"%d" % (key if n % 3 else 100 * n + key), b"v") for key in range(7)
        ]
        append_keyed(log, model, pairs[n % 5 :], timestamp=1_000 + n, codec=codec)
        append_keyed(log, model, [(b"0", b"w"), (b"9", b"w")], timestamp=1_000 + n, codec=codec)
    close_segment(log)
    compact(files, log, now_ms=2_000)
    assert any(r.offset not in model.batches for r in held(log)), "a batch lacks its first record"
    for start in (0, log.end.offset // 2, log.end.offset - 3):
        log.advance_start(start, high_watermark=log.end.offset)
        records = held(log)
        for timestamp in range(999, 1_042):
            there = ((r.offset, r.timestamp) for r in records if r.timestamp >= timestamp)
            assert log.find_timestamp(timestamp, end=log.end) == next(there, None)


def test_readers_continue_during_a_compaction() -> None:
    """A reader that keeps its slices reads every kept record once during a compaction."""
    files = SimFiles(RealRandom(4))
    log, model = open_keyed(files), Model()
    dice = RealRandom(5)
    for _ in range(120):
        keys = [b"%d" % int(dice.uniform(0, 60)) for _ in range(6)]
        append_keyed(log, model, [(key, b"v" * 20) for key in keys])
    close_segment(log)
    survivors = {r.offset for r in model.records()}
    run = compaction(files, log, now_ms=5_000)
    steps = run.steps()
    seen: list[int] = []
    offset = 0
    verified = log.verify(None)
    while offset < log.end.offset:
        next(steps, None)
        piece = log.plan_read(offset, bytes_max=300, end=log.end)
        assert piece is not None
        next(steps, None)
        data = piece.file.read_at(piece.position, piece.length)
        offset = _read_whole_batches(data, seen)
        verified = log.verify(verified) if verified else None
    for _ in steps:
        pass
    model.compact(run.done.clean_offset, 5_000, tail=tail_of(log))
    assert seen == sorted(set(seen)), "nothing twice, nothing out of order"
    assert {r.offset for r in model.records()} <= set(seen) <= survivors


def _read_whole_batches(data: bytes, seen: list[int]) -> int:
    from bascule.record.batch import RecordBatch, scan_batches

    end = 0
    for header, start, stop in scan_batches(data):
        seen.extend(record.offset for record in RecordBatch(data[start:stop]))
        end = header.end_offset
    assert end > 0, "a slice holds at least one whole batch"
    return end


def test_a_tombstone_is_kept_for_its_retention_and_then_removed() -> None:
    files = SimFiles(RealRandom(6))
    log, model = open_keyed(files), Model()
    append_keyed(log, model, [(b"a", b"1"), (b"b", b"1"), (b"c", b"")])
    append_keyed(log, model, [(b"a", None), (None, None)])
    append_keyed(log, model, [(None, b"")])
    close_segment(log)
    compact(files, log, now_ms=10_000, retention_ms=500)
    assert [(r.key, r.value) for r in held(log)] == [
        (b"b", b"1"), (b"c", b""), (b"a", None), (None, None), (None, b""),
    ]  # fmt: skip
    assert read_clean_offset(files, DIRECTORY) == (6, 10_500)
    compact(files, log, now_ms=10_499, retention_ms=500)
    assert (b"a", None) in [(r.key, r.value) for r in held(log)], "the first horizon counts"
    compact(files, log, now_ms=10_500, retention_ms=500)
    assert [(r.key, r.value) for r in held(log)] == [
        (b"b", b"1"), (b"c", b""), (None, None), (None, b""),
    ]  # fmt: skip
    assert read_clean_offset(files, DIRECTORY) == (6, None)


def test_after_a_damaged_clean_offset_the_log_is_compacted_again() -> None:
    files = SimFiles(RealRandom(7))
    log, model = open_keyed(files), Model()
    for n in range(30):
        append_keyed(log, model, [(b"%d" % (n % 5), b"v" * 30)])
    close_segment(log)
    done = compact(files, log, now_ms=5_000)
    model.compact(done.clean_offset, 5_000, tail=tail_of(log))
    path = f"{DIRECTORY}/clean-offset"
    data = files.read_bytes(path)
    for at in range(len(data)):
        file = files.open(path)
        file.truncate(0)
        file.append(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert read_clean_offset(files, DIRECTORY) == (0, None)
        log.close(high_watermark=log.end.offset)
        log = open_keyed(files)
        check(log, model)
        again = compact(files, log, now_ms=5_000)
        assert again.clean_offset == done.clean_offset
        check(log, model)


def test_a_log_that_starts_within_a_large_batch() -> None:
    files = SimFiles(RealRandom(8))
    log, model = open_keyed(files), Model()
    append_keyed(log, model, [(b"%d" % n, b"v") for n in range(500)])
    append_keyed(log, model, [(b"499", b"newer")])
    close_segment(log)
    log.advance_start(498, high_watermark=log.end.offset)
    done = compact(files, log, now_ms=5_000)
    assert (done.clean_offset, done.map_is_full) == (501, False)
    assert [(r.offset, r.key) for r in held(log)] == [(498, b"498"), (500, b"499")]


def test_a_flipped_byte_of_a_segment_ends_the_run() -> None:
    """In a segment as it was written, and in one with gaps."""
    files = SimFiles(RealRandom(9))
    log, model = open_keyed(files), Model()
    for n in (0, 1, 2, 0, 3, 1, 4, 5, 0, 6):
        append_keyed(log, model, [(b"%d" % n, b"value")])
    close_segment(log)
    compact(files, log, now_ms=5_000)
    append_keyed(log, model, [(b"2", b"newer"), (b"7", b"value")])
    append_keyed(log, model, [(b"8", b"value")])
    close_segment(log)
    log.close()
    log_files = files.list_dir(DIRECTORY)
    cleaned, dirty = (f"{DIRECTORY}/{n:020d}.log" for n in (0, 10))
    for path in (cleaned, dirty):
        whole = files.read_bytes(path)
        for at in range(len(whole)):
            _write(files, path, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            log = open_keyed(files)
            with pytest.raises(CorruptData) as refused:
                compact(files, log, now_ms=6_000)
            assert refused.value.file == path
            assert files.list_dir(DIRECTORY) == log_files
            log.close()
        _write(files, path, whole)
    log = open_keyed(files)
    compact(files, log, now_ms=6_000)
    model.compact(closed_end(log), 6_000, tail=tail_of(log))
    assert held(log) == model.records()


def _write(files: SimFiles, path: str, data: bytes) -> None:
    file = files.open(path)
    file.truncate(0)
    file.append(data)
    file.sync()
