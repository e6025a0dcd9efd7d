"""Payloads are received as they were sent, whatever their senders do. Nodes are in this process."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
from crc32c import crc32c

from bascule.datastream.limits import DataStreamLimits
from bascule.errors import (
    BasculeError,
    Broken,
    Closed,
    Indeterminate,
    InvalidRoute,
    PayloadDamaged,
)
from bascule.payload_connection.writer import PayloadWriter
from bascule.record.payload_links import Payload, PayloadLink
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import decode_message, encode_message
from bascule.wire.datastream.messages import OpenPayload, PayloadFailed, PayloadOpened, StreamHello
from support.payload_nodes import STREAM, PayloadNode, RawSender, payload_nodes, wait_until
from support.processes import WAIT_SECONDS_MAX

KIB = 1 << 10
MIB = 1 << 20
ID = "ab" * 16


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def writer(
    *nodes: PayloadNode, timeout: float = 20, id: str = ID, **options: object
) -> PayloadWriter:
    bootstrap = ",".join(node.address for node in nodes)
    opening = OpenPayload(id, STREAM, 0, **options)  # type: ignore[arg-type]
    return PayloadWriter(lambda: bootstrap, opening, timeout=timeout)


def opened(sender: RawSender) -> PayloadOpened:
    return decode_message(sender.until(frames.OPENED), PayloadOpened)


def failure(sender: RawSender) -> PayloadFailed:
    while True:
        kind, frame = sender.next()
        if kind == frames.FAILED:
            sender.close()
            return decode_message(frame, PayloadFailed)


def die_within_a_packet(node: PayloadNode, *, confirmed: bytes = b"") -> None:
    """A sender sends 700 KiB of a packet of 1 MiB, behind what is confirmed, and dies."""
    received = node.streams.counts.bytes_received
    sender = RawSender(node.port)
    sender.open(ID)
    opened(sender)
    if confirmed:
        sender.packet(0, confirmed)
        wait_until("confirmed", lambda: node.streams.counts.bytes_received > received)
    at = len(confirmed)
    sender.send(frames.encode_data_head(at, MIB, 0), content(700 * KIB, seed=9))
    wait_until(
        "the part is in the file",
        lambda: [f for f in node.files() if f.stat().st_size >= at + 700 * KIB],
    )
    sender.close()
    wait_until("the connection has ended", lambda: not node.streams.counts.connections)


async def stored(data: bytes, out: PayloadWriter) -> None:
    async with out:
        await out.write(data)
    assert out.ack is not None
    assert out.ack.payload_bytes == len(data)


def whole(node: PayloadNode) -> bytes:
    (file,) = [f for f in node.files() if f.suffix == ".whole"]
    # The checksums of its blocks come a moment later.
    sums = {file.with_suffix(suffix) for suffix in (".sums", ".sums.new")}
    assert set(node.files()) - sums == {file}, "nothing else is left"
    return file.read_bytes()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_payload_has_no_more_bytes_than_were_confirmed(tmp_path: Path, restarts: bool) -> None:
    """What a dead sender left beyond the end of the payload is cut off."""
    with payload_nodes(tmp_path, 3) as nodes:
        die_within_a_packet(nodes[1])
        if restarts:
            nodes[1].stop()
            nodes[1].start()
        asyncio.run(stored(b"12345", writer(nodes[1])))
        for node in nodes.values():
            assert whole(node) == b"12345"


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("confirmed", [0, 300 * KIB])
def test_unconfirmed_bytes_are_not_taken_over(
    tmp_path: Path, restarts: bool, confirmed: int
) -> None:
    """Bytes of a packet whose checksum has not been compared do not count, also once they are all
    that is left of it on the disk."""
    data = content(2 * MIB)
    with payload_nodes(tmp_path, 1) as nodes:
        die_within_a_packet(nodes[1], confirmed=data[:confirmed])
        if restarts:
            nodes[1].stop()
            nodes[1].start()
        else:
            nodes[1].forget_sessions()
            wait_until("the session has ended", lambda: not nodes[1].streams.counts.sessions)
        sender = RawSender(nodes[1].port)
        sender.open(ID)
        assert opened(sender).position == confirmed
        sender.close()
        asyncio.run(stored(data, writer(nodes[1])))
        assert whole(nodes[1]) == data


def test_a_sync_at_the_end_of_a_packet_reaches_all_nodes(tmp_path: Path) -> None:
    async def test() -> None:
        async with writer(nodes[1], topology="chain") as out:
            for size in (MIB, 3, 0):
                await out.write(content(size))
                async with asyncio.timeout(10):
                    await out.sync()
                await out.sync()

    with payload_nodes(tmp_path, 3) as nodes:
        asyncio.run(test())


def test_a_sync_is_asked_for_again_at_the_next_node(tmp_path: Path) -> None:
    async def test() -> None:
        async with writer(*nodes.values(), topology="chain") as out:
            await out.write(content(MIB))
            first = nodes[out.route[0][0]]
            thawed = first.freeze()
            syncing = asyncio.create_task(out.sync())
            await asyncio.sleep(0.2)
            leave_out(first, nodes)
            thawed.set()
            await asyncio.to_thread(first.stop)
            async with asyncio.timeout(10):
                await syncing

    with payload_nodes(tmp_path, 3) as nodes:
        asyncio.run(test())


def leave_out(lost: PayloadNode, nodes: dict[int, PayloadNode]) -> None:
    """The metadata says that a node is dead."""
    for node in nodes.values():
        node.alive = [each for each in node.alive if each is not lost]


def test_a_route_begins_at_its_first_node(tmp_path: Path) -> None:
    async def test() -> None:
        data = content(3 * MIB)
        async with writer(nodes[1], route=[(2, [1]), (1, [3])]) as out:
            assert out.route == ((2, (1,)), (1, (3,)))
            assert out.why == "as asked"
            await out.write(data[:MIB])
            leave_out(nodes[2], nodes)
            await asyncio.to_thread(nodes[2].stop)
            async with asyncio.timeout(15):
                await out.write(data[MIB:])
                await out.sync()
            assert {node for node, _ in out.route} <= {1, 3}
            assert "route" in out.why
        assert out.ack is not None
        for number in (1, 3):
            assert whole(nodes[number]) == data

    with payload_nodes(tmp_path, 3) as nodes:
        asyncio.run(test())


def test_a_route_over_a_lost_node_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        leave_out(nodes[3], nodes)
        with pytest.raises(InvalidRoute, match="node 3 is not alive, expected 1, 2"):
            await writer(nodes[1], route=[(2, [1]), (1, [3])]).__aenter__()

    with payload_nodes(tmp_path, 3) as nodes:
        asyncio.run(test())


@pytest.mark.parametrize("is_known", [True, False])
def test_a_route_whose_first_node_is_gone_is_planned_anew(tmp_path: Path, is_known: bool) -> None:
    async def test() -> None:
        if is_known:
            leave_out(nodes[2], nodes)
        await asyncio.to_thread(nodes[2].stop)
        async with asyncio.timeout(15):
            async with writer(nodes[3], route=[(2, [1]), (1, [3])]) as out:
                assert "route" in out.why
                await out.write(b"abc")
        assert whole(nodes[1]) == whole(nodes[3]) == b"abc"

    with payload_nodes(tmp_path, 3) as nodes:
        asyncio.run(test())


def test_a_majority_is_one_of_all_replicas(tmp_path: Path) -> None:
    """Not of those that are alive, or left in the tree."""

    async def test(out: PayloadWriter) -> None:
        async with out:
            await out.write(content(2 * MIB))
            await out.sync()

    with payload_nodes(tmp_path, 3) as nodes:
        for number in (2, 3):
            nodes[number].stop()
        with pytest.raises(Broken):
            asyncio.run(test(writer(nodes[1], quorum=True, timeout=1)))
        for number in (2, 3):
            leave_out(nodes[number], nodes)
        with pytest.raises(Broken, match="majority"):
            asyncio.run(test(writer(nodes[1], quorum=True, timeout=1)))
        nodes[2].start()
        nodes[1].alive.append(nodes[2])
        asyncio.run(test(writer(nodes[1], quorum=True)))


def test_a_payload_that_is_fetched_is_not_sent_as_well(tmp_path: Path) -> None:
    data = content(3 * MIB)
    told: list[Exception | None] = []
    with payload_nodes(tmp_path, 2) as nodes:
        nodes[1].alive.remove(nodes[2])
        asyncio.run(stored(data, writer(nodes[1])))
        thawed = nodes[1].freeze()
        (payload, _), *_ = nodes[1].linked
        nodes[2].streams.fetch(nodes[2].place_of(STREAM, 0), PayloadLink(0, payload), told.append)
        sender = RawSender(nodes[2].port)
        sender.open(ID)
        assert "fetched" in failure(sender).text
        thawed.set()
        wait_until("whoever waits is told", lambda: told)
        assert told == [None]
        assert whole(nodes[2]) == data


def test_who_waits_for_a_payload_that_is_sent_is_told_that_it_failed(tmp_path: Path) -> None:
    data = content(1000)
    told: list[Exception | None] = []
    with payload_nodes(tmp_path, 1) as nodes:
        nodes[1].sync_seconds = 2
        sender = RawSender(nodes[1].port)
        sender.open(ID)
        sender.packet(0, data)
        sender.finish(data)
        wait_until(
            "it is closed",
            lambda: [each for each in nodes[1].streams._sessions.values() if each.closing],
        )
        (node,) = nodes.values()
        link = PayloadLink(0, Payload(ID, len(data), crc32c(data)))
        node.streams.fetch(node.place_of(STREAM, 0), link, told.append)
        wait_until("it waits", lambda: node.streams._fetches)
        node.forget_sessions()
        wait_until("whoever waits is told", lambda: told)
        assert isinstance(told[0], BasculeError)
        sender.close()


def test_after_close_was_sent_nobody_knows_whether_it_is_stored(tmp_path: Path) -> None:
    async def test() -> None:
        out = writer(nodes[1], timeout=1)
        await out.__aenter__()
        await out.write(b"abc")
        closing = asyncio.create_task(out.close())
        await asyncio.to_thread(wait_until, "the record is asked for", lambda: nodes[1].linked)
        await asyncio.to_thread(nodes[1].stop)
        with pytest.raises(Indeterminate):
            await closing

    with payload_nodes(tmp_path, 1) as nodes:
        nodes[1].on_link = lambda ack: Future()
        asyncio.run(test())


def test_a_writer_gives_up_where_nodes_answer_and_nothing_goes_on() -> None:
    """Each node opens the payload, and closes the connection with the first packet."""

    async def serve(reader: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        try:
            answer.write(encode_message(frames.HELLO, StreamHello()))
            await reader.read(10)
            answer.write(encode_message(frames.OPENED, PayloadOpened(0, 0, 16 * MIB, 0)))
            await reader.read(1 << 16)
            await asyncio.sleep(0.05)
        finally:  # also where the test ends first
            answer.transport.abort()

    async def test() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        out = PayloadWriter(lambda: address, OpenPayload(ID, STREAM, 0), timeout=1)
        async with server:
            async with asyncio.timeout(15):
                with pytest.raises(Broken, match="no progress"):
                    async with out:
                        await out.write(content(MIB))
                        await out.sync()

    asyncio.run(test())


@pytest.mark.parametrize("victim", ["first", "successor", "last"])
def test_a_node_that_hangs_is_left_out(tmp_path: Path, victim: str) -> None:
    """By its neighbour, or by the writer: it never answers again."""
    data = content(40 * MIB)

    async def test() -> None:
        async with writer(*nodes.values(), topology="chain") as out:
            await out.write(data[: 10 * MIB])
            chain = [out.route[0][0], *(after[0] for _, after in out.route)]
            nodes[chain[["first", "successor", "last"].index(victim)]].freeze()
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                await out.write(data[10 * MIB :])
                await out.sync()
        assert out.ack is not None

    with payload_nodes(tmp_path, 3) as nodes:
        asyncio.run(test())


@pytest.mark.long
def test_a_slow_disk_is_not_a_lost_node(tmp_path: Path) -> None:
    async def test() -> None:
        async with writer(nodes[1], topology="chain") as out:
            await out.write(content(3 * MIB))
            await out.sync()
        assert out.ack is not None
        assert out.ack.replicas == 3

    with payload_nodes(tmp_path, 3) as nodes:
        nodes[3].sync_seconds = 7
        asyncio.run(test())
        assert [node.streams.counts.successors_lost for node in nodes.values()] == [0, 0, 0]


@pytest.mark.parametrize("version", [0, 2, 99])
def test_an_unknown_version_is_refused(tmp_path: Path, version: int) -> None:
    with payload_nodes(tmp_path, 1) as nodes:
        sender = RawSender(nodes[1].port, StreamHello(version=version))
        text = failure(sender).text
        assert f"version {version}" in text
        assert "supported: 1" in text


def test_content_that_differs_from_what_is_there_begins_anew(tmp_path: Path) -> None:
    data = content(3 * MIB)

    async def test() -> None:
        first = writer(nodes[1])
        await first.__aenter__()
        await first.write(data[: 2 * MIB])
        await first.sync()
        first.abort()
        with pytest.raises(Closed):
            await first.close()
        with pytest.raises(PayloadDamaged, match="first 2097152 bytes"):
            async with writer(nodes[1]) as out:
                await out.write(b"x" + data[1:])
        async with writer(nodes[1], begins_anew=True) as out:
            assert out.resume_position == 0
            await out.write(b"x" + data[1:])
        for node in nodes.values():
            assert whole(node) == b"x" + data[1:]

    with payload_nodes(tmp_path, 3) as nodes:
        asyncio.run(test())


@pytest.mark.parametrize("more", [b"x", content(20 * MIB)])
def test_nothing_is_added_to_a_payload_that_is_whole(tmp_path: Path, more: bytes) -> None:
    data = content(2 * MIB + 5)

    async def test() -> None:
        await stored(data, writer(nodes[1]))
        with pytest.raises(PayloadDamaged, match="size 2097157, expected"):
            await stored(data + more, writer(nodes[1]))
        await stored(data, writer(nodes[2]))
        assert all(whole(node) == data for node in nodes.values())

    with payload_nodes(tmp_path, 2) as nodes:
        asyncio.run(test())


def test_a_node_refuses_what_goes_beyond_a_payload_that_is_whole(tmp_path: Path) -> None:
    """As clients of before send it, which do not look at whether it is whole."""
    with payload_nodes(tmp_path, 1) as nodes:
        asyncio.run(stored(b"abc", writer(nodes[1])))
        for position, sent in ((3, b"d"), (0, b"abcd"), (1, b"bcd")):
            sender = RawSender(nodes[1].port)
            sender.open(ID)
            assert opened(sender).is_whole
            sender.packet(position, sent)
            failed = failure(sender)
            assert (failed.name, "size 3, expected 4" in failed.text) == ("PayloadDamaged", True)
        assert whole(nodes[1]) == b"abc"


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_connection_may_open_many_payloads_and_leave_few(tmp_path: Path) -> None:
    with payload_nodes(tmp_path, 1) as nodes:
        node, counts = nodes[1], nodes[1].streams.counts
        empty = RawSender(node.port)
        for number in range(2_000):
            empty.open(f"{number:032x}")
        for _ in range(2_000):
            opened(empty)
        assert counts.sessions == 1
        assert node.files() == [], "a file begins with the first byte"
        begun = RawSender(node.port)
        for number in range(3_000, 3_100):
            begun.open(f"{number:032x}")
            begun.packet(0, b"begun")
        for _ in range(100):
            opened(begun)
        wait_until("they are removed", lambda: counts.abandoned >= 90)
        assert counts.sessions <= 11
        assert len([file for file in node.files() if file.suffix == ".open"]) <= 9
        asyncio.run(stored(b"honest", writer(node)))
        empty.close()
        begun.close()
        assert [payload.size for payload, _ in node.linked] == [6]


def test_connections_that_open_and_go_leave_nothing(tmp_path: Path) -> None:
    with payload_nodes(tmp_path, 1) as nodes:
        node = nodes[1]
        asyncio.run(stored(b"first", writer(node, id="0" * 32)))
        before = open_files()
        for number in range(1_500):
            sender = RawSender(node.port)
            sender.open(f"{number + 1:032x}")
            if number % 3 == 1:
                sender.packet(0, b"wrong", crc=1)
            elif number % 3 == 2:
                sender.send(frames.encode_data_head(0, 100, 0), b"part")
            sender.close()
        counts = node.streams.counts
        # Not `connections` alone: under load some have not been accepted yet.
        wait_until("all is closed", lambda: not counts.connections and open_files() <= before + 2)
        assert counts.sessions == 0
        assert len(node.files()) == 1


def test_a_sender_that_goes_takes_the_connections_between_nodes_along(tmp_path: Path) -> None:
    """Without a byte, within a packet, and behind one that all nodes have, which they keep for
    whoever goes on. RATIS-2197: streams between nodes stayed open."""
    with payload_nodes(tmp_path, 3) as nodes:
        for node in nodes.values():
            node.leader = 3
        asyncio.run(stored(b"first", writer(nodes[1], id="0" * 32)))
        before = open_files()
        for number in range(60):
            sender = RawSender(nodes[1].port)
            sender.open(f"{number + 1:032x}")
            opened(sender)
            if number % 3:
                sender.packet(0, b"confirmed")
                while frames.decode_ack(sender.until(frames.ACK))[0] < len(b"confirmed"):
                    pass
            if number % 3 == 2:
                sender.send(frames.encode_data_head(9, 100, 0), b"part")
            sender.close()
        for node in nodes.values():
            counts = node.streams.counts
            wait_until("connections are closed", lambda counts=counts: not counts.connections)
            wait_until("40 are kept", lambda counts=counts: counts.sessions == 40)
            node.forget_sessions()
            wait_until("they are forgotten", lambda counts=counts: not counts.sessions)
        wait_until("files and sockets are closed", lambda: open_files() <= before + 2)


def test_packets_that_overlap_are_compared_once(tmp_path: Path) -> None:
    """Bytes that are there are not overwritten, also by a packet whose own checksum is right."""
    with payload_nodes(tmp_path, 1) as nodes:
        sender = RawSender(nodes[1].port)
        sender.open(ID)
        sender.packet(0, b"abcdef")
        sender.packet(3, b"XXXghi")
        sender.packet(0, b"YYYYYYYYY")
        sender.finish(b"abcdefghi")
        sender.until(frames.CLOSED)
        sender.close()
        assert whole(nodes[1]) == b"abcdefghi"


def test_an_id_may_be_opened_by_many_connections_at_once(tmp_path: Path) -> None:
    """The last one goes on, the others are told; nothing of theirs is mixed in."""
    data = content(3 * MIB)
    with payload_nodes(tmp_path, 3) as nodes:
        others = [RawSender(nodes[1 + number % 3].port) for number in range(30)]
        for other in others:
            other.open(ID)
            other.send(frames.encode_data_head(0, MIB, 0), b"of somebody else")
        asyncio.run(stored(data, writer(nodes[1])))
        for other in others:
            other.close()
        assert whole(nodes[1]) == data


def test_a_node_stops_in_the_middle_of_many_payloads(tmp_path: Path) -> None:
    """Threads end, and sockets and files are closed."""
    before, threads = open_files(), threading.active_count()
    with payload_nodes(tmp_path, 3) as nodes:
        senders = [RawSender(nodes[1].port) for _ in range(20)]
        for number, sender in enumerate(senders):
            sender.open(f"{number:032x}")
            opened(sender)
            sender.packet(0, content(MIB))
            sender.send(frames.encode_data_head(MIB, MIB, 0), b"a part of the next")
        wait_until("nodes forward", lambda: nodes[3].streams.counts.bytes_received >= 20 * MIB)
        for node in nodes.values():
            node.stop()
        for sender in senders:
            sender.close()
    gc.collect()
    wait_until("threads have ended", lambda: threading.active_count() <= threads)
    assert open_files() <= before


def test_a_sender_waits_for_the_slowest_node(tmp_path: Path) -> None:
    """What a node that takes nothing has not acknowledged is bounded by the window."""
    limits = DataStreamLimits(window_bytes=2 * MIB)
    with payload_nodes(tmp_path, 2, limits=limits) as nodes:
        thawed = nodes[2].freeze()
        sender = RawSender(nodes[1].port)
        sender.open(ID)
        opened(sender)
        sender.socket.settimeout(1.5)
        with pytest.raises(TimeoutError):
            for number in range(40):
                sender.packet(number * MIB, content(MIB))
        assert nodes[1].streams.counts.bytes_received <= 3 * MIB
        thawed.set()
        sender.close()
