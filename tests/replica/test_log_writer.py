"""The log writer and the sync threads: every batch is answered, also after a bug."""

from __future__ import annotations

import asyncio
import threading
from array import array

import pytest

from bascule.errors import Closed, CorruptData
from bascule.host.real import RealRandom
from bascule.publish.acks import AckError
from bascule.publish.headers import PublishHeaders
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.replica.log_writer import LogWriter
from bascule.replica.maintenance.checkpoints import verify_all
from bascule.replica.partitions import Partitions
from bascule.replica.syncing.log_syncer import LogSyncer
from bascule.sim.disk import SimClock, SimFiles
from support.replicas import awaited_batch, decode_acks, no_reserve, open_partition


class LogThreads:
    """A log writer and its sync threads, and the acks that they send."""

    def __init__(self) -> None:
        self.sent = b""
        self.syncer = LogSyncer(clock=SimClock(1_000), threads=1)
        self.writer = LogWriter(self.syncer, no_reserve())
        self._lock = threading.Lock()

    def __enter__(self) -> LogThreads:
        self.syncer.start(self._send)
        self.writer.start(self._send)
        return self

    def __exit__(self, *exc: object) -> None:
        self.writer.stop()
        self.syncer.stop()

    def _send(self, operations: bytes) -> None:
        with self._lock:
            self.sent += operations


def test_a_batch_that_cannot_be_evaluated_gets_error_acks() -> None:
    partition = open_partition(SimFiles(RealRandom(1)))
    outcomes: list[tuple[int, AckError | None]] = []
    done = threading.Event()
    bad = awaited_batch(b"in.1")
    bad.data = memoryview(bytearray(b"\xff" * 80))
    bad.headers = PublishHeaders(array("q", bytes(8 * 16)), 1)
    internal = UnstampedBatch(
        data=awaited_batch(b"").data,
        record_count=1,
        on_committed=lambda offset, error: outcomes.append((offset, error)),
    )
    with LogThreads() as threads:
        threads.writer.append(partition, [awaited_batch(b"in.0"), bad, internal], done.set)
        threads.writer.wait_written()
        assert done.is_set()
    found = decode_acks(threads.sent)
    assert found.keys() == {"in.0", "in.1"}
    assert "error" in found["in.1"]
    ((offset, error),) = outcomes
    assert offset == -1
    assert error is not None
    assert partition.failure is not None


def test_a_bug_in_a_sync_is_answered_with_error_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = open_partition(SimFiles(RealRandom(1)))

    def sync() -> bytes:
        raise RuntimeError("a bug")

    monkeypatch.setattr(partition, "sync", sync)
    with LogThreads() as threads:
        threads.writer.append(partition, [awaited_batch(b"in.0")])
    assert "error" in decode_acks(threads.sent)["in.0"]


def test_publishers_who_wait_when_a_log_is_found_damaged_get_error_acks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partition = open_partition(SimFiles(RealRandom(1)))
    assert partition.append(awaited_batch(b"in.0")) == b""
    assert partition.log is not None
    partitions = Partitions()
    partitions.add((partition,))

    def verify(at: object) -> None:
        raise CorruptData("0.log", 0, "a CRC", "another")

    monkeypatch.setattr(partition.log, "verify", verify)
    with LogThreads() as threads:
        asyncio.run(verify_all(partitions, threads.syncer))
    assert "error" in decode_acks(threads.sent)["in.0"]
    assert partition.failure is not None


def test_nobody_waits_for_a_log_writer_that_has_stopped() -> None:
    with LogThreads() as threads:
        pass
    waiting = threading.Thread(target=threads.writer.wait_written, daemon=True)
    waiting.start()
    waiting.join(20)
    assert not waiting.is_alive()


def test_a_bug_in_an_append_stops_the_partition_and_not_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken, whole = (open_partition(SimFiles(RealRandom(seed))) for seed in (1, 2))

    def append(batch: UnstampedBatch) -> bytes:
        raise RuntimeError("a bug")

    monkeypatch.setattr(broken, "append", append)
    done = threading.Event()
    with LogThreads() as threads:
        threads.writer.append(broken, [awaited_batch(b"in.0")], done.set)
        threads.writer.append(whole, [awaited_batch(b"in.1")])
    assert done.is_set()
    assert broken.failure is not None
    assert decode_acks(threads.sent)["in.1"]["offset"] == 0


def test_on_done_follows_the_write() -> None:
    """The memory of the batches is reused after it."""
    partition = open_partition(SimFiles(RealRandom(1)))
    ends: list[int] = []
    with LogThreads() as threads:
        assert partition.log is not None
        log = partition.log
        batches = [awaited_batch(b"in.0"), awaited_batch(b"in.1")]
        threads.writer.append(partition, batches, lambda: ends.append(log.end.offset))
    assert ends == [2]


def test_the_high_watermark_follows_a_roll() -> None:
    """The end is in the new segment then, and the old one may be compacted."""
    partition = open_partition(SimFiles(RealRandom(1)))
    partition.append(awaited_batch(b"in.0"))
    partition.sync()
    with LogThreads() as threads:
        threads.writer.roll(partition)
    assert partition.log is not None
    assert partition.log.end.segment_base == 1
    assert partition.high_watermark == partition.log.end


def test_no_segment_of_a_removed_partition_is_ended() -> None:
    files = SimFiles(RealRandom(1))
    partition = open_partition(files)
    partition.append(awaited_batch(b"in.0"))
    partition.deleted = True
    operations = len(files.operations)
    with LogThreads() as threads:
        threads.writer.roll(partition)
    assert len(files.operations) == operations


def test_what_comes_after_the_end_is_refused_at_once() -> None:
    """Nobody waits for ever: neither a publisher of this node, nor a change of a role."""
    partition = open_partition(SimFiles(RealRandom(1)))
    outcomes: list[AckError | None] = []
    done = threading.Event()
    with LogThreads() as threads:
        threads.writer.stop()
        internal = UnstampedBatch(
            data=awaited_batch(b"").data,
            record_count=1,
            on_committed=lambda offset, error: outcomes.append(error),
        )
        threads.writer.append(partition, [awaited_batch(b"in.0"), internal], done.set)
        called = threads.writer.call(lambda: 1)
        with pytest.raises(Closed):
            called.result(0)
    assert done.is_set()
    assert outcomes[0] is not None
    assert "error" in decode_acks(threads.sent)["in.0"]
    assert partition.log is not None
    assert partition.log.end.offset == 0


def test_who_finds_nothing_queued_and_nothing_done_appends_itself() -> None:
    threads_of: list[threading.Thread] = []

    def work() -> None:
        threads_of.append(threading.current_thread())

    with LogThreads() as threads:
        threads.writer.run(work)
        assert threads_of == [threading.current_thread()]
    threads.writer.run(work)
    assert len(threads_of) == 1, "the thread has stopped"


def test_nobody_appends_before_what_was_queued_before() -> None:
    order: list[str] = []
    began, go_on = threading.Event(), threading.Event()

    def first() -> None:
        began.set()
        go_on.wait(120)
        order.append("first")

    with LogThreads() as threads:
        threads.writer.call(first)
        threads.writer.run(lambda: order.append("while it may have begun"))
        assert began.wait(120)
        threads.writer.call(lambda: order.append("queued"))
        threads.writer.run(lambda: order.append("behind it"))
        assert not order
        go_on.set()
        threads.writer.wait_written()
        assert order == ["first", "while it may have begun", "queued", "behind it"]


def test_what_is_queued_while_another_thread_appends_comes_behind() -> None:
    order: list[str] = []
    with LogThreads() as threads:

        def work() -> None:
            threads.writer.call(lambda: order.append("queued"))
            order.append("here")
            assert threads.writer.stuck_ns() >= 0

        threads.writer.run(work)
        threads.writer.wait_written()
        assert order == ["here", "queued"]
        with pytest.raises(RuntimeError):
            threads.writer.run(_fail)
        threads.writer.run(lambda: order.append("again"))
        assert (order[-1], threads.writer.stuck_ns()) == ("again", 0)


def _fail() -> None:
    raise RuntimeError("a bug")
