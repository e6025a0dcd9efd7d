"""A log with payloads: every link has its payload, whatever crashes or fails."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, cast

import pytest
from crc32c import crc32c

from bascule.errors import LogFailed, PayloadMissing
from bascule.host.api import File
from bascule.host.real import RealRandom
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.header import PAYLOAD_LINKS
from bascule.record.payload_links import Payload, PayloadLink, payload_of
from bascule.sim.disk import RandomChoices, SimFiles
from bascule.storage.partition_log import LogPosition, PartitionLog
from bascule.storage.payloads.block_steps import run_through
from bascule.storage.payloads.part_marks import CONFIRMED_AT, SYNCED_AT, encode_mark
from bascule.storage.payloads.payload_log import COMPACTED_SECONDS, PayloadLog
from support.payload_logs import (
    CONFIG,
    check,
    content_of,
    have_whole,
    id_of,
    link_batch,
    links,
    opened,
    payload,
    receive,
)
from support.stored_batches import make_batch


def test_a_link_without_its_payload_is_refused() -> None:
    log = opened(SimFiles(RealRandom(1)))
    for append in (log.append, log.append_as_follower):
        with pytest.raises(PayloadMissing):
            append(link_batch(0, 7))
        assert log.end.offset == 0
    receive(log, 8)
    other = Payload(id_of(8), 3, 5)
    headers = tuple(other.headers())
    batch = build_batch([Record(0, 0, b"key", b"", headers)], base_offset=0)
    batch[21] |= PAYLOAD_LINKS >> 8
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    with pytest.raises(PayloadMissing):
        log.append(batch)
    receive(log, 7)
    log.append(link_batch(0, 7))
    check(log)


@pytest.mark.parametrize("name", ["append", "append_as_follower"])
def test_a_payload_whose_record_is_appended_is_not_removed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As where nobody has named it for long, and a follower comes to its record then."""
    log = opened(SimFiles(RealRandom(1)))
    receive(log, 7)
    append = getattr(PartitionLog, name)
    removed = []

    def append_late(*arguments: Any, **options: Any) -> LogPosition:
        removed.append(log.payloads.discard_whole(id_of(7)))
        return cast(LogPosition, append(*arguments, **options))

    monkeypatch.setattr(PartitionLog, name, append_late)
    getattr(log, name)(link_batch(0, 7))
    assert removed == [0]
    assert log.payloads.find_at(0) is not None
    check(log)
    receive(log, 8)
    assert log.payloads.discard_whole(id_of(8)) == payload(8).size
    with pytest.raises(PayloadMissing):
        getattr(log, name)(link_batch(1, 8))


def test_a_payload_goes_with_its_record() -> None:
    files = SimFiles(RealRandom(1))
    log = opened(files)
    for number in range(30):
        receive(log, number)
        log.append(link_batch(number, number))
    log.sync()
    log.checkpoint(high_watermark=30)
    assert log.payloads.counts == (0, 0, 30)
    removed = sum(len(content_of(number)) for number in range(12))
    log.advance_start(12, high_watermark=30)
    assert log.is_sweep_due
    assert log.sweep() == removed
    assert not log.is_sweep_due
    assert log.payloads.linked_offsets() == list(range(12, 30))
    log.truncate_to(20, 1, high_watermark=12)
    check(log)
    assert log.payloads.counts == (0, 10, 8), "a removed record may come back"
    log.append(link_batch(20, 20, epoch=1))
    check(log)
    log.start_at(100, 1)
    assert log.payloads.counts[2] + log.payloads.counts[1] == 18
    log.sweep()
    assert log.payloads.linked_offsets() == []
    assert opened(files).payloads.bytes == log.payloads.bytes


def test_the_payload_of_a_record_that_compaction_has_removed_goes_after_a_while() -> None:
    """And not that of a record which the log writer appends during the look."""
    config = replace(CONFIG, gaps_allowed=True)
    log = opened(SimFiles(RealRandom(1)), config)
    for number in (0, 1, 4, 5):
        receive(log, number)
    log.append_as_follower(link_batch(0, 0))
    log.append_as_follower(link_batch(4, 4))
    log.payloads.link([PayloadLink(1, payload(1)), PayloadLink(5, payload(5))])
    assert log.is_sweep_due
    assert log.sweep() == len(content_of(1))
    assert log.payloads.linked_offsets() == [0, 4, 5]
    receive(log, 2)
    log.payloads.link([PayloadLink(2, payload(2))])
    assert not log.is_sweep_due
    assert log.sweep() == 0, "not before 10 s are over"
    for _ in range(COMPACTED_SECONDS):
        log._clock.monotonic_ns()
    assert log.is_sweep_due
    assert log.sweep() == len(content_of(2))
    assert log.payloads.linked_offsets() == [0, 4, 5]


def test_lost_payloads_are_forgotten_with_their_records() -> None:
    """Also in a log that has no payloads."""
    log = opened(SimFiles(RealRandom(1)))
    lost = [PayloadLink(offset, payload(7)) for offset in range(3)]
    for link in lost:
        log.payloads.give_up(link)
        log.append_as_follower(link_batch(link.offset, 7))
    log.sync()
    log.sweep()
    assert not log.is_sweep_due
    log.advance_start(2, high_watermark=3)
    assert log.is_sweep_due
    assert log.sweep() == 0
    assert not log.is_sweep_due
    assert [log.payloads.is_given_up(link) for link in lost] == [False, False, True]


def test_what_nobody_links_is_discarded() -> None:
    files = SimFiles(RealRandom(1))
    log = opened(files)
    log.payloads.create(id_of(3)).write_at(0, b"abc")
    receive(log, 4)
    assert log.payloads.counts == (1, 1, 0)
    assert log.payloads.discard(id_of(3)) == 3
    assert log.payloads.discard_whole(id_of(4)) == len(content_of(4))
    assert log.payloads.discard_whole(id_of(4)) == 0
    assert log.payloads.is_empty
    assert files.list_dir(log.payloads.directory) == []


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("Bascule-Payload-Id", b"7" * 31), ("Bascule-Payload-Bytes", b"1")),
        (
            ("Bascule-Payload-Id", b"7" * 32), ("Bascule-Payload-Bytes", b"-1"),
            ("Bascule-Payload-CRC32C", b"00000000"),
        ),
        (
            ("Bascule-Payload-Id", b"7" * 32), ("Bascule-Payload-Bytes", b"1"),
            ("Bascule-Payload-CRC32C", b"100000000"),
        ),
        (
            ("Bascule-Payload-Id", "é".encode() * 16), ("Bascule-Payload-Bytes", b"1"),
            ("Bascule-Payload-CRC32C", b"0"),
        ),
    ],
)  # fmt: skip
def test_malformed_headers_name_no_payload(headers: tuple[tuple[str, bytes], ...]) -> None:
    assert payload_of(headers) is None


class Round:
    """One log through several crashes."""

    def __init__(self, seed: int) -> None:
        self.dice = RandomChoices(RealRandom(seed))
        self.files = SimFiles(RealRandom(seed + 1_000_000))
        self.confirmed: dict[int, str] = {}
        """Links that a sync has confirmed."""
        self.next = 1
        self.epoch = 0

    def run(self) -> None:
        for _ in range(4):
            self.files.crash()
            log = opened(self.files)
            check(log)
            present = links(log)
            for offset, id in self.confirmed.items():
                if offset >= log.start_offset:
                    assert present.get(offset) == id
            for _ in range(self.dice.below(40)):
                self.act(log)
                check(log)

    def act(self, log: PayloadLog) -> None:
        kind = self.dice.below(12)
        end = log.end.offset
        if kind < 3:
            log.append(make_batch(end, 2, timestamp=1_000 + end, leader_epoch=self.epoch))
        elif kind < 7:
            receive(log, self.next)
            log.append(link_batch(end, self.next, epoch=self.epoch))
            self.next += 1
        elif kind < 9:
            log.sync()
            self.confirmed = links(log)
        elif kind == 9:
            log.checkpoint(high_watermark=log.synced.offset)
        elif kind == 10 and end > log.start_offset:
            self.epoch += 1
            offset = log.start_offset + self.dice.below(end - log.start_offset)
            low = log.checkpointed_high_watermark
            log.truncate_to(max(offset, low), self.epoch, high_watermark=low)
            self.confirmed = links(log)
        elif kind == 11:
            low = log.synced.offset
            log.advance_start(self.dice.below(low + 1), high_watermark=low)
            log.sweep()


@pytest.mark.parametrize("part", range(4))
def test_payloads_survive_power_loss_with_their_records(part: int) -> None:
    for seed in range(part * 30, part * 30 + 30):
        try:
            Round(seed).run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


def test_names_of_a_process_that_was_killed_are_synced_before_they_count() -> None:
    """The next process sees them in the page cache, and a loss of power may take them still."""
    for seed in range(20):
        files = SimFiles(RealRandom(seed))
        log = opened(files)
        receive(log, 1)
        log.append(link_batch(0, 1))
        log.sync()
        log = opened(files)
        log.checkpoint(high_watermark=1)
        files.crash()
        check(opened(files))


@pytest.mark.parametrize("is_killed", [True, False])
def test_the_directory_that_an_attempt_left_in_the_page_cache_is_on_the_disk(
    is_killed: bool,
) -> None:
    """Before a payload in it is whole."""
    for seed in range(20):
        files = SimFiles(RealRandom(seed))
        log = opened(files)
        files.fail(2, errno.EIO)
        with pytest.raises(OSError, match="EIO"):
            log.payloads.create(id_of(1))
        assert files.operations[-1].startswith("sync-dir")
        if is_killed:
            log = opened(files)
        receive(log, 1)
        log.append(link_batch(0, 1))
        log.sync()
        files.crash()
        check(opened(files))


def test_nobody_waits_for_the_disk_to_know_what_is_there() -> None:
    """The lock is held while a disk renames or removes a file, which may hang. The event loop asks
    what is there."""
    log = opened(SimFiles(RealRandom(1)))
    receive(log, 1)
    log.append(link_batch(0, 1))
    receive(log, 2)
    payloads = log.payloads
    payloads.create(id_of(3))
    asked = (
        lambda: payloads.find(id_of(1)),
        lambda: payloads.find(id_of(2)),
        lambda: payloads.find_at(0),
        lambda: payloads.missing([PayloadLink(5, payload(9)), PayloadLink(0, payload(1))]),
        lambda: payloads.is_given_up(PayloadLink(0, payload(1))),
        lambda: (payloads.open_ids(), payloads.whole_ids(), payloads.linked_offsets()),
        lambda: (log.size_bytes(), log.active_bytes, log.sized_segments()),
    )
    before = [ask() for ask in asked]
    assert before[2] is not None
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.extend(ask() for ask in asked), daemon=True)
    with payloads._lock:
        thread.start()
        thread.join(20)
    assert found == before


def test_a_closed_log_changes_no_payloads() -> None:
    """Whoever has received one for it goes on with the log that is opened again."""
    files = SimFiles(RealRandom(1))
    log = opened(files)
    file = log.payloads.create(id_of(7))
    file.write_at(0, content_of(7))
    receive(log, 8)
    log.close()
    again = opened(files)
    for refused in (
        lambda: log.payloads.finish(file, payload(7)),
        lambda: log.payloads.create(id_of(9)),
        lambda: log.payloads.create_marks(id_of(9)),
    ):
        with pytest.raises(OSError, match="closed"):
            refused()
    assert log.payloads.discard(id_of(7)) == log.payloads.discard_whole(id_of(8)) == 0
    assert again.payloads.counts == (1, 1, 0)
    again.payloads.finish(again.payloads.create(id_of(7)), payload(7))
    assert again.payloads.open_whole(id_of(7))[1].read_at(0, 9_999) == content_of(7)


def work(files: SimFiles) -> None:
    """Raises: OSError, LogFailed where a fault hit."""
    log = opened(files)
    for number in range(6):
        receive(log, number + 1)
        log.append(link_batch(log.end.offset, number + 1))
        if number % 2:
            log.sync()
            log.checkpoint(high_watermark=log.synced.offset)
    log.truncate_to(4, 1, high_watermark=2)
    log.advance_start(2, high_watermark=4)
    log.sweep()
    log.close(high_watermark=4)


@pytest.mark.parametrize("crash", [False, True], ids=["restart", "power loss"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_every_operation_may_fail(error: int, crash: bool) -> None:
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
            number = 100 + n
            receive(log, number)
            log.append(link_batch(log.end.offset, number, epoch=9))
            log.sync()
            log.checkpoint(high_watermark=log.end.offset)
            log.sweep()
            check(log)
            check(opened(files))
        except Exception as failure:
            failure.add_note(f"operation {n}")
            raise


@pytest.mark.parametrize("change", ["truncation", "restart"])
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("ends", ["settled", "kill", "power loss"])
def test_a_name_that_cannot_be_changed_stops_no_truncation(
    change: str, goes_on: bool, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has changed by then: whoever has truncated it has to know. No checkpoint passes the
    offset before the name is right, and a crash leaves nothing that is taken for another record's.
    """
    for seed in range(20):
        files = SimFiles(RealRandom(seed))
        log = opened(files)
        for number in range(1, 4):
            receive(log, number)
            log.append(link_batch(log.end.offset, number))
        with monkeypatch.context() as patch:
            patch.setattr(files, "rename", partial(_fail_linked, files.rename))
            end = log.truncate_to(1, 1, high_watermark=1) if change == "truncation" else None
            if end is None:
                assert log.start_at(0, 1).offset == 0
            kept = log.end.offset
            check(log)
            assert log.payloads.open_whole(id_of(3))[1].read_at(0, 9_999) == content_of(3)
            if goes_on:
                for number in (4, 2):  # the second one comes back, elsewhere
                    receive(log, number) if number == 4 else None
                    log.append(link_batch(log.end.offset, number, epoch=1))
                check(log)
            log.sync()
            with pytest.raises(OSError, match="renamed"):
                log.checkpoint(high_watermark=log.end.offset)
            assert log.checkpointed_high_watermark == kept
        if ends == "settled":
            log.payloads.settle()
        elif ends == "power loss":
            files.crash()
        again = opened(files)
        check(again)
        assert again.end.offset == kept + 2 * goes_on
        again.payloads.settle()
        again.checkpoint(high_watermark=again.end.offset)
        check(opened(files))
        names = files.list_dir(log.payloads.directory)
        assert sum(name.endswith(".linked") for name in names) == again.end.offset
        for id in again.payloads.whole_ids():
            again.payloads.discard_whole(id)
        assert len(files.list_dir(log.payloads.directory)) == again.end.offset


def _fail_linked(rename: Callable[[str, str], None], source: str, target: str) -> None:
    if source.endswith(".linked"):
        raise OSError(errno.EIO, "Input/output error", source)
    rename(source, target)


@pytest.mark.parametrize("is_right", [False, True])
def test_a_payload_that_comes_again_replaces_a_file_with_the_wrong_name(
    is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SimFiles(RealRandom(1))
    log = opened(files)
    receive(log, 2)
    log.append(link_batch(0, 2))
    with monkeypatch.context() as patch:
        patch.setattr(files, "rename", partial(_fail_linked, files.rename))
        log.truncate_to(0, 1, high_watermark=0)
    if is_right:
        receive(log, 2)
    else:
        have_whole(log.payloads, Payload(id_of(2), 5, crc32c(b"other")), b"other")
    log.payloads.settle()
    [name] = files.list_dir(log.payloads.directory)
    assert name.endswith(".whole")
    assert log.payloads.bytes == (payload(2).size if is_right else 5)


def test_a_file_of_another_size_is_not_the_payload_of_its_record() -> None:
    """As a payload that was damaged before its record was behind a checkpoint."""
    files = SimFiles(RealRandom(1))
    log = opened(files)
    for number in (3, 4, 5):
        receive(log, number)
        log.append(link_batch(log.end.offset, number))
    log.sync()
    log.payloads.settle()
    (path,) = [name for name in files.list_dir(log.payloads.directory) if id_of(4) in name]
    files.open(f"{log.payloads.directory}/{path}").append(b"more")
    log = opened(files)
    assert log.payloads.find_at(1) is None
    assert [offset for offset in (0, 2) if log.payloads.find_at(offset) is None] == []
    assert [each.offset for each in log.payloads.missing(log._links(0, log.end))] == [1]
    receive(log, 4)
    assert log.payloads.bytes == sum(len(content_of(number)) for number in (3, 4, 5))


def test_a_whole_file_has_exactly_the_bytes_of_its_payload() -> None:
    files = SimFiles(RealRandom(1))
    log = opened(files)
    file = log.payloads.create(id_of(3))
    file.write_at(0, content_of(3) + b"of a sender that has died")
    log.payloads.create_marks(id_of(3)).write_at(0, encode_mark(2, crc32c(content_of(3)[:2])))
    log.payloads.finish(file, payload(3))
    _, whole = log.payloads.open_whole(id_of(3))
    assert whole.read_at(0, 1_000) == content_of(3)
    assert len(files.list_dir(log.payloads.directory)) == 1
    short = log.payloads.create(id_of(4))
    short.write_at(0, b"4")
    with pytest.raises(OSError, match=f"1 bytes, expected {len(content_of(4))}"):
        log.payloads.finish(short, payload(4))


def test_what_has_no_mark_does_not_count() -> None:
    files = SimFiles(RealRandom(1))
    log = opened(files)
    payloads, data = log.payloads, content_of(40)
    payloads.create(id_of(40)).write_at(0, data)
    marks = payloads.create_marks(id_of(40))
    marks.write_at(CONFIRMED_AT, encode_mark(90, crc32c(data[:90])))
    marks.write_at(SYNCED_AT, encode_mark(50, crc32c(data[:50])))
    assert run_through(payloads.recover_part(id_of(40))) == (90, crc32c(data[:90]))
    assert files.size(f"{payloads.directory}/{id_of(40)}.open") == 90
    # The disk has the later mark, and not the bytes that it is of.
    payloads.create(id_of(40)).write_at(70, b"other")
    assert run_through(payloads.recover_part(id_of(40))) == (50, crc32c(data[:50]))
    marks.write_at(SYNCED_AT, b"torn")
    assert run_through(payloads.recover_part(id_of(40))) == (0, 0)
    payloads.discard(id_of(40))
    assert files.list_dir(payloads.directory) == []
    payloads.create_marks(id_of(41))
    assert opened(files).payloads.is_empty
    assert files.list_dir(payloads.directory) == []


def test_the_file_of_a_record_that_is_purged_during_its_repair_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = SimFiles(RealRandom(1))
    log = opened(files)
    for number in (3, 4):
        receive(log, number)
        log.append(link_batch(log.end.offset, number))
    log.sync()
    found = log.payloads.find_at(0)
    assert found is not None
    files.remove(found.path)
    log = opened(files)
    file = log.payloads.create(id_of(3))
    file.write_at(0, content_of(3))
    finish = log.payloads.finish

    def finish_late(file: File, payload: Payload) -> None:
        finish(file, payload)
        log.advance_start(1, high_watermark=2)
        log.sweep()

    monkeypatch.setattr(log.payloads, "finish", finish_late)
    log.repair(file, PayloadLink(0, payload(3)))
    assert log.is_sweep_due
    log.sweep()
    assert log.payloads.linked_offsets() == [1]
    assert log.payloads.counts == (0, 0, 1)


def test_a_file_that_is_repaired_too_late_has_no_record() -> None:
    log = opened(SimFiles(RealRandom(1)))
    for number in (3, 4):
        receive(log, number)
        log.append(link_batch(log.end.offset, number))
    log.sync()
    log.advance_start(1, high_watermark=2)
    before = log.payloads.changes
    log.sweep()
    assert log.payloads.changes > before, "the bytes of the active segment are others now"
    file = log.payloads.create(id_of(3))
    file.write_at(0, content_of(3))
    log.repair(file, PayloadLink(0, payload(3)))
    assert log.payloads.linked_offsets() == [1]
    assert log.payloads.counts == (0, 1, 1)
