"""Both ends of a Kafka connection as pure objects: bytes in, requests or responses out.

    request   int16 api key, int16 version, int32 correlation id, nullable string client id,
              tagged fields (header v2, where the request is flexible), body
    response  int32 correlation id, tagged fields (header v1, where flexible; never for
              ApiVersions), body

The client id is never a compact string, not even in header v2 (KIP-482).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Any, Final, Literal, TypeVar

import msgspec

from bascule.errors import LocalProtocolError, RemoteProtocolError
from bascule.wire.codec import decode, decoder, encode, encode_frame
from bascule.wire.codec.generated import Decode
from bascule.wire.error_codes import ErrorCode
from bascule.wire.frame import FrameReader, frame_bytes, frame_pieces
from bascule.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from bascule.wire.primitives import (
    Piece,
    cut_short,
    read_nullable_string,
    read_tags,
    write_nullable_string,
)
from bascule.wire.schema import Message, Request, Versions, memoize

_REQUEST_HEAD = Struct(">hhi")
_CORRELATION = Struct(">i")
_CORRELATION_IDS = 2**31
_UNSUPPORTED_VERSION = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
ResponseT = TypeVar("ResponseT", bound=Message)


class Need(Enum):
    """What a connection needs to continue."""

    DATA = "data"


NEED_DATA: Final = Need.DATA


class ReceivedRequest(msgspec.Struct):
    """One request, decoded."""

    api_key: int
    version: int
    """As sent. For ApiVersions it may be a version that is not served."""
    correlation_id: int
    client_id: str | None
    message: Request[Any]
    response_version: int
    """The version to encode the response in."""
    trailing_bytes: int = 0
    """Bytes of the frame after the request. They are ignored, as in Kafka."""


@dataclass(slots=True)
class ReceivedResponse:
    """One response, decoded, and its request."""

    correlation_id: int
    request: Request[Any]
    message: Message


class ServerConnection:
    """The server's end: decodes requests and encodes responses.

    `served` maps API keys to served versions. Any other key or version is a protocol error, except
    an unknown version of ApiVersions. That request is returned with `response_version` 0 (KIP-511).
    """

    __slots__ = (
        "_client_id", "_failure", "_id_bytes", "_id_end", "_requests", "_served", "frames",
    )  # fmt: skip

    def __init__(
        self,
        *,
        served: Mapping[int, Versions],
        frame_bytes_max: int,
        requests: Mapping[int, type[Request[Any]]],
    ) -> None:
        """`requests` has the class of each api key."""
        self._served = served
        self._requests = requests
        self.frames = FrameReader(frame_bytes_max=frame_bytes_max)
        """Takes the bytes that are received."""
        self._failure: RemoteProtocolError | None = None
        self._client_id: str | None = None
        """That of the last request, its bytes, and its end in the frame; 0: there was none."""
        self._id_bytes = b""
        self._id_end = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes received that are not yet decoded to requests."""
        return self.frames.buffered_bytes

    @property
    def allocated_bytes(self) -> int:
        """Memory of the receive buffer."""
        return self.frames.allocated_bytes

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes that were received elsewhere."""
        self.frames.feed(data)

    def next_event(self) -> ReceivedRequest | Literal[Need.DATA]:
        """The next request, or NEED_DATA.

        Raises: RemoteProtocolError. The connection has then failed, and every later call raises
        the same error.
        """
        frame = self.next_frame()
        return NEED_DATA if frame is None else self.decode(frame)

    def next_frame(self) -> memoryview | None:
        """The frame of the next request, or None if more bytes are needed. Raises: as
        `next_event`."""
        if self._failure is not None:
            raise self._failure
        try:
            return self.frames.next_frame()
        except RemoteProtocolError as failure:
            self._failure = failure
            raise

    def decode(self, frame: memoryview) -> ReceivedRequest:
        """The request in a frame of `next_frame`. Raises: as `next_event`."""
        try:
            return self._decode(frame)
        except RemoteProtocolError as failure:
            self._failure = failure
            raise

    def _decode(self, frame: memoryview) -> ReceivedRequest:
        end = len(frame)
        if end < _REQUEST_HEAD.size:
            raise cut_short("request header", 0, _REQUEST_HEAD.size, end)
        api_key, version, correlation_id = _REQUEST_HEAD.unpack_from(frame)
        kind = self._requests.get(api_key)
        versions = self._served.get(api_key)
        if kind is None or versions is None:
            raise RemoteProtocolError(f"request header at byte 0: api key {api_key} is not served")
        response_version = version
        if version not in versions:
            if api_key != ApiVersionsRequest.API_KEY:
                raise RemoteProtocolError(
                    f"request header at byte 2: {kind.__name__} version {version} is not served, "
                    f"expected {versions}"
                )
            return ReceivedRequest(api_key, version, correlation_id, None, ApiVersionsRequest(), 0)
        client_id, position = self._read_client_id(frame, end)
        has_tags, decode_body = _request_decoder(kind, version)
        if has_tags:
            _, position = read_tags(frame, position, end, "request header")
        # librdkafka sends three extra bytes with a Metadata request for all topics.
        message, position = decode_body(frame, position, end)
        return ReceivedRequest(
            api_key, version, correlation_id, client_id, message, response_version, end - position
        )

    def _read_client_id(self, frame: memoryview, end: int) -> tuple[str | None, int]:
        """The client id and its end. It is nearly always that of the request before."""
        before, id_end = self._client_id, self._id_end
        if id_end and frame[_REQUEST_HEAD.size : id_end] == self._id_bytes:
            return before, id_end
        client_id, id_end = read_nullable_string(
            frame, _REQUEST_HEAD.size, end, "request header client id"
        )
        self._client_id, self._id_end = client_id, id_end
        self._id_bytes = bytes(frame[_REQUEST_HEAD.size : id_end])
        return client_id, id_end

    def send(self, request: ReceivedRequest, response: Message) -> list[Piece]:
        """The frame of the response to `request`: bytes, and each `SizedPiece` in its position."""
        assert type(response) is request.message.RESPONSE
        version = request.response_version
        head = _CORRELATION.pack(request.correlation_id) + _response_tags(type(response), version)
        frame = encode_frame(response, version, head)
        if frame is not None:
            return [frame]
        parts: list[Piece] = [head]
        encode(response, version, parts)
        return frame_pieces(parts)


class ClientConnection:
    """The client's end: encodes requests and decodes responses, in the order of the requests.

    After `negotiate` a request has the highest version that both sides know. Before it only
    ApiVersions, or a request with an explicit version, can be sent.
    """

    __slots__ = (
        "_client_id",
        "_correlation_id",
        "_failure",
        "_frames",
        "_pending",
        "_served",
        "_versions",
    )

    def __init__(self, *, client_id: str, frame_bytes_max: int) -> None:
        self._client_id = client_id
        self._frames = FrameReader(frame_bytes_max=frame_bytes_max, eager_bytes=frame_bytes_max)
        self._failure: RemoteProtocolError | None = None
        self._correlation_id = 0
        self._pending: deque[tuple[int, Request[Any], int]] = deque()
        self._served: dict[int, tuple[int, int]] = {}
        """The first and the last version that the server serves, by API key."""
        self._versions: dict[int, int] = {}
        """What `version_of` has returned."""

    @property
    def in_flight(self) -> int:
        """Requests without a response so far."""
        return len(self._pending)

    def negotiate(self, response: ApiVersionsResponse) -> None:
        """Store the versions that the server serves."""
        self._served = {
            api.api_key: (api.min_version, api.max_version) for api in response.api_keys
        }
        self._versions = {}

    def version_of(self, request: type[Request[Any]]) -> int:
        """The version that `send` uses.

        Raises: LocalProtocolError if the server serves no version that is known here.
        """
        version = self._versions.get(request.API_KEY)
        if version is None:
            version = self._versions[request.API_KEY] = self._highest_version(request)
        return version

    def _highest_version(self, request: type[Request[Any]]) -> int:
        known = request.VERSIONS
        if request is ApiVersionsRequest and request.API_KEY not in self._served:
            return known.last
        first, last = self._served.get(request.API_KEY, (0, -1))
        version = min(last, known.last)
        if version < max(first, known.first):
            raise LocalProtocolError(
                f"the server serves no known version of {request.__name__}, expected one of {known}"
            )
        return version

    def send(self, request: Request[Any], *, version: int | None = None) -> bytes:
        """The frame of `request`. `next_event` returns responses in the order of the requests."""
        if version is None:
            version = self.version_of(type(request))
        correlation_id = self._correlation_id
        parts: list[Piece] = [_REQUEST_HEAD.pack(request.API_KEY, version, correlation_id)]
        write_nullable_string(parts.append, self._client_id, "client id")
        if version in request.FLEXIBLE:
            parts.append(b"\0")
        encode(request, version, parts)
        data = frame_bytes(parts)
        self._correlation_id = (correlation_id + 1) % _CORRELATION_IDS
        self._pending.append((correlation_id, request, version))
        return data

    def get_buffer(self) -> memoryview:
        """A buffer to receive the next bytes into: the rest of a large response if one began."""
        return self._frames.get_buffer()

    def received(self, count: int) -> None:
        """`count` bytes of the room were filled."""
        self._frames.received(count)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes that were received elsewhere."""
        self._frames.feed(data)

    def next_event(self) -> ReceivedResponse | Literal[Need.DATA]:
        """The next response, or NEED_DATA. Record batches in it are views that stay valid.

        Raises: RemoteProtocolError; every later call raises the same error.
        """
        if self._failure is not None:
            raise self._failure
        try:
            frame = self._frames.next_frame()
            return NEED_DATA if frame is None else self._decode(frame)
        except RemoteProtocolError as failure:
            self._failure = failure
            raise

    def _decode(self, frame: memoryview) -> ReceivedResponse:
        end = len(frame)
        if end < _CORRELATION.size:
            raise cut_short("response header", 0, _CORRELATION.size, end)
        (correlation_id,) = _CORRELATION.unpack_from(frame)
        if not self._pending:
            raise RemoteProtocolError(
                f"response header at byte 0: correlation id {correlation_id}, but no request is "
                "in flight"
            )
        expected, request, version = self._pending.popleft()
        if correlation_id != expected:
            raise RemoteProtocolError(
                f"response header at byte 0: correlation id {correlation_id}, expected {expected}"
            )
        position = _CORRELATION.size
        kind = request.RESPONSE
        if _has_response_tags(kind, version):
            _, position = read_tags(frame, position, end, "response header")
        if kind is ApiVersionsResponse and frame[position : position + 2] == _UNSUPPORTED_VERSION:
            version = 0
        return ReceivedResponse(correlation_id, request, decode(kind, version, frame, position))


@memoize
def _request_decoder(kind: type[Request[Any]], version: int) -> tuple[bool, Decode]:
    """Whether the header has tagged fields, and what decodes the body."""
    return version in kind.FLEXIBLE, decoder(kind, version)


@memoize
def _response_tags(kind: type[Message], version: int) -> bytes:
    return b"\0" if _has_response_tags(kind, version) else b""


def _has_response_tags(kind: type[Message], version: int) -> bool:
    return version in kind.FLEXIBLE and kind is not ApiVersionsResponse
