"""A payload is whole once its name is on the disk, and not before."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

import pytest
from crc32c import crc32c

from bascule.errors import PayloadMissing
from bascule.host.real import RealRandom
from bascule.record.payload_links import Payload, PayloadLink
from bascule.sim.disk import SimFiles
from bascule.storage.payloads.payload_log import PayloadLog
from support.payload_logs import (
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


class Killed(Exception):
    """The process ends here."""


def stop_at_sync(
    monkeypatch: pytest.MonkeyPatch, files: SimFiles, log: PayloadLog, stop: Callable[[], None]
) -> None:
    """Call `stop` in place of the next sync of the names of payloads."""

    def sync_dir(path: str) -> None:
        assert path == log.payloads.directory
        monkeypatch.undo()
        stop()
        files.sync_dir(path)

    monkeypatch.setattr(files, "sync_dir", sync_dir)


def test_a_payload_of_a_process_that_was_killed_is_whole_once_its_name_is_synced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kill() -> None:
        raise Killed

    for seed in range(20):
        files = SimFiles(RealRandom(seed))
        log = opened(files)
        log.payloads.create(id_of(9))
        stop_at_sync(monkeypatch, files, log, kill)
        with pytest.raises(Killed):
            receive(log, 1)
        log = opened(files)
        log.append(link_batch(0, 1))
        log.sync()
        files.crash()
        check(opened(files))


def test_no_record_is_appended_before_the_name_of_its_payload_is_synced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread appends and syncs records meanwhile, and the power may fail."""
    link = PayloadLink(1, payload(7))
    for seed in range(20):
        files = SimFiles(RealRandom(seed))
        log = opened(files)
        receive(log, 1)
        log.append(link_batch(0, 1))
        log.sync()
        log.checkpoint(high_watermark=1)

        def append(log: PayloadLog = log, files: SimFiles = files) -> None:
            assert log.payloads.missing([link]) == [link]
            assert log.payloads.discard(id_of(7)) == log.payloads.discard_whole(id_of(7)) == 0
            with pytest.raises(PayloadMissing):
                log.append_as_follower(link_batch(1, 7))
            log.sync()
            files.crash()
            raise Killed

        stop_at_sync(monkeypatch, files, log, append)
        with pytest.raises(Killed):
            receive(log, 7)
        log = opened(files)
        check(log)
        assert links(log) == {0: id_of(1)}


def test_a_payload_whose_name_cannot_be_synced_is_not_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = SimFiles(RealRandom(1))
    log = opened(files)

    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    log.payloads.create(id_of(9))
    stop_at_sync(monkeypatch, files, log, fail)
    with pytest.raises(OSError, match="Input/output"):
        receive(log, 7)
    assert log.payloads.find(id_of(7)) is None
    assert log.payloads.counts == (2, 0, 0)
    log.payloads.finish(log.payloads.create(id_of(7)), payload(7))
    log.append(link_batch(0, 7))
    check(log)


@pytest.mark.parametrize("is_same", [False, True])
def test_of_two_senders_of_a_payload_the_last_one_counts(
    is_same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where one begins it anew while the names of the other's are synced."""
    files = SimFiles(RealRandom(1))
    log = opened(files)
    other = payload(7) if is_same else Payload(id_of(7), 5, crc32c(b"other"))

    def finish_other() -> None:
        have_whole(log.payloads, other, content_of(7) if is_same else b"other")

    log.payloads.create(id_of(9))
    stop_at_sync(monkeypatch, files, log, finish_other)
    with pytest.raises(OSError, match="come again"):
        receive(log, 7)
    assert log.payloads.bytes == other.size
    found, file = log.payloads.open_whole(id_of(7))
    assert found == other
    assert crc32c(file.read_at(0, 9_999)) == other.crc
    assert len(files.list_dir(log.payloads.directory)) == 2


def test_a_payload_that_comes_again_while_its_record_is_appended_is_that_of_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record gets the file that has come, which replaced the earlier one."""
    files = SimFiles(RealRandom(1))
    log = opened(files)
    receive(log, 7)

    def append() -> None:
        log.append(link_batch(0, 7))

    stop_at_sync(monkeypatch, files, log, append)
    receive(log, 7)
    assert log.payloads.counts == (0, 0, 1)
    log.append(link_batch(1, 7))
    log.payloads.settle()
    for each in (log, opened(files)):
        check(each)
        assert each.payloads.bytes == payload(7).size
    assert len(files.list_dir(log.payloads.directory)) == 2


def test_a_payload_that_comes_again_stays_when_the_earlier_one_is_discarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where a reader has found that one damaged."""
    files = SimFiles(RealRandom(1))
    log = opened(files)
    receive(log, 7)

    def discard() -> None:
        assert log.payloads.discard_whole(id_of(7)) == payload(7).size
        assert log.payloads.find(id_of(7)) is None

    stop_at_sync(monkeypatch, files, log, discard)
    receive(log, 7)
    assert log.payloads.counts == (0, 1, 0)
    log.append(link_batch(0, 7))
    log.payloads.settle()
    check(log)


def test_a_payload_that_comes_again_stays_when_unwanted_files_are_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its earlier file was replaced by other content, and could not be removed until now."""
    files = SimFiles(RealRandom(1))
    log = opened(files)
    receive(log, 7)
    other = Payload(id_of(7), 5, crc32c(b"other"))
    with monkeypatch.context() as patch:
        patch.setattr(files, "remove", partial(_fail_whole, files.remove))
        have_whole(log.payloads, other, b"other")
    stop_at_sync(monkeypatch, files, log, log.payloads.settle)
    receive(log, 7)
    log.append(link_batch(0, 7))
    log.payloads.settle()
    check(log)
    assert len(files.list_dir(log.payloads.directory)) == 1


def _fail_whole(remove: Callable[[str], None], path: str) -> None:
    if path.endswith(".whole"):
        raise OSError(errno.EIO, "Input/output error", path)
    remove(path)


def test_a_payload_whose_record_comes_and_goes_while_its_name_is_synced_is_not_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = SimFiles(RealRandom(1))
    log = opened(files)
    receive(log, 7)

    def append_and_remove() -> None:
        log.append(link_batch(0, 7))
        assert log.payloads.remove_linked([0]) == payload(7).size

    stop_at_sync(monkeypatch, files, log, append_and_remove)
    with pytest.raises(OSError, match="removed meanwhile"):
        receive(log, 7)
    assert log.payloads.find(id_of(7)) is None
    assert log.payloads.counts == (0, 0, 0)
    log.payloads.settle()
    assert files.list_dir(log.payloads.directory) == []


@pytest.mark.parametrize("is_open", [True, False])
def test_a_file_whose_name_cannot_be_synced_nor_taken_back_is_removed(
    is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SimFiles(RealRandom(1))
    log = opened(files)

    def fail_rename(source: str, target: str) -> None:
        raise OSError(errno.EIO, "Input/output error", source)

    def fail() -> None:
        if is_open:
            log.payloads.create(id_of(7))
        else:
            monkeypatch.setattr(files, "rename", fail_rename)
        monkeypatch.setattr(files, "remove", partial(_fail_whole, files.remove))
        raise OSError(errno.EIO, "Input/output error")

    log.payloads.create(id_of(9))
    log.payloads.discard(id_of(9))
    stop_at_sync(monkeypatch, files, log, fail)
    with pytest.raises(OSError, match="Input/output"):
        receive(log, 7)
    monkeypatch.undo()
    assert log.payloads.counts == (int(is_open), 0, 0)
    log.payloads.settle()
    names = files.list_dir(log.payloads.directory)
    assert names == ([f"{id_of(7)}.open"] if is_open else [])
    receive(log, 7)
    log.append(link_batch(0, 7))
    log.payloads.settle()
    check(log)


@pytest.mark.parametrize("is_synced", [True, False])
def test_a_file_that_other_content_has_replaced_is_removed(
    is_synced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its name could not be synced, or the disk does not let it be removed at once."""
    files = SimFiles(RealRandom(1))
    log = opened(files)
    other = Payload(id_of(7), 5, crc32c(b"other"))

    def finish_other() -> None:
        have_whole(log.payloads, other, b"other")
        monkeypatch.setattr(files, "remove", partial(_fail_whole, files.remove))
        if not is_synced:
            raise OSError(errno.EIO, "Input/output error")

    log.payloads.create(id_of(9))
    log.payloads.discard(id_of(9))
    stop_at_sync(monkeypatch, files, log, finish_other)
    with pytest.raises(OSError, match="come again" if is_synced else "Input/output"):
        receive(log, 7)
    monkeypatch.undo()
    log.payloads.settle()
    assert files.list_dir(log.payloads.directory) == [f"{id_of(7)}-{other.crc:08x}.whole"]
    assert log.payloads.find(id_of(7)) is not None


def test_a_file_that_has_a_record_now_gives_its_name_to_one_that_has_none() -> None:
    """The payload came again, and its file could not be renamed for its record at first."""
    files = SimFiles(RealRandom(1))
    log = opened(files)
    receive(log, 7)
    log.append(link_batch(0, 7))
    receive(log, 7)
    files.fail(1, errno.EIO)
    log.payloads.link([PayloadLink(1, payload(7))])
    assert not files.fault_pending()
    log.payloads.unlink(PayloadLink(0, payload(7)))
    log.payloads.settle()
    assert log.payloads.linked_offsets() == [1]
    assert log.payloads.counts == (0, 1, 1)
    names = files.list_dir(log.payloads.directory)
    assert sorted(name.rpartition(".")[2] for name in names) == ["linked", "whole"]
