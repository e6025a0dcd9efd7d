"""New data directories from backups: the logs are those that were backed up."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bascule.backup import taking
from bascule.backup.places import LocalPlace
from bascule.backup.repository import Repository
from bascule.backup.restoring import Restorer
from bascule.backup.taking import BackupTaker
from bascule.backup.verifying import verify
from bascule.controller.cluster.image_files.earlier_image import FILE_NAME, EarlierImage
from bascule.controller.directories import StreamDirectories
from bascule.errors import ConfigError, CorruptData
from bascule.host.real import RealClock, RealFiles, RealRandom
from bascule.metadata.image import Image
from bascule.model import Cleanup, RecordHeader
from bascule.node.cluster_id import load_cluster_id
from bascule.replica.log_identity import LogIdentity, read_identity
from bascule.storage.partition_log import PartitionLog
from bascule.storage.retention import log_config
from support.backup_sources import WrittenLogs, log_bytes
from support.stored_batches import make_batch

NOW_MS = 1_700_000_000_000


def back_up(logs: WrittenLogs, place: Path, *, at_ms: int = NOW_MS) -> Repository:
    repository = Repository(LocalPlace(str(place)))
    taker = BackupTaker(logs, repository.place, now_ms=lambda: at_ms)
    taken = taker.take(logs.streams(), repository.latest(), known_ids=repository.ids())
    repository.add(taken.manifest, known=repository.ids())
    return repository


def restorer(*repositories: Repository) -> Restorer:
    return Restorer(
        [(each.place, each.chosen("")) for each in repositories],
        RealFiles(), clock=RealClock(), dice=RealRandom(),
    )  # fmt: skip


def test_logs_and_definitions_come_back_as_they_were(tmp_path: Path) -> None:
    logs = WrittenLogs(tmp_path / "logs")
    logs.add(
        "orders", partitions=2, segment_bytes_max=4_000, replicas=3,
        record_headers=(RecordHeader.SUBJECT,),
    )  # fmt: skip
    logs.add("kv", cleanup=(Cleanup.COMPACT,))
    logs.add("empty")
    logs.write("orders", 500, epoch=3)
    logs.write("orders", 200, epoch=5)
    logs.write("kv", 100)
    data = tmp_path / "data"
    restoring = restorer(back_up(logs, tmp_path / "place"))
    restored = restoring.restore(str(data), restoring.streams())
    assert (restored.streams, restored.partitions, restored.incomplete) == (3, 4, [])
    files = RealFiles()
    image = EarlierImage(files, str(data)).load(Image())
    assert image is not None
    assert dict(image.streams) == {each.name: each for each in logs.definitions}
    assert load_cluster_id(files, str(data), RealRandom(), draw_new=False) == restored.cluster_id
    directories = StreamDirectories(files, str(data))
    assert directories.identities_required()
    assert not (data / "restoring").exists()
    for stream in logs.definitions:
        for index in range(stream.partition_count):
            place = Path(directories.partition(stream.name, index))
            assert log_bytes(place) == logs.bytes_of(stream.name, index)
            assert read_identity(files, str(place)) == LogIdentity(stream.id, index)
            log = PartitionLog.open(files, str(place), log_config(stream.config), RealClock())
            assert log.checkpointed_high_watermark == log.end.offset
            log.close()
    assert len(list((data / "streams/orders/0").glob("*.log"))) > 5, "its segments are small"


def test_a_log_keeps_its_start(tmp_path: Path) -> None:
    logs = WrittenLogs(tmp_path / "logs")
    orders = logs.add("orders")
    purged = logs.add("purged")
    for name, start in (("orders", 333), ("purged", 500)):
        logs.write(name, 500)
        log = logs.log(name)
        log.advance_start(start, high_watermark=500)
        log.close()
    restoring = restorer(back_up(logs, tmp_path / "place"))
    restoring.restore(str(tmp_path / "data"), restoring.streams())
    for stream, start in ((orders, 333), (purged, 500)):
        directory = f"{tmp_path}/data/streams/{stream.name}/0"
        log = PartitionLog.open(RealFiles(), directory, log_config(stream.config), RealClock())
        assert (log.start_offset, log.end.offset) == (start, 500)
        log.close()


@pytest.mark.parametrize("start", [0, 20])
def test_a_log_whose_first_records_were_compacted_away_keeps_its_start(
    tmp_path: Path, start: int
) -> None:
    """Offsets that consumers have committed below the first batch stay in range."""
    logs = WrittenLogs(tmp_path / "logs")
    stream = logs.add("kv", cleanup=(Cleanup.COMPACT,))
    log = logs.log("kv")
    if start:
        log.start_at(start, epoch=0)
    log.append_as_follower(make_batch(50, 5))
    log.close(high_watermark=55)
    restoring = restorer(back_up(logs, tmp_path / "place"))
    restoring.restore(str(tmp_path / "data"), restoring.streams())
    directory = f"{tmp_path}/data/streams/kv/0"
    config = log_config(stream.config)
    for _ in range(2):
        log = PartitionLog.open(RealFiles(), directory, config, RealClock())
        assert (log.start_offset, log.end.offset) == (start, 55)
        piece = log.plan_read(start, bytes_max=1_000, end=log.end)
        assert piece is not None
        assert piece.file.read_at(piece.position, piece.length) == make_batch(50, 5)
        log.close(high_watermark=55)


def test_each_partition_comes_from_the_backup_that_has_most_of_it(tmp_path: Path) -> None:
    """As from the disks of two nodes that are left of a cluster."""
    first, second = WrittenLogs(tmp_path / "first"), WrittenLogs(tmp_path / "second")
    for logs in (first, second):
        logs.add("orders", partitions=3)
        for index in range(3):
            logs.write("orders", 100, index=index)
    first.write("orders", 50, index=0)
    second.write("orders", 300, index=1)
    first.write("orders", 300, index=2, epoch=1)
    second.write("orders", 50, index=2, epoch=2)
    restoring = restorer(
        back_up(first, tmp_path / "place1", at_ms=NOW_MS + 1), back_up(second, tmp_path / "place2")
    )
    restoring.restore(str(tmp_path / "data"), restoring.streams())
    for index, most in enumerate((first, second, second)):
        place = tmp_path / f"data/streams/orders/{index}"
        assert log_bytes(place) == most.bytes_of("orders", index)


def test_streams_are_chosen_by_name(tmp_path: Path) -> None:
    logs = WrittenLogs(tmp_path / "logs")
    logs.add("a")
    logs.add("b")
    restoring = restorer(back_up(logs, tmp_path / "place"))
    assert [each.name for each in restoring.streams(["b"])] == ["b"]
    with pytest.raises(ConfigError, match="no backup has stream 'c'"):
        restoring.streams(["c"])


def test_two_streams_of_one_name_are_refused(tmp_path: Path) -> None:
    first, second = WrittenLogs(tmp_path / "first"), WrittenLogs(tmp_path / "second")
    first.add("a")
    second.add("x")
    second.add("a")
    restoring = restorer(back_up(first, tmp_path / "1"), back_up(second, tmp_path / "2"))
    with pytest.raises(ConfigError, match=r"'a' of .* is not that of the other backups"):
        restoring.streams()


def test_what_the_backup_lacks_is_named(tmp_path: Path) -> None:
    logs = WrittenLogs(tmp_path / "logs")
    logs.add("orders", partitions=2)
    logs.write("orders", 50)
    repository = back_up(logs, tmp_path / "place")
    logs.failing["orders", 1] = CorruptData("x.log", 7, "a batch", "none")
    restoring = restorer(back_up(logs, tmp_path / "place", at_ms=NOW_MS + 1))
    ((stream, index, why),) = restoring.incomplete(restoring.streams())
    assert (stream, index) == ("orders", 1)
    assert "x.log" in why
    assert len(repository.ids()) == 2


def test_a_damaged_file_ends_the_restore_without_a_usable_directory(tmp_path: Path) -> None:
    logs = WrittenLogs(tmp_path / "logs")
    logs.add("orders")
    logs.write("orders", 50)
    repository = back_up(logs, tmp_path / "place")
    (name,) = repository.chosen("").files()
    repository.place.write(name, repository.place.read(name)[:-1])
    restoring = restorer(repository)
    with pytest.raises(CorruptData, match="SHA-256"):
        restoring.restore(str(tmp_path / "data"), restoring.streams())
    assert not (tmp_path / "data" / FILE_NAME).exists()
    with pytest.raises(ConfigError, match=r"data is of a restore that did not end: remove"):
        restoring.restore(str(tmp_path / "data"), restoring.streams())
    with pytest.raises(ConfigError, match=r"data is of a restore that did not end: remove"):
        load_cluster_id(RealFiles(), str(tmp_path / "data"), RealRandom(), draw_new=True)
    (tmp_path / "used/x").mkdir(parents=True)
    with pytest.raises(ConfigError, match="is not empty"):
        restoring.restore(str(tmp_path / "used"), restoring.streams())


def test_a_restore_to_a_full_disk_names_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel says only its number."""
    logs = WrittenLogs(tmp_path / "logs")
    logs.add("orders")
    logs.write("orders", 50)
    restoring = restorer(back_up(logs, tmp_path / "place"))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(PartitionLog, "append_as_follower", full)
    with pytest.raises(OSError, match="No space") as caught:
        restoring.restore(str(tmp_path / "data"), restoring.streams())
    assert caught.value.filename == f"{tmp_path}/data/streams/orders/0"


def test_a_log_ends_before_a_damaged_file_where_the_loss_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "FILE_BYTES_MAX", 1)
    logs = WrittenLogs(tmp_path / "logs")
    logs.add("orders")
    logs.write("orders", 500)
    repository = back_up(logs, tmp_path / "place")
    names = list(repository.chosen("").files())
    repository.place.write(names[1], b"damaged")
    restoring = restorer(repository)
    with pytest.raises(CorruptData, match="SHA-256"):
        restoring.restore(str(tmp_path / "refused"), restoring.streams())
    restored = restoring.restore(str(tmp_path / "data"), restoring.streams(), accept_loss=True)
    assert [(name, index) for name, index, _ in restored.incomplete] == [("orders", 0)]
    content = log_bytes(
        Path(StreamDirectories(RealFiles(), str(tmp_path / "data")).partition("orders", 0))
    )
    assert content == repository.place.read(names[0])


def harmed(place: LocalPlace, name: str) -> None:
    place.write(name, b"damaged")


def removed(place: LocalPlace, name: str) -> None:
    place.remove(name)


def unreadable(place: LocalPlace, name: str) -> None:
    """This may run as root, whom no mode keeps out."""
    place.remove(name)
    (Path(place.address) / name).mkdir()


@pytest.mark.parametrize("harm", [harmed, removed, unreadable])
@pytest.mark.parametrize("damaged", [0, 1])
def test_a_damaged_log_comes_from_another_place(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damaged: int,
    harm: Callable[[LocalPlace, str], None],
) -> None:
    """All of it, or what there is most of."""
    monkeypatch.setattr(taking, "FILE_BYTES_MAX", 1)
    logs = WrittenLogs(tmp_path / "logs")
    logs.add("orders")
    logs.write("orders", 500, epoch=1)
    twins = [back_up(logs, tmp_path / name, at_ms=NOW_MS + n) for n, name in enumerate("ab")]
    names = list(twins[0].chosen("").files())
    harm(LocalPlace(twins[damaged].place.address), names[3])
    restoring = restorer(*twins)
    restored = restoring.restore(str(tmp_path / "data"), restoring.streams())
    assert (restored.incomplete, restored.bytes) == ([], len(logs.bytes_of("orders")))
    assert log_bytes(tmp_path / "data/streams/orders/0") == logs.bytes_of("orders")
    harm(LocalPlace(twins[1 - damaged].place.address), names[1 + 4 * damaged])
    restoring = restorer(*twins)
    with pytest.raises(CorruptData):
        restoring.restore(str(tmp_path / "refused"), restoring.streams())
    restored = restoring.restore(str(tmp_path / "most"), restoring.streams(), accept_loss=True)
    assert restored.incomplete
    found = log_bytes(tmp_path / "most/streams/orders/0")
    most = twins[0].chosen("").files()
    size = sum(most[each].bytes for each in names[: 3 if not damaged else 5])
    assert found == logs.bytes_of("orders")[:size]
    assert restored.bytes == size


def test_bytes_that_the_disk_does_not_read_end_one_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = WrittenLogs(tmp_path / "logs")
    logs.add("orders", partitions=2)
    logs.write("orders", 50, index=0)
    logs.write("orders", 50, index=1)
    logs.put("orders", b"content", index=1)
    repository = back_up(logs, tmp_path / "place")
    manifest = repository.chosen("")
    (payload,) = manifest.payloads()
    bad = {f"{repository.place.address}/{name}" for name in (next(iter(manifest.files())), payload)}
    read_bytes, opened = RealFiles.read_bytes, RealFiles.open

    def failing(files: RealFiles, path: str) -> bytes:
        if path in bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read_bytes(files, path)

    def refused(files: RealFiles, path: str, *, create: bool = False, write: bool = True) -> object:
        if path in bad:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(files, path, create=create, write=write)

    monkeypatch.setattr(RealFiles, "read_bytes", failing)
    monkeypatch.setattr(RealFiles, "open", refused)
    found = verify(repository.place, manifest)
    assert {(each.stream, each.partition) for each in found} == {("orders", 0), ("orders", 1)}
    assert all(any(path in each.why for path in bad) for each in found)
    restoring = restorer(repository)
    restored = restoring.restore(str(tmp_path / "data"), restoring.streams(), accept_loss=True)
    assert [each[:2] for each in restored.incomplete] == [("orders", 0), ("orders", 1)]
    assert log_bytes(tmp_path / "data/streams/orders/0") == b""
    assert log_bytes(tmp_path / "data/streams/orders/1") == logs.bytes_of("orders", 1)
