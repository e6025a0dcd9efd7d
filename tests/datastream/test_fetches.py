"""Payloads that are fetched onto a disk that has little room. Nodes send what a test has them."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from crc32c import crc32c

from bascule.datastream import fetching as fetching_module
from bascule.datastream.disk.pacing import STEP_BYTES
from bascule.datastream.fetches import PayloadFetches
from bascule.datastream.limits import DataStreamCounts
from bascule.datastream.ports import PayloadPlace
from bascule.errors import Broken, DiskFull, PayloadMissing, UnknownPayload
from bascule.host.api import File
from bascule.host.real import RealClock
from bascule.record.payload_links import Payload, PayloadLink
from bascule.sim.disk import SimFiles
from bascule.storage.payloads.payload_files import FREE_PART, PayloadFiles
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import DataHead, encode_message
from bascule.wire.datastream.messages import ClosePayload, PayloadFetched, ReplicaAddress

DISK_BYTES = 100_000
ROOM = DISK_BYTES - DISK_BYTES // FREE_PART
"""What payloads may take of it."""
PACKET = 1_000
DIRECTORY = "/data/streams/models/0"


class SmallDisk(SimFiles):
    """Has so many bytes, and takes no more."""

    logs_bytes = 0
    """What others have written."""

    def used(self) -> int:
        where = f"{DIRECTORY}/payloads"
        names = self.list_dir(where) if self.exists(where) else []
        return self.logs_bytes + sum(self.size(f"{where}/{name}") for name in names)

    def room(self, path: str) -> tuple[int, int]:
        return DISK_BYTES - self.used(), DISK_BYTES

    def open(self, path: str, *, create: bool = False, write: bool = True) -> Any:
        file = super().open(path, create=create, write=write)
        write_at = file.write_at

        def write_if_there_is_room(at: int, data: bytes) -> None:
            if self.used() + max(at + len(data) - file.size(), 0) > DISK_BYTES:
                raise OSError(errno.ENOSPC, "no space left on device")
            write_at(at, data)

        file.write_at = write_if_there_is_room
        return file


class Here:
    """The rest of the node that fetches; its threads and its sockets are the caller."""

    node_id = 2
    unwritten_max = 1 << 30

    def __init__(self) -> None:
        self.counts = DataStreamCounts()
        self.write_back_thread: Any = SimpleNamespace(
            step_bytes=STEP_BYTES, on_payload=lambda: None
        )
        self.disk = SmallDisk(Random(1))
        self.disk.make_dirs(DIRECTORY)
        self.payloads = PayloadFiles(self.disk, DIRECTORY, threading.Lock())
        self.fetches = PayloadFetches(self, cast(Any, self), cast(Any, self), RealClock(), {}, {})
        self.told: dict[int, Exception | None] = {}

    def place(self) -> PayloadPlace:
        replicas = tuple(ReplicaAddress(node, "") for node in (1, 2))
        store = cast(Any, SimpleNamespace(payloads=self.payloads, check_open=lambda: None))
        return PayloadPlace("models", b"m" * 16, 0, 1, replicas, 2, store, (1, 2), 0)

    def fetch(self, number: int, size: int) -> None:
        self.told.pop(number, None)
        link = PayloadLink(number, payload(number, size))
        self.fetches.fetch(self.place(), link, lambda error: self.told.update({number: error}))

    def come(self, number: int, start: int, end: int) -> None:
        """So many bytes come from the node that is asked, as long as anything is read."""
        found = self.running(number)
        for at in range(start, end, PACKET):
            if number in self.told:
                return
            data = content(number, min(PACKET, end - at))
            assert found.on_packet_begin(DataHead(0, at, crc32c(data), len(data)))
            found.write(memoryview(data))
            if number not in self.told:
                found.end(crc32c(data))

    def end(self, number: int) -> None:
        found = self.running(number)
        whole = found.payload
        close = encode_message(frames.CLOSE, ClosePayload(whole.size, whole.crc))
        found.on_frame(frames.CLOSE, bytearray(close))

    def running(self, number: int) -> fetching_module.Fetching:
        (found,) = (each for each in self.fetches.running.values() if each.link.offset == number)
        return found

    def parts(self) -> list[str]:
        return self.payloads.open_ids()

    # -- FetchingOwner, Reactor and Executor ------------------------------------------------------

    def hello(self, node: int) -> Any:
        return PayloadFetched("", 0, 0, 0, 0, is_compared=True)

    def address_of(self, node: int) -> tuple[str, int]:
        return "", node

    def call(self, function: Callable[[], None]) -> bool:
        function()
        return True

    def call_later(self, seconds: float, function: Callable[[], None]) -> Any:
        return SimpleNamespace(cancel=lambda: None)

    def submit(self, function: Callable[[], None]) -> None:
        function()


def content(number: int, size: int) -> bytes:
    return bytes([number]) * size


def payload(number: int, size: int) -> Payload:
    return Payload(f"{number:032x}", size, crc32c(content(number, size)))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    def connection(*_: object) -> Any:
        ignore = lambda *_, **__: None  # noqa: E731
        return SimpleNamespace(start=ignore, send=ignore, close=ignore, pause=ignore, resume=ignore)

    monkeypatch.setattr(fetching_module, "StreamConnection", connection)
    monkeypatch.setattr(fetching_module, "begin_connect", lambda _: None)
    monkeypatch.setattr(fetching_module, "ROOM_BYTES", 4 * PACKET)
    return Here()


def test_fetches_begin_only_where_all_that_run_have_room(here: Here) -> None:
    here.fetch(0, ROOM // 2)
    here.fetch(1, ROOM // 2)
    here.fetch(2, PACKET)
    assert list(here.told) == [2]
    assert isinstance(here.told[2], Broken), "it is tried again: the disk is not full"
    here.fetch(3, ROOM + 1)
    assert isinstance(here.told.pop(3), DiskFull)
    for number in (0, 1):
        here.come(number, 0, ROOM // 2)
        here.end(number)
    assert here.told[0] is here.told[1] is None
    assert here.disk.room(DIRECTORY)[0] >= DISK_BYTES // FREE_PART
    assert not here.parts()


def test_what_a_fetch_has_written_already_is_not_promised_as_well(here: Here) -> None:
    here.fetch(0, ROOM // 2)
    here.come(0, 0, ROOM // 2 - PACKET)
    here.fetch(1, ROOM // 2)
    assert not here.told


def test_a_fetch_ends_where_others_have_taken_the_room(here: Here) -> None:
    size = ROOM - PACKET
    here.fetch(0, size)
    here.come(0, 0, size // 2)
    here.disk.logs_bytes = size // 2
    here.come(0, size // 2, size)
    assert isinstance(here.told[0], DiskFull)
    assert not here.parts(), "the room is given back"
    here.disk.logs_bytes = 0
    here.fetch(0, size)
    here.come(0, 0, size)
    here.end(0)
    assert here.told[0] is None


def test_a_disk_that_fails_is_not_taken_for_a_node_that_fails(here: Here) -> None:
    """No other node is asked, and the part is removed."""
    here.fetch(0, 10 * PACKET)
    here.come(0, 0, 2 * PACKET)
    here.disk.logs_bytes = DISK_BYTES
    here.come(0, 2 * PACKET, 3 * PACKET)
    error = here.told[0]
    assert isinstance(error, OSError)
    assert error.errno == errno.ENOSPC
    assert not here.parts()


def test_a_part_of_an_earlier_attempt_has_its_room_already(here: Here) -> None:
    size = ROOM - 2 * PACKET
    here.fetch(0, size)
    here.come(0, 0, size // 2)
    here.running(0).on_closed(Broken("the other side closed the connection"))
    assert isinstance(here.told[0], Broken)
    assert here.parts(), "a node that fails says nothing of the disk"
    here.fetch(0, size)
    here.come(0, 0, size)
    here.end(0)
    assert here.told[0] is None
    assert cast(File, here.payloads.open_whole(payload(0, size).id)[1]).size() == size


@pytest.mark.parametrize("is_repair", [False, True])
def test_what_is_fetched_first_says_nothing_of_other_content_of_its_id(
    here: Here, is_repair: bool
) -> None:
    first, other = (PayloadLink(0, payload(0, size)) for size in (5 * PACKET, 3 * PACKET))
    told: dict[str, Exception | None] = {}
    if is_repair:
        here.fetches.repair(here.place(), first)
    else:
        here.fetches.fetch(here.place(), first, lambda error: told.update(first=error))
    for name in ("other", "same"):
        here.fetches.fetch(here.place(), other, lambda error, name=name: told.update({name: error}))  # type: ignore[misc]
    assert here.running(0).payload == first.payload
    here.running(0).on_closed(UnknownPayload("models", 0, 0))
    if is_repair:
        here.running(0).on_closed(PayloadMissing(first.payload.id, "this node"))
    assert here.payloads.is_given_up(first)
    assert told == ({} if is_repair else {"first": None})
    assert here.running(0).payload == other.payload
    here.come(0, 0, 3 * PACKET)
    here.end(0)
    assert told["other"] is told["same"] is None
    assert here.payloads.has(other.payload)


def test_a_payload_that_is_fetched_for_one_record_is_not_fetched_again_for_another_one(
    here: Here,
) -> None:
    links = [PayloadLink(offset, payload(0, PACKET)) for offset in (0, 7)]
    told: list[Exception | None] = []
    for link in links:
        here.fetches.fetch(here.place(), link, told.append)
    here.come(0, 0, PACKET)
    here.end(0)
    assert told == [None, None]
    assert not here.fetches.running
