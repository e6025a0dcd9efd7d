"""Payloads that come in chunks of NATS messages, whatever publishers send. Nodes are in this
process; the messages are handed over as the reading thread of NATS does."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from bascule.datastream import chunked_payloads, successor
from bascule.datastream.limits import DataStreamLimits
from bascule.errors import Broken, PublishRejected
from bascule.model import PartitionBy, StreamConfig, StreamDefinition
from bascule.publish.payload_chunks import PayloadChunk
from bascule.record.payload_links import Payload
from bascule.wire import ack_codes
from support.payload_clocks import ShiftedClock, advance
from support.payload_nodes import STREAM, STREAM_ID, PayloadNode, payload_nodes, wait_until
from support.replicas import NamedReplica

KIB = 1 << 10
MIB = 1 << 20
ID = "ab" * 16
DEFINITION = StreamDefinition(STREAM, STREAM_ID, 0, StreamConfig(subject="models.>"))


class Publisher:
    """Hands messages to a node, and keeps what is answered."""

    def __init__(self, node: PayloadNode, definition: StreamDefinition = DEFINITION) -> None:
        self.node = node
        self._replica = NamedReplica(0, definition)
        self._answers: dict[bytes, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._inboxes = 0

    def send(self, headers: Mapping[str, object], body: bytes = b"", *, asks: bool = True) -> bytes:
        """Publish; returns the inbox of the answer."""
        self._inboxes += 1
        reply = b"_INBOX.%d" % self._inboxes if asks else b""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        block = f"NATS/1.0\r\n{lines}\r\n".encode()
        self.take([PayloadChunk(b"models.bert", reply, block, body)])
        return reply

    def take(self, chunks: Sequence[PayloadChunk]) -> None:
        self.node.streams.take_chunks(self._replica, chunks, self._on_answer)

    def chunk(
        self, offset: int, body: bytes, id: str = ID, *, crc: int | None = None, asks: bool = True
    ) -> bytes:
        headers: dict[str, object] = {
            "Bascule-Payload-Session": id,
            "Bascule-Payload-Offset": offset,
        }
        if crc is not None:
            headers["Bascule-Payload-CRC32C"] = f"{crc:08x}"
        return self.send(headers, body, asks=asks)

    def close(self, size: int, id: str = ID, *, crc: int | None = None, **headers: object) -> bytes:
        own: dict[str, object] = {"Bascule-Payload-Session": id, "Bascule-Payload-Close": size}
        if crc is not None:
            own["Bascule-Payload-CRC32C"] = f"{crc:08x}"
        return self.send({**own, **headers})

    def _on_answer(self, operation: bytes) -> None:
        line, body, _ = operation.split(b"\r\n", 2)
        with self._changed:
            self._answers[line.split()[1]] = json.loads(body)
            self._changed.notify_all()

    def answer(self, inbox: bytes) -> dict[str, Any]:
        with self._changed:
            assert self._changed.wait_for(lambda: inbox in self._answers, 20), inbox
            return self._answers[inbox]

    def answered(self) -> int:
        with self._changed:
            return len(self._answers)

    def error(self, inbox: bytes) -> int:
        found: int = self.answer(inbox)["error"]["err_code"]
        return found

    def next(self, inbox: bytes) -> int:
        answer = self.answer(inbox)
        assert "error" not in answer, answer
        found: int = answer["payload"]["next"]
        return found


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def whole(node: PayloadNode, id: str = ID) -> bytes:
    (file,) = [f for f in node.files() if f.name.startswith(id) and f.suffix == ".whole"]
    return file.read_bytes()


@pytest.mark.parametrize("size", [1, 1000, 300 * KIB, MIB, 3 * MIB + 1])
def test_chunks_are_one_payload_on_every_node(tmp_path: Path, size: int) -> None:
    data = content(5 * MIB + 7)
    with payload_nodes(tmp_path, 3) as nodes:
        publisher = Publisher(nodes[1])
        end = len(data) if size > 1000 else 5 * size + 1
        inboxes = [
            publisher.chunk(at, piece, crc=crc32c(piece))
            for at in range(0, end, size)
            if (piece := data[at : min(at + size, end)])
        ]
        assert publisher.next(inboxes[-1]) == end
        for inbox in inboxes:
            assert publisher.next(inbox) > 0
        headers = {"Bascule-Key": "bert", "Content-Type": "x/y"}
        ack = publisher.answer(publisher.close(end, crc=crc32c(data[:end]), **headers))
        assert ack["payload"] == {
            "id": ID, "bytes": end, "crc32c": f"{crc32c(data[:end]):08x}",
        }  # fmt: skip
        assert ack["seq"] == 1
        assert nodes[1].linked == [(Payload(ID, end, crc32c(data[:end])), [1, 2, 3])]
        (opening,) = nodes[1].openings
        assert (opening.subject, opening.key) == ("models.bert", b"bert")
        assert opening.headers == [("Content-Type", b"x/y")]
        for node in nodes.values():
            assert whole(node) == data[:end]
        wait_until("it is forgotten", lambda: not nodes[1].streams.counts.nats_payloads)


def test_a_payload_that_wants_no_answers_is_answered_at_its_end(tmp_path: Path) -> None:
    data = content(3 * MIB)
    with payload_nodes(tmp_path, 2) as nodes:
        publisher = Publisher(nodes[1])
        for at in range(0, len(data), 100 * KIB):
            publisher.chunk(at, data[at : at + 100 * KIB], asks=False)
        ack = publisher.answer(publisher.close(len(data)))
        assert ack["payload"]["crc32c"] == f"{crc32c(data):08x}"
        assert publisher.answered() == 1
        assert whole(nodes[2]) == data


def test_gaps_are_told_and_filled(tmp_path: Path) -> None:
    data = content(1000)
    with payload_nodes(tmp_path, 2) as nodes:
        publisher = Publisher(nodes[1])
        publisher.chunk(0, data[:100], asks=False)
        publisher.chunk(200, data[200:300], asks=False)  # [100, 200) is lost
        gap = publisher.close(300)
        assert publisher.error(gap) == ack_codes.PAYLOAD_GAP
        assert publisher.answer(gap)["payload"] == {"id": ID, "next": 100}
        ahead = publisher.chunk(101, data[101:110])
        assert publisher.error(ahead) == ack_codes.PAYLOAD_GAP
        assert publisher.answer(ahead)["payload"]["next"] == 100
        assert publisher.next(publisher.chunk(100, data[100:])) == 1000
        assert "error" not in publisher.answer(publisher.close(1000, crc=crc32c(data)))
        assert whole(nodes[2]) == data


def test_repeated_and_overlapping_chunks_count_once(tmp_path: Path) -> None:
    data = content(3 * MIB)
    with payload_nodes(tmp_path, 2) as nodes:
        publisher = Publisher(nodes[1])
        for at, end in ((0, 2 * MIB), (0, MIB), (MIB - 5, 2 * MIB + 5), (7, 9), (0, 3 * MIB)):
            publisher.next(publisher.chunk(at, data[at:end], crc=crc32c(data[at:end])))
        assert nodes[1].streams.counts.bytes_received == len(data)
        closing = [publisher.close(len(data), crc=crc32c(data)) for _ in range(3)]
        acks = [publisher.answer(inbox) for inbox in closing]
        assert all(ack["payload"]["bytes"] == len(data) for ack in acks), acks
        assert whole(nodes[2]) == data
        # Again, after it is closed: as a publisher whose ack was lost.
        assert publisher.next(publisher.chunk(0, data[:MIB])) == len(data)
        assert publisher.error(publisher.chunk(len(data), b"x")) == ack_codes.PAYLOAD_DAMAGED


def test_an_empty_chunk_asks_where_to_go_on(tmp_path: Path) -> None:
    with payload_nodes(tmp_path, 2) as nodes:
        publisher = Publisher(nodes[1])
        assert publisher.next(publisher.chunk(0, b"")) == 0
        publisher.chunk(0, b"12345")
        assert publisher.next(publisher.chunk(0, b"")) == 5


def test_an_empty_payload(tmp_path: Path) -> None:
    with payload_nodes(tmp_path, 2) as nodes:
        publisher = Publisher(nodes[1])
        assert publisher.answer(publisher.close(0))["payload"]["bytes"] == 0
        assert whole(nodes[2]) == b""


def test_damage_is_refused(tmp_path: Path) -> None:
    with payload_nodes(tmp_path, 1) as nodes:
        publisher = Publisher(nodes[1])
        damaged = publisher.chunk(0, b"12345", crc=crc32c(b"12346"))
        assert publisher.error(damaged) == ack_codes.PAYLOAD_DAMAGED
        assert publisher.answer(damaged)["payload"]["next"] == 0
        assert publisher.next(publisher.chunk(0, b"12345", crc=crc32c(b"12345"))) == 5
        assert publisher.error(publisher.close(4)) == ack_codes.PAYLOAD_DAMAGED
        assert publisher.error(publisher.close(5, crc=1)) == ack_codes.PAYLOAD_DAMAGED
        assert "error" not in publisher.answer(publisher.close(5, crc=crc32c(b"12345")))


def test_another_leader_goes_on_with_what_it_has(tmp_path: Path) -> None:
    """As after the death of a leader, and after a planned change: then the old one still lives."""
    data = content(4 * MIB)
    for dies in (True, False):
        with payload_nodes(tmp_path / str(dies), 3) as nodes:
            first, second = Publisher(nodes[1]), Publisher(nodes[2])
            assert first.next(first.chunk(0, data[:MIB])) == MIB
            waiting = second.chunk(MIB, data[MIB : 2 * MIB], asks=False)
            assert not waiting
            if dies:
                nodes[1].stop()
            for node in nodes.values():
                node.leader = 2
                if dies:
                    node.alive = [nodes[2], nodes[3]]
            if dies:
                wait_until("detached", lambda: not nodes[2].streams.counts.connections)
            assert second.next(second.chunk(MIB, data[MIB : 3 * MIB])) == 3 * MIB
            ignored = first.chunk(3 * MIB, b"x") if not dies else b""
            assert second.next(second.chunk(3 * MIB, data[3 * MIB :])) == 4 * MIB
            assert "error" not in second.answer(second.close(len(data), crc=crc32c(data)))
            assert ignored not in first._answers, "the new leader answers"
            for number in (2, 3) if dies else (1, 2, 3):
                assert whole(nodes[number]) == data


def test_it_goes_on_after_a_restart(tmp_path: Path) -> None:
    data = content(3 * MIB)
    with payload_nodes(tmp_path, 2) as nodes:
        publisher = Publisher(nodes[1])
        publisher.next(publisher.chunk(0, data[:MIB]))
        nodes[1].stop()
        nodes[1].start()
        # Both come while the file is read again.
        inboxes = [
            publisher.chunk(MIB, data[MIB : 2 * MIB]),
            publisher.chunk(2 * MIB, data[2 * MIB :]),
        ]
        assert [publisher.next(inbox) for inbox in inboxes][-1] == 3 * MIB
        assert "error" not in publisher.answer(publisher.close(len(data), crc=crc32c(data)))
        assert whole(nodes[2]) == data


def test_refusals_of_the_leader_reach_the_publisher(tmp_path: Path) -> None:
    def refuse(ack: dict[str, Any]) -> Future[dict[str, Any]]:
        done: Future[dict[str, Any]] = Future()
        done.set_exception(errors.pop(0))
        return done

    errors = [PublishRejected(400, 10071, "wrong last sequence: 7"), Broken("no leader")]
    with payload_nodes(tmp_path, 2) as nodes:
        on_link = nodes[1].on_link
        nodes[1].on_link = refuse
        publisher = Publisher(nodes[1])
        publisher.next(publisher.chunk(0, b"12345"))
        refused = publisher.answer(publisher.close(5))["error"]
        assert refused == {
            "code": 400, "err_code": 10071, "description": "wrong last sequence: 7",
        }  # fmt: skip
        assert publisher.error(publisher.close(5)) == ack_codes.PAYLOAD_BUSY
        nodes[1].on_link = on_link
        assert publisher.answer(publisher.close(5))["payload"]["bytes"] == 5


def test_payloads_that_nobody_goes_on_with_are_given_up_and_counted(tmp_path: Path) -> None:
    clock = ShiftedClock()
    limits = DataStreamLimits(unlinked_ms_max=10_000)
    with payload_nodes(tmp_path, 1, clock=clock, limits=limits) as nodes:
        node, publisher = nodes[1], Publisher(nodes[1])
        for number in range(20):
            publisher.next(publisher.chunk(0, b"12345", f"{number:032x}"))
        counts = node.streams.counts
        assert counts.nats_payloads == 20
        advance(clock, node, 61)
        wait_until("all are given up", lambda: counts.nats_expired == 20)
        assert counts.nats_payloads == 0
        # One of them goes on.
        assert publisher.next(publisher.chunk(5, b"67", f"{3:032x}")) == 7
        assert "error" not in publisher.answer(publisher.close(7, f"{3:032x}"))
        advance(clock, node, 61)
        wait_until("no session is left", lambda: not counts.sessions)
        node.streams.leftovers.remove(STREAM_ID, 0, node.store)
        clock.ahead_ns += 11 * 10**9
        node.streams.leftovers.remove(STREAM_ID, 0, node.store)
        assert counts.unlinked_removed == 20
        assert counts.unlinked_bytes_removed == 19 * 5 + 7
        assert [f for f in node.files() if f.suffix != ".sums"] == []


def test_thousands_of_abandoned_payloads_cost_only_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_payloads, "PAYLOADS_MAX", 16)
    monkeypatch.setattr(chunked_payloads, "LEFT_MAX", 16)
    clock = ShiftedClock()
    data = content(MIB)
    with payload_nodes(tmp_path, 2, clock=clock) as nodes:
        node, publisher = nodes[1], Publisher(nodes[1])
        counts = node.streams.counts
        sent = 0
        for number in range(200):
            # An honest one goes on between them, and never waits.
            step = len(data) // 200 + 1
            piece = data[sent : sent + step]
            sent += len(piece)
            honest = publisher.chunk(sent - len(piece), piece)
            inbox = publisher.chunk(0, b"abandoned", os.urandom(16).hex())
            if number >= 15 and number % 2:
                # No other one was silent for a second.
                publisher.answer(inbox)
            assert publisher.next(honest) == sent
            advance(clock, node, 0.5)
        assert "error" not in publisher.answer(publisher.close(len(data), crc=crc32c(data)))
        assert counts.nats_payloads <= 16
        assert counts.abandoned >= 100
        assert len([f for f in node.files() if f.suffix == ".open"]) <= 34
        assert whole(nodes[2]) == data


def test_too_many_at_once_are_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_payloads, "PAYLOADS_MAX", 4)
    with payload_nodes(tmp_path, 1, clock=ShiftedClock()) as nodes:
        publisher = Publisher(nodes[1])
        inboxes = [publisher.chunk(0, b"x", f"{number:032x}") for number in range(5)]
        assert [publisher.next(inbox) for inbox in inboxes[:4]] == [1] * 4
        assert publisher.error(inboxes[4]) == ack_codes.PAYLOAD_BUSY


def test_memory_for_chunks_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk, and so the thread of all payloads, stands still."""
    monkeypatch.setattr(chunked_payloads, "QUEUE_BYTES_MAX", 4 * MIB)
    piece = content(100 * KIB)
    with payload_nodes(tmp_path, 1) as nodes:
        publisher = Publisher(nodes[1])
        publisher.next(publisher.chunk(0, b""))
        thawed = nodes[1].freeze()
        inboxes = [publisher.chunk(at * len(piece), piece) for at in range(100)]
        dropped = nodes[1].streams.counts.nats_chunks_dropped
        assert 55 <= dropped <= 65
        assert publisher.error(inboxes[-1]) == ack_codes.PAYLOAD_BUSY
        thawed.set()
        taken = 100 - dropped
        assert publisher.next(inboxes[taken - 1]) == taken * len(piece)
        assert publisher.next(publisher.chunk(taken * len(piece), b"1")) == taken * len(piece) + 1
        chunked = nodes[1].streams._chunked
        wait_until("all is given back", lambda: chunked._bytes_done == chunked._bytes_taken)


def test_answers_that_are_owed_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node below that does not answer cannot make the first one keep more and more answers, nor
    the headers of chunks."""
    monkeypatch.setattr(chunked_payloads, "QUEUE_BYTES_MAX", 256 * KIB)
    for name in ("SILENT_LOOKS_MAX", "STALLED_LOOKS_MAX"):  # a slow machine takes a while for all
        monkeypatch.setattr(successor, name, 100)
    with payload_nodes(tmp_path, 2) as nodes:
        publisher = Publisher(nodes[1])
        publisher.next(publisher.chunk(0, b"0"))
        thawed = nodes[2].freeze()
        chunked = nodes[1].streams._chunked
        inboxes = []
        for at in range(1, 1_001):
            headers = {"Bascule-Payload-Session": ID, "Bascule-Payload-Offset": at, "X": "x" * KIB}
            inboxes.append(publisher.send(headers, b"1"))
            wait_until("it is taken", lambda: not nodes[1].streams._reactor._calls)
        counts = nodes[1].streams.counts
        owed = chunked._bytes_taken - chunked._bytes_done
        assert 200 * KIB < owed <= 260 * KIB
        assert 350 < 1_000 - counts.nats_chunks_dropped < 550
        thawed.set()
        assert publisher.next(inboxes[0]) > 1
        wait_until("all is given back", lambda: chunked._bytes_done == chunked._bytes_taken)


def test_malformed_chunks_are_refused_and_begin_nothing(tmp_path: Path) -> None:
    dice = random.Random(3)
    names = ("Session", "Offset", "Close", "CRC32C", "Id")
    with payload_nodes(tmp_path, 1) as nodes:
        publisher = Publisher(nodes[1])
        inboxes = []
        for _ in range(300):
            headers = {"Bascule-Payload-Session": dice.choice(("", "zz", ID[1:], ID.upper()))}
            for name in dice.sample(names[1:], 2):
                value = dice.choice(("-1", "x", "", "9" * 30, "0"))
                headers[f"Bascule-Payload-{name}"] = value
            inboxes.append(publisher.send(headers, dice.randbytes(3)))
        assert {publisher.error(inbox) for inbox in inboxes} == {ack_codes.MALFORMED_CHUNK}
        assert nodes[1].streams.counts.nats_payloads == 0
        assert not nodes[1].files()
        chunked = nodes[1].streams._chunked
        assert chunked._bytes_done == chunked._bytes_taken


def test_a_stream_whose_partitions_share_a_queue_group_takes_none(tmp_path: Path) -> None:
    config = StreamConfig(subject="models.>", partitions=3, partition_by=PartitionBy.GROUP)
    with payload_nodes(tmp_path, 1) as nodes:
        publisher = Publisher(nodes[1], StreamDefinition(STREAM, STREAM_ID, 0, config))
        assert publisher.error(publisher.chunk(0, b"1")) == ack_codes.MALFORMED_CHUNK


def test_a_failing_disk_ends_the_payload(tmp_path: Path) -> None:
    with payload_nodes(tmp_path, 1) as nodes:
        publisher = Publisher(nodes[1])
        publisher.next(publisher.chunk(0, b"12345"))
        (session,) = nodes[1].streams._sessions.values()

        def fail(position: int, data: object) -> None:
            raise OSError(28, "no space left on device")

        assert session.file is not None
        session.file.write_at = fail  # type: ignore[method-assign, assignment]
        failed = publisher.chunk(5, b"6789")
        assert publisher.error(failed) == ack_codes.NOT_STORED
        assert "no space left" in publisher.answer(failed)["error"]["description"]
        assert publisher.next(publisher.chunk(0, b"12345")) == 5, "it can be sent again"
