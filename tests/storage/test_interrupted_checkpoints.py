"""Checkpoints that let a sync go first, and what is told of a sync of several segments."""

from __future__ import annotations

import threading

import pytest

from bascule.host.real import RealRandom
from bascule.sim.disk import SimClock, SimFile, SimFiles
from bascule.storage.checkpoint import FILE_NAME
from bascule.storage.partition_log import LogConfig, PartitionLog
from bascule.storage.payloads.payload_log import PayloadLog
from support.stored_batches import DIRECTORY, append

SEGMENTS = 4


@pytest.fixture
def files() -> SimFiles:
    files = SimFiles(RealRandom(1))
    files.make_dirs(DIRECTORY)
    return files


@pytest.fixture(params=["messages", "payloads"])
def log(request: pytest.FixtureRequest, files: SimFiles) -> PartitionLog:
    """A log with one batch in each of several segments."""
    config, clock = LogConfig(segment_messages_max=1), SimClock(1_000)
    if request.param == "messages":
        log = PartitionLog.open(files, DIRECTORY, config, clock)
    else:
        log = PayloadLog.open(files, DIRECTORY, config, clock, make_lock=threading.Lock)
    for _ in range(SEGMENTS):
        append(log)
    return log


def test_a_checkpoint_goes_on_where_it_was_broken_off(files: SimFiles, log: PartitionLog) -> None:
    log.sync()
    asked = 0

    def breaks_off() -> bool:
        nonlocal asked
        asked += 1
        return asked < SEGMENTS

    for attempt in range(1, SEGMENTS):
        assert not log.checkpoint(high_watermark=1, breaks_off=breaks_off)
        assert asked == attempt
        assert not files.exists(f"{DIRECTORY}/{FILE_NAME}")
    assert log.checkpoint(high_watermark=1, breaks_off=breaks_off)
    assert asked == SEGMENTS
    assert files.exists(f"{DIRECTORY}/{FILE_NAME}")


def test_a_file_is_told_once_it_is_synced(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync = SimFile.sync

    def noted(file: SimFile) -> None:
        sync(file)
        calls.append("synced")

    with monkeypatch.context() as patch:
        patch.setattr(SimFile, "sync", noted)
        log.sync(lambda: calls.append("told"))
    assert calls[: 2 * SEGMENTS] == ["synced", "told"] * SEGMENTS
