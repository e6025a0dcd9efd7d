"""Logs of a node that does not run: what cannot be read is named, and the rest is copied."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bascule.backup.manifest import BackedUpPartition
from bascule.backup.places import LocalPlace
from bascule.backup.repository import Repository
from bascule.backup.restoring import Restorer
from bascule.backup.verifying import verify
from bascule.host.real import RealClock, RealFile, RealFiles, RealRandom
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.header import LOG_APPEND_TIME, seal
from bascule.storage import checkpoint, epochs, synced_mark
from bascule.storage.appended_batches import GAPS_FILE_NAME
from bascule.storage.compaction import replacement_manifest
from bascule.storage.partition_log import PartitionLog
from bascule.storage.segment import base_offset_of
from support.backup_sources import Backups, log_bytes
from support.stored_batches import make_batch


@pytest.fixture
def backups(tmp_path: Path) -> Backups:
    made = Backups(tmp_path)
    made.logs.add("orders")
    made.logs.write("orders", 250, epoch=1)
    made.logs.write("orders", 250, epoch=2)
    return made


def segments(backups: Backups) -> list[Path]:
    return sorted(directory(backups).glob("*.log"))


def directory(backups: Backups) -> Path:
    return Path(backups.logs.address) / "orders/0"


def base(path: Path) -> int:
    found = base_offset_of(path.name)
    assert found is not None
    return found


def taken(backups: Backups) -> BackedUpPartition:
    return backups.partition(backups.take().manifest, "orders")


def restore(backups: Backups, data: Path) -> list[tuple[str, int, str]]:
    """What the backup lacks of what it names; it is restored all the same."""
    repository = backups.repository
    restoring = Restorer(
        [(repository.place, repository.chosen(""))], RealFiles(), clock=RealClock(),
        dice=RealRandom(),
    )  # fmt: skip
    streams = restoring.streams()
    found = restoring.incomplete(streams)
    restoring.restore(str(data), streams, accept_loss=True)
    return found


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("harm", [Path.unlink, cut, empty])
@pytest.mark.parametrize("row", [0, 3, -1])
def test_what_is_gone_of_a_segment_is_named_and_the_rest_copied(
    backups: Backups, tmp_path: Path, row: int, harm: Callable[[Path], None]
) -> None:
    path = segments(backups)[row]
    following = segments(backups)[row + 1] if row >= 0 else None
    good = backups.logs.bytes_of("orders")
    harm(path)
    left = backups.logs.bytes_of("orders")
    partition = taken(backups)
    assert partition.failure
    assert partition.end_offset < 500
    assert verify(backups.repository.place, backups.repository.chosen("")) == []
    ((_, _, why),) = restore(backups, tmp_path / "data")
    assert why == partition.log_failure
    found = log_bytes(tmp_path / "data/streams/orders/0")
    if following is not None:
        end = partition.behind[-1].end_offset
        assert (partition.behind[0].first_offset, end) == (base(following), 500)
        assert f"offsets {base(following)} to 499 are in the backup" in why
        assert found.endswith(b"".join(each.read_bytes() for each in segments(backups)[row:][1:]))
    assert found == left or harm is cut
    assert good.startswith(found[: partition.files[-1].bytes if partition.files else 0])
    # The directory is one in which a node starts.
    log = PartitionLog.open(
        RealFiles(), str(tmp_path / "data/streams/orders/0"), backups.logs.log("other").config,
        RealClock(),
    )  # fmt: skip
    assert log.end.offset == (500 if following is not None else partition.end_offset)
    log.close()


def flip(path: Path, *positions: int) -> None:
    data = bytearray(path.read_bytes())
    for position in positions:
        data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("row", [0, 3, -1])
def test_behind_a_damaged_batch_the_rest_of_its_segment_is_copied(
    backups: Backups, tmp_path: Path, row: int
) -> None:
    path = segments(backups)[row]
    size, first = len(make_batch(0, 5)), base(path)
    good = backups.logs.bytes_of("orders")
    begin = good.index(path.read_bytes())
    flip(path, 3 * size - 1)
    partition = taken(backups)
    assert (partition.end_offset, partition.behind[0].first_offset) == (first + 10, first + 15)
    assert partition.behind[-1].end_offset == 500
    restore(backups, tmp_path / "data")
    found = log_bytes(tmp_path / "data/streams/orders/0")
    assert found == good[: begin + 2 * size] + good[begin + 3 * size :]
    flip(path, 6 * size - 1)
    partition = backups.partition(backups.take(full=True).manifest, "orders")
    assert (partition.end_offset, partition.behind[0].first_offset) == (first + 10, first + 30)


def test_a_batch_in_a_record_is_none_of_the_log(tmp_path: Path) -> None:
    """As in a stream whose records are parts of other logs."""
    backups = Backups(tmp_path)
    backups.logs.add("orders")
    log = backups.logs.log("orders")
    inner = bytes(make_batch(2, 1)) + bytes(make_batch(3, 1))
    outer = build_batch([Record(0, 1_000, b"key", inner, ())], base_offset=0)
    seal(
        outer, record_count=1, base_timestamp=1_000, max_timestamp=1_000,
        attributes=LOG_APPEND_TIME, base_offset=0,
    )  # fmt: skip
    log.append(outer)
    for offset in range(1, 6):
        log.append(make_batch(offset, 1))
    log.close(high_watermark=6)
    (path,) = segments(backups)
    flip(path, len(outer) - 1)
    partition = taken(backups)
    assert (partition.end_offset, partition.behind[0].first_offset) == (0, 1)
    assert partition.behind[-1].end_offset == 6


def test_all_segments_are_gone(backups: Backups) -> None:
    for path in segments(backups):
        path.unlink()
    partition = taken(backups)
    assert partition.failure == "the batches end at offset 0, and the log at 500"


def test_the_mark_alone_says_how_far_the_log_was_synced(backups: Backups) -> None:
    backups.logs.write("orders", 5, epoch=2)
    log = backups.logs.log("orders")
    log.append(make_batch(log.end.offset, 5, leader_epoch=2))
    log.sync()
    path = segments(backups)[-1]
    os.truncate(path, path.stat().st_size - 1)
    partition = taken(backups)
    assert partition.end_offset == 505
    assert path.name in partition.failure
    (directory(backups) / synced_mark.FILE_NAME).unlink()
    partition = taken(backups)
    assert (partition.end_offset, partition.failure) == (505, "")


def test_a_segment_is_gone_of_a_log_with_gaps(backups: Backups) -> None:
    """They are between batches: a segment begins where the one before it ends."""
    log = backups.logs.log("orders")
    log.append_as_follower(make_batch(507, 5, leader_epoch=2))
    log.append_as_follower(make_batch(520, 5, leader_epoch=2))
    log.close(high_watermark=525)
    assert (directory(backups) / GAPS_FILE_NAME).exists()
    partition = taken(backups)
    assert (partition.end_offset, partition.failure) == (525, "")
    path = segments(backups)[3]
    path.unlink()
    backups.repository.place.remove(next(iter(partition.files)).name)
    partition = taken(backups)
    assert partition.end_offset == base(path)
    assert f"batches up to offset {base(segments(backups)[3])}" in partition.failure


def test_a_later_backup_has_what_is_readable_again(backups: Backups) -> None:
    path = segments(backups)[3]
    kept = path.read_bytes()
    path.unlink()
    assert taken(backups).behind
    path.write_bytes(kept)
    partition = taken(backups)
    assert (partition.end_offset, partition.failure, partition.behind) == (500, "", ())
    manifest = backups.repository.chosen("")
    assert backups.content(manifest, "orders") == backups.logs.bytes_of("orders")


def test_what_the_last_backup_has_is_not_lost_with_the_log(backups: Backups) -> None:
    good = backups.logs.bytes_of("orders")
    backups.take()
    for path in segments(backups):
        path.unlink()
    backups.take()
    assert backups.content(backups.repository.chosen(""), "orders") == good


@pytest.mark.parametrize("harm", [Path.unlink, cut, empty])
def test_without_leader_epochs_they_are_read_from_the_batches(
    backups: Backups, harm: Callable[[Path], None]
) -> None:
    first = taken(backups)
    harm(directory(backups) / epochs.FILE_NAME)
    partition = backups.partition(backups.take(full=True).manifest, "orders")
    assert (partition.files, partition.failure) == (first.files, "")
    segments(backups)[3].unlink()
    backups.repository = Repository(LocalPlace(f"{backups.logs.address}/../another"))
    partition = taken(backups)
    assert partition.behind[-1].end_offset == 500


def test_a_damaged_checkpoint_is_named_and_the_log_copied(backups: Backups) -> None:
    empty(directory(backups) / checkpoint.FILE_NAME)
    partition = taken(backups)
    assert partition.end_offset == 500
    assert checkpoint.FILE_NAME in partition.failure


@pytest.mark.parametrize("name", ["segment", checkpoint.FILE_NAME, epochs.FILE_NAME])
def test_a_file_that_cannot_be_read_is_named_and_others_are_copied(
    backups: Backups, name: str
) -> None:
    backups.logs.add("others")
    backups.logs.write("others", 50)
    path = segments(backups)[3] if name == "segment" else directory(backups) / name
    path.unlink()
    path.mkdir()
    manifest = backups.take().manifest
    assert backups.content(manifest, "others") == backups.logs.bytes_of("others")
    partition = backups.partition(manifest, "orders")
    if name == epochs.FILE_NAME:
        assert partition.failure == ""
    else:
        assert f"{path} is corrupt" in partition.failure
    assert (partition.behind or partition.files)[-1].end_offset == 500


def test_bytes_that_the_disk_does_not_read_are_named(
    backups: Backups, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = str(segments(backups)[3])
    read_at = RealFile.read_at

    def failing(file: RealFile, position: int, length: int) -> bytes:
        if file.path == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read_at(file, position, length)

    monkeypatch.setattr(RealFile, "read_at", failing)
    partition = taken(backups)
    assert f"{bad} is corrupt" in partition.failure
    assert "Input/output error" in partition.failure
    assert partition.behind[-1].end_offset == 500


def restorer_of(*sources: Backups) -> Restorer:
    """Of the newest backup of each."""
    repositories = [each.repository for each in sources]
    return Restorer(
        [(each.place, each.chosen("")) for each in repositories], RealFiles(),
        clock=RealClock(), dice=RealRandom(),
    )  # fmt: skip


def test_a_log_that_ends_earlier_elsewhere_does_not_hide_what_is_behind_damage(
    backups: Backups, tmp_path: Path
) -> None:
    other = Backups(tmp_path / "other")
    other.logs.add("orders")
    other.logs.write("orders", 250, epoch=1)
    other.take()
    segments(backups)[3].unlink()
    backups.take()
    restoring = restorer_of(backups, other)
    streams = restoring.streams()
    ((_, _, why),) = restoring.incomplete(streams)
    assert f"ends at offset 250 in {other.repository.place.address}" in why
    restoring.restore(str(tmp_path / "data"), streams, accept_loss=True)
    assert log_bytes(tmp_path / "data/streams/orders/0").startswith(other.logs.bytes_of("orders"))
    log = PartitionLog.open(
        RealFiles(), str(tmp_path / "data/streams/orders/0"), backups.logs.log("other").config,
        RealClock(),
    )  # fmt: skip
    assert log.end.offset == 500
    log.close()


def test_a_log_that_lost_its_end_says_how_far_another_one_is_behind(
    backups: Backups, tmp_path: Path
) -> None:
    other = Backups(tmp_path / "other")
    other.logs.add("orders")
    other.logs.write("orders", 250, epoch=1)
    other.logs.write("orders", 150, epoch=2)
    other.take()
    for path in segments(backups)[3:]:
        path.unlink()
    backups.take()
    restoring = restorer_of(backups, other)
    ((_, _, why),) = restoring.incomplete(restoring.streams())
    assert "ends at offset 400" in why
    assert "went on to 500" in why
    other.logs.write("orders", 5, epoch=3)
    other.take()
    restoring = restorer_of(backups, other)
    assert restoring.incomplete(restoring.streams()) == [], "it was elected since"


def test_a_compaction_that_was_killed_while_it_replaced_segments(backups: Backups) -> None:
    good = backups.logs.bytes_of("orders")
    first, second = segments(backups)[2:4]
    where = str(directory(backups))
    new = Path(replacement_manifest.cleaned_path(where, base(first)))
    new.write_bytes(first.read_bytes() + second.read_bytes())
    swap = replacement_manifest.ReplacementManifest(
        (base(first), base(second)), ((base(first), new.stat().st_size),)
    )
    path = directory(backups) / replacement_manifest.FILE_NAME
    path.write_bytes(replacement_manifest.encode_manifest(swap))
    for renamed in (False, True):
        second.unlink(missing_ok=True)
        if renamed:
            new.rename(first)
        partition = backups.partition(backups.take(full=True).manifest, "orders")
        assert (partition.end_offset, partition.failure) == (500, "")
        assert backups.content(backups.repository.chosen(""), "orders") == good
    empty(path)
    assert path.name in backups.partition(backups.take(full=True).manifest, "orders").failure


def test_a_directory_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    backups = Backups(tmp_path)
    backups.logs.add("orders")
    path = directory(backups)
    for each in path.iterdir():
        each.unlink()
    path.rmdir()
    path.write_bytes(b"")
    partition = taken(backups)
    assert str(path) in partition.failure
