"""The two ends of a connection exchange bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest

from bascule import errors
from bascule.errors import LocalProtocolError, RemoteProtocolError
from bascule.wire.connection import (
    NEED_DATA,
    ClientConnection,
    ReceivedRequest,
    ReceivedResponse,
    ServerConnection,
)
from bascule.wire.error_codes import ErrorCode, code_name, code_of, error_class_of
from bascule.wire.frame import CHUNK_BYTES, FrameReader
from bascule.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from bascule.wire.messages.fetch import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from bascule.wire.messages.list_offsets import ListOffsetsRequest
from bascule.wire.messages.metadata import MetadataRequest, MetadataResponse
from bascule.wire.messages.registry import REQUESTS
from bascule.wire.primitives import Piece
from bascule.wire.schema import Message, Versions

SERVED = {key: kind.VERSIONS for key, kind in REQUESTS.items()}


@dataclass(frozen=True)
class FileSlicePiece:
    """A stand-in for a slice of a file."""

    length: int


def ends() -> tuple[ClientConnection, ServerConnection]:
    return (
        ClientConnection(client_id="me", frame_bytes_max=1 << 24),
        ServerConnection(served=SERVED, requests=REQUESTS, frame_bytes_max=1 << 20),
    )


def request_of(server: ServerConnection, data: bytes) -> ReceivedRequest:
    server.feed(data)
    event = server.next_event()
    assert isinstance(event, ReceivedRequest)
    assert server.next_event() is NEED_DATA
    return event


def response_of(client: ClientConnection, pieces: list[Piece]) -> ReceivedResponse:
    for piece in pieces:
        assert isinstance(piece, bytes)
        client.feed(piece)
    event = client.next_event()
    assert isinstance(event, ReceivedResponse)
    return event


def test_negotiation_takes_the_highest_common_versions() -> None:
    client, server = ends()
    request = request_of(server, client.send(ApiVersionsRequest("bascule", "0.1.0")))
    assert (request.version, request.client_id) == (4, "me")
    table = ApiVersionsResponse(
        api_keys=[ApiVersion(1, 4, 11), ApiVersion(3, 90, 99), ApiVersion(77, 0, 1)]
    )
    response = response_of(client, server.send(request, table))
    assert isinstance(response.message, ApiVersionsResponse)
    client.negotiate(response.message)
    assert client.version_of(FetchRequest) == 11
    for unserved in (MetadataRequest, ListOffsetsRequest):
        with pytest.raises(LocalProtocolError, match="serves no known version"):
            client.version_of(unserved)


def test_an_unserved_version_of_api_versions_gets_a_response_of_version_0() -> None:
    _, server = ends()
    head = struct.pack(">hhi", 18, 9, 42) + b"whatever a later version holds"
    request = request_of(server, struct.pack(">i", len(head)) + head)
    assert (request.version, request.response_version) == (9, 0)
    (data,) = server.send(request, ApiVersionsResponse(35, [ApiVersion(18, 0, 4)]))
    assert data == bytes.fromhex("000000100000002a002300000001001200000004")
    client = ClientConnection(client_id="me", frame_bytes_max=1 << 20)
    client.send(ApiVersionsRequest())
    client.feed(bytes.fromhex("0000001000000000002300000001001200000004"))
    event = client.next_event()
    assert isinstance(event, ReceivedResponse)
    assert event.message == ApiVersionsResponse(35, [ApiVersion(18, 0, 4)])


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_sized_pieces_are_counted_and_never_copied(version: int) -> None:
    client, server = ends()
    request = request_of(server, client.send(FetchRequest(), version=version))
    records = FileSlicePiece(5_000_000)
    partitions = [FetchPartitionResponse(0, records=records), FetchPartitionResponse(1)]
    response = FetchResponse(responses=[FetchTopicResponse("t", b"i" * 16, partitions)])
    pieces = server.send(request, response)
    assert pieces[1] is records
    sent = b"".join(p if isinstance(p, bytes) else b"r" * records.length for p in pieces)
    assert struct.unpack_from(">i", sent) == (len(sent) - 4,)
    event = response_of(client, [sent])
    assert isinstance(event.message, FetchResponse)
    first, second = event.message.responses[0].partitions
    assert isinstance(first.records, memoryview)
    assert first.records == b"r" * records.length
    assert second.records is None


def test_responses_come_in_the_order_of_requests() -> None:
    client, server = ends()
    for _ in range(3):
        server.feed(client.send(MetadataRequest(), version=1))
    requests = [server.next_event() for _ in range(3)]
    assert client.in_flight == 3
    assert isinstance(requests[1], ReceivedRequest)
    client.feed(b"".join(map(bytes, server.send(requests[1], MetadataResponse()))))  # type: ignore[arg-type]
    with pytest.raises(RemoteProtocolError, match="correlation id 1, expected 0"):
        client.next_event()


def test_a_response_without_a_request_is_refused() -> None:
    client, _ = ends()
    client.feed(struct.pack(">ii", 4, 5))
    with pytest.raises(RemoteProtocolError, match="no request is in flight"):
        client.next_event()


@pytest.mark.parametrize(
    ("key", "version", "text"),
    [
        (67, 0, "api key 67 is not served"),
        (-1, 0, "api key -1 is not served"),
        (1, 3, "FetchRequest version 3 is not served, expected 4-17"),
        (1, 18, "FetchRequest version 18 is not served"),
    ],
)
def test_an_unserved_request_ends_the_connection(key: int, version: int, text: str) -> None:
    _, server = ends()
    server.feed(struct.pack(">ihhih", 10, key, version, 1, -1))
    with pytest.raises(RemoteProtocolError, match=text):
        server.next_event()


def test_values_that_do_not_fit_raise_a_local_error() -> None:
    client, _ = ends()
    for request, version in (
        (FetchRequest(max_wait_ms=2**31), 4),
        (MetadataRequest(None), 0),
        (FetchRequest(rack_id="x" * 40_000), 11),
        (MetadataRequest(), 99),
    ):
        with pytest.raises(LocalProtocolError):
            client.send(request, version=version)
    assert client.in_flight == 0


def test_frames_stay_valid_after_later_frames() -> None:
    reader = FrameReader(frame_bytes_max=1 << 20)
    frames = [bytes([n % 251]) * (n * 7 % (CHUNK_BYTES // 8)) for n in range(200)]
    taken = []
    for frame in frames:
        reader.feed(struct.pack(">i", len(frame)) + frame)
        view = reader.next_frame()
        assert view is not None
        taken.append(view)
    assert [bytes(view) for view in taken] == frames
    assert reader.buffered_bytes == 0


def test_a_frame_larger_than_a_chunk_is_contiguous() -> None:
    for eager in (1, 64 << 10, 1 << 22):
        reader = FrameReader(frame_bytes_max=1 << 22, eager_bytes=eager)
        content = bytes(range(256)) * 12_000
        data = memoryview(b"".join((struct.pack(">i", len(content)), content, b"\0\0\0\0")))
        frames = []
        while data:
            room = reader.get_buffer()
            taken = min(len(room), len(data), 50_000)
            room[:taken] = data[:taken]
            reader.received(taken)
            data = data[taken:]
            while (frame := reader.next_frame()) is not None:
                frames.append(frame)
        assert frames == [content, b""]


def test_error_codes_both_ways() -> None:
    pairs: list[tuple[errors.BasculeError, ErrorCode]] = [
        (errors.OffsetOutOfRange(5, 0, 3), ErrorCode.OFFSET_OUT_OF_RANGE),
        (errors.UnknownStream("x"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (errors.FencedEpoch(1, 2), ErrorCode.FENCED_LEADER_EPOCH),
        (errors.UnknownEpoch(3, 2), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (errors.PartitionFailed("x", 0, "disk"), ErrorCode.KAFKA_STORAGE_ERROR),
        (errors.InvalidName("topic", "a b", "space"), ErrorCode.INVALID_TOPIC),
    ]
    for error, code in pairs:
        assert code_of(error) is code
        assert error_class_of(code) is type(error)
    assert code_of(OSError(5, "io")) is ErrorCode.KAFKA_STORAGE_ERROR
    assert code_of(ZeroDivisionError()) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert error_class_of(ErrorCode.UNKNOWN_TOPIC_ID) is errors.UnknownStream
    assert error_class_of(9999) is errors.BasculeError
    assert code_name(1) == "OFFSET_OUT_OF_RANGE (1)"
    assert code_name(9999) == "error (9999)"


def test_versions_in_the_schema_notation() -> None:
    assert (Versions("4-12").first, Versions("4-12").last) == (4, 12)
    assert 0 in Versions("0")
    assert 1 not in Versions("0")
    assert 32_000 in Versions("9+")
    assert repr(Versions("9+")) == "9+"


def test_every_request_names_its_response() -> None:
    for key, request in REQUESTS.items():
        assert issubclass(request.RESPONSE, Message)
        assert request.RESPONSE.API_KEY == key == request.API_KEY
        assert repr(request.RESPONSE.VERSIONS) == repr(request.VERSIONS)
