"""Other content under the id of a payload that is still here is not taken for it."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

import pytest
from crc32c import crc32c

from bascule.errors import PayloadDamaged, PayloadMissing, UnknownPayload
from bascule.payload_connection import PayloadReader
from bascule.record.payload_links import Payload, PayloadLink
from bascule.storage.payloads.block_steps import run_through
from bascule.wire.datastream.messages import FetchPayload
from support.payload_logs import have_whole
from support.payload_nodes import STREAM, PayloadNode, payload_nodes, wait_until

MIB = 1 << 20
ID = "ab" * 16
FIRST, SECOND = random.Random(1).randbytes(2 * MIB), random.Random(2).randbytes(2 * MIB)


def payload(data: bytes) -> Payload:
    return Payload(ID, len(data), crc32c(data))


def receive(node: PayloadNode, data: bytes) -> None:
    have_whole(node.store.payloads, payload(data), data)


def append(node: PayloadNode, data: bytes, *, receives: bool = True) -> None:
    """A record with a payload."""
    if receives:
        receive(node, data)
    node.append_record(payload(data))


def append_without(node: PayloadNode) -> None:
    """A record without a payload."""
    node.append_record(None)


def read(node: PayloadNode, fetch: FetchPayload) -> bytes:
    async def run() -> bytes:
        async with PayloadReader(lambda: node.address, fetch, timeout=20) as out:
            return await out.read()

    return asyncio.run(run())


def fetch(node: PayloadNode, link: PayloadLink) -> Exception | None:
    """Raises: AssertionError where it does not end."""
    done = threading.Event()
    found: list[Exception | None] = []

    def on_fetched(error: Exception | None) -> None:
        found.append(error)
        done.set()

    node.streams.fetch(node.place_of(STREAM, 0), link, on_fetched)
    assert done.wait(20)
    return found[0]


def test_each_record_has_the_content_that_was_sent_with_it(tmp_path: Path) -> None:
    with payload_nodes(tmp_path, 2) as nodes:
        append(nodes[1], FIRST)
        append(nodes[1], SECOND)
        for offset, data in enumerate((FIRST, SECOND)):
            for id in ("", ID):
                assert read(nodes[1], FetchPayload(STREAM, 0, id, offset)) == data
                part = FetchPayload(STREAM, 0, id, offset, MIB - 5, MIB + 5)
                assert read(nodes[1], part) == data[MIB - 5 : MIB + 5]
            assert fetch(nodes[2], PayloadLink(offset, payload(data))) is None
            nodes[2].store.payloads.link([PayloadLink(offset, payload(data))])
        assert [nodes[2].store.payloads.has(payload(data)) for data in (FIRST, SECOND)] == [
            True
        ] * 2


def test_a_payload_is_lost_although_its_id_was_sent_again(tmp_path: Path) -> None:
    """Followers that wait for it would never have the records behind it."""
    with payload_nodes(tmp_path, 2) as nodes:
        lost = PayloadLink(0, payload(FIRST))
        nodes[1].store.payloads.give_up(lost)
        append(nodes[1], FIRST, receives=False)
        append(nodes[1], SECOND)
        assert fetch(nodes[2], lost) is None
        payloads = nodes[2].store.payloads
        assert payloads.is_given_up(lost)
        later = [lost._replace(offset=1), PayloadLink(1, payload(SECOND))]
        assert payloads.missing([lost, *later]) == later
        assert fetch(nodes[2], later[1]) is None
        assert payloads.missing([later[1]]) == []


def test_the_damaged_one_of_two_contents_is_repaired(tmp_path: Path) -> None:
    with payload_nodes(tmp_path, 2) as nodes:
        for node in nodes.values():
            append(node, FIRST)
            append(node, SECOND)
        found = nodes[1].store.payloads.find_at(0)
        assert found is not None
        with Path(found.path).open("r+b") as file:
            file.write(bytes(9))
        place = nodes[1].place_of(STREAM, 0)
        with pytest.raises(PayloadDamaged):
            asked = FetchPayload(STREAM, 0, "", 0, 0, 9)
            run_through(nodes[1].streams.find(place, asked, is_node=False))
        wait_until("it is repaired", lambda: nodes[1].streams.statistics().repaired)
        assert read(nodes[1], FetchPayload(STREAM, 0, offset=0)) == FIRST
        assert Path(found.path).read_bytes() == FIRST
        assert read(nodes[1], FetchPayload(STREAM, 0, offset=1)) == SECOND


def test_the_damaged_one_is_repaired_where_its_record_is_not_known(tmp_path: Path) -> None:
    """As one whose blocks were read after it had come."""
    with payload_nodes(tmp_path, 2) as nodes:
        for node in nodes.values():
            append(node, FIRST)
            append(node, SECOND)
        payloads = nodes[1].store.payloads
        found = payloads.find_at(0)
        assert found is not None
        with Path(found.path).open("r+b") as file:
            file.write(bytes(9))
        nodes[1].streams._fetching.repair_content(nodes[1].place_of(STREAM, 0), payload(FIRST))
        wait_until("it is repaired", lambda: nodes[1].streams.statistics().repaired)
        assert Path(found.path).read_bytes() == FIRST
        receive(nodes[1], FIRST[:9])
        nodes[1].streams._fetching.repair_content(nodes[1].place_of(STREAM, 0), payload(FIRST[:9]))
        assert [payloads.has(payload(data)) for data in (FIRST, SECOND, FIRST[:9])] == [
            True, True, False,
        ]  # fmt: skip


def test_other_content_is_not_read_for_a_record_that_lacks_its_own(tmp_path: Path) -> None:
    with payload_nodes(tmp_path, 1) as nodes:
        nodes[1].store.payloads.give_up(PayloadLink(0, payload(FIRST)))
        append(nodes[1], FIRST, receives=False)
        append(nodes[1], SECOND)
        nodes[1].start()
        nodes[1].leader = 2
        place = nodes[1].place_of(STREAM, 0)
        for id in ("", ID):
            with pytest.raises(PayloadMissing):
                asked = FetchPayload(STREAM, 0, id, 0)
                run_through(nodes[1].streams.find(place, asked, is_node=False))


def test_the_rest_of_a_range_is_not_that_of_other_content(tmp_path: Path) -> None:
    async def run() -> bytes:
        bootstrap = f"{nodes[1].address},{nodes[2].address}"
        data = b""
        asked = FetchPayload(STREAM, 0, offset=0, start=10)
        async with PayloadReader(lambda: bootstrap, asked, timeout=20) as out:
            async for chunk in out:
                if not data:
                    out._fail()  # the other node is asked for the rest first
                data += chunk
        return data

    with payload_nodes(tmp_path, 2) as nodes:
        append(nodes[1], FIRST)
        append(nodes[2], SECOND)
        assert asyncio.run(run()) == FIRST[10:]


@pytest.mark.parametrize("start", [0, 10])
def test_a_reader_that_knows_its_payload_gets_no_other_one(tmp_path: Path, start: int) -> None:
    """Also where the node that has told it what the payload is has sent nothing of it."""

    async def run() -> tuple[Payload, bytes]:
        bootstrap = f"{nodes[1].address},{nodes[2].address}"
        asked = FetchPayload(STREAM, 0, offset=0, start=start)
        async with PayloadReader(lambda: bootstrap, asked, timeout=20) as out:
            out._fail()  # the other node is asked first from now on
            data = await out.read()
            return Payload(out.id, out.size, out.crc32c), data

    with payload_nodes(tmp_path, 2) as nodes:
        append(nodes[1], FIRST)
        append(nodes[2], SECOND)
        assert asyncio.run(run()) == (payload(FIRST), FIRST[start:])


@pytest.mark.parametrize("other", [SECOND, SECOND[:MIB]])
def test_a_reader_that_is_told_what_to_expect_gets_that(tmp_path: Path, other: bytes) -> None:
    async def run() -> bytes:
        bootstrap = f"{nodes[2].address},{nodes[1].address}"
        asked = FetchPayload(STREAM, 0, ID, 0, 10, MIB)
        async with PayloadReader(
            lambda: bootstrap, asked, timeout=20, expected=payload(FIRST)
        ) as out:
            return await out.read()

    with payload_nodes(tmp_path, 2) as nodes:
        append(nodes[1], FIRST)
        append(nodes[2], other)
        assert asyncio.run(run()) == FIRST[10:MIB]


def test_a_client_gets_nothing_by_the_id_alone_where_the_record_is_known(tmp_path: Path) -> None:
    """What is here under the id may have been sent with a later record."""

    def found(*, offset: int, is_node: bool = False) -> Payload:
        place = nodes[1].place_of(STREAM, 0)
        asked = FetchPayload(STREAM, 0, ID, offset)
        return run_through(nodes[1].streams.find(place, asked, is_node=is_node)).payload

    with payload_nodes(tmp_path, 1) as nodes:
        append_without(nodes[1])
        receive(nodes[1], SECOND)
        with pytest.raises(UnknownPayload):
            found(offset=0)
        nodes[1].leader = 2
        with pytest.raises(PayloadMissing):
            found(offset=0)
        # A record may come later than its payload. Nodes compare what they are told.
        assert found(offset=1) == found(offset=-1) == payload(SECOND)
        assert found(offset=0, is_node=True) == payload(SECOND)
