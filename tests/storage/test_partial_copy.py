"""The mark of a log that is copied from its beginning."""

from __future__ import annotations

import errno

import pytest

from bascule.host.real import RealRandom
from bascule.sim.disk import SimFiles
from bascule.storage.partition_log import LogConfig
from bascule.storage.truncation.partial_copy import (
    FILE_NAME,
    NOT_TOLD,
    UNKNOWN_EPOCH,
    PartialCopy,
)
from support.stored_batches import DIRECTORY, open_log

PATH = f"{DIRECTORY}/{FILE_NAME}"


def make_files() -> SimFiles:
    files = SimFiles(RealRandom(1))
    open_log(files, LogConfig()).close(high_watermark=0)
    return files


def test_a_mark_outlives_power_loss_once_it_is_made() -> None:
    files = make_files()
    copy = PartialCopy(files, DIRECTORY)
    assert (copy.epoch, copy.is_marked(), copy.begun) == (None, False, 0)
    copy.begin(7)
    files.crash()
    again = PartialCopy(files, DIRECTORY)
    assert (again.known_epoch, again.epoch, again.known_epoch) == (None, 7, 7)
    again.end()
    files.crash()
    last = PartialCopy(files, DIRECTORY)
    assert (last.epoch, last.is_marked()) == (None, False)
    last.end()


def test_a_log_that_is_opened_or_begins_again_keeps_its_mark() -> None:
    files = make_files()
    log = open_log(files, LogConfig())
    log.partial_copy.begin(7)
    log.start_at(40, 7)
    log.close(high_watermark=40)
    assert open_log(files, LogConfig()).partial_copy.epoch == 7


def test_a_log_about_to_be_emptied_is_the_copy_of_no_epoch() -> None:
    copy = PartialCopy(make_files(), DIRECTORY)
    copy.begin(7)
    copy.end_epoch()
    assert copy.known_epoch == UNKNOWN_EPOCH
    copy.begin(7)
    assert (copy.known_epoch, copy.begun) == (7, 2)


def test_a_copy_that_goes_on_knows_how_far_its_leaders_were_compacted() -> None:
    files = make_files()
    copy = PartialCopy(files, DIRECTORY)
    assert copy.clean_offset == NOT_TOLD
    copy.begin(7)
    assert copy.clean_offset == NOT_TOLD
    copy.go_on(8, 40)
    files.crash()
    again = PartialCopy(files, DIRECTORY)
    assert (again.epoch, again.clean_offset, copy.begun, again.begun) == (8, 40, 1, 0)
    again.begin(8)
    assert again.clean_offset == NOT_TOLD, "it is empty again"


@pytest.mark.parametrize("at", [0, 8, 12, 15, 16, 23])
def test_a_damaged_mark_is_one_of_no_epoch(at: int) -> None:
    files = make_files()
    PartialCopy(files, DIRECTORY).begin(7)
    data = bytearray(files.read_bytes(PATH))
    data[at] ^= 1
    for found in (bytes(data), bytes(data[:at]), b""):
        file = files.open(PATH)
        file.truncate(0)
        file.write_at(0, found) if found else None
        assert PartialCopy(files, DIRECTORY).epoch == UNKNOWN_EPOCH


def test_whatever_fails_the_mark_is_what_is_on_the_disk() -> None:
    for change in ("begin", "end"):
        operation, hit = 1, True
        while hit:
            files = make_files()
            copy = PartialCopy(files, DIRECTORY)
            copy.begin(6)
            files.fail(operation, errno.EIO)
            try:
                copy.begin(7) if change == "begin" else copy.end()
            except OSError:
                assert copy.epoch == PartialCopy(files, DIRECTORY).epoch
            hit = not files.fault_pending()
            files.forget_faults()
            copy.begin(7) if change == "begin" else copy.end()
            assert PartialCopy(files, DIRECTORY).epoch == (7 if change == "begin" else None)
            operation += 1
        assert operation > 2
