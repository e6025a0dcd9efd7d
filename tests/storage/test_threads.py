"""Threads on the real disk: one appends, one syncs and checkpoints, two read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bascule.errors import CorruptData
from bascule.host.real import RealClock, RealFiles, RealRandom
from bascule.record.batch import RecordBatch
from bascule.sim.disk import RandomChoices
from bascule.storage.epochs import EpochFile, LeaderEpochs
from bascule.storage.partition_log import LogConfig, PartitionLog
from bascule.storage.segment import LogPosition
from bascule.storage.segments import Segments
from support.stored_batches import append, read_records, value_of

BATCHES = 1_500
SIZE = 60
PATIENCE = 10
CONFIG = LogConfig(segment_bytes_max=8_000, index_interval_bytes=500)


def test_concurrent_append_sync_checkpoint_and_reads(tmp_path: Path) -> None:
    log = PartitionLog.open(RealFiles(), str(tmp_path / "0"), CONFIG, RealClock())
    done = threading.Event()
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)
                done.set()
                raise

        return run

    def write() -> None:
        for n in range(BATCHES):
            append(log, 1 + n % 3, timestamp=1_000 + n, size=SIZE)
            if done.is_set():
                return
        done.set()

    def sync() -> None:
        while not done.is_set():
            before = log.end
            synced = log.sync()
            assert synced >= before
            log.checkpoint(high_watermark=synced.offset)

    def read(seed: int) -> None:
        dice = RandomChoices(RealRandom(seed))
        while not done.is_set():
            end = log.end
            offset = dice.below(end.offset + 1)
            piece = log.plan_read(offset, bytes_max=2_000, end=end)
            assert piece is not None
            if offset == end.offset:
                assert piece.length == 0
                continue
            batch = RecordBatch(piece.file.read_at(piece.position, piece.length))
            found = {record.offset: record.value for record in batch}
            assert found[offset] == value_of(offset, SIZE)
            first = log.find_timestamp(batch.header.max_timestamp, end=end)
            assert first == (batch.header.base_offset, batch.header.max_timestamp)

    threads = [
        threading.Thread(target=guarded(work))
        for work in (write, sync, lambda: read(1), lambda: read(2))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    log.close()
    again = PartitionLog.open(RealFiles(), str(tmp_path / "0"), CONFIG, RealClock())
    records = read_records(again)
    assert [record.offset for record in records] == list(range(log.end.offset))
    assert all(record.value == value_of(record.offset, SIZE) for record in records)


def test_a_look_at_damage_waits_for_a_truncation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it has ended, the damage may be that of a file that is being truncated."""
    directory, lock = str(tmp_path / "0"), threading.Lock
    log = PartitionLog.open(RealFiles(), directory, CONFIG, RealClock(), make_lock=lock)
    for epoch in (1, 2):
        append(log, 3, leader_epoch=epoch)
    log.sync()
    path = tmp_path / "0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    looks = 0
    truncates, has_looked, goes_on = threading.Event(), threading.Event(), threading.Event()
    check, save = Segments.verify, EpochFile.save

    def counted(self: Segments, *args: Any, **options: Any) -> LogPosition | None:
        nonlocal looks
        looks += 1
        try:
            return check(self, *args, **options)
        finally:
            has_looked.set()

    def slow(self: EpochFile, epochs: LeaderEpochs) -> None:
        truncates.set()
        goes_on.wait(PATIENCE)
        save(self, epochs)

    monkeypatch.setattr(Segments, "verify", counted)
    monkeypatch.setattr(EpochFile, "save", slow)
    with ThreadPoolExecutor(2) as threads:
        truncated = threads.submit(log.truncate_to, 3, 2, high_watermark=0)
        assert truncates.wait(PATIENCE)
        verified = threads.submit(log.verify)
        assert has_looked.wait(PATIENCE)
        with pytest.raises(TimeoutError):
            verified.result(0.05)
        seen = looks
        goes_on.set()
        assert truncated.result(PATIENCE).offset == 3
        with pytest.raises(CorruptData):
            verified.result(PATIENCE)
    assert (seen, looks) == (1, 2)
