"""The Kafka side: what a client may send to the listener, and a server to our client."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import shutil
import struct
import tempfile
from array import array
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from bascule.client.fetch_response import HEAD_BYTES_MAX, VERSION_MIN, read_fetch_head
from bascule.errors import RemoteProtocolError
from bascule.kafka.handlers import SUPPORTED_VERSIONS, handle
from bascule.kafka.handlers.context import Context
from bascule.wire import _hot as wire_hot
from bascule.wire.codec import decode, encode
from bascule.wire.connection import NEED_DATA, ClientConnection, ServerConnection
from bascule.wire.messages.api_versions import ApiVersionsRequest
from bascule.wire.messages.fetch import FetchRequest, FetchResponse
from bascule.wire.messages.group.consumer_protocol import decode_assignment, decode_subscription
from bascule.wire.messages.registry import REQUESTS
from bascule.wire.primitives import Piece
from bascule.wire.schema import Message, Request
from fuzz.target import Target, agree, chunks, twins
from support.handlers import HandlerHarness, open_harness

VECTORS = Path(__file__).resolve().parents[1] / "vectors" / "messages.jsonl"
FRAME_BYTES_MAX = 1 << 16
REQUEST_KINDS: dict[str, type[Request[Any]]] = {k.__name__: k for k in REQUESTS.values()}
KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for request in REQUESTS.values() for kind in (request, request.RESPONSE)
}


@cache
def vectors() -> list[tuple[type[Message], int, bytes]]:
    """Every message in every version, as another implementation encodes it."""
    lines = [json.loads(line) for line in VECTORS.read_text().splitlines()]
    return [
        (KINDS[line["message"]], line["version"], bytes.fromhex(line["bytes"]))
        for line in lines
        if line["message"] in KINDS
    ]


def _versions() -> list[tuple[type[Message], int]]:
    return sorted({(kind, version) for kind, version, _ in vectors()}, key=_by_name)


def _by_name(item: tuple[type[Message], int]) -> tuple[str, int]:
    return item[0].__name__, item[1]


def encoded(message: Message, version: int) -> bytes:
    parts: list[Piece] = []
    encode(message, version, parts)
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


def run_codec(data: bytes) -> None:
    """A body decodes to a message that means the same once encoded, or is a protocol error."""
    if len(data) < 2:
        return
    known = _versions()
    kind, version = known[int.from_bytes(data[:2], "big") % len(known)]
    body = data[2:]
    try:
        message = decode(kind, version, memoryview(body))
    except RemoteProtocolError:
        return
    again = encoded(message, version)
    # Text that is not UTF-8 grows threefold.
    assert len(again) <= 3 * len(body) + 256, "a message larger than its bytes"
    assert encoded(decode(kind, version, memoryview(again)), version) == again


def _codec_seeds() -> list[bytes]:
    known = _versions()
    return [struct.pack(">H", known.index((k, v))) + body for k, v, body in vectors()]


def frame(kind: type[Request[Any]], version: int, body: bytes, correlation_id: int) -> bytes:
    head = struct.pack(">hhih", kind.API_KEY, version, correlation_id, 4) + b"fuzz"
    tags = b"\0" if version in kind.FLEXIBLE else b""
    data = head + tags + body
    return struct.pack(">i", len(data)) + data


class ListenerUnderTest:
    """The handlers of a node with real logs, asked from one event loop."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="bascule-fuzz-"))
        self._opening = open_harness(self._directory)
        self.harness: HandlerHarness = next(self._opening)
        self.context: Context = replace(self.harness.context, fetch_wait_ms_max=0)
        self._loop = asyncio.new_event_loop()
        self.harness.partitions.bind(self._loop)
        atexit.register(self._close)

    def answer(self, request: Any) -> Message:
        response = handle(request, self.context)
        if isinstance(response, Message):
            return response
        return self._loop.run_until_complete(_awaited(response))

    def _close(self) -> None:
        self._loop.close()
        next(self._opening, None)
        shutil.rmtree(self._directory, ignore_errors=True)


async def _awaited(response: Any) -> Message:
    answer: Message = await response
    return answer


@cache
def listener() -> ListenerUnderTest:
    return ListenerUnderTest()


def _events(data: bytes, chunk_seed: int) -> tuple[list[Any], bool]:
    """The requests in `data`, and whether it broke the protocol."""
    connection = ServerConnection(
        served=SUPPORTED_VERSIONS, requests=REQUESTS, frame_bytes_max=FRAME_BYTES_MAX
    )
    found: list[Any] = []
    try:
        for piece in chunks(data, chunk_seed):
            connection.feed(piece)
            while (event := connection.next_event()) is not NEED_DATA:
                found.append(event)
    except RemoteProtocolError:
        return found, True
    return found, False


def run_listener(data: bytes) -> None:
    """Whatever arrives is answered, or ends its connection; nothing else comes out."""
    seed, data = (data[0], data[1:]) if data else (0, b"")
    requests, broken = _events(data, 0)
    assert _events(data, seed) == (requests, broken)
    connection = ServerConnection(
        served=SUPPORTED_VERSIONS, requests=REQUESTS, frame_bytes_max=FRAME_BYTES_MAX
    )
    for request in requests:
        try:
            response = listener().answer(request)
        except RemoteProtocolError:
            return
        connection.send(request, response)


def request_frames() -> list[bytes]:
    """A request of each kind in each version."""
    return [
        frame(REQUEST_KINDS[kind.__name__], version, body.replace(b"sample", b"flight"), n)
        for n, (kind, version, body) in enumerate(vectors())
        if kind.__name__ in REQUEST_KINDS
    ]


def _listener_seeds() -> list[bytes]:
    frames = request_frames()
    single = [b"\0" + item for item in frames]
    return [*single, b"\1" + b"".join(frames[:20]), b"\3" + b"".join(frames[-5:])]


def run_client(data: bytes) -> None:
    """Whatever a server answers, our client has a response, a protocol error or too few bytes."""
    if len(data) < 3:
        return
    seed, data, pick = data[0], data[3:], int.from_bytes(data[1:3], "big")
    asked = [(k, v) for k, v in _versions() if k.__name__ in REQUEST_KINDS]
    kind, version = asked[pick % len(asked)]
    results = []
    for cut in (0, seed):
        connection = ClientConnection(client_id="fuzz", frame_bytes_max=FRAME_BYTES_MAX)
        connection.send(kind(), version=version)  # type: ignore[arg-type]
        connection.send(ApiVersionsRequest(), version=3)
        found: list[Any] = []
        try:
            for piece in chunks(data, cut):
                connection.feed(piece)
                while (event := connection.next_event()) is not NEED_DATA:
                    found.append((event.correlation_id, event.message))
        except RemoteProtocolError:
            found.append("broken")
        results.append(found)
    assert results[0] == results[1]


def _client_seeds() -> list[bytes]:
    asked = [(k, v) for k, v in _versions() if k.__name__ in REQUEST_KINDS]
    seeds = []
    for number, (kind, version) in enumerate(asked):
        response = REQUEST_KINDS[kind.__name__].RESPONSE
        flexible = version in response.FLEXIBLE and kind is not ApiVersionsRequest
        for answered, at, body in vectors():
            if answered is response and at == version:
                content = struct.pack(">i", 0) + b"\0" * flexible + body
                seeds.append(
                    b"\2" + struct.pack(">Hi", number, len(content)) + content
                )  # fmt: skip
    return seeds


def run_fetch_head(data: bytes) -> None:
    """The head read before the rest has come says what the whole answer says."""
    if len(data) < 2:
        return
    versions = [v for k, v in _versions() if k is FetchRequest and v >= VERSION_MIN]
    version, body = versions[data[0] % len(versions)], data[1:]
    frame_ = memoryview(body)
    try:
        head = read_fetch_head(frame_[:HEAD_BYTES_MAX], 0, version=version, size=len(body))
    except RemoteProtocolError:
        return
    assert 0 <= head.records_at <= head.records_at + head.records_bytes <= len(body)
    try:
        whole = decode(FetchResponse, version, frame_)
    except RemoteProtocolError:
        return
    if head.error_code or not whole.responses or not whole.responses[0].partitions:
        return
    partition = whole.responses[0].partitions[0]
    assert head.high_watermark == partition.high_watermark
    at, size = head.records_at, head.records_bytes
    assert bytes(partition.records or b"") == body[at : at + size]  # type: ignore[arg-type]


def _fetch_head_seeds() -> list[bytes]:
    versions = [v for k, v in _versions() if k is FetchRequest and v >= VERSION_MIN]
    return [
        bytes([versions.index(version)]) + body
        for kind, version, body in vectors()
        if kind is FetchResponse and version in versions
    ]


INBOX = b"_INBOX.abc"
ACK = b'{"stream":"s","seq":8,"partition":0,"offset":7,"replicas":1,"synced":true}'


def run_acks(data: bytes) -> None:
    """An ack is taken for what its JSON says, by both twins, or left to the slow path."""
    line = b"MSG %b.1.0 1 %d\r\n%b\r\n" % (INBOX, len(data), data)
    positions, state = array("i", bytes(4 * 8 * 4)), array("q", bytes(32))
    count = wire_hot.parse_messages(line, 0, len(line), 1 << 20, 1 << 16, positions, state)
    assert count == 1
    results: list[object] = []
    for hot in twins("client"):
        offsets, partitions = array("q", (-1,)), array("i", (0,))
        details, leftover = array("H", (0,)), array("i", bytes(4 * 4))
        added = hot.collect_acks(
            line, positions, 1, len(INBOX) + 1, 1, b"s", offsets, partitions, details, leftover,
            state,
        )  # fmt: skip
        results.append((added, state[0], offsets[0], partitions[0], details[0]))
    agree("collect_acks", results)
    added, left, offset, partition, _ = results[0]  # type: ignore[misc]
    assert added + left == 1
    if not added:
        return
    try:
        said = json.loads(data)
    except ValueError:
        return
    if said.keys() >= {"stream", "seq", "offset", "partition", "replicas", "synced"}:
        # Whoever can send an ack with misspelt names can as well send a right one.
        assert (said["stream"], said["offset"], said["partition"]) == ("s", offset, partition)


SUBSCRIPTION = b"\0\1\0\0\0\2\0\7flights\0\3a.b\xff\xff\xff\xff\0\0\0\0"
ASSIGNMENT = b"\0\1\0\0\0\1\0\7flights\0\0\0\2\0\0\0\0\0\0\0\7\xff\xff\xff\xff"


def run_consumer_protocol(data: bytes) -> None:
    """What members send is read or refused, and never makes more than it has bytes for."""
    with contextlib.suppress(RemoteProtocolError):
        assert len(decode_subscription(data).topics) <= len(data)
    with contextlib.suppress(RemoteProtocolError):
        assert sum(map(len, decode_assignment(data).values())) <= len(data)


TARGETS = [
    Target("kafka-codec", _codec_seeds, run_codec),
    Target("kafka-listener", _listener_seeds, run_listener),
    Target("kafka-client", _client_seeds, run_client),
    Target("fetch-head", _fetch_head_seeds, run_fetch_head),
    Target("consumer-protocol", lambda: [SUBSCRIPTION, ASSIGNMENT], run_consumer_protocol),
    Target("acks", lambda: [ACK, ACK[:-1] + b',"domain":"x","duplicate":false}'], run_acks),
]
