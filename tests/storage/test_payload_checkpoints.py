"""Checkpoints of logs with payloads pass nothing that a crash may undo."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from bascule.host.real import RealRandom
from bascule.record.payload_links import PayloadLink
from bascule.sim.disk import SimFiles
from bascule.storage.payloads.payload_log import PayloadLog
from support.payload_logs import (
    check,
    id_of,
    link_batch,
    links,
    opened,
    receive,
)
from support.stored_batches import make_batch


@pytest.mark.parametrize("step", ["purge", "truncation", "checkpoint"])
def test_no_checkpoint_passes_a_link_whose_name_may_be_lost(step: str) -> None:
    """Of a crash that loses every name that is not synced: no record of before a checkpoint is read
    for its payload when the log opens."""
    for seed in range(20):
        files = SimFiles(RealRandom(seed))
        log = opened(files)
        log.append(make_batch(0, 2, timestamp=1_000))
        receive(log, 1)
        log.append(link_batch(2, 1))
        log.append(make_batch(3, 2, timestamp=1_000))
        log.sync()
        if step == "purge":
            log.advance_start(1, high_watermark=3)
        elif step == "truncation":
            log.truncate_to(3, 1, high_watermark=3)
        else:
            log.checkpoint(high_watermark=3)
        files.crash()
        check(opened(files))


def test_no_checkpoint_passes_a_link_whose_name_somebody_else_syncs_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a repair, which holds no lock of the partition."""
    for seed in range(20):
        files = SimFiles(RealRandom(seed))
        log = opened(files)
        receive(log, 1)
        log.append(link_batch(0, 1))
        log.sync()

        def sync_dir(path: str, files: SimFiles = files, log: PayloadLog = log) -> None:
            assert path == log.payloads.directory
            patch.undo()
            log.checkpoint(high_watermark=1)
            files.crash()
            raise OSError(errno.EIO, "the power is gone")

        with monkeypatch.context() as patch:
            patch.setattr(files, "sync_dir", sync_dir)
            with pytest.raises(OSError, match="power"):
                log.payloads.settle()
        check(opened(files))


@pytest.mark.parametrize("step", ["checkpoint", "advance_start"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_no_checkpoint_passes_a_record_whose_payload_is_not_linked_yet(
    is_killed: bool, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads sync and commit a record as soon as it is appended."""
    lost = []
    for seed in range(20):
        files = SimFiles(RealRandom(seed))
        log = opened(files)
        log.append(make_batch(0, 1, timestamp=1_000))
        receive(log, 1)
        link = log.payloads.link

        def overtaken(
            found: list[PayloadLink], log: PayloadLog = log, link: Callable[..., None] = link
        ) -> None:
            end = log.sync().offset
            if step == "checkpoint":
                assert log.checkpoint(high_watermark=end)
            else:
                log.advance_start(1, high_watermark=end)
            if not is_killed:
                link(found)

        monkeypatch.setattr(log.payloads, "link", overtaken)
        log.append(link_batch(1, 1))
        if not is_killed:
            assert log.payloads.find_at(1) is not None
            files.crash()
        again = opened(files)
        assert links(again) == {1: id_of(1)}
        if again.payloads.find_at(1) is None:
            lost.append(seed)
    assert not lost


def test_names_that_could_not_be_synced_are_synced_later(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimFiles(RealRandom(1))
    log = opened(files)
    receive(log, 1)
    log.append(link_batch(0, 1))
    log.sync()

    def fail(path: str) -> None:
        raise OSError(errno.EIO, path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_dir", fail)
        with pytest.raises(OSError, match=log.payloads.directory):
            log.payloads.settle()
    for expected in (1, 0):
        done = len(files.operations)
        log.payloads.settle()
        assert len(files.operations) - done == expected
