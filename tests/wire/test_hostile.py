"""Hostile bytes raise only RemoteProtocolError, and memory use depends on bytes received."""

from __future__ import annotations

import json
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import RemoteProtocolError
from bascule.wire.codec import decode
from bascule.wire.connection import (
    NEED_DATA,
    ClientConnection,
    ReceivedRequest,
    ServerConnection,
)
from bascule.wire.messages.api_versions import ApiVersionsRequest
from bascule.wire.messages.fetch import FetchRequest, FetchResponse
from bascule.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from bascule.wire.messages.registry import REQUESTS
from bascule.wire.schema import Message

SERVED = {key: kind.VERSIONS for key, kind in REQUESTS.items()}
KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for request in REQUESTS.values() for kind in (request, request.RESPONSE)
}
VECTORS = [
    (KINDS[v["message"]], v["version"], bytes.fromhex(v["bytes"]))
    for v in map(
        json.loads,
        (Path(__file__).parents[1] / "vectors" / "messages.jsonl").read_text().splitlines(),
    )
]
FRAME_BYTES_MAX = 1 << 20


def server() -> ServerConnection:
    return ServerConnection(served=SERVED, requests=REQUESTS, frame_bytes_max=FRAME_BYTES_MAX)


def drain(connection: ServerConnection | ClientConnection, data: bytes) -> int:
    """Feed `data` and read every event; returns the number of events before an error."""
    events = 0
    connection.feed(data)
    try:
        while connection.next_event() is not NEED_DATA:
            events += 1
    except RemoteProtocolError:
        with pytest.raises(RemoteProtocolError):
            connection.next_event()
    return events


@given(st.binary(max_size=400))
def test_garbage_to_a_server(data: bytes) -> None:
    drain(server(), data)


@given(
    st.sampled_from(sorted(REQUESTS)) | st.integers(-(2**15), 2**15 - 1),
    st.integers(-2, 20),
    st.binary(max_size=300),
)
def test_garbage_after_a_valid_header(key: int, version: int, body: bytes) -> None:
    frame = struct.pack(">hhih", key, version, 7, -1) + body
    drain(server(), struct.pack(">i", len(frame)) + frame)


@given(st.sampled_from(VECTORS), st.data())
def test_damaged_messages(vector: tuple[type[Message], int, bytes], data: st.DataObject) -> None:
    kind, version, good = vector
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        if bad:
            bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(bad)))
    for damaged in (bytes(bad), bytes(bad[:cut]), bytes(bad) + b"\0"):
        with suppress(RemoteProtocolError):
            decode(kind, version, memoryview(damaged))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_truncated_message_is_refused(kind: type[Message]) -> None:
    for vector_kind, version, good in VECTORS:
        if vector_kind is kind:
            for cut in range(len(good)):
                with pytest.raises(RemoteProtocolError, match=r"cut short|claims|bytes"):
                    decode(kind, version, memoryview(good)[:cut])


@given(st.binary(max_size=200), st.booleans())
def test_garbage_to_a_client(data: bytes, framed: bool) -> None:
    connection = ClientConnection(client_id="c", frame_bytes_max=FRAME_BYTES_MAX)
    connection.send(ApiVersionsRequest())
    connection.send(FetchRequest(), version=12)
    if framed:
        data = struct.pack(">ii", len(data) + 4, 0) + data
    drain(connection, data)


@given(st.lists(st.integers(1, 40), max_size=30))
def test_any_chunking_gives_the_same_requests(cuts: list[int]) -> None:
    client = ClientConnection(client_id="chunks", frame_bytes_max=FRAME_BYTES_MAX)
    sent = [
        client.send(ApiVersionsRequest("x", "1"), version=3),
        client.send(MetadataRequest(None), version=12),
        client.send(FetchRequest(max_wait_ms=9), version=17),
    ]
    data, connection, seen = b"".join(sent), server(), []
    position = 0
    for cut in [*cuts, len(data)]:
        connection.feed(data[position : position + cut])
        position += cut
        while (event := connection.next_event()) is not NEED_DATA:
            seen.append((event.api_key, event.version, event.correlation_id, event.client_id))
    assert seen == [(18, 3, 0, "chunks"), (3, 12, 1, "chunks"), (1, 17, 2, "chunks")]


@pytest.mark.parametrize("size", [-1, -(2**31), FRAME_BYTES_MAX + 1, 2**31 - 1, 0x47455420])
def test_an_invalid_size_is_refused_at_once(size: int) -> None:
    connection = server()
    connection.feed(struct.pack(">i", size))
    with pytest.raises(RemoteProtocolError, match=rf"frame size is {size} bytes"):
        connection.next_event()


def test_a_large_claimed_size_allocates_little_memory() -> None:
    tracemalloc.start()
    connections = [
        ServerConnection(served=SERVED, requests=REQUESTS, frame_bytes_max=1 << 30)
        for _ in range(20)
    ]
    for connection in connections:
        connection.feed(struct.pack(">i", 1 << 30))
        assert connection.next_event() is NEED_DATA
        connection.feed(b"\0" * 100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * (256 << 10)


COUNT_MAX = b"\x7f\xff\xff\xff"
COMPACT_COUNT_MAX = b"\xff\xff\xff\xff\x0f"


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (4, struct.pack(">iiiib", -1, 0, 0, 0, 0) + COUNT_MAX),
        (4, struct.pack(">iiiibi", -1, 0, 0, 0, 0, 1) + b"\0\1t" + COUNT_MAX),
        (12, struct.pack(">iiiibii", -1, 0, 0, 0, 0, 0, 0) + COMPACT_COUNT_MAX),
        (12, struct.pack(">iiiibii", -1, 0, 0, 0, 0, 0, 0) + b"\1\2\2t" + COMPACT_COUNT_MAX),
    ],
)
def test_a_huge_count_allocates_nothing(version: int, body: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(RemoteProtocolError, match=r"claims \d+ items|cut short"):
        decode(FetchRequest, version, memoryview(body + b"\0" * 64))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_invalid_tagged_fields_are_refused() -> None:
    head = struct.pack(">ihi", 0, 0, 0)
    for tags in (b"\xff\xff\xff\xff\x0f", b"\1\0\xff\xff\xff\xff\x0f", b"\2\5\0\5", b"\1\0\2\1"):
        with pytest.raises(RemoteProtocolError):
            decode(FetchResponse, 16, memoryview(head + b"\1" + tags))
    # Any order, and a tag twice: Kafka reads both.
    for tags in (b"\1\x63\3abc", b"\2\x63\3abc\5\0", b"\2\5\0\5\0"):
        unknown = decode(FetchResponse, 16, memoryview(head + b"\1" + tags))
        assert unknown == FetchResponse(responses=[])


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="ends at byte 4, 3 bytes early"):
        decode(MetadataRequest, 1, memoryview(b"\0\0\0\0abc"))


def frame_of(request: bytes) -> bytes:
    return struct.pack(">i", len(request)) + request


ALL_TOPICS_OF_LIBRDKAFKA = bytes.fromhex(
    "0003 000d 00000002 0007 72646b61666b61 00"  # Metadata 13, correlation id 2, "rdkafka", no tags
    "00 000000 01 00 00"  # null topics and three bytes of the count that stay, the other fields
)
"""What librdkafka 2.1 to 2.16 sends for `list_topics()`: three bytes too many."""


@pytest.mark.parametrize("kind", REQUESTS.values(), ids=lambda kind: kind.__name__)
def test_a_server_ignores_bytes_behind_a_request(kind: type[Message]) -> None:
    for vector_kind, version, good in VECTORS:
        if vector_kind is not kind:
            continue
        tags = b"\0" if version in kind.FLEXIBLE else b""
        head = struct.pack(">hhih", kind.API_KEY, version, 5, -1) + tags
        connection = server()
        connection.feed(frame_of(head + good))
        connection.feed(frame_of(head + good + b"abc"))
        plain, longer = connection.next_event(), connection.next_event()
        assert isinstance(plain, ReceivedRequest)
        assert isinstance(longer, ReceivedRequest)
        assert longer.message == plain.message
        assert (plain.trailing_bytes, longer.trailing_bytes) == (0, 3)


def test_the_metadata_request_of_librdkafka_for_all_topics() -> None:
    connection = server()
    connection.feed(frame_of(ALL_TOPICS_OF_LIBRDKAFKA))
    event = connection.next_event()
    assert isinstance(event, ReceivedRequest)
    assert isinstance(event.message, MetadataRequest)
    assert event.message.topics is None
    assert event.trailing_bytes == 3


def test_text_that_is_not_utf_8_is_replaced_as_in_kafka() -> None:
    head = struct.pack(">hhih", 3, 1, 5, 4) + b"caf\xe9"
    connection = server()
    connection.feed(frame_of(head + struct.pack(">ih", 1, 2) + b"a\xff"))
    event = connection.next_event()
    assert isinstance(event, ReceivedRequest)
    assert event.client_id == "caf\ufffd"
    assert event.message == MetadataRequest([MetadataRequestTopic(name="a\ufffd")])
    # Three times as long, it must still fit a response.
    connection.feed(frame_of(struct.pack(">hhih", 3, 1, 5, 11_000) + b"\xff" * 11_000))
    with pytest.raises(RemoteProtocolError, match="client id at byte 10 is not UTF-8"):
        connection.next_event()
