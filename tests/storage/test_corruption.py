"""Flip any byte of any file: the log opens with all data, or the error names file and byte."""

from __future__ import annotations

from itertools import product

import pytest

from bascule.errors import CorruptData
from bascule.host.real import RealRandom
from bascule.sim.disk import Inode, SimFiles
from bascule.storage.partition_log import LogConfig, LogPosition, PartitionLog
from support.keyed_logs import Model, append_keyed, close_segment, compact
from support.stored_batches import DIRECTORY, append, make_batch, open_log, read_batches

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
def test_a_flipped_byte_is_harmless_or_refused(clean: bool, recovery_at: int, flip: int) -> None:
    files, batches = written(clean=clean, recovery_at=recovery_at)
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
                assert held == batches, (name, at)
                assert offsets == [(n * 3, n) for n in range(len(held))]
            restore(files, original)


def restore(files: SimFiles, original: dict[str, bytes]) -> None:
    """Restore the former content of every file."""
    for name, data in original.items():
        files.open(f"{DIRECTORY}/{name}", create=True)
        files._inode(f"{DIRECTORY}/{name}").data[:] = data
    for name in files.list_dir(DIRECTORY):
        if name not in original:
            files.remove(f"{DIRECTORY}/{name}")


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *product(
            ["index", "timeindex", "leader-epochs"],
            ["missing", "empty", "half", "longer", "zeros"],
        ),
        *product(["checkpoint"], ["missing", "half", "longer"]),
    ],
)
def test_missing_or_damaged_auxiliary_files_are_rebuilt(name: str, how: str) -> None:
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


@pytest.mark.parametrize("left", [0, 71, 143])
def test_a_checkpoint_with_both_records_damaged_is_refused(left: int) -> None:
    files, batches = written(clean=True, recovery_at=0)
    inode = files._inode(f"{DIRECTORY}/checkpoint")
    whole = len(inode.data) // 2 <= left
    inode.data[left:] = b""
    if whole:
        assert read_batches(open_log(files, CONFIG)) == batches
        return
    with pytest.raises(CorruptData, match="run `bascule stream repair`") as caught:
        open_log(files, CONFIG)
    assert caught.value.file == f"{DIRECTORY}/checkpoint"
    files.remove(f"{DIRECTORY}/checkpoint")
    assert read_batches(open_log(files, CONFIG)) == batches


def test_a_missing_segment_is_refused() -> None:
    for name in LOGS:
        files, _ = written(clean=True, recovery_at=0)
        files.remove(f"{DIRECTORY}/{name}")
        with pytest.raises(CorruptData) as caught:
            read_batches(open_log(files, CONFIG))
        assert caught.value.file.endswith(".log")


@pytest.mark.parametrize("name", LOGS)
def test_a_shortened_segment_is_refused(name: str) -> None:
    files, _ = written(clean=True, recovery_at=0)
    inode = files._inode(f"{DIRECTORY}/{name}")
    del inode.data[-100:]
    with pytest.raises(CorruptData) as caught:
        read_batches(open_log(files, CONFIG))
    assert caught.value.file == f"{DIRECTORY}/{name}"


def torn(tail: bytes) -> PartitionLog:
    """A log of six synced batches after a kill, with `tail` after them."""
    files, _ = written(clean=False, recovery_at=0)
    files.open(f"{DIRECTORY}/{LOGS[-1]}").append(tail)
    return open_log(files, CONFIG)


BATCH = make_batch(18, 3, size=200, leader_epoch=1)


@pytest.mark.parametrize(
    "tail",
    [b"\0", bytes(61), bytes(10_000), BATCH[:1], BATCH[:60], BATCH[:61], BATCH[:-1], b"\2" * 5_000,
     BATCH[:300] + bytes(4_096), BATCH[:-1] + b"!", bytes(200) + BATCH[200:]],
)  # fmt: skip
def test_a_torn_tail_is_truncated(tail: bytes) -> None:
    log = torn(tail)
    assert log.end.offset == 18
    assert len(read_batches(log)) == 6
    append(log, 1, leader_epoch=1)
    log.close()


@pytest.mark.parametrize("gap", [b"\0", bytes(61), bytes(4_096), BATCH[:100], BATCH[:-2]])
def test_an_unsynced_hole_is_truncated_with_valid_batches_after_it(gap: bytes) -> None:
    """As after a power loss: a page is missing, and a later one is there."""
    tail = gap + make_batch(21, 2, leader_epoch=1)
    log = torn(tail)
    assert log.end.offset == 18
    assert log.truncated_bytes == len(tail)
    assert len(read_batches(log)) == 6


@pytest.mark.parametrize("batch", [make_batch(19, 1, leader_epoch=1), make_batch(18, 1)])
def test_a_complete_batch_with_a_wrong_offset_or_epoch_ends_an_unsynced_tail(batch: bytes) -> None:
    """Its first bytes, with offset and epoch, may have been on a lost page."""
    log = torn(batch)
    assert log.end.offset == 18
    assert log.truncated_bytes == len(batch)


def test_damage_to_synced_batches_is_refused_without_a_checkpoint() -> None:
    for row, name in enumerate(LOGS):
        for damage in (lambda data: data.__setitem__(-1, data[-1] ^ 1), lambda data: data.pop()):
            files, batches = written(clean=False, recovery_at=0)
            data = files._inode(f"{DIRECTORY}/{name}").data
            damage(data)
            with pytest.raises(CorruptData) as caught:
                open_log(files, CONFIG)
            assert caught.value.file.endswith(name)
            assert caught.value.at >= len(batches[2 * row])


def test_a_synced_segment_that_is_missing_is_refused() -> None:
    for name in LOGS[1:]:
        files, _ = written(clean=False, recovery_at=0)
        files.remove(f"{DIRECTORY}/{name}")
        with pytest.raises(CorruptData, match="up to offset"):
            open_log(files, CONFIG)


@pytest.mark.parametrize("kept", [0, 1, 31, 32, 40, 63, 64])
def test_a_torn_synced_mark_is_ignored(kept: int) -> None:
    """After a power loss the mark may be missing or incomplete."""
    files, batches = written(clean=False, recovery_at=0)
    del files._inode(f"{DIRECTORY}/synced").data[kept:]
    log = open_log(files, CONFIG)
    assert read_batches(log) == batches
    append(log, 1, leader_epoch=1)
    log.sync()
    data = files._inode(f"{DIRECTORY}/{LOGS[2]}").data
    data[-1] ^= 1
    with pytest.raises(CorruptData):
        open_log(files, CONFIG)


def test_the_valid_slot_of_the_synced_mark_is_used() -> None:
    for flipped in range(64):
        files, _ = written(clean=False, recovery_at=0)
        files._inode(f"{DIRECTORY}/synced").data[flipped] ^= 1
        data = files._inode(f"{DIRECTORY}/{LOGS[2]}").data
        data[1] ^= 1
        with pytest.raises(CorruptData):
            open_log(files, CONFIG)


def test_segments_after_a_torn_one_are_removed() -> None:
    files, batches = written(clean=False, recovery_at=0)
    log = open_log(files, CONFIG)
    for n in range(4):
        append(log, 3, size=20, timestamp=6 + n, leader_epoch=1)
    assert len(files.list_dir(DIRECTORY)) > 5
    del files._inode(f"{DIRECTORY}/{18:020d}.log").data[-1:]
    log = open_log(files, CONFIG)
    assert read_batches(log)[:-1] == batches
    assert log.end.offset == 21
    assert log.truncated_bytes > len(batches[0])
    assert f"{24:020d}.log" not in files.list_dir(DIRECTORY)


@pytest.mark.parametrize("clean", [True, False])
def test_a_recovered_log_is_the_same_in_each_opening(clean: bool) -> None:
    files, batches = written(clean=clean, recovery_at=2)
    for _ in range(3):
        log = open_log(files, CONFIG)
        assert read_batches(log) == batches
        assert log.timestamp_max == 5


def with_gaps(*, checkpoint_at: int, segment_bytes_max: int = 1 << 20) -> SimFiles:
    """A copy of a compacted log after a kill: offset 3 is missing, all is synced."""
    files = SimFiles(RealRandom(1))
    log = open_log(files, LogConfig(segment_bytes_max=segment_bytes_max))
    for offset in (0, 1, 2, 4, 5, 6, 7):
        log.append_as_follower(make_batch(offset, 1, size=20, leader_epoch=1), gaps_allowed=True)
        log.sync()
        if offset + 1 == checkpoint_at:
            log.checkpoint(high_watermark=log.end.offset)
    return files


@pytest.mark.parametrize("segment_bytes_max", [1 << 20, 300])
@pytest.mark.parametrize("checkpoint_at", [-1, 3])
def test_no_synced_batch_is_removed_behind_one_that_passes_for_the_end_of_a_gap(
    checkpoint_at: int, segment_bytes_max: int
) -> None:
    """No CRC covers the base offset, and one that is too large is beyond all that was synced."""
    options = {"checkpoint_at": checkpoint_at, "segment_bytes_max": segment_bytes_max}
    size, refused = len(make_batch(0, 1, size=20, leader_epoch=1)), 0
    undamaged = with_gaps(**options)
    for name in [name for name in undamaged.list_dir(DIRECTORY) if name.endswith(".log")]:
        data = undamaged.read_bytes(f"{DIRECTORY}/{name}")
        for start in range(0, len(data), size):
            offset = int.from_bytes(data[start : start + 8], "big")
            for bit in [] if offset < checkpoint_at else range(64):
                files = with_gaps(**options)
                files._inode(f"{DIRECTORY}/{name}").data[start + 7 - bit // 8] ^= 1 << bit % 8
                try:
                    log = open_log(files, LogConfig())
                except CorruptData:
                    refused += 1
                else:
                    assert len(read_batches(log)) == 7, (offset, bit)
                    assert (offset, bit) == (2, 0), "only it fits into the gap"
    assert refused >= 64 * 4


def test_a_batch_that_passes_for_the_end_of_a_gap_is_found_before_a_synced_empty_segment() -> None:
    """It ends beyond all that was synced, and the damage is no torn tail."""
    files, size = SimFiles(RealRandom(1)), len(make_batch(0, 1, leader_epoch=1))
    log = open_log(files)
    for offset in (0, 1, 2, 4, 5):
        log.append_as_follower(make_batch(offset, 1, leader_epoch=1), gaps_allowed=True)
    log.roll()
    log.sync()
    name = f"{DIRECTORY}/{0:020d}.log"
    files._inode(name).data[4 * size + 6] ^= 1
    for _ in range(2):
        with pytest.raises(CorruptData, match="was synced up to offset 6;"):
            open_log(files)
    assert files.size(name) == 5 * size
    assert files.exists(f"{DIRECTORY}/{6:020d}.log")


def test_a_batch_that_passes_for_the_end_of_a_gap_hides_no_lost_batches() -> None:
    files = with_gaps(checkpoint_at=3)
    data = files._inode(f"{DIRECTORY}/{0:020d}.log").data
    size = len(data) // 7
    data[5 * size + 6] ^= 1
    del data[6 * size :]
    with pytest.raises(CorruptData, match="found the end of the file"):
        open_log(files)


def test_the_name_of_an_empty_segment_may_be_lost() -> None:
    """A power loss after the start that followed a kill may keep the mark alone of what that start
    has found in the page cache: nothing is in the segment."""
    files = SimFiles(RealRandom(1))
    log = open_log(files)
    batches = [append(log) for _ in range(3)]
    log.sync()
    log.checkpoint(high_watermark=3)
    log.roll()
    files.remove(f"{DIRECTORY}/synced")  # it could not be written
    assert open_log(files).synced == LogPosition(3, 3, 0)
    files.remove(f"{DIRECTORY}/{3:020d}.log")
    log = open_log(files)
    assert read_batches(log) == batches
    assert append(log) == make_batch(3)


def test_a_last_batch_beyond_the_mark_is_found_in_a_compacted_log_without_a_checkpoint() -> None:
    """The mark is in the segment that is written, which was not compacted."""
    files = SimFiles(RealRandom(1))
    log, model = open_log(files), Model()
    for _ in range(2):
        append_keyed(log, model, [(b"k", b"v")])
    close_segment(log)
    assert compact(files, log, now_ms=1_000).records_removed == 1
    for _ in range(3):
        append_keyed(log, model, [(b"k", b"v")])
    log.sync()
    files.remove(f"{DIRECTORY}/checkpoint")
    assert open_log(files).end.offset == 5
    data = files._inode(f"{DIRECTORY}/{2:020d}.log").data
    data[len(data) // 3 * 2 + 6] ^= 1
    with pytest.raises(CorruptData, match=f"the last batch to end at offset 5, found {5 + 256}"):
        open_log(files)
