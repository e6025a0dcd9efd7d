"""Flip any byte of any file: the log opens with all data right, or names file and byte."""

from __future__ import annotations

import pytest

from bascule.errors import CorruptData
from bascule.host.real import RealRandom
from bascule.sim.disk import Inode, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from stored_batches import DIRECTORY, append, make_batch, open_log, read_batches

CONFIG = LogConfig(segment_bytes_max=400, index_interval_bytes=200)
LOGS = [f"{base:020d}.log" for base in (0, 6, 12)]


def written(*, clean: bool, recovery_at: int) -> tuple[SimFiles, list[bytes]]:
    """Six batches of three records in three segments, a checkpoint after batch `recovery_at`."""
    files = SimFiles(RealRandom(1))
    log = open_log(files, CONFIG)
    batches = []
    for n in range(6):
        batches.append(append(log, 3, size=20, timestamp=n, leader_epoch=n // 3))
        log.sync()
        if n + 1 == recovery_at:
            log.checkpoint(high_watermark=log.end.offset)
    if clean:
        log.close()
    return files, batches


def check_all(log: PartitionLog) -> None:
    at = log.verify()
    while at is not None:
        at = log.verify(at)


def every_file(files: SimFiles) -> list[tuple[str, Inode]]:
    return [(name, files._inode(f"{DIRECTORY}/{name}")) for name in files.list_dir(DIRECTORY)]


@pytest.mark.parametrize(
    ("clean", "recovery_at", "flip"),
    [(True, 0, 0x01), (False, 6, 0x80), (False, 3, 0x01), (False, 0, 0xFF)],
)
def test_a_flipped_byte_is_harmless_or_named(clean: bool, recovery_at: int, flip: int) -> None:
    files, batches = written(clean=clean, recovery_at=recovery_at)
    last = len(batches[-1])
    lost = 0
    for name, inode in every_file(files):
        original = {n: bytes(i.data) for n, i in every_file(files)}
        for at in range(len(inode.data)):
            inode.data[at] ^= flip
            try:
                log = open_log(files, CONFIG)
                check_all(log)
                held = read_batches(log)
                offsets = [log.find_timestamp(n, end=log.end) for n in range(len(held))]
            except CorruptData as damage:
                assert damage.file == f"{DIRECTORY}/{name}"
                # The byte named is in the batch that holds the flipped one.
                assert abs(damage.at - at) <= max(map(len, batches))
            else:
                if held == batches[:-1] and name == LOGS[-1] and recovery_at < 6 and not clean:
                    # Damage to the very last batch above the recovery point looks like a torn
                    # tail; the documentation says so.
                    assert at >= len(inode.data) - last or len(inode.data) < last
                    lost += 1
                else:
                    assert held == batches, (name, at)
                    assert offsets == [(n * 3, n) for n in range(len(held))]
            self_repair(files, original)
    assert lost <= last


def self_repair(files: SimFiles, original: dict[str, bytes]) -> None:
    """Put every file back, whatever opening did to it."""
    for name, data in original.items():
        files.open(f"{DIRECTORY}/{name}", create=True)
        files._inode(f"{DIRECTORY}/{name}").data[:] = data
    for name in files.list_dir(DIRECTORY):
        if name not in original:
            files.remove(f"{DIRECTORY}/{name}")


@pytest.mark.parametrize("name", ["index", "timeindex", "leader-epochs", "checkpoint"])
@pytest.mark.parametrize("how", ["missing", "empty", "half", "longer", "zeros"])
def test_files_that_only_help_are_rebuilt(name: str, how: str) -> None:
    files, batches = written(clean=True, recovery_at=0)
    for found, inode in every_file(files):
        if found.endswith(name):
            if how == "missing":
                files.remove(f"{DIRECTORY}/{found}")
            elif how == "longer":
                inode.data += b"\1" * 20
            elif how == "zeros":
                inode.data[:] = bytes(len(inode.data))
            else:
                del inode.data[len(inode.data) // 2 if how == "half" else 0 :]
    log = open_log(files, CONFIG)
    assert read_batches(log) == batches
    assert log.epoch_end(0, end=log.end) == (0, 9)
    assert log.timestamp_max == 5
    append(log, 3, size=20, timestamp=6, leader_epoch=2)
    log.close()
    for found, inode in every_file(files):
        if found.endswith("index"):
            path = f"{DIRECTORY}/{found}"
            kind = type(log._active.times if "time" in found else log._active.offsets)
            base = int(found.partition(".")[0])
            assert kind.decode(bytes(inode.data), path=path, base_offset=base).damage is None
    assert len(read_batches(open_log(files, CONFIG))) == 7


def test_a_missing_segment_is_named() -> None:
    for name in LOGS:
        files, _ = written(clean=True, recovery_at=0)
        files.remove(f"{DIRECTORY}/{name}")
        with pytest.raises(CorruptData) as caught:
            read_batches(open_log(files, CONFIG))
        assert caught.value.file.endswith(".log")


@pytest.mark.parametrize("name", LOGS)
def test_a_shortened_segment_is_named(name: str) -> None:
    files, _ = written(clean=True, recovery_at=0)
    inode = files._inode(f"{DIRECTORY}/{name}")
    del inode.data[-100:]
    with pytest.raises(CorruptData) as caught:
        read_batches(open_log(files, CONFIG))
    assert caught.value.file == f"{DIRECTORY}/{name}"


def torn(tail: bytes) -> PartitionLog:
    """A log of six synced batches, its process killed, with `tail` behind them."""
    files, _ = written(clean=False, recovery_at=0)
    files.open(f"{DIRECTORY}/{LOGS[-1]}").append(tail)
    return open_log(files, CONFIG)


BATCH = make_batch(18, 3, size=200, leader_epoch=1)


@pytest.mark.parametrize(
    "tail",
    [b"\0", bytes(61), bytes(10_000), BATCH[:1], BATCH[:60], BATCH[:61], BATCH[:-1], b"\2" * 5_000,
     BATCH[:300] + bytes(4_096), BATCH[:-1] + b"!", bytes(200) + BATCH[200:]],
)  # fmt: skip
def test_a_torn_tail_is_cut(tail: bytes) -> None:
    log = torn(tail)
    assert log.end.offset == 18
    assert len(read_batches(log)) == 6
    append(log, 1, leader_epoch=1)
    log.close()


@pytest.mark.parametrize("gap", [b"\0", bytes(61), bytes(4_096), BATCH[:100], BATCH[:-2]])
def test_a_gap_before_a_valid_batch_is_refused(gap: bytes) -> None:
    following = make_batch(21, 2, leader_epoch=1)
    with pytest.raises(CorruptData, match="and behind it at byte") as caught:
        torn(gap + following)
    assert f"offset {21}" in str(caught.value)
    assert caught.value.file.endswith(LOGS[-1])


def test_a_damaged_batch_before_valid_ones_is_refused_far_away() -> None:
    """The valid batch behind is found across the windows in which the file is read."""
    damaged = bytearray(make_batch(18, 1, size=3_000_000, leader_epoch=1))
    damaged[2_000_000] ^= 1
    with pytest.raises(CorruptData, match="valid batch with offset 19"):
        torn(bytes(damaged) + make_batch(19, 1, leader_epoch=1))


def test_a_batch_of_another_log_does_not_continue_this_one() -> None:
    log = torn(b"\0" * 100 + make_batch(5, 1) + make_batch(1 << 40, 1))
    assert log.end.offset == 18


def test_a_damaged_batch_before_another_segment_is_refused() -> None:
    files, _ = written(clean=False, recovery_at=0)
    files._inode(f"{DIRECTORY}/{LOGS[1]}").data[-1] ^= 1
    with pytest.raises(CorruptData) as caught:
        open_log(files, CONFIG)
    assert caught.value.file.endswith(LOGS[1])
    assert LOGS[2] in caught.value.found


def test_segments_behind_a_torn_one_go_if_they_hold_nothing() -> None:
    files, batches = written(clean=False, recovery_at=0)
    inode = files._inode(f"{DIRECTORY}/{LOGS[1]}")
    del inode.data[-1:]
    files._inode(f"{DIRECTORY}/{LOGS[2]}").data[:] = bytes(900)
    log = open_log(files, CONFIG)
    assert read_batches(log) == batches[:3]
    assert LOGS[2] not in files.list_dir(DIRECTORY)


def test_a_whole_batch_with_another_offset_or_epoch_was_not_torn() -> None:
    for batch, at in ((make_batch(19, 1, leader_epoch=1), 0), (make_batch(18, 1), 12)):
        with pytest.raises(CorruptData) as caught:
            torn(batch)
        assert caught.value.at % 100 == at + 2 * len(make_batch(0, 3, size=20)) % 100


@pytest.mark.parametrize("clean", [True, False])
def test_a_recovered_log_is_the_same_in_each_opening(clean: bool) -> None:
    files, batches = written(clean=clean, recovery_at=2)
    for _ in range(3):
        log = open_log(files, CONFIG)
        assert read_batches(log) == batches
        assert log.timestamp_max == 5
