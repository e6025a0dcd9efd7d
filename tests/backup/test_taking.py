"""Backups of logs on this disk: what is copied, what is copied again, and what a failure leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bascule.backup import taking
from bascule.backup.batch_checks import BatchChecker
from bascule.backup.manifest import (
    NOT_COMPACTED,
    BackedUpPartition,
    backed_up,
    known_partitions,
    manifest_name,
)
from bascule.backup.sources import PartitionRead
from bascule.backup.taking import BackupTaker, Progress, new_id
from bascule.backup.verifying import verify
from bascule.errors import BasculeError, Broken, UnknownStream
from bascule.model import Cleanup, StreamConfig, StreamDefinition
from bascule.wire.offsets import OFFSETS_STREAM
from support.backup_sources import Backups, WrittenLogs
from support.stored_batches import make_batch

HOUR_MS = 3_600_000


@pytest.fixture
def backups(tmp_path: Path) -> Backups:
    return Backups(tmp_path)


def test_a_backup_has_the_batches_as_they_are_in_the_log(backups: Backups) -> None:
    backups.logs.add("orders", partitions=2)
    backups.logs.write("orders", 500, index=0)
    backups.logs.write("orders", 300, index=1, epoch=4)
    taken = backups.take()
    for index, (end, epoch) in enumerate(((500, 0), (300, 4))):
        partition = backups.partition(taken.manifest, "orders", index)
        assert (partition.start_offset, partition.end_offset) == (0, end)
        assert (partition.leader_epoch, partition.failure) == (epoch, "")
        assert backups.content(taken.manifest, "orders", index) == backups.logs.bytes_of(
            "orders", index
        )
    assert verify(backups.repository.place, taken.manifest) == []
    assert backups.repository.latest() == taken.manifest


def test_only_what_is_new_is_written(backups: Backups) -> None:
    backups.logs.add("orders")
    backups.logs.write("orders", 500)
    first = backups.take()
    assert first.bytes_written == len(backups.logs.bytes_of("orders"))
    assert backups.take().bytes_written == 0
    backups.logs.write("orders", 100)
    third = backups.take()
    assert third.bytes_written == len(backups.logs.bytes_of("orders")) - first.bytes_written
    assert third.read_anew == []
    assert backups.content(third.manifest, "orders") == backups.logs.bytes_of("orders")


def test_files_end_at_their_size(backups: Backups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "FILE_BYTES_MAX", 1)
    backups.logs.add("orders")
    backups.logs.write("orders", 500)
    files = backups.partition(backups.take().manifest, "orders").files
    assert len(files) > 3, "a block each, which is of one segment at most"
    assert [each.end_offset for each in files[:-1]] == [each.first_offset for each in files[1:]]


def test_what_the_log_has_removed_is_left_out(backups: Backups) -> None:
    backups.logs.add("orders")
    backups.logs.write("orders", 500)
    backups.take()
    backups.logs.write("orders", 500)
    log = backups.logs.log("orders")
    log.advance_start(777, high_watermark=1_000)
    log.close()
    manifest = backups.take().manifest
    partition = backups.partition(manifest, "orders")
    assert (partition.start_offset, partition.end_offset) == (777, 1_000)
    assert partition.files[0].first_offset <= 777 < partition.files[0].end_offset
    assert backups.repository.forget(1) == (1, 1)
    assert verify(backups.repository.place, manifest) == []
    assert backups.repository.unnamed(backups.repository.load_all()[0]) == []


def test_a_log_with_another_history_is_read_anew(backups: Backups) -> None:
    """As after an unclean election: other records have the offsets of the backup."""
    backups.logs.add("orders")
    backups.logs.write("orders", 500)
    backups.take()
    log = backups.logs.log("orders")
    log.truncate_to(300, 1, high_watermark=0)
    log.close(high_watermark=300)
    backups.logs.write("orders", 300, epoch=1)
    taken = backups.take()
    ((stream, index, why),) = taken.read_anew
    assert (stream, index) == ("orders", 0)
    assert "another history" in why
    assert backups.content(taken.manifest, "orders") == backups.logs.bytes_of("orders")


def test_a_log_that_became_shorter_is_read_anew(backups: Backups) -> None:
    backups.logs.add("orders")
    backups.logs.write("orders", 500, epoch=1)
    backups.take()
    log = backups.logs.log("orders")
    log.truncate_to(300, 1, high_watermark=0)
    log.close(high_watermark=300)
    taken = backups.take()
    assert len(taken.read_anew) == 1
    assert backups.content(taken.manifest, "orders") == backups.logs.bytes_of("orders")


def test_a_compacted_log_is_read_anew_before_tombstones_may_be_gone(backups: Backups) -> None:
    backups.logs.add("kv", cleanup=(Cleanup.COMPACT,), tombstone_retention_ms=2 * HOUR_MS)
    backups.logs.write("kv", 100)
    backups.take()
    backups.now_ms += HOUR_MS - 10_000
    assert backups.take().read_anew == []
    backups.now_ms += HOUR_MS + 1
    taken = backups.take()
    assert [(name, index) for name, index, _ in taken.read_anew] == [("kv", 0)]
    assert backups.take().read_anew == []


def test_a_partition_that_cannot_be_read_keeps_its_last_backup(backups: Backups) -> None:
    backups.logs.add("orders", partitions=2)
    for index in range(2):
        backups.logs.write("orders", 50, index=index)
    backups.take()
    before = backups.logs.bytes_of("orders", 1)
    for index in range(2):
        backups.logs.write("orders", 50, index=index)
    backups.logs.failing["orders", 1] = Broken("no leader")
    manifest = backups.take().manifest
    assert manifest.failures() == [("orders", 1, "no leader")]
    assert backups.content(manifest, "orders", 0) == backups.logs.bytes_of("orders", 0)
    assert backups.content(manifest, "orders", 1) == before
    backups.logs.failing.clear()
    manifest = backups.take().manifest
    assert manifest.failures() == []
    assert backups.content(manifest, "orders", 1) == backups.logs.bytes_of("orders", 1)


def test_what_comes_before_damage_is_kept_and_the_damage_is_named(backups: Backups) -> None:
    backups.logs.add("orders")
    backups.logs.write("orders", 500)
    path = sorted((Path(backups.logs.address) / "orders/0").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    manifest = backups.take().manifest
    partition = backups.partition(manifest, "orders")
    assert path.name in partition.failure
    assert 0 < partition.end_offset < 500
    content = backups.content(manifest, "orders")
    assert backups.logs.bytes_of("orders").startswith(content)


def interrupt(backups: Backups, stream: str, segment: int, *, index: int = 0) -> Path:
    """Damage a segment, so that reading ends there. Returns a copy of what it was."""
    path = sorted((Path(backups.logs.address) / f"{stream}/{index}").glob("*.log"))[segment]
    kept = path.with_suffix(".good")
    data = path.read_bytes()
    kept.write_bytes(data)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    return kept


def test_a_new_reading_that_is_interrupted_does_not_replace_the_last_backup(
    backups: Backups,
) -> None:
    """With `--keep 1` nothing else would be left of it."""
    backups.logs.add("kv", cleanup=(Cleanup.COMPACT,), tombstone_retention_ms=2 * HOUR_MS)
    backups.logs.write("kv", 500)
    backups.take()
    before = backups.logs.bytes_of("kv")
    kept = interrupt(backups, "kv", 1)
    backups.now_ms += 2 * HOUR_MS
    taken = backups.take()
    partition = backups.partition(taken.manifest, "kv")
    assert kept.with_suffix(".log").name in partition.failure
    assert (partition.start_offset, partition.end_offset) == (0, 500)
    assert backups.content(taken.manifest, "kv") == before
    kept.rename(kept.with_suffix(".log"))
    taken = backups.take()
    assert [(name, index) for name, index, _ in taken.read_anew] == [("kv", 0)]
    assert backups.partition(taken.manifest, "kv").failure == ""


def test_tombstones_may_be_gone_since_the_last_reading_that_was_complete(
    backups: Backups,
) -> None:
    backups.logs.add("kv", cleanup=(Cleanup.COMPACT,), tombstone_retention_ms=2 * HOUR_MS)
    backups.logs.write("kv", 100)
    backups.take()
    backups.logs.write("kv", 400)
    kept = interrupt(backups, "kv", -2)
    backups.now_ms += HOUR_MS - 10_000
    partition = backups.partition(backups.take().manifest, "kv")
    assert 100 < partition.end_offset < 500
    kept.rename(kept.with_suffix(".log"))
    backups.now_ms += HOUR_MS - 10_000
    taken = backups.take()
    assert [(name, index) for name, index, _ in taken.read_anew] == [("kv", 0)]
    assert backups.take().read_anew == []


def alter(backups: Backups, **config: Any) -> None:
    """Alter the only stream."""
    (before,) = backups.logs.definitions
    backups.logs.definitions[0] = replace(before, config=replace(before.config, **config))


LATER = [{"tombstone_retention_ms": 100 * HOUR_MS}, {"cleanup": (Cleanup.DELETE,)}]


@pytest.mark.parametrize("config", LATER)
def test_tombstones_may_be_gone_by_the_settings_of_the_last_backup(
    backups: Backups, config: dict[str, Any]
) -> None:
    backups.logs.add("kv", cleanup=(Cleanup.COMPACT,), tombstone_retention_ms=2 * HOUR_MS)
    backups.logs.write("kv", 100)
    backups.take()
    alter(backups, **config)
    backups.now_ms += HOUR_MS - 10_000
    assert backups.take().read_anew == []
    backups.now_ms += 2 * HOUR_MS
    assert backups.take().read_anew == [], "the settings are those of the last backup"
    backups.now_ms += 2 * HOUR_MS
    alter(backups, cleanup=(Cleanup.COMPACT,), tombstone_retention_ms=2 * HOUR_MS)
    assert [each[:2] for each in backups.take().read_anew] == [("kv", 0)]
    alter(backups, **config)
    backups.now_ms += 2 * HOUR_MS
    assert [each[:2] for each in backups.take().read_anew] == [("kv", 0)]


@pytest.mark.parametrize("config", LATER)
@pytest.mark.parametrize("is_of_earlier_release", [False, True])
def test_tombstones_may_be_gone_by_the_settings_of_a_backup_that_failed(
    backups: Backups, config: dict[str, Any], is_of_earlier_release: bool
) -> None:
    backups.logs.add("kv", cleanup=(Cleanup.COMPACT,), tombstone_retention_ms=100 * HOUR_MS)
    backups.logs.write("kv", 100)
    backups.take()
    alter(backups, tombstone_retention_ms=2 * HOUR_MS)
    backups.logs.failing["kv", 0] = Broken("no leader")
    failed = backups.take().manifest
    if is_of_earlier_release:
        (stream,) = failed.streams
        partition = msgspec.structs.replace(stream.partitions[0], tombstones_ms=None)
        stream = msgspec.structs.replace(stream, partitions=(partition,))
        backups.repository.place.remove(manifest_name(failed.id))
        failed = msgspec.structs.replace(failed, streams=(stream,))
        backups.repository.add(failed, known=backups.repository.ids())
    backups.logs.failing.clear()
    alter(backups, **config)
    backups.now_ms += 2 * HOUR_MS
    assert [each[:2] for each in backups.take().read_anew] == [("kv", 0)]
    backups.now_ms += 2 * HOUR_MS
    assert backups.take().read_anew == []


def test_settings_of_a_complete_backup_of_an_earlier_release_are_those_of_its_streams(
    backups: Backups,
) -> None:
    (partition,) = backed_up_partitions(Cleanup.COMPACT)
    assert (partition.tombstones_ms, partition.read_ms) == (2 * HOUR_MS, 7)
    (partition,) = backed_up_partitions(Cleanup.DELETE)
    assert partition.tombstones_ms == NOT_COMPACTED


def backed_up_partitions(cleanup: Cleanup) -> list[BackedUpPartition]:
    config = StreamConfig("kv.>", cleanup=(cleanup,), tombstone_retention_ms=2 * HOUR_MS)
    partition = BackedUpPartition(partition=0, start_offset=0, end_offset=0, read_ms=7)
    stream = backed_up(StreamDefinition("kv", b"i" * 16, 1, config), (partition,))
    return known_partitions(stream, replace(config, tombstone_retention_ms=3 * HOUR_MS))


def test_a_compacted_log_is_read_anew_where_the_clock_has_gone_back(backups: Backups) -> None:
    """How much time has passed is not known then."""
    backups.logs.add("kv", cleanup=(Cleanup.COMPACT,))
    backups.logs.write("kv", 100)
    backups.take()
    backups.now_ms -= HOUR_MS
    taken = backups.take()
    assert [(name, index) for name, index, _ in taken.read_anew] == [("kv", 0)]


def test_a_backup_after_a_step_back_of_the_clock_is_the_newest(backups: Backups) -> None:
    """It would be removed at once by `--keep`, and the next one would not build on it."""
    backups.logs.add("orders")
    backups.take()
    backups.now_ms -= HOUR_MS
    for _ in range(11):
        backups.logs.write("orders", 5)
        manifest = backups.take().manifest
        assert backups.repository.latest() == manifest
    assert backups.repository.forget(1)[0] == 11
    assert backups.repository.latest() == manifest


def test_a_tail_that_was_never_synced_is_no_damage(backups: Backups) -> None:
    backups.logs.add("orders")
    backups.logs.write("orders", 500)
    path = max((Path(backups.logs.address) / "orders/0").glob("*.log"))
    path.write_bytes(path.read_bytes() + make_batch(500, 5)[:-3])
    partition = backups.partition(backups.take().manifest, "orders")
    assert (partition.end_offset, partition.failure) == (500, "")


def test_what_fails_in_a_full_backup_keeps_the_last_one(backups: Backups) -> None:
    backups.logs.add("orders", partitions=2)
    backups.logs.write("orders", 50, index=0)
    backups.logs.write("orders", 500, index=1)
    first = backups.take()
    backups.logs.failing["orders", 0] = Broken("no leader")
    interrupt(backups, "orders", 0, index=1)
    taken = backups.take(full=True)
    assert [each[:2] for each in taken.manifest.failures()] == [("orders", 0), ("orders", 1)]
    assert taken.manifest.files().keys() >= first.manifest.files().keys()
    backups.logs.failing.clear()
    assert backups.take(full=True).read_anew == []


def test_a_deleted_stream_is_in_no_later_backup(backups: Backups) -> None:
    backups.logs.add("orders")
    backups.logs.add("kept")
    for name in ("orders", "kept"):
        backups.logs.write(name, 50)
    backups.take()
    backups.logs.definitions.pop(0)
    manifest = backups.take().manifest
    assert [each.decoded().name for each in manifest.streams] == ["kept"]
    assert backups.repository.forget(1) == (1, 1)


def test_a_stream_deleted_in_the_middle_is_left_out(backups: Backups) -> None:
    gone = backups.logs.add("orders")
    backups.logs.definitions.clear()
    taker = BackupTaker(backups.logs, backups.repository.place, now_ms=lambda: 1)
    assert taker.take([gone], None).manifest.streams == ()


def test_a_stream_that_a_node_does_not_know_at_the_moment_is_not_left_out(
    backups: Backups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node says that it knows no such stream also while it closes its replica of it."""
    backups.logs.add("orders", partitions=2)
    backups.logs.write("orders", 50, index=0)
    backups.logs.write("orders", 50, index=1)
    first = backups.take().manifest
    backups.logs.failing["orders", 1] = UnknownStream("orders")
    manifest = backups.take().manifest
    ((stream, index, why),) = manifest.failures()
    assert (stream, index) == ("orders", 1)
    assert why == "no stream is named 'orders'"
    assert manifest.files() == first.files()


def test_a_stream_that_an_unconfirmed_list_lacks_is_not_left_out(backups: Backups) -> None:
    """A node that is cut off does not know of streams that were made since."""
    stream = backups.logs.add("orders")
    backups.logs.definitions.clear()
    backups.logs.names_all_streams = False
    taker = BackupTaker(backups.logs, backups.repository.place, now_ms=lambda: 1)
    manifest = taker.take([stream], None).manifest
    assert [each[:2] for each in manifest.failures()] == [("orders", 0)]
    assert not manifest.names_all_streams


def test_offsets_are_read_before_the_streams_that_they_are_of(backups: Backups) -> None:
    """A commit that is in the backup is then of a record that is in it as well. A consumer of the
    restored stream would pass over new records at the offsets in between."""
    events: list[tuple[str, str]] = []

    class Followed(WrittenLogs):
        @contextmanager
        def open(self, definition: StreamDefinition, partition: int) -> Iterator[PartitionRead]:
            events.append(("began", definition.name))
            with super().open(definition, partition) as read:
                yield read
            events.append(("ended", definition.name))

    logs = Followed(Path(backups.logs.address))
    logs.add("a")
    logs.add("orders", partitions=3)
    logs.add(OFFSETS_STREAM, partitions=2)
    logs.write("orders", 50)
    taker = BackupTaker(logs, backups.repository.place, now_ms=lambda: 1)
    manifest = taker.take(logs.streams(), None).manifest
    assert [each for each in events[:4] if each[1] != OFFSETS_STREAM] == []
    names = [str(each.definition["name"]) for each in manifest.streams]
    assert names == ["a", "orders", OFFSETS_STREAM]


def test_every_damage_of_a_file_is_found(backups: Backups) -> None:
    backups.logs.add("orders")
    backups.logs.write("orders", 50)
    manifest = backups.take().manifest
    (file,) = backups.partition(manifest, "orders").files
    place = backups.repository.place
    good = place.read(file.name)
    for data in (b"", good[:-1], good + b"\0", bytes([good[0] ^ 1]) + good[1:]):
        place.write(file.name, data)
        ((stream, index, why),) = verify(place, manifest)
        assert (stream, index) == ("orders", 0)
        assert "SHA-256" in why
    place.remove(file.name)
    assert "no such file" in verify(place, manifest)[0].why


def test_progress_is_told(backups: Backups) -> None:
    backups.logs.add("orders", partitions=3)
    backups.logs.write("orders", 50)
    told: list[Progress] = []
    taker = BackupTaker(
        backups.logs, backups.repository.place, now_ms=lambda: 1, on_progress=told.append
    )
    taker.take(backups.logs.streams(), None)
    assert sum(each.partitions for each in told) == 3
    assert sum(each.bytes_read for each in told) == len(backups.logs.bytes_of("orders"))


def test_a_backup_of_one_stream_has_nothing_of_the_others_copied_again(backups: Backups) -> None:
    for name in ("orders", "models"):
        backups.logs.add(name)
        backups.logs.write(name, 500)
    first = backups.take()
    backups.logs.write("models", 5)
    one = backups.take("models")
    assert [each.definition["name"] for each in one.manifest.streams] == ["models"]
    second = backups.take("models")
    for each in (one, second):
        assert backups.repository.left_out(each.manifest) == ([("orders", first.manifest.id)], [])
    assert backups.repository.left_out(first.manifest) == ([], [])
    all_again = backups.take()
    assert (all_again.bytes_written, all_again.read_anew) == (0, [])
    assert backups.content(all_again.manifest, "orders") == backups.logs.bytes_of("orders")
    assert backups.content(all_again.manifest, "models") == backups.logs.bytes_of("models")


def test_ids_sort_by_time() -> None:
    first = new_id(1_700_000_000_000, ())
    assert first == "20231114T221320Z"
    second = new_id(1_700_000_000_000, {first})
    third = new_id(1_700_000_001_000, {first, second})
    assert first < second < third


def test_a_batch_that_goes_back_is_refused() -> None:
    checker = BatchChecker("a stream")
    checker.check(memoryview(make_batch(0, 5)))
    with pytest.raises(BasculeError):
        checker.check(memoryview(make_batch(4, 5)))
