"""What of received payloads is in memory only. Nodes are in this process."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
from crc32c import crc32c

from bascule.datastream.disk import pacing
from bascule.datastream.disk.pacing import STEP_BYTES
from bascule.datastream.inbound import LEFT_MAX
from bascule.datastream.service import DataStreams
from bascule.errors import BasculeError
from bascule.host.real import RealFile
from bascule.payload_connection import PayloadWriter
from bascule.record.payload_links import Payload, PayloadLink
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import decode_ack
from bascule.wire.datastream.messages import OpenPayload
from e2e.test_payload_chunks import ID, MIB, content, whole
from support.payload_nodes import (
    STREAM,
    PayloadNode,
    RawSender,
    SlowFile,
    payload_nodes,
    wait_until,
)

DATA = content(24 * MIB)


class Disk:
    """Counts what is written back, and how much of it at once; it may stand still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_write, self.error = threading.Event(), False
        self.steps: dict[str, list[tuple[int, int]]] = {}
        self.running = self.most = 0
        self._lock = threading.Lock()
        write_back, sync = RealFile.write_back, RealFile.sync
        disk = self
        self.synced: list[int] = []
        """What each sync of a payload at its end may have found in memory only."""

        def counted(file: RealFile, start: int, end: int) -> None:
            with disk._lock:
                disk.running += 1
                disk.most = max(disk.most, disk.running)
            assert disk.may_write.wait(60)
            if disk.error:
                raise OSError(5, "input/output error")
            write_back(file, start, end)
            with disk._lock:
                disk.running -= 1
                disk.steps.setdefault(file.path, []).append((start, end))

        def synced(file: RealFile) -> None:
            if file.path.endswith(".open"):
                steps = disk.steps.get(file.path, [(0, 0)])
                disk.synced.append(file.size() - steps[-1][1])
            sync(file)

        monkeypatch.setattr(RealFile, "write_back", counted)
        monkeypatch.setattr(RealFile, "sync", synced)


def writer(node: PayloadNode, id: str = ID) -> PayloadWriter:
    return PayloadWriter(lambda: node.address, OpenPayload(id, STREAM, 0), timeout=20)


async def send(node: PayloadNode, id: str = ID) -> None:
    async with writer(node, id) as out:
        await out.write(DATA)


def test_payloads_go_to_the_disk_in_steps_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    disk.may_write.set()

    async def several(node: PayloadNode) -> None:
        await asyncio.gather(*(send(node, f"{number:032x}") for number in range(3)))

    with payload_nodes(tmp_path, 1) as nodes:
        asyncio.run(several(nodes[1]))
        assert whole(nodes[1], f"{2:032x}") == DATA
    assert len(disk.steps) == 3
    for steps in disk.steps.values():
        ends = [end for _, end in steps]
        assert [start for start, _ in steps] == [0, *ends[:-1]]
        assert all(end - start == STEP_BYTES for start, end in steps)
    assert disk.most == 1
    assert max(disk.synced) < STEP_BYTES


def test_a_sender_waits_for_a_disk_that_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in memory only is bounded, and goes on once the disk does."""
    monkeypatch.setattr(pacing, "UNWRITTEN_BYTES_MAX", 8 * MIB)
    disk = Disk(monkeypatch)

    async def work(node: PayloadNode) -> None:
        sending = asyncio.create_task(send(node))
        counts = node.streams.counts
        before = -1
        while counts.bytes_received != before or not before:
            before = counts.bytes_received
            await asyncio.sleep(1)
        # The packet at hand, and the reads of one turn, may come beside it.
        assert 8 * MIB <= before <= 12 * MIB
        disk.may_write.set()
        await sending

    with payload_nodes(tmp_path, 1) as nodes:
        asyncio.run(work(nodes[1]))
        assert whole(nodes[1]) == DATA


def test_payloads_share_what_may_be_in_memory_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "UNWRITTEN_BYTES_MAX", 16 * MIB)
    disk = Disk(monkeypatch)

    async def work(node: PayloadNode) -> None:
        sending = [asyncio.create_task(send(node, f"{number:032x}")) for number in range(4)]
        counts = node.streams.counts
        before = -1
        while counts.bytes_received != before or not before:
            before = counts.bytes_received
            await asyncio.sleep(1)
        assert before <= 4 * 8 * MIB
        disk.may_write.set()
        await asyncio.gather(*sending)

    with payload_nodes(tmp_path, 1) as nodes:
        asyncio.run(work(nodes[1]))
        for number in range(4):
            assert whole(nodes[1], f"{number:032x}") == DATA


def test_a_disk_that_fails_ends_the_payload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync after a failed write may succeed though the bytes are lost."""
    disk = Disk(monkeypatch)
    disk.error = True
    disk.may_write.set()
    with payload_nodes(tmp_path, 1) as nodes:
        out = PayloadWriter(lambda: nodes[1].address, OpenPayload(ID, STREAM, 0), timeout=1)

        async def fail() -> None:
            async with out:
                await out.write(DATA)

        with pytest.raises(BasculeError):
            asyncio.run(fail())
        assert not nodes[1].linked
        assert not [file for file in nodes[1].files() if file.suffix == ".whole"]
        wait_until("it is gone", lambda: not nodes[1].streams.counts.sessions)


def test_steps_of_payloads_that_were_given_up_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender that begins one after the other fills no queue with their files."""
    disk, count = Disk(monkeypatch), 40
    data = DATA[:STEP_BYTES]
    with payload_nodes(tmp_path, 1) as nodes:
        sender = RawSender(nodes[1].port)
        for number in range(count):
            sender.open(f"{number:032x}")
            sender.until(frames.OPENED)
            for at in range(0, STEP_BYTES, MIB):
                sender.packet(at, data[at : at + MIB])
            while decode_ack(sender.until(frames.ACK))[0] < STEP_BYTES:
                pass
        assert nodes[1].streams.counts.abandoned == count - 1 - LEFT_MAX
        disk.may_write.set()
        sender.finish(data)
        sender.until(frames.CLOSED)
        assert len(disk.steps) <= 1 + LEFT_MAX + 1, (
            "of the first, those that are left, and the last"
        )
        sender.close()


def test_what_is_fetched_from_its_start_again_is_written_back_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a node that compares nothing, where the one before has died."""
    payload = Payload(ID, len(DATA), crc32c(DATA))
    starts: list[int] = []
    write_back = SlowFile.write_back
    with payload_nodes(tmp_path, 3) as nodes:
        first, second, third = nodes.values()
        for node in (first, third):
            node.alive, node.leader = [node], node.number
            asyncio.run(send(node))
            for sums in (node.directory / "payloads").glob("*.sums"):
                sums.unlink()
            node.alive, node.leader = [first, second, third], 1

        def stop_the_first(file: SlowFile, start: int, end: int) -> None:
            starts.append(start)
            if len(starts) == 1:  # later all could have been received
                first.stop()
            write_back(file, start, end)

        monkeypatch.setattr(DataStreams, "unwritten_max", 4 * MIB)
        monkeypatch.setattr(SlowFile, "write_back", stop_the_first)
        fetched: Future[Exception | None] = Future()
        place = second.place_of(STREAM, 0)
        second.streams.fetch(place, PayloadLink(0, payload), fetched.set_result)
        assert fetched.result(20) is None
        assert whole(second) == DATA
    assert starts.count(0) == 2
