"""Payloads where something ends, fails or is late at the worst moment."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from bascule.datastream.disk.pacing import SECOND_NS, SYNCS_MIN
from bascule.datastream.protocol.progress import Reached
from bascule.datastream.service import DataStreams
from bascule.errors import BasculeError, Broken, UnknownPayload, UnknownStream
from bascule.host.real import RealClock
from bascule.payload_connection import PayloadReader, PayloadWriter
from bascule.payload_connection.connection import PayloadConnection
from bascule.record.payload_links import Payload, PayloadLink
from bascule.storage.payloads.block_steps import Steps
from bascule.wire.datastream import frames
from bascule.wire.datastream.messages import FetchPayload, OpenPayload
from support.payload_nodes import (
    STREAM,
    PayloadNode,
    RawSender,
    SlowFile,
    payload_nodes,
    wait_until,
)

MIB = 1 << 20
ID, OTHER = "ab" * 16, "cd" * 16
DATA = random.Random(2).randbytes(3 * MIB)
PAYLOAD = Payload(ID, len(DATA), crc32c(DATA))


def store(node: PayloadNode, id: str = ID, data: bytes = DATA) -> None:
    async def run() -> None:
        out = PayloadWriter(lambda: node.address, OpenPayload(id, STREAM, 0), timeout=20)
        async with out:
            await out.write(data)

    asyncio.run(run())


def read(*nodes: PayloadNode, fetch: FetchPayload) -> bytes:
    async def run() -> bytes:
        bootstrap = ",".join(node.address for node in nodes)
        async with PayloadReader(lambda: bootstrap, fetch, timeout=20) as out:
            return await out.read()

    return asyncio.run(run())


def whole(node: PayloadNode) -> bytes:
    found = node.store.payloads.find(ID)
    assert found is not None
    return Path(found.path).read_bytes()


def test_what_has_come_before_the_end_of_a_node_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is gone when a packet is acknowledged that its socket still has."""
    acks = 0
    send: Callable[..., Any] = PayloadConnection.send

    async def send_until_the_end(connection: PayloadConnection, frame: bytes) -> None:
        nonlocal acks
        acks += frame[4] == frames.ACK
        if acks == 2 and frame[4] == frames.ACK:
            raise Broken("broken pipe")
        await send(connection, frame)

    with payload_nodes(tmp_path, 2) as nodes:
        store(nodes[1])
        monkeypatch.setattr(PayloadConnection, "send", send_until_the_end)
        assert read(nodes[1], nodes[2], fetch=FetchPayload(STREAM, 0, ID)) == DATA
        assert acks > 2


def test_who_was_deposed_gives_no_payload_of_a_record_that_only_it_has(tmp_path: Path) -> None:
    with payload_nodes(tmp_path, 2) as nodes:
        for node, id in ((nodes[1], OTHER), (nodes[2], ID)):
            others, node.alive, node.leader = node.alive, [node], node.number
            store(node, id, bytes(reversed(DATA)) if id == OTHER else DATA)
            node.store.payloads.link([PayloadLink(0, node.linked[0][0])])
            node.alive = others
        nodes[1].high_watermark, nodes[2].is_deposed = 1, True
        fetch = FetchPayload(STREAM, 0, offset=0)
        assert read(nodes[2], nodes[1], fetch=fetch) == bytes(reversed(DATA))


def test_the_payload_of_a_record_that_was_purged_is_not_read_any_more(tmp_path: Path) -> None:
    """Its file is there until the next sweep."""
    with payload_nodes(tmp_path, 1) as nodes:
        store(nodes[1])
        nodes[1].store.payloads.link([PayloadLink(0, nodes[1].linked[0][0])])
        nodes[1].high_watermark = 1
        assert read(nodes[1], fetch=FetchPayload(STREAM, 0, offset=0)) == DATA
        nodes[1].store.start_at(1, 0)
        assert nodes[1].store.payloads.find_at(0) is not None
        with pytest.raises(UnknownPayload):
            read(nodes[1], fetch=FetchPayload(STREAM, 0, offset=0))


def test_the_rest_of_a_payload_is_of_the_same_payload(tmp_path: Path) -> None:
    """Another node has another payload at the offset, as after the stream was made anew."""

    async def run() -> bytes:
        bootstrap = f"{nodes[1].address},{nodes[2].address}"
        fetch = FetchPayload(STREAM, 0, offset=0, start=10)
        async with PayloadReader(lambda: bootstrap, fetch, timeout=1) as out:
            data = b""
            async for chunk in out:
                data += chunk
                nodes[1].stop()
        return data

    with payload_nodes(tmp_path, 2) as nodes:
        for node, id in ((nodes[1], ID), (nodes[2], OTHER)):
            others, node.alive, node.leader = node.alive, [node], node.number
            store(node, id, DATA if id == ID else bytes(reversed(DATA)))
            node.store.payloads.link([PayloadLink(0, node.linked[0][0])])
            node.alive, node.high_watermark = others, 1
        with contextlib.suppress(BasculeError):  # where not all of it was on its way
            assert asyncio.run(run()) == DATA[10:]


def test_a_fetch_waits_until_a_part_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads what was received of a payload before cuts off what is behind it."""
    with payload_nodes(tmp_path, 2) as nodes:
        first, second = nodes.values()
        first.alive, second.alive = [first], [second]
        store(first)
        begun = RawSender(second.port)
        begun.open(ID)
        begun.until(frames.OPENED)
        begun.packet(0, DATA[:MIB])
        begun.until(frames.ACK)
        begun.close()
        second.stop()
        second.start()
        held, release = threading.Event(), threading.Event()
        recover = second.store.payloads.recover_part

        def recover_slowly(id: str) -> Steps[tuple[int, int]]:
            held.set()
            assert release.wait(20)
            return (yield from recover(id))

        monkeypatch.setattr(second.store.payloads, "recover_part", recover_slowly)
        sender = RawSender(second.port)
        sender.open(ID)
        assert held.wait(20)
        second.alive = first.alive = [first, second]
        fetched: Future[Exception | None] = Future()
        place = second.place_of(STREAM, 0)
        second.streams.fetch(place, PayloadLink(0, PAYLOAD), fetched.set_result)
        with pytest.raises(TimeoutError):
            fetched.result(0.5)
        assert second.store.payloads.find(ID) is None
        release.set()
        assert fetched.result(20) is None
        assert whole(second) == DATA
        sender.close()


def test_a_fetch_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no more in memory than a payload that is sent, and a failed step ends it."""
    data = random.Random(3).randbytes(24 * MIB)
    payload = Payload(ID, len(data), crc32c(data))
    step, fails = threading.Event(), threading.Event()
    monkeypatch.setattr(DataStreams, "unwritten_max", 4 * MIB)
    with payload_nodes(tmp_path, 2) as nodes:
        first, second = nodes.values()
        first.alive = [first]
        store(first, data=data)
        first.alive = second.alive = [first, second]
        write_back = SlowFile.write_back

        def write_slowly(file: SlowFile, start: int, end: int) -> None:
            assert step.wait(20)
            if fails.is_set():
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            write_back(file, start, end)

        monkeypatch.setattr(SlowFile, "write_back", write_slowly)
        place, counts = second.place_of(STREAM, 0), second.streams.counts
        for is_broken in (True, False):
            step.clear()
            counts.bytes_fetched = 0
            fetched: Future[Exception | None] = Future()
            second.streams.fetch(place, PayloadLink(0, payload), fetched.set_result)
            wait_until("it is paused", lambda: counts.bytes_fetched)
            with pytest.raises(TimeoutError):
                fetched.result(0.5)
            assert counts.bytes_fetched <= 8 * MIB
            (fails.set if is_broken else fails.clear)()
            step.set()
            error = fetched.result(20)
            assert isinstance(error, OSError) if is_broken else error is None
        assert whole(second) == data


def test_the_sync_of_the_record_of_a_fetched_payload_is_none_of_others(tmp_path: Path) -> None:
    class Stopped(RealClock):
        def monotonic_ns(self) -> int:
            return SECOND_NS

    with payload_nodes(tmp_path, 2, clock=Stopped()) as nodes:
        first, second = nodes.values()
        first.alive = [first]
        store(first)
        first.alive = [first, second]
        fetched: Future[Exception | None] = Future()
        second.streams.fetch(
            second.place_of(STREAM, 0), PayloadLink(0, PAYLOAD), fetched.set_result
        )
        assert fetched.result(20) is None
        for _ in range(SYNCS_MIN + 1):
            assert second.streams.statistics().disk_limit == 0
            second.streams.on_log_synced(SECOND_NS, SECOND_NS)
        assert second.streams.statistics().disk_limit > 0


def test_a_payload_is_not_whole_before_the_last_sync_has_ended(tmp_path: Path) -> None:
    """Of two syncs of a file at once, Linux tells one that bytes are lost."""
    begun, release = threading.Event(), threading.Event()
    syncs = 0

    def on_sync() -> None:
        nonlocal syncs
        syncs += 1
        if syncs == 1:
            begun.set()
            assert release.wait(20)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with payload_nodes(tmp_path, 1) as nodes:
        sender = RawSender(nodes[1].port)
        sender.open(ID)
        sender.until(frames.OPENED)
        nodes[1].on_sync = on_sync
        sender.packet(0, DATA, flags=frames.SYNC)
        assert begun.wait(20)
        sender.finish(DATA)
        with pytest.raises(AssertionError):
            wait_until("it is whole", lambda: nodes[1].linked, 0.5)
        release.set()
        kinds = [sender.next()[0]]
        while kinds[-1] not in (frames.CLOSED, frames.FAILED):
            kinds.append(sender.next()[0])
        assert kinds[-1] == frames.FAILED
        assert nodes[1].store.payloads.find(ID) is None
        sender.close()


def test_a_stream_that_is_deleted_before_the_link_leaves_no_session(tmp_path: Path) -> None:
    def on_link(_: dict[str, Any]) -> Future[dict[str, Any]]:
        raise UnknownStream(STREAM)

    with payload_nodes(tmp_path, 1) as nodes:
        nodes[1].on_link = on_link
        sender = RawSender(nodes[1].port)
        sender.open(ID)
        sender.until(frames.OPENED)
        sender.packet(0, DATA)
        sender.finish(DATA)
        kinds = [sender.next()[0]]
        while kinds[-1] not in (frames.CLOSED, frames.FAILED):
            kinds.append(sender.next()[0])
        assert kinds[-1] == frames.FAILED
        wait_until("the session is gone", lambda: not nodes[1].streams.counts.sessions)
        sender.close()


def test_a_sender_that_reads_nothing_costs_no_memory_for_each_packet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits to be sent is one acknowledgement, the newest."""
    done: Future[int] = Future()
    with payload_nodes(tmp_path, 1) as nodes:
        sender = RawSender(nodes[1].port)
        sender.open(ID)
        sender.until(frames.OPENED)
        (inbound,) = nodes[1].streams._connections
        connection = inbound._connection

        def acknowledge() -> None:
            with monkeypatch.context() as patched:
                # The socket takes no more.
                patched.setattr(connection, "_flush", lambda: None)
                for position in range(1, 1_001):
                    inbound.acknowledge(Reached(position, 0))
                done.set_result(len(connection._out))
            connection._flush()

        nodes[1].streams._reactor.call(acknowledge)
        assert done.result(20) == 1
        found = [(0, 0)]
        while found[-1] != (1_000, 0):
            found.append(frames.decode_ack(sender.until(frames.ACK)))
        assert [each for each in found if each != (0, 0)] == [(1, 0), (1_000, 0)]
        sender.close()
