"""Payloads in chunks on a node that is their partition's only replica, with real files."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from bascule.cluster_identity import ClusterIdentity
from bascule.datastream import chunked_payloads
from bascule.datastream.chunked_payloads import IDLE_SECONDS_MAX, YIELD_SECONDS
from bascule.datastream.disk import pacing
from bascule.datastream.disk.pacing import (
    STEP_BYTES,
    STEP_BYTES_MIN,
    SYNCS_MIN,
    UNWRITTEN_BYTES_MAX,
    UNWRITTEN_BYTES_MIN,
)
from bascule.datastream.fetching import Fetching
from bascule.datastream.ports import PayloadPlace
from bascule.datastream.protocol.chains import Links
from bascule.datastream.service import DataStreams
from bascule.errors import Broken
from bascule.host.real import RealClock, RealFile, RealFiles
from bascule.model import StreamConfig, StreamDefinition
from bascule.publish.payload_chunks import PayloadChunk
from bascule.record.payload_links import Payload
from bascule.storage.payloads.block_steps import Steps
from bascule.storage.payloads.payload_files import PayloadFiles
from bascule.storage.payloads.payload_log import PayloadLog
from bascule.wire import ack_codes
from bascule.wire.datastream.messages import OpenPayload, ReplicaAddress

T = TypeVar("T")

ONE, OTHER = "1" * 32, "2" * 32
SECONDS_MAX = 60


class Log:
    """The payloads of a log."""

    def __init__(self, directory: Path) -> None:
        self.payloads = PayloadFiles(RealFiles(), str(directory), threading.Lock())

    def check_open(self) -> None:
        """It is."""


class Replica:
    definition = StreamDefinition("s", b"s" * 16, 0, StreamConfig(subject="s"))
    index = 0


class Clock(RealClock):
    """It may be put forward."""

    ahead_ns = 0

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.ahead_ns


class Node:
    """Data streaming of a node, and a NATS client that waits for each answer."""

    def __init__(self, directory: Path) -> None:
        self.log, self.clock = Log(directory), Clock()
        self.streams = DataStreams(1, ClusterIdentity("c"), self, self.clock)
        self.linked: list[Payload] = []
        self.answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def send(self, id: str, *lines: str, body: bytes = b"", reply: bytes = b"r") -> None:
        head = "\r\n".join(["NATS/1.0", f"Bascule-Payload-Session: {id}", *lines, "", ""])
        chunk = PayloadChunk(b"s", reply, head.encode(), body)
        self.streams.take_chunks(Replica(), [chunk], self.answers.put)

    def chunk(self, id: str, at: int, body: bytes) -> None:
        self.send(id, f"Bascule-Payload-Offset: {at}", body=body)

    def answer(self) -> dict[str, Any]:
        operation = self.answers.get(timeout=SECONDS_MAX)
        return cast("dict[str, Any]", json.loads(operation.split(b"\r\n")[1]))

    def ask(self, look: Callable[[], T]) -> T:
        """What the thread of data streaming finds, after all that it was asked before."""
        found: Future[T] = Future()
        self.streams._reactor.call(lambda: found.set_result(look()))
        return found.result(SECONDS_MAX)

    # -- PayloadCluster -------------------------------------------------------------------------

    def place(self, opening: OpenPayload) -> PayloadPlace:
        return self.place_of(opening.stream, opening.partition)

    def place_of(self, stream: str, partition: int) -> PayloadPlace:
        store = cast("PayloadLog", self.log)
        here = ReplicaAddress(1, "")
        return PayloadPlace(stream, b"s" * 16, partition, 1, (here,), 1, store, (1,), 0)

    def peer_address(self, node: int) -> tuple[str, int] | None:
        return None

    def catch_up_wait(self, place: PayloadPlace, node: int, count: int) -> float:
        return 0.0

    def links_between(self, nodes: Collection[int]) -> Links:
        return {}

    def confirm_leads(self, place: PayloadPlace) -> Future[int]:
        raise AssertionError("nobody reads")

    def link(
        self, place: PayloadPlace, opening: OpenPayload, payload: Payload, nodes: list[int]
    ) -> Future[dict[str, Any]]:
        self.linked.append(payload)
        done: Future[dict[str, Any]] = Future()
        done.set_result({"seq": len(self.linked)})
        return done


class SlowDisk:
    """Parts of payloads are not read before it is let go."""

    def __init__(self, payloads: PayloadFiles, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.may_end, self.reads = threading.Event(), threading.Event(), 0
        self._recover = payloads.recover_part
        monkeypatch.setattr(payloads, "recover_part", self.recover_part)

    def recover_part(self, id: str) -> Steps[tuple[int, int]]:
        self.reads += 1
        self.began.set()
        if not self.may_end.wait(SECONDS_MAX):
            raise Broken("nobody has let it go")
        return (yield from self._recover(id))


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Node]:
    """A node that has a part of a payload, 5 bytes, from before it started."""
    before = Node(tmp_path)
    before.chunk(ONE, 0, b"begun")
    assert before.answer()["payload"]["next"] == 5
    before.streams.close()
    node = Node(tmp_path)
    yield node
    node.streams.close()


def give_up(node: Node, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin to read the part, and have the payload give way to another one meanwhile."""
    monkeypatch.setattr(chunked_payloads, "PAYLOADS_MAX", 1)
    node.chunk(ONE, 5, b", more")
    assert disk.began.wait(SECONDS_MAX)
    node.ask(lambda: None)
    node.clock.ahead_ns += int(2 * YIELD_SECONDS * 1e9)
    node.chunk(OTHER, 0, b"another one")
    said = {each["payload"]["id"]: each for each in (node.answer(), node.answer())}
    assert said[OTHER]["payload"]["next"] == 11
    assert said[ONE]["error"]["err_code"] == ack_codes.PAYLOAD_BUSY


def test_a_payload_given_up_while_its_part_is_read_is_nobody_s(
    begun: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that somebody seems to send is never ended, and its file never removed."""
    disk = SlowDisk(begun.log.payloads, monkeypatch)
    give_up(begun, disk, monkeypatch)
    disk.may_end.set()
    begun.streams.pool.submit(lambda: None).result(SECONDS_MAX)
    begun.streams.pool.shutdown()
    sessions = begun.ask(lambda: dict(begun.streams._sessions))
    assert [key[2] for key, each in sessions.items() if not each.is_detached] == [OTHER]


def test_a_part_is_read_once_and_nobody_writes_meanwhile(
    begun: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading it ends with cutting off what is behind it, which may have come since."""
    disk = SlowDisk(begun.log.payloads, monkeypatch)
    give_up(begun, disk, monkeypatch)
    begun.clock.ahead_ns += int(2 * YIELD_SECONDS * 1e9)
    begun.chunk(ONE, 5, b", more")
    begun.ask(lambda: None)
    disk.may_end.set()
    assert begun.answer()["payload"] == {"id": ONE, "next": 11}
    begun.send(ONE, "Bascule-Payload-Close: 11")
    assert begun.answer() == {"seq": 1}
    assert disk.reads == 1
    payload, file = begun.log.payloads.open_whole(ONE)
    assert file.read_at(0, 100) == b"begun, more"
    assert begun.linked == [payload]


def test_a_session_whose_part_is_read_for_long_is_not_swept(
    begun: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a large part could never be gone on with."""
    disk = SlowDisk(begun.log.payloads, monkeypatch)
    begun.chunk(ONE, 5, b", more")
    assert disk.began.wait(SECONDS_MAX)
    begun.ask(lambda: None)
    begun.clock.ahead_ns += int(IDLE_SECONDS_MAX * 0.9e9)
    begun.chunk(ONE, 11, b" and more")
    begun.ask(lambda: None)
    begun.clock.ahead_ns += int(IDLE_SECONDS_MAX * 0.9e9)
    begun.ask(lambda: None)
    begun.ask(lambda: None)
    disk.may_end.set()
    assert [begun.answer()["payload"]["next"] for _ in range(2)] == [11, 20]


def test_headers_count_for_what_they_take_in_memory(
    begun: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is 20 times their bytes where they are short."""
    monkeypatch.setattr(chunked_payloads, "QUEUE_BYTES_MAX", 4 << 20)
    disk = SlowDisk(begun.log.payloads, monkeypatch)
    begun.chunk(ONE, 5, b", more")
    assert disk.began.wait(SECONDS_MAX)
    begun.send(ONE, "Bascule-Payload-Close: 11", *["a:"] * 30_000)
    refused = begun.answer()["error"]
    assert (refused["code"], refused["err_code"]) == (503, ack_codes.PAYLOAD_BUSY)
    begun.send(ONE, "Bascule-Payload-Close: 11", *["a:"] * 300)
    disk.may_end.set()
    assert begun.answer()["payload"]["next"] == 11
    assert begun.answer() == {"seq": 1}


def test_publishers_that_want_answers_wait_for_the_disk(
    begun: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As senders over a connection: what is in memory only is bounded, also without other replicas
    that would hold them up."""
    may_write = threading.Event()
    write_back = RealFile.write_back

    def write_slowly(file: RealFile, start: int, end: int) -> None:
        assert may_write.wait(SECONDS_MAX)
        write_back(file, start, end)

    monkeypatch.setattr(RealFile, "write_back", write_slowly)
    monkeypatch.setattr(pacing, "UNWRITTEN_BYTES_MAX", 2 * STEP_BYTES)
    begun.streams.write_back_thread.limit()
    half, size = b"x" * (STEP_BYTES // 2), 4 * STEP_BYTES
    for at in range(0, size, len(half)):
        begun.chunk(OTHER, at, half)
    begun.ask(lambda: None)
    answered = [begun.answer()["payload"]["next"] for _ in range(begun.answers.qsize())]
    assert answered == [len(half), 2 * len(half), 3 * len(half)]
    may_write.set()
    while len(answered) < size // len(half):
        answered.append(begun.answer()["payload"]["next"])
    assert answered[-1] == size
    begun.send(OTHER, f"Bascule-Payload-Close: {size}")
    assert begun.answer() == {"seq": 1}


def test_payloads_share_what_may_be_in_memory_only_and_each_has_two_steps(begun: Node) -> None:
    """Those that are fetched, too. With more the last payload of many that end together would be
    written for so long that its sender gives up."""
    streams = begun.streams
    begun.chunk(OTHER, 0, b"1")
    begun.answer()
    assert streams.unwritten_max == UNWRITTEN_BYTES_MAX
    for number in range(1, 1_000):
        streams._fetches[b"", 0, str(number)] = cast("Fetching", None)
        share = UNWRITTEN_BYTES_MAX // (1 + number)
        assert streams.unwritten_max == max(share, 2 * STEP_BYTES)
    for _ in range(SYNCS_MIN):
        now_ns = begun.clock.monotonic_ns()
        streams.on_log_synced(now_ns, now_ns)
    assert streams.unwritten_max == 2 * STEP_BYTES_MIN
    streams._fetches.clear()
    assert streams.unwritten_max == UNWRITTEN_BYTES_MIN


def test_the_sync_of_the_record_of_a_payload_is_none_of_others(
    begun: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = begun.clock.monotonic_ns()
    monkeypatch.setattr(begun.clock, "monotonic_ns", lambda: now_ns)
    begun.chunk(OTHER, 0, b"1")
    begun.answer()
    begun.send(OTHER, "Bascule-Payload-Close: 1")
    assert begun.answer() == {"seq": 1}
    for _ in range(SYNCS_MIN + 1):
        assert begun.streams.statistics().disk_limit == 0
        begun.streams.on_log_synced(now_ns, now_ns)
    assert begun.streams.statistics().disk_limit > 0


def test_nothing_is_written_back_once_data_streaming_has_ended(begun: Node) -> None:
    begun.streams.close()
    with pytest.raises(RuntimeError):
        begun.streams.write_back_thread.submit(lambda: None, STEP_BYTES)
