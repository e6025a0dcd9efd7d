"""Payloads in backups: which are copied, which are not copied again, what is said of lost ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from errno import ENOSPC
from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c

from bascule.backup import payload_copying, taking
from bascule.backup.disk_source import StoredPartition
from bascule.backup.manifest import BackedUpPayload, Manifest, lacking_text
from bascule.backup.payload_copying import REPLACED, PayloadCopier
from bascule.backup.places import LocalPlace
from bascule.backup.restoring import Restorer
from bascule.backup.taking import BackupTaker
from bascule.backup.verifying import verified_payload, verify
from bascule.errors import (
    BasculeError,
    Broken,
    CorruptData,
    OffsetOutOfRange,
    PayloadMissing,
    UnknownPayload,
    UnknownStream,
)
from bascule.host.real import RealClock, RealFiles, RealRandom
from bascule.model import StreamDefinition
from bascule.record.payload_links import Payload, PayloadLink
from bascule.storage.payloads.payload_log import PayloadLog
from bascule.storage.retention import log_config
from support.backup_sources import Backups, link_batch

BIG = b"0123456789abcdef" * 200_000


@pytest.fixture
def backups(tmp_path: Path) -> Backups:
    found = Backups(tmp_path)
    found.logs.add("models")
    return found


def payloads(backups: Backups, manifest: Manifest) -> dict[int, bytes]:
    """Offset -> content of all payloads in a backup."""
    return {
        each.offset: b"".join(verified_payload(backups.repository.place, each))
        for each in backups.partition(manifest, "models").payloads
        if each.name
    }


def restored(backups: Backups, data: Path) -> PayloadLog:
    chosen = backups.repository.chosen("")
    restorer = Restorer(
        [(backups.repository.place, chosen)], RealFiles(), clock=RealClock(), dice=RealRandom()
    )
    (stream,) = restorer.streams()
    restorer.restore(str(data), [stream])
    directory = f"{data}/streams/models/0"
    return PayloadLog.open(RealFiles(), directory, log_config(stream.config), RealClock())


def test_a_restored_log_has_the_payloads_of_its_records(backups: Backups, tmp_path: Path) -> None:
    backups.logs.write("models", 5)
    contents = [BIG, b"", b"small"]
    put = [backups.logs.put("models", each) for each in contents]
    taken = backups.take()
    assert taken.manifest.failures() == []
    assert payloads(backups, taken.manifest) == dict(enumerate(contents, 5))
    assert verify(backups.repository.place, taken.manifest) == []
    assert taken.bytes_written == taken.manifest.bytes > len(BIG)
    log = restored(backups, tmp_path / "data")
    for offset, (payload, content) in enumerate(zip(put, contents, strict=True), 5):
        found = log.payloads.find_at(offset)
        assert found is not None
        assert (found.payload, found.offset) == (payload, offset)
        assert Path(found.path).read_bytes() == content
    assert not log.payloads.has_unlinked
    log.close()


def test_a_payload_is_copied_once(backups: Backups) -> None:
    backups.logs.put("models", BIG)
    backups.take()
    backups.logs.put("models", b"second")
    second = backups.take()
    assert second.bytes_written < 1_000
    assert second.manifest.failures() == []
    assert payloads(backups, second.manifest) == {0: BIG, 1: b"second"}
    third = backups.take(full=True)
    assert third.bytes_written > len(BIG), "a full one has files of its own"
    assert not third.manifest.payloads().keys() & second.manifest.payloads().keys()


def test_a_log_that_is_read_anew_has_no_payload_copied_again(backups: Backups) -> None:
    """As a compacted one is from time to time."""
    backups.logs.put("models", BIG)
    manifest = backups.take().manifest
    (stream,) = manifest.streams
    failed = msgspec.structs.replace(stream.partitions[0], files=(), failure="damaged")
    changed = msgspec.structs.replace(
        manifest, streams=(msgspec.structs.replace(stream, partitions=(failed,)),)
    )
    backups.repository.add(changed, known=backups.repository.ids())
    second = backups.take()
    assert [why for *_, why in second.read_anew] == ["damaged"]
    assert second.bytes_written < 1_000
    assert payloads(backups, second.manifest) == {0: BIG}


def test_payloads_below_the_log_start_are_left_out_and_removed(backups: Backups) -> None:
    backups.logs.put("models", BIG)
    backups.logs.put("models", b"second")
    backups.take()
    log = backups.logs.log("models")
    log.advance_start(1, high_watermark=2)
    log.close()
    manifest = backups.take().manifest
    assert payloads(backups, manifest) == {1: b"second"}
    assert backups.repository.forget(1)[1] >= 1
    names = backups.repository.place.names("streams")
    assert [name for name in names if name.endswith(".payload")] == list(manifest.payloads())


def test_a_lost_payload_is_named_until_it_is_there_again(backups: Backups) -> None:
    lost = backups.logs.put("models", BIG, damaged=True)
    backups.logs.put("models", b"second")
    manifest = backups.take().manifest
    ((stream, index, why),) = manifest.failures()
    assert (stream, index) == ("models", 0)
    assert why.startswith("the payload of offset 0 is not in the backup: ")
    assert lost.id in why
    assert payloads(backups, manifest) == {1: b"second"}
    directory = Path(backups.logs.address) / "models/0/payloads"
    (directory / f"{lost.id}-{lost.crc:08x}.whole").write_bytes(BIG)
    manifest = backups.take().manifest
    assert manifest.failures() == []
    assert payloads(backups, manifest) == {0: BIG, 1: b"second"}


def test_a_damaged_payload_is_not_taken_for_a_good_one(backups: Backups) -> None:
    payload = backups.logs.put("models", BIG)
    path = backups.logs.payload_file("models", payload)
    path.write_bytes(BIG[:-1] + b"!")
    manifest = backups.take().manifest
    assert payloads(backups, manifest) == {}
    ((_, _, why),) = manifest.failures()
    assert f"{payload.crc:08x}" in why
    every, _ = backups.repository.load_all()
    assert backups.repository.unnamed(every) == [], "nothing is left of it"


def test_what_is_gone_from_the_place_is_copied_again(backups: Backups) -> None:
    """As a rule of a bucket removes what is old: the next backup must not count on it."""
    backups.logs.put("models", BIG)
    backups.logs.put("models", b"second")
    first = backups.take().manifest
    place = backups.repository.place
    place.remove(next(iter(first.payloads())))
    second = backups.take()
    assert second.read_anew == []
    assert payloads(backups, second.manifest) == {0: BIG, 1: b"second"}
    place.remove(next(iter(first.files())))
    third = backups.take()
    ((_, _, why),) = third.read_anew
    assert why.endswith(".batches is gone")
    assert third.bytes_written < 1_000
    assert third.manifest.is_complete
    assert verify(place, third.manifest) == []


def test_a_backup_of_the_first_version_gets_the_payloads_that_it_lacks(backups: Backups) -> None:
    backups.logs.put("models", BIG)
    manifest = backups.take().manifest
    (stream,) = manifest.streams
    without = msgspec.structs.replace(stream.partitions[0], payloads=())
    changed = msgspec.structs.replace(stream, partitions=(without,))
    backups.repository.add(
        msgspec.structs.replace(manifest, streams=(changed,)), known=backups.repository.ids()
    )
    second = backups.take()
    assert second.read_anew == []
    assert payloads(backups, second.manifest) == {0: BIG}


def test_a_lost_payload_comes_from_the_other_backup(tmp_path: Path) -> None:
    """As from the disks of two nodes that are left of a cluster."""
    places = []
    for name, damaged in (("first", 0), ("second", 1)):
        each = Backups(tmp_path / name)
        stream = each.logs.add("models")
        for number in range(3):
            each.logs.put("models", b"%d" % number, damaged=number in (damaged, 2))
        places.append((each.repository.place, each.take().manifest))
    restorer = Restorer(places, RealFiles(), clock=RealClock(), dice=RealRandom())
    ((_, _, why),) = restorer.incomplete([stream])
    assert why.startswith("the payload of offset 2 is not in the backup: ")
    restored = restorer.restore(str(tmp_path / "data"), [stream])
    assert (restored.payloads, len(restored.incomplete)) == (2, 1)
    directory = tmp_path / "data/streams/models/0/payloads"
    assert sorted(path.read_bytes() for path in directory.iterdir()) == [b"0", b"1"]


def test_a_changed_byte_in_the_backup_is_found(backups: Backups, tmp_path: Path) -> None:
    backups.logs.put("models", BIG)
    manifest = backups.take().manifest
    (name,) = manifest.payloads()
    path = Path(backups.repository.place.address) / name
    path.write_bytes(b"!" + BIG[1:])
    (damage,) = verify(backups.repository.place, manifest)
    assert name in damage.why
    with pytest.raises(BasculeError, match="SHA-256"):
        restored(backups, tmp_path / "data")
    path.unlink()
    (damage,) = verify(backups.repository.place, manifest)
    assert "no such file" in damage.why


def test_a_damaged_payload_comes_from_the_other_backup(tmp_path: Path) -> None:
    """The place of the log comes first, whichever is older."""
    places, stream = two_places(tmp_path)
    read: list[int] = []
    restorer = Restorer(
        places, RealFiles(), clock=RealClock(), dice=RealRandom(), on_bytes=read.append
    )
    for (place, manifest), is_read in zip(places, (True, False), strict=True):
        (name,) = manifest.payloads()
        path = Path(place.address) / name
        path.write_bytes(b"damaged, and longer than the content")
        read.clear()
        restored = restorer.restore(f"{place.address}-data", [stream])
        assert (restored.payloads, restored.incomplete) == (1, [])
        assert (sum(read) > restored.bytes) is is_read
        (file,) = Path(f"{place.address}-data/streams/models/0/payloads").iterdir()
        assert file.read_bytes() == b"content"
        path.write_bytes(b"content")


def test_a_payload_whose_files_are_all_damaged_stops_a_restore_until_the_loss_is_accepted(
    tmp_path: Path,
) -> None:
    places, stream = two_places(tmp_path)
    for place, manifest in places:
        (name,) = manifest.payloads()
        (Path(place.address) / name).write_bytes(b"damaged")
    restorer = Restorer(places, RealFiles(), clock=RealClock(), dice=RealRandom())
    with pytest.raises(CorruptData, match="SHA-256"):
        restorer.restore(str(tmp_path / "refused"), [stream])
    restored = restorer.restore(str(tmp_path / "data"), [stream], accept_loss=True)
    assert restored.payloads == 0
    ((name, index, why),) = restored.incomplete
    assert (name, index) == ("models", 0)
    assert "SHA-256" in why
    assert list((tmp_path / "data/streams/models/0/payloads").iterdir()) == []


def test_payloads_behind_a_damaged_file_of_records_are_left_out_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "FILE_BYTES_MAX", 1)
    backups = Backups(tmp_path)
    stream = backups.logs.add("models")
    backups.logs.put("models", b"first")
    backups.take()
    backups.logs.put("models", b"second")
    place, manifest = backups.repository.place, backups.take().manifest
    place.write(list(manifest.files())[1], b"damaged")
    restorer = Restorer([(place, manifest)], RealFiles(), clock=RealClock(), dice=RealRandom())
    restored = restorer.restore(str(tmp_path / "data"), [stream], accept_loss=True)
    assert (restored.payloads, len(restored.incomplete)) == (1, 1)
    (file,) = (tmp_path / "data/streams/models/0/payloads").iterdir()
    assert file.read_bytes() == b"first"


def test_two_records_may_have_one_payload(backups: Backups, tmp_path: Path) -> None:
    payload = backups.logs.put("models", BIG)
    log = backups.logs.log("models")
    log.append(link_batch(PayloadLink(1, payload)))
    log.close(high_watermark=2)
    manifest = backups.take().manifest
    assert [each.offset for each in backups.partition(manifest, "models").payloads] == [0, 1]
    assert len(manifest.payloads()) == 1
    log = restored(backups, tmp_path / "data")
    for offset in (0, 1):
        found = log.payloads.find_at(offset)
        assert found is not None
        assert found.payload == payload
    assert log.payloads.linked_bytes == len(BIG)
    log.close()


def two_places(tmp_path: Path) -> tuple[list[tuple[LocalPlace, Manifest]], StreamDefinition]:
    """The same payload, backed up twice."""
    places = []
    for name in ("first", "second"):
        each = Backups(tmp_path / name)
        stream = each.logs.add("models")
        each.logs.put("models", b"content")
        places.append((LocalPlace(each.repository.place.address), each.take().manifest))
    return places, stream


class Reading:
    """A partition whose records and payloads go while they are read."""

    def __init__(self) -> None:
        self.start_offset = 0
        self.log_start = 0
        self.links: dict[int, PayloadLink] = {}
        self.contents: dict[int, bytes] = {}
        self.asked: list[int] = []
        self.failing: dict[int, Exception] = {}
        self.copies = 1
        self.latest_epoch = -1
        self.log_failing: Exception | None = None
        self.closed: list[int] = []
        self.on_payload: Callable[[int], None] = lambda _: None

    @property
    def end_offset(self) -> int:
        return len(self.links)

    def put(self, content: bytes) -> PayloadLink:
        offset = len(self.links)
        link = PayloadLink(offset, Payload(f"{offset:032x}", len(content), crc32c(content)))
        self.links[offset], self.contents[offset] = link, content
        return link

    def behind_damage(self, offset: int) -> int | None:
        return None

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        raise NotImplementedError

    def read(self, offset: int, *, epoch: int = -1) -> Iterator[memoryview]:
        if self.log_failing is not None:
            raise self.log_failing
        if offset < self.log_start:
            raise OffsetOutOfRange(offset, self.log_start, self.end_offset)
        for each in sorted(self.links):
            if each >= offset:
                yield memoryview(link_batch(self.links[each]))

    def read_payload(self, link: PayloadLink) -> Generator[bytes, None, None]:
        self.asked.append(link.offset)
        self.on_payload(link.offset)
        if error := self.failing.get(link.offset):
            raise error
        if link.offset not in self.contents:
            raise UnknownPayload("models", 0, link.offset)
        try:
            yield self.contents[link.offset]
        finally:
            self.closed.append(link.offset)


class Copying:
    """Copies the payloads of a `Reading`."""

    def __init__(self, directory: Path) -> None:
        self.reading = Reading()
        self.links = [self.reading.put(b"content %d" % number) for number in range(6)]
        self.directory = directory
        self.begin("b1")

    def copy(
        self, earlier: dict[int, BackedUpPayload] | None = None, *, new_from: int = 0
    ) -> dict[int, BackedUpPayload]:
        found = self.copier.copy(self.links, (earlier or {}).values(), new_from=new_from)
        assert sorted(found, key=lambda each: each.offset) == list(found)
        return {each.offset: each for each in found}

    def begin(self, backup: str) -> None:
        """Begin another backup."""
        self.reading.asked.clear()
        self.copier = PayloadCopier(
            self.reading, LocalPlace(str(self.directory)), "streams/1/0", backup,
            on_bytes=lambda _: None,
        )  # fmt: skip

    def remove(self, offset: int) -> None:
        self.reading.links.pop(offset)
        self.reading.contents.pop(offset)


@pytest.fixture
def copying(tmp_path: Path) -> Copying:
    return Copying(tmp_path)


def test_what_retention_removes_meanwhile_is_left_out(copying: Copying) -> None:
    """The front of a log goes while it is read: that is no failure."""

    def on_payload(offset: int) -> None:
        if offset == 2:
            for each in range(4):
                copying.remove(each)
            copying.reading.log_start = 4

    copying.reading.on_payload = on_payload
    found = copying.copy()
    assert list(found) == [4, 5]
    assert all(each.name for each in found.values())
    assert copying.copier.log_start == 4


def test_a_payload_that_is_missing_is_left_out_where_its_record_is_gone(copying: Copying) -> None:
    """A replica that is late knows the record, and has lost its payload."""
    copying.reading.failing = {0: PayloadMissing("id", "here"), 1: Broken("silence")}
    copying.remove(0)
    copying.remove(1)
    copying.reading.log_start = 2
    assert list(copying.copy()) == [2, 3, 4, 5]


def test_what_compaction_removes_meanwhile_is_in_the_next_backup(copying: Copying) -> None:
    copying.remove(3)
    first = copying.copy()
    assert [offset for offset, each in first.items() if not each.name] == [3]
    assert first[3].failure == REPLACED
    assert copying.copier.log_start == 0
    assert lacking_text(first.values())
    copying.begin("b2")
    second = copying.copy(first, new_from=6)
    assert second[3].is_settled, "what came later has been read now"
    assert lacking_text(second.values()) == ""
    copying.begin("b3")
    assert copying.copy(second, new_from=6)[3].is_settled
    assert copying.reading.asked == [], "it stays so"
    copying.begin("b4")
    assert not copying.copy(second, new_from=3)[3].is_settled, "a log that is read anew"


def test_what_compaction_removes_after_the_log_was_read_is_not_taken_for_replaced(
    copying: Copying,
) -> None:
    """The backup before lacked it for another reason: nothing says that this one has what came
    later, since that may have come after the end of what was read."""
    copying.reading.failing = {3: PayloadMissing("id", "here")}
    first = copying.copy()
    assert not first[3].is_replaced
    copying.remove(3)
    assert copying.copy(first, new_from=6)[3].failure == REPLACED


def test_a_payload_that_nobody_has_is_a_failure_in_each_backup(copying: Copying) -> None:
    copying.reading.contents.pop(3)
    for new_from in (0, 6):
        found = copying.copy(new_from=new_from)
        assert "no payload at offset 3" in found[3].failure
        assert [offset for offset, each in found.items() if each.name] == [0, 1, 2, 4, 5]


def test_a_bad_payload_is_asked_for_again_where_there_are_other_copies(copying: Copying) -> None:
    """A node without checksums of the blocks sends a damaged one to its end. Another one may have
    appended the record when no replica had its payload."""
    good, damaged = copying.reading.contents[1], b"damaged"
    copying.reading.copies = 3

    def on_payload(offset: int) -> None:
        asked = copying.reading.asked.count(1)
        copying.reading.contents[1] = good if asked == 3 else damaged
        copying.reading.failing = {1: UnknownPayload("models", 0, 1)} if asked == 2 else {}

    copying.reading.on_payload = on_payload
    assert all(each.name for each in copying.copy().values())
    assert copying.reading.asked.count(1) == 3
    copying.reading.contents[1] = damaged
    copying.reading.on_payload = lambda _: None
    copying.begin("b2")
    found = copying.copy()
    assert f"{crc32c(good):08x}" in found[1].failure
    assert copying.reading.asked == [0, 1, 1, 1, 2, 3, 4, 5]


def test_a_payload_that_no_node_sends_stops_no_other(copying: Copying) -> None:
    """A node whose file is gone ends the connection: that must not hide those behind it."""
    copying.reading.failing = {1: PayloadMissing("id", "here"), 2: Broken("silence")}
    found = copying.copy()
    assert copying.reading.asked == [0, 1, 2, 3, 4, 5]
    failures = [each.failure for each in found.values()]
    assert failures == ["", "payload id is not in here", "silence", "", "", ""]


def test_nobody_is_asked_again_once_the_log_does_not_answer_either(copying: Copying) -> None:
    copying.reading.failing = {2: Broken("silence")}
    copying.reading.log_failing = Broken("no leader")
    found = copying.copy()
    assert copying.reading.asked == [0, 1, 2]
    assert [each.failure for each in found.values()] == ["", "", *4 * ["no leader"]]


def test_lost_payloads_among_good_ones_end_nothing(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_copying, "FAILED_MAX", 2)
    copying.reading.failing = {each: Broken("silence") for each in (0, 2, 4)}
    assert [offset for offset, each in copying.copy().items() if each.name] == [1, 3, 5]


def test_a_record_behind_the_end_of_the_log_is_named(copying: Copying) -> None:
    """As after an unclean election: nothing below it is gone."""
    copying.reading.failing = {5: PayloadMissing("id", "here")}
    copying.reading.log_failing = OffsetOutOfRange(5, 0, 5)
    found = copying.copy()
    assert copying.copier.log_start == 0
    assert [offset for offset, each in found.items() if each.failure] == [5]


def test_many_lost_payloads_delay_the_others_and_hide_none_for_ever(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_copying, "FAILED_MAX", 2)
    copying.reading.failing = {each: Broken("silence") for each in (0, 1, 2)}
    found = copying.copy()
    assert copying.reading.asked == [0, 1]
    assert not any(each.name for each in found.values())
    for number in range(20):
        copying.begin(f"later {number}")
        found = copying.copy(found, new_from=6)
    assert [offset for offset, each in found.items() if each.name] == [3, 4, 5]


class FullPlace(LocalPlace):
    """A place without room for a payload."""

    def write_chunks(self, name: str, chunks: Iterable[bytes]) -> None:
        next(iter(chunks))
        raise OSError(ENOSPC, "no space left on device", name)


def test_a_payload_is_closed_where_the_place_fails(tmp_path: Path) -> None:
    """Its reader has threads: left to the end of the process it waited for them for ever."""
    copying = Copying(tmp_path)
    copying.copier = PayloadCopier(
        copying.reading, FullPlace(str(tmp_path)), "streams/1/0", "b1", on_bytes=lambda _: None
    )
    with pytest.raises(OSError, match="no space") as caught:
        copying.copy()
    assert copying.reading.closed == [0], "and the error holds its frames still"
    del caught


class FailingPlace(LocalPlace):
    """A place that takes nothing of the second partition, once the first is written."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.first_began = threading.Event()

    def write_chunks(self, name: str, chunks: Iterable[bytes]) -> None:
        if "/1/" in name:
            self.first_began.wait()
            raise OSError(ENOSPC, "no space left on device", name)
        super().write_chunks(name, chunks)


def test_the_end_of_a_backup_does_not_wait_for_the_payloads_of_other_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends it in the same way."""
    backups, given = Backups(tmp_path), []
    backups.logs.add("models", partitions=2)
    for index in range(2):
        backups.logs.put("models", BIG, index=index)
    place = FailingPlace(str(tmp_path / "place"))

    def endless(_: StoredPartition, __: PayloadLink) -> Generator[bytes, None, None]:
        for number in range(1_000):
            given.append(number)
            yield b"x"
            place.first_began.set()
            threading.Event().wait(0.01)

    monkeypatch.setattr(StoredPartition, "read_payload", endless)
    taker = BackupTaker(backups.logs, place, now_ms=lambda: backups.now_ms)
    with pytest.raises(OSError, match="no space"):
        taker.take(backups.logs.streams(), None, jobs=2)
    assert len(given) < 1_000
    assert not [each for each in place.names("streams") if "payload" in each]


def test_a_stream_that_is_gone_is_told(copying: Copying) -> None:
    copying.reading.failing = {1: UnknownStream("models")}
    with pytest.raises(UnknownStream):
        copying.copy()
