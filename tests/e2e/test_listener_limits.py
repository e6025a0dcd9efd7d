"""Limits of the client and HTTP listeners: slow, numerous, large and malformed requests."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bascule.wire.messages.api_versions import ApiVersionsRequest
from bascule.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from bascule.wire.messages.metadata import MetadataRequest
from support import http_calls
from support.processes import Node, RawNats, running_node
from support.raw_client import RawClient, ServerClosed, fetch

LIMITS = {
    "BASCULE_LIMITS_CONNECTIONS_MAX": "60",
    "BASCULE_LIMITS_REQUEST_BYTES_MAX": str(1 << 20),
    "BASCULE_LIMITS_REQUEST_MS_MAX": "700",
    "BASCULE_LIMITS_WRITE_STALL_MS_MAX": "700",
    "BASCULE_LIMITS_IDLE_MS_MAX": "600000",
    "BASCULE_LIMITS_CLIENT_MEMORY_BYTES_MAX": str(4 << 20),
    "BASCULE_LIMITS_HTTP_CONNECTIONS_MAX": "20",
    "BASCULE_LIMITS_HTTP_BODY_BYTES_MAX": "4096",
}
MESSAGES = 3_000
WAIT_SECONDS_MAX = 120.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("listeners"), environment=LIMITS) as running:
        running.create("flights", "flights")
        nats = RawNats(int(running.addresses["nats"].rsplit(":", 1)[1]))
        nats.send(b"".join(b"PUB flights 500\r\n%0500d\r\n" % n for n in range(MESSAGES)))
        running.wait_stored("flights", MESSAGES)
        nats.close()
        yield running


@pytest.fixture(autouse=True)
def other_clients_are_served(node: Node) -> Iterator[None]:
    """Both listeners serve other clients during and after every test."""
    with connect_kafka(node) as reader:
        assert served(reader)
        yield
        assert served(reader)
    assert node.call("GET", "/v1/node")["ready"] is True
    assert "Traceback" not in node.log.read_text()


def served(reader: RawClient) -> bool:
    (partition,) = reader.request(fetch(0, bytes_max=10_000), 11).responses[0].partitions
    return partition.high_watermark == MESSAGES and len(partition.records) > 0


def connect_kafka(node: Node, **options: int) -> RawClient:
    host, port = node.addresses["client"].rsplit(":", 1)
    return RawClient(host, int(port), **options)


def connect_http(node: Node, data: bytes = b"", *, receive_buffer_bytes: int = 0) -> socket.socket:
    host, port = node.addresses["http"].removeprefix("http://").rsplit(":", 1)
    sock = socket.socket()
    if receive_buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    sock.settimeout(WAIT_SECONDS_MAX)
    sock.connect((host, int(port)))
    sock.sendall(data)
    return sock


def metric(node: Node, name: str) -> float:
    text = http_calls.get(node.addresses["http"] + "/metrics")
    found = re.search(rf"^bascule_{name} (\S+)$", text, re.MULTILINE)
    assert found, name
    return float(found[1])


def assert_rises(node: Node, name: str, work: Callable[[], object], *, by: int = 1) -> None:
    """Assert that `work` increases the metric by at least `by`."""
    before = metric(node, name)
    work()
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while metric(node, name) < before + by:
        assert time.monotonic() < deadline, f"{name} has not risen by {by}"
        time.sleep(0.05)


def is_closed(sock: socket.socket) -> bool:
    """Whether the server closes the connection in time; discards what it still sends."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    with contextlib.suppress(ConnectionError, TimeoutError):
        while sock.recv(1 << 16):
            if time.monotonic() > deadline:
                return False
    return time.monotonic() < deadline


def closes_slow_sender(sock: socket.socket, piece: bytes) -> bool:
    """Send `piece` repeatedly with pauses; whether the server closes the connection in time."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
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


# -- the client listener ------------------------------------------------------------------------


def test_connections_beyond_the_limit_are_refused(node: Node) -> None:
    with contextlib.ExitStack() as stack:

        def open_connections() -> None:
            for _ in range(62):
                stack.enter_context(connect_kafka(node))

        assert_rises(node, "client_connections_refused_total", open_connections, by=2)


def test_a_slowly_sent_request_expires(node: Node) -> None:
    def slow() -> None:
        with connect_kafka(node) as bad_client:
            bad_client.socket.sendall(struct.pack(">i", 90_000))
            assert closes_slow_sender(bad_client.socket, b"\0")

    assert_rises(node, "client_connections_expired_total", slow)


def test_a_client_that_never_reads_expires(node: Node) -> None:
    def silent() -> None:
        with connect_kafka(node, receive_buffer_bytes=4096) as bad_client:
            for _ in range(8):
                bad_client.send(fetch(0, bytes_max=2_000_000), 11)
            # Not one byte is read until the server has given up.
            assert_rises(node, "client_connections_expired_total", lambda: None)
            assert is_closed(bad_client.socket)

    silent()


def test_large_requests_are_bounded_in_memory(node: Node) -> None:
    """Incomplete requests of 1 MiB each: 4 MiB are held, and small requests are still served."""

    def greedy() -> None:
        with contextlib.ExitStack() as stack:
            bad_clients = [stack.enter_context(connect_kafka(node)) for _ in range(20)]
            for bad_client in bad_clients:
                with contextlib.suppress(ConnectionError):
                    bad_client.socket.sendall(struct.pack(">i", 1_000_000) + bytes(900_000))
            with connect_kafka(node) as small_client:
                assert served(small_client)

    assert_rises(node, "client_connections_overdrawn_total", greedy)
    # Requests that are read in the same loop iteration may exceed the limit before the check, each
    # by one growth of its buffer; without the limit it would be 20 MB.
    assert metric(node, "client_memory_bytes_max") <= (4 << 20) + (8 << 20)
    assert_memory_released(node)


def test_decoded_requests_count_against_the_memory_limit(node: Node) -> None:
    """Waiting fetches of many partitions: each decoded request stays in memory until has_status."""
    partitions = [FetchPartition(partition=0, fetch_offset=MESSAGES) for _ in range(2_000)]
    topic = FetchTopic("flights", partitions=partitions)
    waiting = FetchRequest(max_wait_ms=20_000, min_bytes=1, topics=[topic])

    def greedy() -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(10):
                with contextlib.suppress(ConnectionError):
                    stack.enter_context(connect_kafka(node)).send(waiting, 11)
            with connect_kafka(node) as small_client:
                assert served(small_client)

    assert_rises(node, "client_connections_overdrawn_total", greedy)
    assert_memory_released(node)


def assert_memory_released(node: Node) -> None:
    """The accounted memory falls to 0 once the clients are gone."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while metric(node, "client_memory_bytes") > 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_pipelined_requests_stay_in_the_socket_buffers(node: Node) -> None:
    """Behind a waiting request the node reads at most about 64 KiB of further requests."""
    received = metric(node, "client_received_bytes_total")
    with connect_kafka(node) as bad_client:
        bad_client.send(fetch(MESSAGES, wait_ms=30_000), 11)
        bad_client.socket.settimeout(1)
        sent = 0
        with contextlib.suppress(TimeoutError):
            for _ in range(20_000):
                data = bad_client.connection.send(MetadataRequest(None), version=1)
                sent += bad_client.socket.send(data)
        assert metric(node, "client_received_bytes_total") - received < 300_000
    assert metric(node, "client_waiting_requests") <= 1


def test_malformed_requests_close_the_connection(node: Node) -> None:
    garbage = [b"GET / HTTP/1.1\r\n\r\n", b"\x16\3\1\2\0" + bytes(200), struct.pack(">i", 1 << 30)]

    def send() -> None:
        for data in garbage:
            with connect_kafka(node) as bad_client:
                bad_client.socket.sendall(data)
                assert is_closed(bad_client.socket)

    assert_rises(node, "client_protocol_errors_total", send, by=len(garbage))


# -- the HTTP listener ---------------------------------------------------------------------------

HEAD = b"POST /v1/streams HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def has_status(sock: socket.socket, status: int) -> bool:
    data = b""
    while b"\r\n" not in data and (piece := sock.recv(4096)):
        data += piece
    return data.startswith(b"HTTP/1.1 %d " % status)


def test_a_new_http_connection_takes_the_place_of_a_waiting_one(node: Node) -> None:
    """400 connections drip a request each; health and metrics are answered throughout."""
    watched = (b"/healthz", b"/readyz", b"/metrics")
    with contextlib.ExitStack() as stack:

        def drip() -> None:
            for number in range(400):
                stack.enter_context(connect_http(node, b"GET /v1/node HTTP/1.1\r\nX-Slow: "))
                if number % 40 == 0:
                    path = watched[number // 40 % 3]
                    request = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path
                    with connect_http(node, request) as sock:
                        assert has_status(sock, 200)

        assert_rises(node, "http_connections_displaced_total", drip, by=380)
        assert metric(node, "http_connections") <= 20


def is_refused_as_busy(node: Node) -> bool:
    """Whether a request is answered with 503, once the refusals before it are written.

    Until then every connection has a request, and a new one is closed at once.
    """
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(ConnectionError),
            connect_http(node, HEAD + b"Content-Length: 2\r\n\r\n{}") as sock,
        ):
            return has_status(sock, 503)
    return False


def test_slow_bodies_leave_connections_for_health(node: Node) -> None:
    """18 of 20 connections may be in a request; two are kept. Nobody is displaced in a request."""
    with contextlib.ExitStack() as stack:

        def slow() -> None:
            for _ in range(40):
                start = HEAD + b"Content-Length: 4000\r\n\r\n{"
                stack.enter_context(connect_http(node, start))
            assert is_refused_as_busy(node)
            with connect_http(node, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") as sock:
                assert has_status(sock, 200)

        assert_rises(node, "http_connections_displaced_total", slow)


def test_a_slow_head_expires_before_a_slow_body(tmp_path: Path) -> None:
    limits = {
        "BASCULE_LIMITS_HTTP_HEAD_MS_MAX": "300",
        "BASCULE_LIMITS_REQUEST_MS_MAX": "60000",
    }
    with running_node(tmp_path, environment=limits) as running:
        body = HEAD + b"Content-Length: 17\r\n\r\n{"
        with connect_http(running, body) as kept, connect_http(running, b"GET /") as slow:
            assert closes_slow_sender(slow, b"a")
            kept.sendall(b'"name": "a", "x"')
            assert has_status(kept, 400)


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
        with connect_http(node, begin) as sock:
            assert closes_slow_sender(sock, piece)

    assert_rises(node, "http_connections_expired_total", slow)


def test_a_silent_http_connection_expires(node: Node) -> None:
    def silent() -> None:
        with connect_http(node) as sock:
            assert is_closed(sock)

    assert_rises(node, "http_connections_expired_total", silent)


def test_an_http_client_that_never_reads_expires(node: Node) -> None:
    request = b"GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def silent() -> None:
        with connect_http(node, request * 200, receive_buffer_bytes=4096) as sock:
            assert_rises(node, "http_connections_expired_total", lambda: None)
            assert is_closed(sock)

    silent()


def test_too_many_headers_are_refused(node: Node) -> None:
    def flood() -> None:
        with (
            connect_http(node, b"GET / HTTP/1.1\r\n") as sock,
            contextlib.suppress(ConnectionError),
        ):
            sock.sendall(b"".join(b"X-%d: %s\r\n" % (n, b"y" * 100) for n in range(3_000)))
            assert has_status(sock, 400)

    assert_rises(node, "http_protocol_errors_total", flood)


def test_a_body_beyond_the_limit_is_refused(node: Node) -> None:
    for framing, body in (
        (b"Content-Length: 100000\r\n\r\n", b"x" * 100_000),
        (b"Transfer-Encoding: chunked\r\n\r\n", (b"1000\r\n" + b"x" * 4096 + b"\r\n") * 20),
    ):
        with connect_http(node, HEAD + framing) as sock:
            with contextlib.suppress(ConnectionError):
                sock.sendall(body)
            assert has_status(sock, 413)


def test_pipelined_http_requests_are_answered_in_order(node: Node) -> None:
    paths: list[Any] = [b"/healthz", b"/nothing", b"/v1/streams/none"] * 10
    with connect_http(node) as sock:
        sock.sendall(b"".join(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % p for p in paths))
        data = b""
        while data.count(b"HTTP/1.1 ") < len(paths) and (piece := sock.recv(1 << 16)):
            data += piece
    assert re.findall(rb"HTTP/1.1 (\d+)", data) == [b"200", b"404", b"404"] * 10


def test_malformed_http_requests_close_the_connection(node: Node) -> None:
    garbage = [b"\0" * 100, b"\x16\3\1\2\0\1\0\1\xfc", b"GET\r\n\r\n", struct.pack(">i", 500) * 9]

    def send() -> None:
        for data in garbage:
            with connect_http(node, data + b"\r\n\r\n") as sock:
                assert is_closed(sock)

    assert_rises(node, "http_protocol_errors_total", send, by=len(garbage))


def test_a_closed_client_may_reconnect(node: Node) -> None:
    with connect_kafka(node) as bad_client:
        bad_client.socket.sendall(struct.pack(">i", -1))
        with pytest.raises((ServerClosed, ConnectionError)):
            bad_client.request(ApiVersionsRequest(), 0)
    with connect_kafka(node) as again:
        assert again.request(ApiVersionsRequest(), 0).error_code == 0
