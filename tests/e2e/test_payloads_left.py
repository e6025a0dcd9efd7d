"""Payloads that their senders leave and take up again, and slow ones that keep all places.

Nodes are in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c

from bascule.datastream import chunked_payloads, inbound
from bascule.wire.datastream import frames
from e2e.test_payload_chunks import ID, KIB, MIB, Publisher, content, whole
from support.payload_clocks import ShiftedClock, advance
from support.payload_nodes import PayloadNode, RawSender, payload_nodes, wait_until

OTHER = "cd" * 16


def parts(node: PayloadNode) -> set[str]:
    """The ids of the payloads that are there in part."""
    return {file.stem for file in node.files() if file.suffix == ".open"}


def test_a_payload_left_again_and_again_is_one_of_those_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks: two payloads take turns at one place."""
    monkeypatch.setattr(chunked_payloads, "PAYLOADS_MAX", 1)
    monkeypatch.setattr(chunked_payloads, "LEFT_MAX", 2)
    clock = ShiftedClock()
    with payload_nodes(tmp_path, 1, clock=clock) as nodes:
        node, publisher = nodes[1], Publisher(nodes[1])
        for at in range(8):
            for id in (ID, OTHER):
                assert publisher.next(publisher.chunk(at, b"x", id)) == at + 1
                advance(clock, node, 2)
        assert node.streams.counts.abandoned == 0
        assert parts(node) == {ID, OTHER}


def test_the_oldest_of_those_left_is_the_one_left_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks: one that was taken up again since is younger."""
    monkeypatch.setattr(chunked_payloads, "PAYLOADS_MAX", 1)
    monkeypatch.setattr(chunked_payloads, "LEFT_MAX", 2)
    clock = ShiftedClock()
    ids = [f"{number:032x}" for number in range(4)]
    with payload_nodes(tmp_path, 1, clock=clock) as nodes:
        node, publisher = nodes[1], Publisher(nodes[1])
        for id, at in ((ids[0], 0), (ids[1], 0), (ids[0], 1), (ids[2], 0), (ids[3], 0)):
            assert publisher.next(publisher.chunk(at, b"x", id)) == at + 1
            advance(clock, node, 2)
        assert node.streams.counts.abandoned == 1
        assert parts(node) == {ids[0], ids[2], ids[3]}


def test_a_connection_may_take_turns_with_payloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbound, "LEFT_MAX", 2)
    with payload_nodes(tmp_path, 1) as nodes:
        sender = RawSender(nodes[1].port)
        for at in range(8):
            for id in (ID, OTHER):
                sender.open(id)
                sender.until(frames.OPENED)
                sender.packet(at, b"x")
        sender.open("ef" * 16)
        sender.until(frames.OPENED)
        assert nodes[1].streams.counts.abandoned == 0
        assert parts(nodes[1]) == {ID, OTHER}
        sender.close()


def test_a_payload_of_another_connection_is_not_one_that_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has left it does not end it when he leaves others."""
    monkeypatch.setattr(inbound, "LEFT_MAX", 1)
    with payload_nodes(tmp_path, 1) as nodes:
        one, other = RawSender(nodes[1].port), RawSender(nodes[1].port)
        one.open(ID)
        one.packet(0, b"12345")
        one.open(OTHER)
        one.packet(0, b"1")
        for _ in range(2):
            one.until(frames.OPENED)
        other.open(ID)
        other.until(frames.OPENED)
        for number in range(4):
            one.open(f"{number:032x}")
            one.packet(0, b"1")
            one.until(frames.OPENED)
        other.packet(5, b"678")
        other.finish(b"12345678")
        other.until(frames.CLOSED)
        assert whole(nodes[1]) == b"12345678"
        one.close()
        other.close()


def test_chunks_go_on_in_a_log_that_was_opened_again(tmp_path: Path) -> None:
    """As when a damaged replica heals: the payloads of the closed one take nothing more."""
    data = content(2 * MIB)
    with payload_nodes(tmp_path, 2) as nodes:
        publisher = Publisher(nodes[1])
        assert publisher.next(publisher.chunk(0, data[:MIB])) == MIB
        nodes[1].open_again()
        assert publisher.next(publisher.chunk(MIB, data[MIB:])) == 2 * MIB
        nodes[1].open_again()
        ack = publisher.answer(publisher.close(len(data), crc=crc32c(data)))
        assert "error" not in ack, ack
        found = nodes[1].store.payloads.find(ID)
        assert found is not None
        assert found.payload.size == len(data)
        assert whole(nodes[2]) == data
        chunked = nodes[1].streams._chunked
        wait_until("all is given back", lambda: chunked._bytes_done == chunked._bytes_taken)


def test_slow_payloads_in_chunks_keep_nobody_away(tmp_path: Path) -> None:
    """A hostile publisher sends a byte to each of as many payloads as there are places, and again
    before each of them was silent for a second."""
    clock = ShiftedClock()
    count = chunked_payloads.PAYLOADS_MAX
    data = content(2 * MIB)
    slow = [f"{number:032x}" for number in range(count)]
    with payload_nodes(tmp_path, 2, clock=clock) as nodes:
        node = nodes[1]
        hostile, honest = Publisher(node), Publisher(node)

        def trickle(at: int) -> None:
            inboxes = [hostile.chunk(at, b"x", id) for id in slow]
            for inbox in inboxes:
                hostile.answer(inbox)
            advance(clock, node, 0.5)

        for at in range(4):
            trickle(at)
        assert node.streams.counts.nats_payloads == count
        for step, at in enumerate(range(0, len(data), 512 * KIB)):
            piece = data[at : at + 512 * KIB]
            assert honest.next(honest.chunk(at, piece)) == at + len(piece)
            trickle(4 + step)
        assert "error" not in honest.answer(honest.close(len(data), crc=crc32c(data)))
        assert whole(nodes[2]) == data
        assert node.streams.counts.nats_payloads <= count
