"""Several records may name one payload, and several payloads may have one id."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest
from crc32c import crc32c

from bascule.errors import LogFailed, PayloadMissing
from bascule.host.real import RealRandom
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.header import LOG_APPEND_TIME, PAYLOAD_LINKS, seal
from bascule.record.payload_links import Payload, PayloadLink
from bascule.sim.disk import RandomChoices, SimFiles
from bascule.storage.partition_log import PartitionLog
from bascule.storage.payloads.payload_files import PayloadFiles, whole_paths
from bascule.storage.payloads.payload_log import PayloadLog
from support.payload_logs import CONFIG, DIRECTORY, have_whole, id_of, links, opened
from support.stored_batches import make_batch

GAPPY = replace(CONFIG, gaps_allowed=True)
A, B, EMPTY = b"content " * 50, b"other content " * 70, b""


def payload(content: bytes, number: int = 7) -> Payload:
    return Payload(id_of(number), len(content), crc32c(content))


def receive(log: PayloadLog, content: bytes, number: int = 7) -> None:
    have_whole(log.payloads, payload(content, number), content)


def batch(offset: int, content: bytes, *, number: int = 7, epoch: int = 0) -> bytearray:
    headers = tuple(payload(content, number).headers())
    found = build_batch([Record(offset, 0, b"key", b"", headers)], base_offset=offset)
    seal(
        found, record_count=1, base_timestamp=1_000 + offset, max_timestamp=1_000 + offset,
        attributes=LOG_APPEND_TIME | PAYLOAD_LINKS, base_offset=offset, leader_epoch=epoch,
    )  # fmt: skip
    return found


def read(log: PayloadLog, offset: int) -> bytes:
    """The payload of a record, which it and its file name."""
    link = log.link_at(offset)
    assert link is not None
    found = log.payloads.find_at(offset)
    assert found is not None
    assert (found.offset, found.payload) == (offset, link.payload)
    stored, file = log.payloads.open_linked(link)
    assert stored == link.payload
    data = file.read_at(0, stored.size + 1)
    assert (len(data), crc32c(data)) == (stored.size, stored.crc)
    return data


def names(files: SimFiles, log: PayloadLog) -> list[str]:
    """Of the files that have content, each with its offset only."""
    where = log.payloads.directory
    found = files.list_dir(where)
    return [name[:20].lstrip("0") or "0" for name in found if files.size(f"{where}/{name}")]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("content", [A, EMPTY])
def test_a_payload_stays_until_its_last_record_is_gone(content: bytes, restarts: bool) -> None:
    files = SimFiles(RealRandom(1))
    log = opened(files)
    receive(log, content)
    for offset in range(4):
        log.append_as_follower(batch(offset, content))
    for start in range(4):
        log.sync()
        log.checkpoint(high_watermark=4)
        log.advance_start(start, high_watermark=4)
        if restarts:
            log = opened(files)
        assert log.sweep() == 0
        assert [read(log, offset) for offset in range(start, 4)] == [content] * (4 - start)
        assert log.payloads.linked_offsets() == list(range(start, 4))
        assert log.payloads.bytes == log.payloads.linked_bytes == len(content)
        assert len(files.list_dir(log.payloads.directory)) == 4 - start
    log.append(make_batch(4, 1, timestamp=2_000))
    log.advance_start(4, high_watermark=5)
    assert log.sweep() == len(content)
    assert files.list_dir(log.payloads.directory) == []
    assert log.payloads.is_empty


def test_compaction_may_remove_records_of_one_payload_in_any_order() -> None:
    for first, second in ((0, 4), (4, 0)):
        files = SimFiles(RealRandom(1))
        log = opened(files, GAPPY)
        receive(log, A)
        log.append_as_follower(batch(0, A))
        log.append_as_follower(batch(4, A))
        log.sync()
        log.checkpoint(high_watermark=5)
        assert log.payloads.remove_linked([first]) == 0
        log.payloads.settle()
        assert opened(files, GAPPY).payloads.linked_offsets() == [second]
        assert read(log, second) == A
        assert log.payloads.remove_linked([second]) == len(A)
        assert log.payloads.is_empty


@pytest.mark.parametrize("restarts", [False, True])
def test_content_that_differs_under_one_id_is_not_mixed(restarts: bool) -> None:
    """A follower still has a record whose payload its leader has removed, and gets another one."""
    files = SimFiles(RealRandom(1))
    log = opened(files)
    receive(log, A)
    log.append_as_follower(batch(0, A))
    other = PayloadLink(1, payload(B))
    assert log.payloads.missing([other]) == [other]
    with pytest.raises(PayloadMissing):
        log.append_as_follower(batch(1, B))
    receive(log, B)
    log.append_as_follower(batch(1, B))
    receive(log, EMPTY)
    log.append_as_follower(batch(2, EMPTY))
    log.sync()
    log.checkpoint(high_watermark=3)
    if restarts:
        log = opened(files)
    assert [read(log, offset) for offset in range(3)] == [A, B, EMPTY]
    assert log.payloads.bytes == len(A) + len(B)
    found = whole_paths(files, DIRECTORY)
    assert {key: files.size(path) for key, path in found.items()} == {
        (id_of(7), crc32c(content)): len(content) for content in (A, B, EMPTY)
    }
    log.advance_start(1, high_watermark=3)
    assert log.sweep() == len(A)
    assert [read(log, offset) for offset in (1, 2)] == [B, EMPTY]
    log.truncate_to(2, 1, high_watermark=1)
    assert read(log, 1) == B
    assert log.payloads.has(payload(EMPTY)), "a removed record may come back"
    log.append(batch(2, EMPTY, epoch=1))
    assert [read(log, offset) for offset in (1, 2)] == [B, EMPTY]


def test_a_truncation_leaves_a_payload_to_the_records_that_stay() -> None:
    files = SimFiles(RealRandom(1))
    log = opened(files)
    receive(log, A)
    for offset in range(4):
        log.append_as_follower(batch(offset, A))
    log.sync()
    log.checkpoint(high_watermark=1)
    assert names(files, log) == ["0"]
    log.payloads.remove_linked([0])
    assert names(files, log) == ["3"]
    log.truncate_to(2, 1, high_watermark=1)
    assert log.payloads.linked_offsets() == [1]
    assert names(files, log) == ["1"]
    assert opened(files).payloads.linked_offsets() == [1]
    log.truncate_to(1, 2, high_watermark=1)
    assert log.payloads.counts == (0, 1, 0)
    assert log.payloads.discard_whole(id_of(7)) == len(A)
    assert files.list_dir(log.payloads.directory) == []


@pytest.mark.parametrize("name", ["append", "append_as_follower"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_sweep_leaves_a_payload_whose_next_record_is_appended(
    name: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(SimFiles(RealRandom(1)))
    receive(log, A)
    log.append(batch(0, A))
    append, removed = getattr(PartitionLog, name), []

    def append_late(self: PartitionLog, *arguments: Any, **options: Any) -> Any:
        removed.append(log.payloads.remove_linked([0]))
        if fails:
            raise LogFailed(DIRECTORY, "the disk")
        return append(self, *arguments, **options)

    monkeypatch.setattr(PartitionLog, name, append_late)
    if fails:
        with pytest.raises(LogFailed):
            getattr(log, name)(batch(1, A))
        assert log.payloads.counts == (0, 1, 0), "it is removed like any that no record names"
    else:
        getattr(log, name)(batch(1, A))
        assert read(log, 1) == A
        assert log.payloads.linked_offsets() == [1]
    assert removed == [0]


@pytest.mark.parametrize("name", ["append", "append_as_follower"])
@pytest.mark.parametrize("fails", [False, True])
def test_other_content_that_comes_leaves_a_payload_whose_record_is_appended(
    name: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SimFiles(RealRandom(1))
    log = opened(files)
    receive(log, A)
    append = getattr(PartitionLog, name)

    def append_late(*arguments: Any, **options: Any) -> Any:
        receive(log, B)
        if fails:
            raise OSError(errno.EIO, "Input/output error")
        return append(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, name, append_late)
        with pytest.raises(OSError, match="Input/output") if fails else nullcontext():
            getattr(log, name)(batch(0, A))
    found = log.payloads.find(id_of(7))
    assert found is not None
    if fails:
        assert log.payloads.counts == (0, 2, 0)
        assert found.payload == payload(B)
        log.append(batch(0, A))
    assert read(log, 0) == A
    assert log.payloads.counts == (0, 1, 1)
    log.append(batch(1, B))
    assert read(log, 1) == B
    log.payloads.settle()
    assert [read(opened(files), offset) for offset in (0, 1)] == [A, B]
    receive(log, A)
    receive(log, B)
    assert log.payloads.counts == (0, 1, 2), "no record is appended: the last one that came"
    assert log.payloads.discard_whole(id_of(7)) == len(B)


def test_a_payload_with_several_records_counts_once_with_the_last_one() -> None:
    log = opened(SimFiles(RealRandom(1)))
    receive(log, A)
    for offset in range(3):
        log.append(batch(offset, A))
    assert log.payloads.linked_sizes() == [(2, len(A))]
    assert log.size_bytes() == PartitionLog.size_bytes(log) + len(A)


def test_the_payload_of_several_records_is_repaired_for_all() -> None:
    for size in (0, 3, len(A)):
        files = SimFiles(RealRandom(1))
        log = opened(files)
        receive(log, A)
        for offset in range(3):
            log.append(batch(offset, A))
        log.sync()
        log.checkpoint(high_watermark=3)
        found = log.payloads.find_at(0)
        assert found is not None
        damaged = files.open(found.path)
        damaged.truncate(size)
        damaged.write_at(0, b"x"[:size])
        log = opened(files)
        file = log.payloads.create(id_of(7))
        file.write_at(0, A)
        log.repair(file, PayloadLink(2, payload(A)))
        assert [read(log, offset) for offset in range(3)] == [A] * 3
        assert log.payloads.bytes == len(A)
        assert opened(files).payloads.linked_offsets() == [0, 1, 2]


def test_a_repair_replaces_the_file_of_its_record_only() -> None:
    files = SimFiles(RealRandom(1))
    log = opened(files)
    for offset, content in enumerate((A, B)):
        receive(log, content)
        log.append(batch(offset, content))
    found = log.payloads.find_at(0)
    assert found is not None
    files.open(found.path).write_at(0, b"damage")
    file = log.payloads.create(id_of(7))
    file.write_at(0, A)
    log.repair(file, PayloadLink(0, payload(A)))
    assert [read(log, offset) for offset in (0, 1)] == [A, B]


def test_a_payload_that_is_given_up_is_so_for_one_record() -> None:
    """Its id may be sent again."""
    log = opened(SimFiles(RealRandom(1)))
    lost, later = PayloadLink(0, payload(A)), PayloadLink(1, payload(A))
    log.payloads.give_up(lost)
    assert log.payloads.missing([lost, later, lost._replace(payload=payload(B))]) == [
        later,
        lost._replace(payload=payload(B)),
    ]
    log.append_as_follower(batch(0, A))
    with pytest.raises(PayloadMissing):
        log.append_as_follower(batch(1, A))
    receive(log, A)
    log.append_as_follower(batch(1, A))
    assert read(log, 1) == A
    assert log.payloads.is_given_up(lost)
    log.sync()
    log.advance_start(1, high_watermark=2)
    log.sweep()
    assert not log.payloads.is_given_up(lost)
    log.payloads.give_up(PayloadLink(2, payload(B)))
    log.start_at(2, 1)
    assert log.payloads.missing([PayloadLink(2, payload(B))])


def test_further_records_that_an_earlier_release_has_not_noted_are_noted() -> None:
    files = SimFiles(RealRandom(1))
    log = opened(files)
    receive(log, A)
    for offset in range(2):
        log.append(batch(offset, A))
    log.sync()
    log.checkpoint(high_watermark=2)
    where = log.payloads.directory
    for name in files.list_dir(where):
        if not files.size(f"{where}/{name}"):
            files.remove(f"{where}/{name}")
    log = opened(files)
    assert log.payloads.linked_offsets() == [0]
    link = PayloadLink(1, payload(A))
    log.link_again(link._replace(offset=2))
    log.link_again(link._replace(payload=payload(B)))
    assert log.payloads.linked_offsets() == [0]
    log.link_again(link)
    log.payloads.settle()
    log = opened(files)
    log.advance_start(1, high_watermark=2)
    assert log.sweep() == 0
    assert read(log, 1) == A


def test_a_record_that_is_truncated_while_its_payload_is_linked_late_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = opened(SimFiles(RealRandom(1)))
    receive(log, A)
    for offset in range(2):
        log.append(batch(offset, A))
    log.payloads.unlink(PayloadLink(1, payload(A)))
    link = log.payloads.link

    def link_late(found: Any) -> None:
        log.truncate_to(1, 1, high_watermark=1)
        link(found)

    monkeypatch.setattr(log.payloads, "link", link_late)
    log.link_again(PayloadLink(1, payload(A)))
    assert log.payloads.linked_offsets() == [0]


@pytest.mark.parametrize("ends", ["settled", "kill", "power loss"])
def test_a_file_that_cannot_be_renamed_for_its_next_record_stays(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(20):
        files = SimFiles(RealRandom(seed))
        log = opened(files)
        receive(log, A)
        for offset in range(3):
            log.append(batch(offset, A))
        log.sync()
        log.checkpoint(high_watermark=3)
        log.advance_start(1, high_watermark=3)
        with monkeypatch.context() as patch:
            patch.setattr(files, "rename", partial(_fail_linked, files.rename))
            assert log.sweep() == 0
            assert [read(log, offset) for offset in (1, 2)] == [A, A]
            with pytest.raises(OSError, match="renamed"):
                log.payloads.settle()
        if ends == "settled":
            log.payloads.settle()
        elif ends == "power loss":
            files.crash()
        log = opened(files)
        log.sweep()
        assert [read(log, offset) for offset in (1, 2)] == [A, A]
        assert len(files.list_dir(log.payloads.directory)) == 2


def _fail_linked(rename: Callable[[str, str], None], source: str, target: str) -> None:
    if source.endswith(".linked"):
        raise OSError(errno.EIO, "Input/output error", source)
    rename(source, target)


def check(log: PayloadLog) -> None:
    """Each record has its payload, and no file claims another record."""
    expected = links(log)
    for offset in expected:
        read(log, offset)
    claimed = [each for each in log.payloads.linked_offsets() if each >= log.start_offset]
    assert claimed == sorted(expected)
    sizes = [found.payload.size for found in log.payloads.linked()]
    assert log.payloads.linked_bytes == sum(sizes)


def put(log: PayloadLog, content: bytes, number: int, epoch: int) -> None:
    offset = log.end.offset
    if log.payloads.missing([PayloadLink(offset, payload(content, number))]):
        receive(log, content, number)
    log.append(batch(offset, content, number=number, epoch=epoch))


class Round:
    """One log through several crashes, with few ids and contents."""

    def __init__(self, seed: int) -> None:
        self.dice = RandomChoices(RealRandom(seed))
        self.files = SimFiles(RealRandom(seed + 1_000_000))
        self.confirmed: dict[int, str] = {}
        """Links that a sync has confirmed."""
        self.epoch = 0
        self.rename, self.fails = self.files.rename, False

    def _rename(self, source: str, target: str) -> None:
        if self.fails and source.endswith((".linked", ".whole")):
            raise OSError(errno.EIO, "Input/output error", source)
        self.rename(source, target)

    def run(self) -> None:
        self.files.rename = self._rename  # type: ignore[method-assign]
        for number in range(5):
            if number % 2:
                self.files.crash()
            self.fails = False
            log = opened(self.files)
            check(log)
            present = links(log)
            for offset, id in self.confirmed.items():
                if offset >= log.start_offset:
                    assert present.get(offset) == id
            for _ in range(self.dice.below(40)):
                with suppress(OSError) if self.fails else nullcontext():
                    self.act(log)
                check(log)

    def act(self, log: PayloadLog) -> None:
        kind, end = self.dice.below(14), log.end.offset
        if kind < 2:
            log.append(make_batch(end, 2, timestamp=1_000 + end, leader_epoch=self.epoch))
        elif kind < 6:
            content = (A, A, B, EMPTY)[self.dice.below(4)]
            put(log, content, self.dice.below(2), self.epoch)
        elif kind < 8:
            log.sync()
            self.confirmed = links(log)
        elif kind == 8:
            log.checkpoint(high_watermark=log.synced.offset)
        elif kind == 9 and end > log.start_offset:
            self.epoch += 1
            offset = log.start_offset + self.dice.below(end - log.start_offset)
            low = log.checkpointed_high_watermark
            log.truncate_to(max(offset, low), self.epoch, high_watermark=low)
            self.confirmed = links(log)
        elif kind == 10:
            low = log.synced.offset
            log.advance_start(self.dice.below(low + 1), high_watermark=low)
        elif kind == 11:
            log.sweep()
        elif kind == 12:
            for id in log.payloads.whole_ids():
                log.payloads.discard_whole(id)
        elif kind == 13:
            self.fails = not self.fails


@pytest.mark.parametrize("part", range(4))
def test_shared_payloads_survive_power_loss_with_their_records(part: int) -> None:
    for seed in range(part * 20, part * 20 + 20):
        try:
            Round(seed).run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


def work(files: SimFiles) -> None:
    """Raises: OSError, LogFailed where a fault hit."""
    log = opened(files)
    for content in (A, A, B, A, B):
        put(log, content, 7, 0)
    log.sync()
    log.checkpoint(high_watermark=3)
    log.advance_start(1, high_watermark=3)
    log.sweep()
    log.truncate_to(4, 1, high_watermark=3)
    put(log, A, 7, 1)
    log.advance_start(3, high_watermark=4)
    log.sweep()
    log.close(high_watermark=4)


@pytest.mark.parametrize("crash", [False, True], ids=["restart", "power loss"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_every_operation_may_fail_where_records_share_a_payload(error: int, crash: bool) -> None:
    for n in count(1):
        files = SimFiles(RealRandom(n))
        files.fail(n, error)
        try:
            work(files)
        except (OSError, LogFailed):
            pass
        else:
            if files.fault_pending():
                break
        files.forget_faults()
        if crash:
            files.crash()
        try:
            log = opened(files)
            check(log)
            for content in (B, A):
                put(log, content, 7, 9)
            log.sync()
            log.checkpoint(high_watermark=log.end.offset)
            log.sweep()
            check(log)
            again = opened(files)
            check(again)
            for id in again.payloads.whole_ids():
                again.payloads.discard_whole(id)
            for id in again.payloads.open_ids():
                again.payloads.discard(id)
            count_ = len(files.list_dir(again.payloads.directory))
            assert count_ == len(links(again))
        except Exception as failure:
            failure.add_note(f"operation {n}")
            raise


def test_an_empty_file_beside_the_content_is_a_further_record() -> None:
    """Whatever order a power loss has left the names in."""
    files = SimFiles(RealRandom(1))
    where, content = f"{DIRECTORY}/payloads", payload(A)
    files.make_dirs(where)
    linked = f"{where}/{{:020d}}-{content.id}-{content.crc:08x}.linked"
    files.open(f"{where}/{content.id}-{content.crc:08x}.whole", create=True).write_at(0, A)
    files.open(linked.format(5), create=True)
    files.open(linked.format(3), create=True)

    class NoLock:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    payloads = PayloadFiles(files, DIRECTORY, NoLock())
    assert payloads.linked_offsets() == [3, 5]
    assert payloads.has(content)
    payloads.settle()
    found = payloads.find_at(3)
    assert found is not None
    assert found.path == linked.format(5)
    assert payloads.open_whole(content.id)[1].read_at(0, 999) == A
    assert len(files.list_dir(where)) == 2


def test_two_files_of_one_content_that_no_record_names_are_one_payload() -> None:
    """A file has kept the name of a truncated record, and the payload has come again since."""
    files = SimFiles(RealRandom(1))
    where = f"{DIRECTORY}/payloads"
    files.make_dirs(where)
    for number, content in ((7, A), (8, B)):
        name = f"{payload(content, number).id}-{payload(content, number).crc:08x}"
        for path in (f"{5:020d}-{name}.linked", f"{6:020d}-{name}.linked", f"{name}.whole"):
            files.open(f"{where}/{path}", create=True).write_at(0, content)
    payloads = PayloadFiles(files, DIRECTORY, threading.Lock())
    payloads.settle()
    assert payloads.linked_offsets() == [5, 6]
    assert payloads.counts == (0, 2, 2)
    assert len(files.list_dir(where)) == 4
    payloads.unlink_from(0)
    payloads.settle()
    assert payloads.counts == (0, 2, 0)
    again = PayloadFiles(files, DIRECTORY, threading.Lock())
    assert again.counts == (0, 2, 0)
    for number, content in ((7, A), (8, B)):
        assert again.open_whole(id_of(number))[1].read_at(0, 9_999) == content
