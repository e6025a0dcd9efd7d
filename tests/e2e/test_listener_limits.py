"""What a stranger can cost a node, at both doors: slow, many, large, garbled; and who pays."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bascule.wire.messages.api_versions import ApiVersionsRequest
from bascule.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from bascule.wire.messages.metadata import MetadataRequest
from support.processes import Node, RawNats, running_node
from support.raw_client import RawClient, ServerLeft, fetch

LIMITS = {
    "BASCULE_LIMITS_CONNECTIONS_MAX": "60",
    "BASCULE_LIMITS_REQUEST_BYTES_MAX": str(1 << 20),
    "BASCULE_LIMITS_REQUEST_MS_MAX": "700",
    "BASCULE_LIMITS_WRITE_STALL_MS_MAX": "700",
    "BASCULE_LIMITS_IDLE_MS_MAX": "60000",
    "BASCULE_LIMITS_CLIENT_MEMORY_BYTES_MAX": str(4 << 20),
    "BASCULE_LIMITS_HTTP_CONNECTIONS_MAX": "20",
    "BASCULE_LIMITS_HTTP_BODY_BYTES_MAX": "4096",
}
MESSAGES = 3_000
TAKES_SECONDS_MAX = 20.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("doors"), environment=LIMITS) as running:
        running.create("flights", "flights")
        nats = RawNats(int(running.doors["nats"].rsplit(":", 1)[1]))
        nats.send(b"".join(b"PUB flights 500\r\n%0500d\r\n" % n for n in range(MESSAGES)))
        running.wait_stored("flights", MESSAGES)
        nats.close()
        yield running


@pytest.fixture(autouse=True)
def bystanders(node: Node) -> Iterator[None]:
    """Whatever a test does: others are served beside it and after it, by both doors."""
    with client(node) as reader:
        assert served(reader)
        yield
        assert served(reader)
    assert node.call("GET", "/v1/node")["ready"] is True
    assert "Traceback" not in node.log.read_text()


def served(reader: RawClient) -> bool:
    (partition,) = reader.ask(fetch(0, bytes_max=10_000), 11).responses[0].partitions
    return partition.high_watermark == MESSAGES and len(partition.records) > 0


def client(node: Node, **options: int) -> RawClient:
    host, port = node.doors["client"].rsplit(":", 1)
    return RawClient(host, int(port), **options)


def web(node: Node, data: bytes = b"", *, receive_buffer_bytes: int = 0) -> socket.socket:
    host, port = node.doors["http"].removeprefix("http://").rsplit(":", 1)
    sock = socket.socket()
    if receive_buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    sock.settimeout(TAKES_SECONDS_MAX)
    sock.connect((host, int(port)))
    sock.sendall(data)
    return sock


def metric(node: Node, name: str) -> float:
    with urllib.request.urlopen(node.doors["http"] + "/metrics", timeout=20) as response:
        text = response.read().decode()
    found = re.search(rf"^bascule_{name} (\S+)$", text, re.MULTILINE)
    assert found, name
    return float(found[1])


def rises(node: Node, name: str, work: Callable[[], object], *, by: int = 1) -> None:
    """`work` makes the metric rise, soon."""
    before = metric(node, name)
    work()
    deadline = time.monotonic() + TAKES_SECONDS_MAX
    while metric(node, name) < before + by:
        assert time.monotonic() < deadline, f"{name} has not risen by {by}"
        time.sleep(0.05)


def ends(sock: socket.socket) -> bool:
    """The server closes the connection, soon; what it still sends is thrown away."""
    deadline = time.monotonic() + TAKES_SECONDS_MAX
    with contextlib.suppress(ConnectionError, TimeoutError):
        while sock.recv(1 << 16):
            if time.monotonic() > deadline:
                return False
    return time.monotonic() < deadline


def trickle(sock: socket.socket, piece: bytes) -> bool:
    """Send a piece now and then; whether the server ended it."""
    deadline = time.monotonic() + TAKES_SECONDS_MAX
    sock.settimeout(0.1)
    while time.monotonic() < deadline:
        try:
            sock.sendall(piece)
            if sock.recv(1 << 16) == b"":
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


# -- the client door ----------------------------------------------------------------------------


def test_no_more_clients_than_the_limit(node: Node) -> None:
    with contextlib.ExitStack() as stack:

        def crowd() -> None:
            for _ in range(62):
                stack.enter_context(client(node))

        rises(node, "client_connections_refused_total", crowd, by=2)


def test_a_request_that_trickles_in(node: Node) -> None:
    def slow() -> None:
        with client(node) as stranger:
            stranger.socket.sendall(struct.pack(">i", 90_000))
            assert trickle(stranger.socket, b"\0")

    rises(node, "client_connections_expired_total", slow)


def test_who_never_reads(node: Node) -> None:
    def silent() -> None:
        with client(node, receive_buffer_bytes=4096) as stranger:
            for _ in range(8):
                stranger.send(fetch(0, bytes_max=2_000_000), 11)
            # Not one byte is read until the server has given up.
            rises(node, "client_connections_expired_total", lambda: None)
            assert ends(stranger.socket)

    silent()


def test_large_requests_of_many_cost_no_more_than_the_bound(node: Node) -> None:
    """Half requests of 1 MiB each: the door holds 4 MiB of them, and small requests go on."""

    def greedy() -> None:
        with contextlib.ExitStack() as stack:
            strangers = [stack.enter_context(client(node)) for _ in range(20)]
            for stranger in strangers:
                with contextlib.suppress(ConnectionError):
                    stranger.socket.sendall(struct.pack(">i", 1_000_000) + bytes(900_000))
            with client(node) as modest:
                assert served(modest)

    rises(node, "client_connections_overdrawn_total", greedy)
    # Who asks in the same pass of the loop as the one too many may still get what it asked for.
    assert metric(node, "client_memory_bytes_max") <= (4 << 20) + (4 << 20)
    released(node)


def test_large_decoded_requests_are_counted_too(node: Node) -> None:
    """Requests of many partitions that wait for data: each is held, decoded, until answered."""
    partitions = [FetchPartition(partition=0, fetch_offset=MESSAGES) for _ in range(2_000)]
    topic = FetchTopic("flights", partitions=partitions)
    waiting = FetchRequest(max_wait_ms=20_000, min_bytes=1, topics=[topic])

    def greedy() -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(10):
                with contextlib.suppress(ConnectionError):
                    stack.enter_context(client(node)).send(waiting, 11)
            with client(node) as modest:
                assert served(modest)

    rises(node, "client_connections_overdrawn_total", greedy)
    released(node)


def released(node: Node) -> None:
    """Once those who asked are gone, nothing is held any more."""
    deadline = time.monotonic() + TAKES_SECONDS_MAX
    while metric(node, "client_memory_bytes") > 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_requests_in_flight_wait_in_the_clients_own_kernel(node: Node) -> None:
    """A thousand requests behind a waiting one: the node reads some 64 KiB ahead, no more."""
    received = metric(node, "client_received_bytes_total")
    with client(node) as stranger:
        stranger.send(fetch(MESSAGES, wait_ms=30_000), 11)
        stranger.socket.settimeout(1)
        sent = 0
        with contextlib.suppress(TimeoutError):
            for _ in range(20_000):
                data = stranger.connection.send(MetadataRequest(None), version=1)
                sent += stranger.socket.send(data)
        assert metric(node, "client_received_bytes_total") - received < 300_000
    assert metric(node, "client_waiting_requests") <= 1


def test_garbage_costs_its_sender_the_connection(node: Node) -> None:
    garbage = [b"GET / HTTP/1.1\r\n\r\n", b"\x16\3\1\2\0" + bytes(200), struct.pack(">i", 1 << 30)]

    def send() -> None:
        for data in garbage:
            with client(node) as stranger:
                stranger.socket.sendall(data)
                assert ends(stranger.socket)

    rises(node, "client_protocol_errors_total", send, by=len(garbage))


# -- the HTTP door -------------------------------------------------------------------------------

HEAD = b"POST /v1/streams HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def answered(sock: socket.socket, status: int) -> bool:
    data = b""
    while b"\r\n" not in data and (piece := sock.recv(4096)):
        data += piece
    return data.startswith(b"HTTP/1.1 %d " % status)


def test_no_more_http_connections_than_the_limit(node: Node) -> None:
    with contextlib.ExitStack() as stack:

        def crowd() -> None:
            first = [stack.enter_context(web(node)) for _ in range(19)]
            beyond = [stack.enter_context(web(node)) for _ in range(5)]
            assert all(map(ends, beyond[1:]))
            for sock in first:
                sock.close()

        rises(node, "http_connections_refused_total", crowd)


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"", b"G"),
        (b"GET /v1/node HTTP/1.1\r\n", b"X-Header: 1\r\n"),
        (HEAD + b"Content-Length: 4000\r\n\r\n{", b" "),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET", b"A"),
    ],
    ids=["method", "headers", "body", "chunks", "second request"],
)
def test_slowloris(node: Node, begin: bytes, piece: bytes) -> None:
    def slow() -> None:
        with web(node, begin) as sock:
            assert trickle(sock, piece)

    rises(node, "http_connections_expired_total", slow)


def test_who_connects_and_says_nothing(node: Node) -> None:
    def silent() -> None:
        with web(node) as sock:
            assert ends(sock)

    rises(node, "http_connections_expired_total", silent)


def test_who_never_reads_over_http(node: Node) -> None:
    request = b"GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def silent() -> None:
        with web(node, request * 200, receive_buffer_bytes=4096) as sock:
            rises(node, "http_connections_expired_total", lambda: None)
            assert ends(sock)

    silent()


def test_a_flood_of_headers(node: Node) -> None:
    def flood() -> None:
        with web(node, b"GET / HTTP/1.1\r\n") as sock, contextlib.suppress(ConnectionError):
            sock.sendall(b"".join(b"X-%d: %s\r\n" % (n, b"y" * 100) for n in range(3_000)))
            assert answered(sock, 400)

    rises(node, "http_protocol_errors_total", flood)


def test_a_body_beyond_the_limit(node: Node) -> None:
    for framing, body in (
        (b"Content-Length: 100000\r\n\r\n", b"x" * 100_000),
        (b"Transfer-Encoding: chunked\r\n\r\n", (b"1000\r\n" + b"x" * 4096 + b"\r\n") * 20),
    ):
        with web(node, HEAD + framing) as sock:
            with contextlib.suppress(ConnectionError):
                sock.sendall(body)
            assert answered(sock, 413)


def test_pipelined_http_requests_are_answered_in_order(node: Node) -> None:
    paths: list[Any] = [b"/healthz", b"/nothing", b"/v1/streams/none"] * 10
    with web(node) as sock:
        sock.sendall(b"".join(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % p for p in paths))
        data = b""
        while data.count(b"HTTP/1.1 ") < len(paths) and (piece := sock.recv(1 << 16)):
            data += piece
    assert re.findall(rb"HTTP/1.1 (\d+)", data) == [b"200", b"404", b"404"] * 10


def test_garbage_over_http(node: Node) -> None:
    garbage = [b"\0" * 100, b"\x16\3\1\2\0\1\0\1\xfc", b"GET\r\n\r\n", struct.pack(">i", 500) * 9]

    def send() -> None:
        for data in garbage:
            with web(node, data + b"\r\n\r\n") as sock:
                assert ends(sock)

    rises(node, "http_protocol_errors_total", send, by=len(garbage))


def test_a_client_that_was_closed_may_come_again(node: Node) -> None:
    with client(node) as stranger:
        stranger.socket.sendall(struct.pack(">i", -1))
        with pytest.raises((ServerLeft, ConnectionError)):
            stranger.ask(ApiVersionsRequest(), 0)
    with client(node) as again:
        assert again.ask(ApiVersionsRequest(), 0).error_code == 0
