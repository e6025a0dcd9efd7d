"""Nobody else writes to the file of a payload whose sender has said that this is all, until it is
whole. The syncs of a node wait until a test lets them go on."""

from __future__ import annotations

import errno
import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import pytest
from crc32c import crc32c

from bascule.datastream.limits import DataStreamLimits
from bascule.datastream.service import DETACHED_SECONDS_MAX
from bascule.datastream.session import Key, Session
from bascule.record.payload_links import Payload, PayloadLink
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import VERSION
from bascule.wire.datastream.messages import StreamHello
from support.payload_clocks import ShiftedClock
from support.payload_logs import have_whole
from support.payload_nodes import (
    STREAM,
    STREAM_ID,
    PayloadNode,
    RawSender,
    payload_nodes,
    wait_until,
)

T = TypeVar("T")

SECONDS_MAX = 20
ID, OTHER = "ab" * 16, "cd" * 16
KEY: Key = (STREAM_ID, 0, ID)
FIRST, SECOND = random.Random(1).randbytes(9_000), random.Random(2).randbytes(9_000)


class HeldSyncs:
    """Those of a node, from now on."""

    def __init__(self, node: PayloadNode) -> None:
        self._node = node
        self._begun, self._allowed = threading.Semaphore(0), threading.Semaphore(0)
        self._errors: deque[OSError | None] = deque()
        node.on_sync = self._hold

    def _hold(self) -> None:
        self._begun.release()
        assert self._allowed.acquire(timeout=SECONDS_MAX)
        if (error := self._errors.popleft()) is not None:
            raise error

    def wait(self) -> None:
        """Until one has begun."""
        assert self._begun.acquire(timeout=SECONDS_MAX)

    def go_on(self, error: OSError | None = None) -> None:
        """With that which has begun."""
        self._errors.append(error)
        self._allowed.release()

    def end(self) -> None:
        """Hold no more; go on with that which has begun."""
        self._node.on_sync = lambda: None
        self.go_on()


def payload(data: bytes) -> Payload:
    return Payload(ID, len(data), crc32c(data))


def append(node: PayloadNode, data: bytes) -> PayloadLink:
    """A record with a payload."""
    have_whole(node.store.payloads, payload(data), data)
    return PayloadLink(node.append_record(payload(data)), payload(data))


def send(node: PayloadNode, data: bytes) -> RawSender:
    """All of a payload, as from a node that forwards it."""
    sender = RawSender(node.port, StreamHello(VERSION, "test", "id", 9))
    sender.open(ID)
    sender.until(frames.OPENED)
    sender.packet(0, data)
    sender.finish(data)
    return sender


def send_and_leave(node: PayloadNode, data: bytes, syncs: HeldSyncs) -> None:
    """Its sender goes while the file is synced."""
    sender = send(node, data)
    syncs.wait()
    sender.close()
    wait_until("the sender is gone", lambda: ask(node, lambda: _session(node).is_detached))


def _session(node: PayloadNode) -> Session:
    return node.streams._sessions[KEY]


def ask(node: PayloadNode, look: Callable[[], T]) -> T:
    """What the thread of data streaming finds, after all that it was asked before."""
    found: Future[T] = Future()
    node.streams._reactor.call(lambda: found.set_result(look()))
    return found.result(SECONDS_MAX)


def content(node: PayloadNode, data: bytes, offset: int = -1) -> bytes:
    _, file = node.store.payloads.open_linked(PayloadLink(offset, payload(data)))
    return file.read_at(0, 2 * len(data))


def test_a_payload_that_is_being_finished_keeps_its_place(tmp_path: Path) -> None:
    with payload_nodes(tmp_path, 1, limits=DataStreamLimits(sessions_max=1)) as nodes:
        syncs = HeldSyncs(nodes[1])
        send_and_leave(nodes[1], FIRST, syncs)
        other = RawSender(nodes[1].port)
        other.open(OTHER)
        with pytest.raises(AssertionError, match="receives 1 payloads already"):
            other.until(frames.OPENED)
        other.close()
        syncs.go_on()
        wait_until("it is whole", lambda: ask(nodes[1], lambda: _session(nodes[1]).is_whole))
        assert content(nodes[1], FIRST) == FIRST
        other = RawSender(nodes[1].port)
        other.open(OTHER)
        other.until(frames.OPENED)
        other.close()


def test_a_payload_that_is_being_finished_is_not_given_up(tmp_path: Path) -> None:
    """However long its disk takes."""
    clock = ShiftedClock()
    with payload_nodes(tmp_path, 1, clock=clock) as nodes:
        syncs = HeldSyncs(nodes[1])
        send_and_leave(nodes[1], FIRST, syncs)
        for _ in range(2):
            clock.ahead_ns += int(2 * DETACHED_SECONDS_MAX * 1e9)
            ask(nodes[1], nodes[1].streams._sweep)
        assert not ask(nodes[1], lambda: _session(nodes[1]).has_ended)
        syncs.go_on()
        wait_until("it is whole", lambda: ask(nodes[1], lambda: _session(nodes[1]).is_whole))
        clock.ahead_ns += int(2 * DETACHED_SECONDS_MAX * 1e9)
        ask(nodes[1], nodes[1].streams._sweep)
        assert ask(nodes[1], lambda: KEY not in nodes[1].streams._sessions)


def lose_file(node: PayloadNode, link: PayloadLink) -> None:
    """The payload of a record, as by hand while the node is down."""
    found = node.store.payloads.find_at(link.offset)
    assert found is not None
    Path(found.path).unlink()
    node.open_again()


def test_a_repair_waits_for_a_payload_that_is_being_finished(tmp_path: Path) -> None:
    """It would write to its file, which counts as whole a moment later."""
    with payload_nodes(tmp_path, 2) as nodes:
        node = nodes[2]
        link = append(nodes[1], FIRST)
        append(node, FIRST)
        lose_file(node, link)
        syncs = HeldSyncs(node)
        sender = send(node, SECOND)
        syncs.wait()
        node.streams.repair(node.place_of(STREAM, 0), link)
        assert not ask(node, lambda: node.streams._fetches[KEY].has_started)
        syncs.go_on()
        sender.until(frames.CLOSED)
        syncs.wait()  # of what the repair has received
        assert content(node, SECOND) == SECOND
        syncs.end()
        wait_until("it is repaired", lambda: node.streams.statistics().repaired)
        assert content(node, FIRST, link.offset) == FIRST
        found = node.store.payloads.find_at(link.offset)
        assert found is not None, "its file names the record"
        sender.close()


@pytest.mark.parametrize("is_repair", [False, True])
def test_a_payload_is_fetched_once_its_sender_has_failed(tmp_path: Path, is_repair: bool) -> None:
    """With a file of its own: that of the sender is removed."""
    with payload_nodes(tmp_path, 2) as nodes:
        node = nodes[2]
        link = append(nodes[1], FIRST)
        if is_repair:
            append(node, FIRST)
            lose_file(node, link)
        syncs = HeldSyncs(node)
        sender = send(node, FIRST)
        syncs.wait()
        place, told = node.place_of(STREAM, 0), Future[Exception | None]()
        if is_repair:
            node.streams.repair(place, link)
        else:
            node.streams.fetch(place, link, told.set_result)
        assert not ask(node, lambda: node.streams._fetches[KEY].has_started)
        syncs.go_on(OSError(errno.EIO, "input/output error"))
        syncs.wait()  # of what is fetched
        syncs.end()
        if is_repair:
            wait_until("it is repaired", lambda: node.streams.statistics().repaired)
        else:
            assert told.result(SECONDS_MAX) is None
        assert content(node, FIRST) == FIRST
        sender.close()


def test_other_content_of_a_client_is_not_what_a_record_waits_for(tmp_path: Path) -> None:
    with payload_nodes(tmp_path, 2) as nodes:
        node = nodes[2]
        link = append(nodes[1], FIRST)
        syncs = HeldSyncs(node)
        sender = send(node, SECOND)
        syncs.wait()
        told = Future[Exception | None]()
        node.streams.fetch(node.place_of(STREAM, 0), link, told.set_result)
        assert not ask(node, lambda: node.streams._fetches[KEY].has_started)
        syncs.end()
        assert told.result(SECONDS_MAX) is None
        assert content(node, FIRST) == FIRST
        sender.close()
