"""Nodes of other releases, time-outs of what nobody closes, processes that end in mid-write, and
records that only claim a payload. Nodes are in this process, or real ones where that is said."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest
from crc32c import crc32c

import bascule
from bascule.datastream.limits import DataStreamLimits
from bascule.errors import Broken
from bascule.payload_connection.writer import PayloadWriter
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.header import LOG_APPEND_TIME, seal
from bascule.record.payload_links import Payload, payload_of
from bascule.wire.datastream import frames
from bascule.wire.datastream.frames import decode_message, encode_message
from bascule.wire.datastream.messages import FetchPayload, OpenPayload, PayloadFailed, StreamHello
from support.payload_clocks import ShiftedClock, advance
from support.payload_nodes import (
    STREAM,
    STREAM_ID,
    PayloadNode,
    RawSender,
    payload_nodes,
    wait_until,
)
from support.processes import running_node

MIB = 1 << 20
ID = "cd" * 16


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def writer(*addresses: str, timeout: float = 20) -> PayloadWriter:
    return PayloadWriter(
        lambda: ",".join(addresses), OpenPayload(ID, STREAM, 0, topology="star"), timeout=timeout
    )


async def stored(data: bytes, out: PayloadWriter) -> None:
    async with out:
        for at in range(0, len(data), MIB):
            await out.write(data[at : at + MIB])
    assert out.ack is not None
    assert out.ack.payload_crc32c == crc32c(data)


def whole(node: PayloadNode) -> bytes:
    (file,) = [f for f in node.files() if f.suffix == ".whole"]
    return file.read_bytes()


@contextmanager
def foreign_listener(answer: bytes | None) -> Iterator[int]:
    """A listener that reads what comes, answers so, and closes; None: it says nothing."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock:
                sock.recv(1 << 16)
                if answer is not None:
                    sock.sendall(answer)
                    sock.settimeout(20)
                    try:
                        while sock.recv(1 << 16):
                            pass
                    except OSError:
                        pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


OTHERS = {
    "another version": encode_message(frames.HELLO, StreamHello(version=7)),
    "refuses the version": encode_message(
        frames.FAILED,
        PayloadFailed("RemoteProtocolError", "data streaming protocol version 1, supported: 7"),
    ),
    "has too many payloads": encode_message(frames.HELLO, StreamHello())
    + encode_message(
        frames.FAILED,
        PayloadFailed(
            "LimitExceeded",
            "open payloads is 4096, asked for 4097",
            {"name": "open payloads", "limit": 4096, "asked": 4097},
        ),
    ),
    "another protocol": b"\0\0\0\4\0\x23\0\0",
    "closes": None,
}


@pytest.mark.parametrize("answer", OTHERS.values(), ids=OTHERS.keys())
def test_a_node_of_another_release_is_left_out(tmp_path: Path, answer: bytes | None) -> None:
    data = content(3 * MIB)
    with payload_nodes(tmp_path, 3) as nodes, foreign_listener(answer) as port:
        own, nodes[3].port = nodes[3].port, port
        nodes[1].leader = 2
        try:
            asyncio.run(stored(data, writer(nodes[1].address)))
        finally:
            nodes[3].port = own
        assert nodes[1].linked == [(Payload(ID, len(data), crc32c(data)), [1, 2])]
        assert nodes[1].streams.counts.successors_lost == 1
        assert whole(nodes[1]) == whole(nodes[2]) == data


@pytest.mark.parametrize("answer", OTHERS.values(), ids=OTHERS.keys())
def test_a_client_goes_to_another_node(tmp_path: Path, answer: bytes | None) -> None:
    data = content(2 * MIB)
    with payload_nodes(tmp_path, 1) as nodes, foreign_listener(answer) as port:
        asyncio.run(stored(data, writer(f"127.0.0.1:{port}", nodes[1].address)))
        assert whole(nodes[1]) == data


def test_a_client_says_which_version_it_found() -> None:
    with (
        foreign_listener(OTHERS["another version"]) as port,
        pytest.raises(Broken, match="version 7, supported: 1"),
    ):
        asyncio.run(stored(b"1", writer(f"127.0.0.1:{port}", timeout=0.5)))


def test_leftovers_are_removed_after_their_time_and_not_before(tmp_path: Path) -> None:
    clock, limits = ShiftedClock(), DataStreamLimits(unlinked_ms_max=600_000)
    with payload_nodes(tmp_path, 1, clock=clock, limits=limits) as nodes:
        node, counts = nodes[1], nodes[1].streams.counts
        node.on_link = refused

        def look() -> list[str]:
            node.streams.leftovers.remove(STREAM_ID, 0, node.store)
            return sorted(f.name[:2] for f in node.files() if f.suffix in (".open", ".whole"))

        part, end = RawSender(node.port), RawSender(node.port)
        part.open("aa" * 16)
        part.packet(0, b"part")
        part.until(frames.OPENED)
        end.open("bb" * 16)
        end.packet(0, b"whole")
        end.finish(b"whole")
        wait_until("one is whole", lambda: any(f.suffix == ".whole" for f in node.files()))
        wait_until("one is open", lambda: any(f.suffix == ".open" for f in node.files()))
        wait_until("its end is answered", lambda: counts.sessions == 1)
        assert look() == ["aa", "bb"]
        clock.ahead_ns += 599 * 10**9
        assert look() == ["aa", "bb"]
        clock.ahead_ns += 2 * 10**9
        assert look() == ["aa"], "that one is being sent"
        assert (counts.unlinked_removed, counts.unlinked_bytes_removed) == (1, 5)
        clock.ahead_ns += 3_000 * 10**9
        assert look() == ["aa"], "whose sender is there for an hour"
        part.close()
        wait_until("the sender is gone", lambda: not counts.connections)
        advance(clock, node, 61)
        wait_until("nobody goes on with it", lambda: not counts.sessions)
        assert look() == ["aa"]
        clock.ahead_ns += (599 - 61) * 10**9  # since somebody was seen to send it
        assert look() == ["aa"]
        clock.ahead_ns += 2 * 10**9
        assert look() == []
        assert (counts.unlinked_removed, counts.unlinked_bytes_removed) == (2, 9)
        end.close()


def test_what_a_stopped_node_leaves_gets_its_time_again(tmp_path: Path) -> None:
    clock, limits = ShiftedClock(), DataStreamLimits(unlinked_ms_max=600_000)
    with payload_nodes(tmp_path, 1, clock=clock, limits=limits) as nodes:
        node = nodes[1]
        sender = RawSender(node.port)
        sender.open(ID)
        sender.packet(0, b"part")
        wait_until("a part", lambda: any(f.suffix == ".open" for f in node.files()))
        node.stop()
        clock.ahead_ns += 10**13
        node.start()
        for _ in range(2):
            node.streams.leftovers.remove(STREAM_ID, 0, node.store)
            assert any(f.suffix == ".open" for f in node.files()), "its publisher may come again"
            clock.ahead_ns += 599 * 10**9
        clock.ahead_ns += 2 * 10**9
        node.streams.leftovers.remove(STREAM_ID, 0, node.store)
        assert not any(f.suffix == ".open" for f in node.files())
        sender.close()


def refused(ack: dict[str, object]) -> Future[dict[str, object]]:
    done: Future[dict[str, object]] = Future()
    done.set_exception(Broken("no leader"))
    return done


def test_a_node_that_stops_in_mid_write_goes_on_with_what_is_right(tmp_path: Path) -> None:
    """It stops while packets come and a sync takes long; what follows is compared."""
    data = content(48 * MIB)
    with payload_nodes(tmp_path, 2) as nodes:
        nodes[1].sync_seconds = 0.3
        sender = RawSender(nodes[1].port)
        sender.open(ID)
        sender.until(frames.OPENED)
        sending = threading.Thread(target=send_all, args=(sender, data), daemon=True)
        sending.start()
        wait_until("half of it", lambda: nodes[1].streams.counts.bytes_received > len(data) // 3)
        nodes[1].stop()
        sending.join()
        sender.close()
        nodes[1].sync_seconds = 0.0
        nodes[1].start()
        asyncio.run(stored(data, writer(nodes[1].address)))
        assert whole(nodes[1]) == whole(nodes[2]) == data


def send_all(sender: RawSender, data: bytes) -> None:
    try:
        for at in range(0, len(data), MIB):
            sender.packet(at, data[at : at + MIB])
    except OSError:
        pass  # the node has stopped


PROGRAM = """
import asyncio, os, sys
import bascule

async def main() -> None:
    async with bascule.connect(sys.argv[1]) as client:
        async with client.open_payload("ends", payload_id=sys.argv[2]) as out:
            for number in range(64):
                await out.write(bytes([number]) * (1 << 20))
                if out.acknowledged >= 20 << 20:
                    os._exit(3)

asyncio.run(main())
"""


def test_a_process_that_ends_in_mid_write_leaves_what_another_goes_on_with(tmp_path: Path) -> None:
    """Real processes: no exception handler and no end of a block runs."""
    with running_node(tmp_path) as node:
        node.create("ends", "ends")
        server = node.addresses["http"]
        ended = subprocess.run([sys.executable, "-c", PROGRAM, server, ID], check=False)
        assert ended.returncode == 3
        assert node.partition("ends")["end_offset"] == 0, "nothing is in the log"

        async def go_on() -> None:
            async with bascule.connect(server) as client:
                async with client.open_payload("ends", payload_id=ID) as out:
                    assert out.resume_position >= 20 << 20
                    for number in range(64):
                        await out.write(bytes([number]) * MIB)
                async with client.read_payload("ends", 0) as payload:
                    got = await payload.read()
            assert got == b"".join(bytes([number]) * MIB for number in range(64))

        asyncio.run(go_on())


def test_headers_alone_make_no_payload(tmp_path: Path) -> None:
    """A record of an earlier release, whose publisher could set the headers: nobody waits for its
    payload, and who opens it is told that there is none."""
    with payload_nodes(tmp_path, 1) as nodes:
        forged = Payload(ID, 1 << 40, 7).headers()
        batch = build_batch([Record(0, 0, b"key", b"", forged)], base_offset=0)
        seal(
            memoryview(batch), record_count=1, base_timestamp=1, max_timestamp=1,
            attributes=LOG_APPEND_TIME,
        )  # fmt: skip
        nodes[1].store.append_as_follower(memoryview(batch))
        assert payload_of(forged) is not None, "as readers see it"
        assert nodes[1].store.link_at(0) is None
        sender = RawSender(nodes[1].port)
        sender.send(encode_message(frames.FETCH, FetchPayload(STREAM, 0, offset=0)))
        kind, frame = sender.next()
        while kind != frames.FAILED:
            kind, frame = sender.next()
        assert decode_message(frame, PayloadFailed).name == "UnknownPayload"
        sender.close()
        counts = nodes[1].streams.counts
        assert (counts.fetched, counts.repaired, counts.lost) == (0, 0, 0)
