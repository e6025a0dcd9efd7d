"""ReplicaFetch on the wire: its bytes, and what is made of damaged ones."""

from __future__ import annotations

import pytest

from bascule.errors import RemoteProtocolError
from bascule.wire.codec import decode, encode
from bascule.wire.messages.peer.replica_fetch import (
    EpochStart,
    ForgottenPartition,
    ReplicaFetchPartition,
    ReplicaFetchPartitionResponse,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
)
from bascule.wire.messages.registry import PEER_REQUESTS, REQUESTS
from bascule.wire.primitives import Piece
from bascule.wire.schema import Message

STREAM = bytes(range(16))
REQUEST = ReplicaFetchRequest(
    500, 4096, [ReplicaFetchPartition(STREAM, 7, 3, 5, 4, 100, 90, 80, 10)],
    [ForgottenPartition(STREAM, 8)],
)  # fmt: skip
PARTITION = ReplicaFetchPartitionResponse(
    STREAM, 7, 3, 0, -1, -1, 80, 10, 6, 70, True, False, 40, 20,
    [EpochStart(4, 60)], b"batches",
)  # fmt: skip
RESPONSE = ReplicaFetchResponse([PARTITION])


def encoded(message: Message, version: int = 1) -> bytes:
    parts: list[Piece] = []
    encode(message, version, parts)
    return b"".join(part for part in parts if isinstance(part, bytes))


def test_the_bytes_are_those_of_the_document() -> None:
    assert encoded(REQUEST).hex(" ", 4) == (
        "000001f4 00001000 00000001 "
        f"{STREAM.hex(' ', 4)} 00000007 00000003 00000005 00000004 "
        "00000000 00000064 00000000 0000005a 00000000 00000050 "
        "00000000 0000000a "
        f"00000001 {STREAM.hex(' ', 4)} 00000008"
    )
    assert encoded(RESPONSE) == (
        bytes.fromhex("00000001")
        + STREAM
        + bytes.fromhex("00000007 00000003 0000 ffffffff ffffffffffffffff 0000000000000050")
        + bytes.fromhex("000000000000000a 00000006 0000000000000046 01 00")
        + bytes.fromhex("0000000000000028 0000000000000014")
        + bytes.fromhex("00000001 00000004 000000000000003c 00000007")
        + b"batches"
    )


def test_version_0_does_not_say_where_the_log_starts() -> None:
    data = encoded(REQUEST, 0)
    start = bytes.fromhex("00000050 00000000 0000000a")
    assert data == encoded(REQUEST).replace(start, start[:4])
    (found,) = decode(ReplicaFetchRequest, 0, memoryview(data)).partitions
    assert (found.synced_end, found.log_start) == (80, -1)


def test_version_0_does_not_say_whether_the_log_may_have_gaps() -> None:
    """So a follower takes those that there are."""
    data = encoded(RESPONSE, 0)
    details = bytes.fromhex("00 0000000000000028 0000000000000014")
    details += bytes.fromhex("00000001 00000004 000000000000003c")
    assert data == encoded(RESPONSE).replace(details + b"\0\0\0\7b", b"\0\0\0\7b")
    (found,) = decode(ReplicaFetchResponse, 0, memoryview(data)).partitions
    assert (found.may_have_ids, found.may_have_gaps) == (True, True)
    assert (found.clean_offset, found.tombstones_end, found.epochs) == (-1, -1, ())


@pytest.mark.parametrize("message", [REQUEST, RESPONSE])
def test_messages_are_read_again(message: Message) -> None:
    data = encoded(message)
    found = decode(type(message), 1, memoryview(data))
    if isinstance(found, ReplicaFetchResponse):
        records = found.partitions[0].records
        assert isinstance(records, memoryview)
        assert bytes(records) == b"batches"
        found.partitions[0].records = b"batches"
    assert encoded(found) == data


@pytest.mark.parametrize("message", [REQUEST, RESPONSE])
def test_bytes_that_are_cut_short_are_refused(message: Message) -> None:
    data = encoded(message)
    for size in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decode(type(message), 1, memoryview(data)[:size])


def test_clients_cannot_send_requests_of_nodes() -> None:
    assert not REQUESTS.keys() & PEER_REQUESTS.keys()
    assert ReplicaFetchRequest.API_KEY in PEER_REQUESTS
