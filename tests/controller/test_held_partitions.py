"""The list of held partitions, and what a log or a file that is missing leads to."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from bascule.controller import held_partitions
from bascule.controller.held_partitions import RECORD_BYTES, HeldPartitions
from bascule.errors import CorruptData, DiskFull, UnknownPartition, UnknownStream
from bascule.host.real import RealRandom
from bascule.model import StreamConfig
from bascule.node.cluster_id import load_cluster_id
from bascule.sim.disk import SHORT, SimClock, SimFiles
from bascule.storage.truncation.salvage import keep_nothing
from support.controlled_node import DATA, STORES, ControlledNode

PATH = f"{DATA}/{held_partitions.FILE_NAME}"
ONE, TWO = b"1" * 16, b"2" * 16


def new_files() -> SimFiles:
    files = SimFiles(RealRandom(1))
    files.make_dirs(DATA)
    return files


def loaded(files: SimFiles) -> HeldPartitions:
    held = HeldPartitions(files, DATA)
    held.load()
    return held


def test_what_is_held_is_held_after_power_is_lost() -> None:
    files = new_files()
    held = loaded(files)
    held.hold(ONE, [0, 1])
    held.hold(TWO, [0])
    held.hold(ONE, [1, 2])
    held.release(TWO)
    files.crash()
    again = loaded(files)
    assert [again.holds(ONE, n) for n in range(4)] == [True, True, True, False]
    assert not again.holds(TWO, 0)
    assert files.size(PATH) == 5 * RECORD_BYTES


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, SHORT])
def test_an_append_that_fails_adds_nothing_and_harms_no_later_one(error: int) -> None:
    for operation in range(1, 20):
        files = new_files()
        held = loaded(files)
        held.hold(ONE, [0])
        files.fail(operation, error)
        try:
            held.hold(ONE, [1])
        except OSError:
            assert not held.holds(ONE, 1)
        if files.fault_pending():
            return
        held.hold(TWO, [0])
        again = loaded(files)
        assert again.holds(ONE, 0)
        assert again.holds(TWO, 0)
        assert again.holds(ONE, 1) >= held.holds(ONE, 1)
    pytest.fail("every run had a failure")


@pytest.mark.parametrize("at", range(RECORD_BYTES, 2 * RECORD_BYTES))
def test_a_damaged_record_ends_the_list_and_is_logged(
    at: int, caplog: pytest.LogCaptureFixture
) -> None:
    files = new_files()
    held = loaded(files)
    held.hold(ONE, [0, 1, 2])
    data = bytearray(files.read_bytes(PATH))
    data[at] ^= 0x10
    file = files.open(PATH)
    file.truncate(0)
    file.append(data)
    again = loaded(files)
    assert [again.holds(ONE, n) for n in range(3)] == [True, False, False]
    assert [record.__dict__["at"] for record in caplog.records] == [RECORD_BYTES]
    again.hold(TWO, [0])
    caplog.clear()
    assert loaded(files).holds(TWO, 0)
    assert not caplog.records


def test_a_list_of_mostly_released_streams_is_written_anew() -> None:
    files = new_files()
    held = loaded(files)
    held.hold(ONE, [0])
    for number in range(600):
        held.hold(number.to_bytes(16, "big"), [0])
        held.release(number.to_bytes(16, "big"))
    again = loaded(files)
    assert files.size(PATH) == RECORD_BYTES
    again.hold(TWO, [3])
    assert len(loaded(files)) == 2


def run_on(files: SimFiles, scene: Callable[[ControlledNode], Awaitable[None]]) -> None:
    async def run() -> None:
        async with ControlledNode(files) as node:
            await scene(node)

    asyncio.run(run())


def two_streams() -> SimFiles:
    """A data directory with streams `a`, of two partitions, and `b`, and records in both."""
    files = SimFiles(RealRandom(1))

    async def write(node: ControlledNode) -> None:
        await node.controller.create_stream("a", StreamConfig(subject="a", partitions=2))
        await node.controller.create_stream("b", StreamConfig(subject="b"))
        await node.publish("a", [b"1", b"2"])
        await node.publish("b", [b"1"])

    run_on(files, write)
    return files


def failures(node: ControlledNode, stream: str) -> list[str | None]:
    return [each.failure for each in node.info(stream).partitions]


@pytest.mark.parametrize("what", ["streams/a", "streams/a/0", "segments"])
def test_a_log_that_is_missing_is_damage(what: str) -> None:
    files = two_streams()
    if what == "segments":
        directory = f"{DATA}/streams/a/0"
        for name in files.list_dir(directory):
            if name != "identity":
                files.remove(f"{directory}/{name}")
    else:
        files.remove_tree(f"{DATA}/{what}")

    async def read(node: ControlledNode) -> None:
        failed = failures(node, "a")
        assert failed[0] is not None
        assert "the log of partition 0 of stream 'a' is missing" in failed[0]
        assert (failed[1] is None) == (what != "streams/a")
        assert failures(node, "b") == [None]
        assert node.end("b") == 1
        await node.publish("b", [b"2"])

    run_on(files, read)
    run_on(files, read_again)


def test_a_log_that_is_about_to_be_replaced_is_not_missing() -> None:
    """Its process was killed between the removal of its segments and the creation of another."""

    def run(operation: int) -> bool:
        files = two_streams()
        directory = f"{DATA}/streams/a/0"
        files.fail(operation, errno.EIO)
        try:
            keep_nothing(files, directory, SimClock(1_000))
        except OSError:
            pass
        hit = not files.fault_pending()
        files.forget_faults()

        async def read(node: ControlledNode) -> None:
            assert failures(node, "a") == [None, None]
            assert node.end("a") in (0, 2)

        run_on(files, read)
        return hit

    operation = 1
    while run(operation):
        operation += 1
    assert operation > 5


async def read_again(node: ControlledNode) -> None:
    """A restart does not turn damage into an empty log."""
    assert failures(node, "a")[0] is not None
    assert node.end("b") == 2


def test_a_log_that_was_restored_is_opened_without_a_restart() -> None:
    files = two_streams()
    files.rename(f"{DATA}/streams/a/0", f"{DATA}/away")

    async def repair(node: ControlledNode) -> None:
        (repaired,) = await node.controller.repair_stream("a", partition=None, accept_loss=False)
        assert repaired.failure is not None, "it is still missing"
        files.rename(f"{DATA}/away", f"{DATA}/streams/a/0")
        (repaired,) = await node.controller.repair_stream("a", partition=0, accept_loss=False)
        assert (repaired.failure, repaired.end_offset) == (None, 2)
        assert "is missing" in repaired.failure_before
        assert await node.controller.repair_stream("a", partition=None, accept_loss=True) == []
        await node.publish("a", [b"3"])
        assert node.end("a") == 3
        node.check_agreement()

    run_on(files, repair)


@pytest.mark.parametrize("committed", [0, 41])
def test_records_are_given_up_only_when_asked(committed: int) -> None:
    files = two_streams()
    files.remove_tree(f"{DATA}/streams/a")

    class Offsets:
        async def remove(self, **_: object) -> None:
            raise AssertionError("no stream is deleted")

        async def largest(self, stream: str, partition: int) -> int:
            return committed if (stream, partition) == ("a", 0) else 0

    async def repair(node: ControlledNode) -> None:
        node.controller.attach_groups(Offsets(), SimpleNamespace())
        with pytest.raises(UnknownPartition):
            await node.controller.repair_stream("a", partition=2, accept_loss=True)
        with pytest.raises(UnknownStream):
            await node.controller.repair_stream("c", partition=None, accept_loss=True)
        repaired = await node.controller.repair_stream("a", partition=0, accept_loss=True)
        assert [(r.partition, r.failure, r.start_offset, r.moved_to) for r in repaired] == [
            (0, None, committed, None)
        ]
        assert failures(node, "a")[1] is not None, "only the chosen partition"
        await node.controller.repair_stream("a", partition=None, accept_loss=True)
        assert failures(node, "a") == [None, None]
        await node.publish("a", [b"new"])
        assert node.end("a") == committed + 1
        node.check_agreement()

    run_on(files, repair)

    async def read(node: ControlledNode) -> None:
        assert failures(node, "a") == [None, None]
        assert node.end("a") == committed + 1

    run_on(files, read)


def test_power_is_lost_at_each_file_operation_of_a_repair() -> None:
    """The partition is failed as before, or serves the empty log; the others are whole."""

    async def repair(files: SimFiles, operation: int) -> bool:
        async with ControlledNode(files) as node:
            files.fail(operation, errno.EIO)
            try:
                await node.controller.repair_stream("a", partition=None, accept_loss=True)
            except (OSError, DiskFull):
                pass
            hit = not files.fault_pending()
            files.crash()
        async with ControlledNode(files) as again:
            assert failures(again, "b") == [None]
            assert again.end("b") == 1
            await again.controller.repair_stream("a", partition=None, accept_loss=True)
            assert failures(again, "a") == [None, None]
            await again.publish("a", [b"new"])
        return hit

    operation = 1
    while True:
        files = two_streams()
        files.remove_tree(f"{DATA}/streams/a/0")
        if not asyncio.run(repair(files, operation)):
            break
        operation += 1
    assert operation > 10, "a repair has file operations"


def test_metadata_that_is_missing_beside_partitions_is_damage() -> None:
    files = two_streams()
    del STORES[files]
    with pytest.raises(CorruptData, match=r"raft.sqlite is corrupt .* found no such file"):
        run_on(files, read_again)


def test_a_cluster_id_is_not_drawn_anew_unasked() -> None:
    files = two_streams()
    random = RealRandom(3)
    with pytest.raises(CorruptData, match=r"node.json .* start once with --new-cluster-id"):
        load_cluster_id(files, DATA, random, draw_new=False)
    drawn = load_cluster_id(files, DATA, random, draw_new=True)
    assert load_cluster_id(files, DATA, random, draw_new=False) == drawn
    assert load_cluster_id(files, DATA, random, draw_new=True) == drawn, "only where it is needed"
    fresh = new_files()
    assert load_cluster_id(fresh, DATA, random, draw_new=False) != drawn


@pytest.mark.parametrize("batch", [0, 1])
def test_a_damaged_batch_is_given_up_with_those_behind(batch: int) -> None:
    """Below the recovery point opening does not see it, but the check of every byte does."""
    files = SimFiles(RealRandom(1))

    async def write(node: ControlledNode) -> None:
        await node.controller.create_stream("a", StreamConfig(subject="a"))
        for value in (b"1" * 100, b"2" * 100):
            await node.publish("a", [value])

    run_on(files, write)
    path = f"{DATA}/streams/a/0/{0:020d}.log"
    damaged = files.open(path)
    at = damaged.size() // 2 * batch + 90
    damaged.write_at(at, bytes([files.read_bytes(path)[at] ^ 1]))
    damaged.sync()

    async def repair(node: ControlledNode) -> None:
        (partition,) = node.partitions.stream("a") or ()
        partition.fail("a batch with a wrong CRC", reason="damaged data")
        (repaired,) = await node.controller.repair_stream("a", partition=None, accept_loss=False)
        assert "is corrupt at byte" in str(repaired.failure)
        (repaired,) = await node.controller.repair_stream("a", partition=None, accept_loss=True)
        assert repaired.failure is None
        if batch == 1:
            assert (repaired.start_offset, repaired.end_offset) == (0, 1)
            assert repaired.moved_to is None
        else:
            # Nothing can be kept, and the offsets that were served are not given again.
            assert (repaired.start_offset, repaired.end_offset) == (2, 2)
            assert repaired.moved_to == f"{DATA}/aside/a-0.1"
        await node.publish("a", [b"new"])
        assert node.end("a") == repaired.end_offset + 1
        node.check_agreement()

    run_on(files, repair)

    async def read(node: ControlledNode) -> None:
        assert failures(node, "a") == [None]
        assert node.end("a") == 3 if batch == 0 else 2

    run_on(files, read)
