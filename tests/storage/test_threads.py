"""Threads on the real disk: one appends, one syncs and checkpoints, two read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from bascule.host.real import RealClock, RealFiles, RealRandom
from bascule.record.batch import RecordBatch
from bascule.sim.disk import RandomChoices
from bascule.storage.partition_log import LogConfig, PartitionLog
from support.stored_batches import append, read_records, value_of

BATCHES = 1_500
SIZE = 60
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
