"""Nodes that know less than others, or open their replicas again, under payloads that are sent."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from bascule.datastream import fetching
from bascule.errors import Broken, UnknownPayload, UnknownStream
from bascule.payload_connection import PayloadReader, PayloadWriter, reader
from bascule.peer.catch_up_throttle import BURST_SECONDS, CatchUpThrottle
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.header import LOG_APPEND_TIME, PAYLOAD_LINKS, seal
from bascule.record.payload_links import Payload, PayloadLink
from bascule.wire.datastream import frames
from bascule.wire.datastream.messages import FetchPayload, OpenPayload
from support.payload_nodes import STREAM, PayloadNode, RawSender, payload_nodes, wait_until

MIB = 1 << 20
ID = "ab" * 16
DATA = random.Random(1).randbytes(3 * MIB)
PAYLOAD = Payload(ID, len(DATA), crc32c(DATA))


def writer(*nodes: PayloadNode, timeout: float = 20) -> PayloadWriter:
    bootstrap = ",".join(node.address for node in nodes)
    return PayloadWriter(lambda: bootstrap, OpenPayload(ID, STREAM, 0), timeout=timeout)


async def store(out: PayloadWriter) -> None:
    async with out:
        await out.write(DATA)


def whole(node: PayloadNode) -> bytes:
    found = node.store.payloads.find(ID)
    assert found is not None
    return Path(found.path).read_bytes()


def test_a_node_that_has_just_started_is_passed_over(tmp_path: Path) -> None:
    """It does not know of the stream yet."""
    with payload_nodes(tmp_path, 3) as nodes:
        nodes[1].is_behind = True
        asyncio.run(store(writer(*nodes.values())))
        assert whole(nodes[2]) == whole(nodes[3]) == DATA


def test_a_node_that_has_just_started_ends_no_payload(tmp_path: Path) -> None:
    """The node that is sent to is lost while no other one knows of the stream yet."""

    async def run() -> None:
        out = writer(nodes[1], nodes[2])
        async with out:
            await out.write(DATA[:MIB])
            nodes[2].is_behind = True
            nodes[1].stop()
            asyncio.get_running_loop().call_later(0.3, setattr, nodes[2], "is_behind", False)
            await out.write(DATA[MIB:])

    with payload_nodes(tmp_path, 2) as nodes:
        asyncio.run(run())
        assert whole(nodes[2]) == DATA


def test_a_stream_that_no_node_knows_is_unknown(tmp_path: Path) -> None:
    async def read() -> None:
        bootstrap = ",".join(node.address for node in nodes.values())
        async with PayloadReader(lambda: bootstrap, FetchPayload(STREAM, 0, ID), timeout=600):
            pass

    with payload_nodes(tmp_path, 2) as nodes:
        for node in nodes.values():
            node.is_behind = True
        with pytest.raises(UnknownStream):
            asyncio.run(store(writer(*nodes.values(), timeout=600)))
        with pytest.raises(UnknownStream):
            asyncio.run(read())


def test_a_reader_passes_over_a_node_that_has_just_started(tmp_path: Path) -> None:
    async def read() -> bytes:
        bootstrap = ",".join(node.address for node in nodes.values())
        async with PayloadReader(lambda: bootstrap, FetchPayload(STREAM, 0, ID), timeout=20) as out:
            return await out.read()

    with payload_nodes(tmp_path, 2) as nodes:
        asyncio.run(store(writer(nodes[2])))
        nodes[1].is_behind = True
        assert asyncio.run(read()) == DATA


def test_a_node_that_takes_itself_for_lost_is_passed_over(tmp_path: Path) -> None:
    with payload_nodes(tmp_path, 2) as nodes:
        nodes[1].alive = [nodes[2]]
        asyncio.run(store(writer(nodes[1], nodes[2])))
        assert whole(nodes[2]) == DATA


def test_a_payload_outlives_its_log(tmp_path: Path) -> None:
    """A replica is closed and opened again under a payload: nothing is written by way of the former
    one, and the sender goes on with what is there."""

    async def run() -> None:
        out = writer(nodes[1])
        async with out:
            await out.write(DATA[:MIB])
            await out.sync()
            nodes[1].open_again()
            await out.write(DATA[MIB:])

    with payload_nodes(tmp_path, 1) as nodes:
        asyncio.run(run())
        assert whole(nodes[1]) == DATA
        assert nodes[1].store.payloads.counts == (0, 1, 0)


@pytest.mark.parametrize("heals", [False, True])
def test_a_fetch_does_not_wait_for_what_has_come_and_gone(tmp_path: Path, heals: bool) -> None:
    """The record of a payload that is whole has to be appended; meanwhile the payload is removed,
    as with an earlier record of it, and perhaps the replica heals."""
    fetched: Future[Exception | None] = Future()
    linking: Future[dict[str, Any]] = Future()
    with payload_nodes(tmp_path, 2) as nodes:
        nodes[1].on_link = lambda _: linking
        sender = RawSender(nodes[1].port)
        sender.open(ID)
        sender.until(frames.OPENED)
        sender.packet(0, DATA)
        sender.finish(DATA)
        wait_until("it is to be linked", lambda: nodes[1].linked)
        if heals:
            nodes[1].open_again()
        nodes[1].store.payloads.discard_whole(ID)
        place = nodes[1].place_of(STREAM, 0)
        nodes[1].streams.fetch(place, PayloadLink(0, PAYLOAD), fetched.set_result)
        assert fetched.result(20) is None
        assert whole(nodes[1]) == DATA
        sender.close()


def test_a_node_that_has_just_started_says_that_it_is_behind(tmp_path: Path) -> None:
    """Another node knows the stream. A client that was told that there is none gave up."""
    fetched = Future[Exception | None]()
    with payload_nodes(tmp_path, 2) as nodes:
        asyncio.run(store(writer(nodes[1])))
        nodes[2].store.payloads.discard_whole(ID)
        place = nodes[2].place_of(STREAM, 0)
        nodes[1].is_behind = True
        nodes[2].streams.fetch(place, PayloadLink(0, PAYLOAD), fetched.set_result)
        error = fetched.result(20)
        assert isinstance(error, Broken)
        assert "node 1 is behind with the metadata" in str(error)


def test_a_limit_holds_up_a_fetch_and_does_not_end_it(tmp_path: Path) -> None:
    """With so little a second, a packet waits for longer than a silent node is waited for."""
    rate, fetched = 180_000, Future[Exception | None]()
    assert MIB / rate > fetching.SILENCE_SECONDS_MAX
    with payload_nodes(tmp_path, 2) as nodes:
        clock = nodes[1].clock
        asyncio.run(store(writer(nodes[1])))
        nodes[2].store.payloads.discard_whole(ID)
        nodes[1].catch_up = CatchUpThrottle(lambda: rate, clock)
        began_ns = clock.monotonic_ns()
        place = nodes[2].place_of(STREAM, 0)
        nodes[2].streams.fetch(place, PayloadLink(0, PAYLOAD), fetched.set_result)
        assert fetched.result(60) is None
        took = (clock.monotonic_ns() - began_ns) / 1e9
        assert took > 2 * MIB / rate - BURST_SECONDS, "the last packet leaves a debt"
        assert whole(nodes[2]) == DATA
        assert nodes[2].streams.counts.fetches_failed == 0


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_reader_leaves_a_node_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    monkeypatch.setattr(reader, "SILENCE_SECONDS_MAX", 0.5)

    async def read() -> bytes:
        data = b""
        bootstrap = f"{nodes[1].address},{nodes[2].address}"
        fetch = FetchPayload(STREAM, 0, ID)
        if not has_begun:
            nodes[1].freeze()
        async with PayloadReader(lambda: bootstrap, fetch, timeout=20) as out:
            async for chunk in out:
                if not data and has_begun:
                    nodes[1].freeze()
                data += chunk
        return data

    with payload_nodes(tmp_path, 2) as nodes:
        asyncio.run(store(writer(*nodes.values())))
        assert asyncio.run(read()) == DATA


def test_a_reader_whose_only_node_hangs_gives_up(tmp_path: Path) -> None:
    async def read() -> None:
        fetch = FetchPayload(STREAM, 0, ID)
        nodes[1].freeze()
        async with PayloadReader(lambda: nodes[1].address, fetch, timeout=1) as out:
            async for _ in out:
                pass

    with payload_nodes(tmp_path, 1) as nodes:
        asyncio.run(store(writer(*nodes.values())))
        with pytest.raises(Broken):
            asyncio.run(read())


def test_a_leader_that_was_deposed_does_not_say_that_there_is_no_payload(tmp_path: Path) -> None:
    """It does not know it yet, and lacks the records of the next leader."""
    with payload_nodes(tmp_path, 2) as nodes:
        asyncio.run(store(writer(nodes[1])))
        batch = build_batch(
            [Record(0, 0, None, b"", nodes[2].linked[0][0].headers())], base_offset=0
        )
        seal(
            memoryview(batch), record_count=1, base_timestamp=1, max_timestamp=1,
            attributes=LOG_APPEND_TIME | PAYLOAD_LINKS,
        )  # fmt: skip
        nodes[1].store.append_as_follower(memoryview(batch))
        nodes[1].high_watermark = 1
        nodes[2].leader, nodes[2].is_deposed = 2, True
        nodes[2].alive = [nodes[2], nodes[1]]
        bootstrap = f"{nodes[2].address},{nodes[1].address}"

        async def read(offset: int) -> bytes:
            fetch = FetchPayload(STREAM, 0, offset=offset)
            async with PayloadReader(lambda: bootstrap, fetch, timeout=5) as out:
                return await out.read()

        assert asyncio.run(read(0)) == DATA
        # Who leads says so at once where there is none.
        with pytest.raises(UnknownPayload):
            asyncio.run(read(1))
