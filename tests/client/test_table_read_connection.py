"""The connection over which clients read tables: responses come in any pieces."""

from __future__ import annotations

import asyncio
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.client.tables.read_connection import ReadProtocol
from bascule.table_results import TableEntry, TableValues
from bascule.wire.codec import encode
from bascule.wire.frame import frame_bytes
from bascule.wire.messages.table_reads import TableReadsResponse
from bascule.wire.primitives import Piece
from bascule.wire.tables.read_batches import KeyRead, encode_answers


class Sent(asyncio.Transport):
    """Notes how many requests were written, and whether the connection was ended."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0
        self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.requests += 1

    def abort(self) -> None:
        self.is_aborted = True


async def turn() -> None:
    """Let everything run that is ready."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_soon(done.set_result, None)
    await done


def response(correlation: int, *answers: TableValues | None) -> bytes:
    """As a node sends it."""
    parts: list[Piece] = [pack(">i", correlation)]
    encode(TableReadsResponse(encode_answers([*answers])), 0, parts)
    return frame_bytes(parts)


def values(number: int, size: int = 3) -> TableValues:
    return TableValues(number + 1, [TableEntry(b"k", number, 1_000, b"v" * size)])


@given(st.lists(st.integers(1, 60)), st.lists(st.integers(0, 90), min_size=1, max_size=6))
def test_responses_in_pieces_are_put_together(pieces: list[int], sizes: list[int]) -> None:
    async def scene() -> None:
        protocol, transport = ReadProtocol(), Sent()
        protocol.connection_made(transport)
        answers = [values(number, size) for number, size in enumerate(sizes)]
        data = b"".join(response(number, answer) for number, answer in enumerate(answers))
        coming = []
        for number in range(len(sizes)):
            coming.append(protocol.read(KeyRead("t", [b"k"], number)))
            await turn()
            while transport.requests <= number:
                # No more than two are under way: the first of them is answered.
                frame = 4 + int.from_bytes(data[:4], "big")
                data = feed(protocol, data[:frame], pieces) + data[frame:]
                await turn()
        feed(protocol, data, pieces)
        assert [each.result() for each in coming] == answers
        assert not transport.is_aborted
        protocol.close()

    asyncio.run(scene())


def feed(protocol: ReadProtocol, data: bytes, pieces: list[int]) -> bytes:
    at = 0
    for size in pieces:
        if at < len(data):
            protocol.data_received(data[at : at + size])
            at += size
    if at < len(data):
        protocol.data_received(data[at:])
    return b""


@pytest.mark.parametrize(
    "data",
    [
        response(1, values(0)),
        response(0, values(0), values(1)),
        response(0, values(0))[:-1] + b"\xc1",
        pack(">iii", 12, 0, 5) + bytes(4),
        pack(">iii", 8, 0, -1),
        pack(">iii", -1, 0, 0),
    ],
    ids=["another request", "two answers", "no message", "two sizes", "null", "no size"],
)
def test_what_is_no_answer_ends_the_connection(data: bytes) -> None:
    async def scene() -> None:
        protocol, transport = ReadProtocol(), Sent()
        protocol.connection_made(transport)
        coming = protocol.read(KeyRead("t", [b"k"]))
        protocol.data_received(data)
        assert transport.is_aborted
        assert coming.result() is None, "it is asked for over HTTP"

    asyncio.run(scene())
