"""Payloads that several senders send at once, each with its own connection. Nodes are in this
process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from crc32c import crc32c

from bascule.datastream.ports import PayloadPlace
from bascule.datastream.session import Session
from bascule.errors import Broken
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import VERSION, decode_message, encode_data_head
from bascule.wire.datastream.messages import OpenPayload, PayloadFailed, StreamHello
from e2e.test_payload_chunks import Publisher
from e2e.test_payload_writing import ID, KIB, MIB, content, failure, opened, whole
from support.payload_nodes import STREAM, PayloadNode, RawSender, payload_nodes, wait_until
from support.processes import WAIT_SECONDS_MAX


@contextmanager
def senders(node: PayloadNode, count: int) -> Iterator[list[RawSender]]:
    """Connections of clients."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(RawSender(node.port))) for _ in range(count)]


def refusal(sender: RawSender) -> PayloadFailed:
    """The answer to OPEN."""
    while True:
        kind, frame = sender.next()
        if kind == frames.FAILED:
            return decode_message(frame, PayloadFailed)
        assert kind != frames.OPENED


def wait_for_bytes(node: PayloadNode, size: int) -> None:
    wait_until("in a file", lambda: [f for f in node.files() if f.stat().st_size >= size])


def test_bytes_of_a_sender_do_not_come_into_what_another_one_begins_anew(tmp_path: Path) -> None:
    """Not even those of a packet that had come in part."""
    old, new = content(MIB, seed=1), content(2 * MIB, seed=2)
    with payload_nodes(tmp_path, 1) as nodes, senders(nodes[1], 2) as (first, second):
        node = nodes[1]
        first.open(ID)
        opened(first)
        first.send(encode_data_head(0, MIB, crc32c(old)), old[: 100 * KIB])
        wait_for_bytes(node, 100 * KIB)
        second.open(ID, begins_anew=True)
        assert opened(second).position == 0
        second.packet(0, new[:MIB])
        wait_for_bytes(node, MIB)
        first.send(old[100 * KIB : 200 * KIB])
        wait_until("the first is refused", lambda: node.streams.counts.refused)
        failed = failure(first)
        assert (failed.name, "sent over another connection" in failed.text) == ("Broken", True)
        second.packet(MIB, new[MIB:])
        second.finish(new)
        second.until(frames.CLOSED)
        assert whole(node) == new


def test_chunks_do_not_come_into_what_another_sender_begins_anew(tmp_path: Path) -> None:
    old, new = content(MIB, seed=1), content(MIB, seed=2)
    with payload_nodes(tmp_path, 1) as nodes, senders(nodes[1], 1) as (sender,):
        publisher = Publisher(nodes[1])
        assert publisher.next(publisher.chunk(0, old[: MIB // 2])) == MIB // 2
        sender.open(ID, begins_anew=True)
        assert opened(sender).position == 0
        assert nodes[1].streams.counts.nats_payloads == 0
        sender.packet(0, new)
        sender.finish(new)
        sender.until(frames.CLOSED)
        assert whole(nodes[1]) == new


def test_a_session_that_has_ended_changes_no_file(tmp_path: Path) -> None:
    """There may be another one of the same payload."""
    with payload_nodes(tmp_path, 1) as nodes:
        node = nodes[1]
        place: PayloadPlace = node.place_of(STREAM, 0)
        session = Session(
            node.streams, node.streams._reactor, node.streams.pool, place,
            OpenPayload(ID, STREAM, 0), node.store.payloads, window=MIB,
        )  # fmt: skip
        session.end()
        node.store.payloads.create(ID)
        with pytest.raises(Broken):
            session.write(0, memoryview(b"x"))
        with pytest.raises(Broken):
            session.on_packet(frames.DataHead(0, 0, crc32c(b"x"), 1), crc=crc32c(b"x"), new_crc=0)
        with pytest.raises(Broken):
            session.on_close(1, session.received.crc)
        session.fail(OSError("its disk"))
        (file,) = node.files()
        assert (file.name, file.stat().st_size) == (f"{ID}.open", 0)


@pytest.mark.parametrize("begins_anew", [False, True])
def test_an_open_of_a_node_that_is_behind_changes_nothing(
    tmp_path: Path, begins_anew: bool
) -> None:
    """A client has gone on at another node. The one before does not know it, and forwards what it
    has; it is refused, also where its client has begun the payload anew there."""
    data = content(2 * MIB)
    headers = [("Nats-Expected-Last-Sequence", b"7"), ("color", b"red")]
    with payload_nodes(tmp_path, 1) as nodes, senders(nodes[1], 1) as (client,):
        node = nodes[1]
        client.open(ID, attempt=1, subject="models.a", key=b"a", headers=headers)
        opened(client)
        client.packet(0, data[:MIB])
        wait_until("received", lambda: node.streams.counts.bytes_received == MIB)
        with closing(RawSender(node.port, StreamHello(VERSION, "test", "id", 2))) as behind:
            behind.open(ID, attempt=0, begins_anew=begins_anew)
            assert "sent by another node since" in refusal(behind).text
        client.packet(MIB, data[MIB:])
        client.finish(data)
        client.until(frames.CLOSED)
        (opening,) = node.openings
        assert (opening.subject, opening.key, opening.headers) == ("models.a", b"a", headers)
        assert whole(node) == data


def test_a_node_takes_over_what_its_client_sends_there_in_a_later_attempt(tmp_path: Path) -> None:
    data = content(2 * MIB)
    with payload_nodes(tmp_path, 1) as nodes, senders(nodes[1], 1) as (client,):
        client.open(ID, attempt=1, key=b"a")
        opened(client)
        client.packet(0, data[:MIB])
        wait_until("received", lambda: nodes[1].streams.counts.bytes_received == MIB)
        with closing(RawSender(nodes[1].port, StreamHello(VERSION, "test", "id", 2))) as other:
            other.open(ID, attempt=2)
            assert opened(other).position == MIB
            assert "sent over another connection" in failure(client).text
            other.packet(MIB, data[MIB:])
            other.finish(data)
            other.until(frames.CLOSED)
        assert whole(nodes[1]) == data
        assert not nodes[1].openings


@contextmanager
def slow_successor(directory: Path) -> Iterator[tuple[PayloadNode, threading.Event]]:
    """A node that forwards to one whose disk syncs nothing before the event."""
    with payload_nodes(directory, 2) as nodes:
        may_sync = threading.Event()
        nodes[2].on_sync = lambda: bool(may_sync.wait(WAIT_SECONDS_MAX)) and None
        try:
            yield nodes[1], may_sync
        finally:
            may_sync.set()


def is_whole(node: PayloadNode) -> bool:
    return any(session.is_whole for session in tuple(node.streams._sessions.values()))


def test_a_sender_that_waits_for_other_nodes_is_answered_whoever_else_opens_the_payload(
    tmp_path: Path,
) -> None:
    """The others are refused until then, and ask again."""
    data = content(MIB)
    with slow_successor(tmp_path) as (node, may_sync), senders(node, 3) as (first, other, again):
        first.open(ID)
        opened(first)
        first.packet(0, data)
        first.finish(data)
        wait_until("whole here", lambda: is_whole(node))
        other.open(ID, begins_anew=True)
        assert "is being closed" in refusal(other).text
        may_sync.set()
        first.until(frames.CLOSED)
        again.open(ID)
        assert opened(again).is_whole
        again.finish(data)
        again.until(frames.CLOSED)
        assert [nodes for _, nodes in node.linked] == [[1, 2], [1, 2]]


def test_a_payload_whose_sender_is_gone_is_taken_over_while_it_is_closed(tmp_path: Path) -> None:
    data = content(MIB)
    with slow_successor(tmp_path) as (node, _), senders(node, 2) as (first, second):
        first.open(ID)
        opened(first)
        first.packet(0, data)
        first.finish(data)
        wait_until("whole here", lambda: is_whole(node))
        first.close()
        wait_until("gone", lambda: node.streams.counts.connections == 1)
        second.open(ID)
        assert opened(second).is_whole
        second.finish(data)
        second.until(frames.CLOSED)


def test_the_publisher_of_chunks_is_answered_whoever_else_opens_the_payload(
    tmp_path: Path,
) -> None:
    """Else its place would never be given back."""
    data = content(300 * KIB)
    with slow_successor(tmp_path) as (node, may_sync), senders(node, 1) as (other,):
        publisher = Publisher(node)
        publisher.next(publisher.chunk(0, data))
        inbox = publisher.close(len(data))
        wait_until("whole here", lambda: is_whole(node))
        other.open(ID)
        assert "is being closed" in refusal(other).text
        may_sync.set()
        assert publisher.answer(inbox)["payload"]["bytes"] == len(data)
        chunked = node.streams._chunked
        wait_until("no place is taken", lambda: not node.streams.counts.nats_payloads)
        wait_until("no memory is held", lambda: chunked._bytes_done == chunked._bytes_taken)
