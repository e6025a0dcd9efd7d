"""What goes on beside reads of whole payloads, which take minutes. Nodes are in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from bascule.storage.payloads import verified_file
from bascule.storage.payloads.block_steps import Steps
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import encode_message
from bascule.wire.datastream.messages import FetchPayload
from e2e.test_payload_peers import ID, MIB, content, stored, writer
from support.payload_nodes import STREAM, PayloadNode, RawSender, payload_nodes, wait_until

COUNT = 6
"""More than there are threads for anything."""


class Endless:
    """Reads that end only where nobody wants them."""

    def __init__(self) -> None:
        self.begun = self.stopped = 0

    def steps(self, *_: object) -> Steps[Any]:
        self.begun += 1
        try:
            while True:
                threading.Event().wait(0.001)
                yield
        finally:
            self.stopped += 1


def resumed(
    node: PayloadNode, monkeypatch: pytest.MonkeyPatch, endless: Endless
) -> list[RawSender]:
    """Clients that go on with payloads of which there are long parts."""
    payloads = node.store.payloads
    senders = [RawSender(node.port) for _ in range(COUNT)]
    monkeypatch.setattr(payloads, "recover_part", endless.steps)
    for number, sender in enumerate(senders):
        payloads.create(f"{number:032x}").write_at(0, b"begun")
        sender.open(f"{number:032x}")
    return senders


def ranges(node: PayloadNode, monkeypatch: pytest.MonkeyPatch, endless: Endless) -> list[RawSender]:
    """Clients that read a range of a payload whose blocks have no checksums yet."""
    data = content(3 * MIB)
    asyncio.run(stored(data, writer(node.address)))
    sums = node.directory / "payloads" / f"{ID}-{crc32c(data):08x}.sums"
    wait_until("the checksums are there", sums.exists)
    sums.unlink()
    senders = [RawSender(node.port) for _ in range(COUNT)]
    monkeypatch.setattr(verified_file, "build_sums", endless.steps)
    for sender in senders:
        sender.send(encode_message(frames.FETCH, FetchPayload(STREAM, 0, ID, 0, 5, 9)))
    return senders


Begin = Callable[[PayloadNode, pytest.MonkeyPatch, Endless], list[RawSender]]
READS: dict[Begin, int] = {resumed: COUNT, ranges: 1}
"""The checksums of a payload are built once for all."""


@contextmanager
def reading(
    directory: Path, monkeypatch: pytest.MonkeyPatch, begin: Begin
) -> Iterator[tuple[PayloadNode, Endless, list[RawSender]]]:
    endless = Endless()
    with payload_nodes(directory, 1) as nodes:
        node = nodes[1]
        senders = begin(node, monkeypatch, endless)
        wait_until("all are read", lambda: endless.begun == READS[begin])
        yield node, endless, senders
        for each in senders:
            each.close()


@pytest.mark.parametrize("begin", [resumed, ranges])
def test_others_are_stored_and_read_beside_long_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: Begin
) -> None:
    with reading(tmp_path, monkeypatch, begin) as (node, endless, _):
        sender, data = RawSender(node.port), b"hello"
        sender.open("e" * 32)
        sender.until(frames.OPENED)
        sender.packet(0, data)
        sender.finish(data)
        sender.until(frames.CLOSED)
        sender.send(encode_message(frames.FETCH, FetchPayload(STREAM, 0, "e" * 32, 0, 1, 4)))
        sender.until(frames.CLOSE)
        sender.close()
        assert not endless.stopped


def test_long_reads_stop_once_their_clients_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reading(tmp_path, monkeypatch, resumed) as (node, endless, senders):
        for sender in senders[1:]:
            sender.close()
        wait_until("all but one have stopped", lambda: endless.stopped == COUNT - 1)
        senders[0].close()
        wait_until("the last one has stopped", lambda: endless.stopped == COUNT)
        wait_until("no session is left", lambda: not node.streams.counts.sessions)


def test_checksums_are_built_on_without_clients_until_the_payload_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reading(tmp_path, monkeypatch, ranges) as (node, endless, senders):
        for sender in senders:
            sender.close()
        wait_until("all are gone", lambda: not node.streams.counts.connections)
        late = RawSender(node.port)
        late.send(encode_message(frames.FETCH, FetchPayload(STREAM, 0, ID, 0, 5, 9)))
        assert (endless.begun, endless.stopped) == (1, 0)
        node.store.payloads.discard_whole(ID)
        wait_until("it has stopped", lambda: endless.stopped)
        while late.next()[0] != frames.FAILED:
            pass
        late.close()


@pytest.mark.parametrize("begin", [resumed, ranges])
def test_a_node_stops_in_the_middle_of_long_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: Begin
) -> None:
    with reading(tmp_path, monkeypatch, begin) as (node, endless, _):
        node.stop()
        assert endless.stopped == READS[begin]


def test_a_part_is_read_on_for_the_last_client_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reading(tmp_path, monkeypatch, resumed) as (node, endless, senders):
        other = RawSender(node.port)
        other.open(f"{0:032x}")
        other.until(frames.ACK)  # it says that it is read
        senders[0].close()
        senders[1].close()
        wait_until("one has stopped", lambda: endless.stopped)
        assert endless.stopped == 1
        other.close()
        wait_until("the other one has stopped", lambda: endless.stopped == 2)
