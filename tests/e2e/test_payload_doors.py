"""Payloads by other doors than the asynchronous client: the blocking client, and HTTP."""

from __future__ import annotations

import json
import random
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from crc32c import crc32c

import bascule
from bascule.client import SyncClient
from bascule.errors import PublishRejected, UnknownPayload
from support.clusters import RunningCluster
from support.processes import Node, running_node

MIB = 1 << 20
OCTETS = {"Content-Type": "application/octet-stream"}
LIMITS = {"BASCULE_LIMITS_REQUEST_MS_MAX": "1500"}


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("doors"), environment=LIMITS) as node:
        yield node


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[SyncClient]:
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.create_stream("models", "models.>")
        yield client


def url(node: Node, path: str) -> str:
    return f"{node.addresses['http']}/v1/streams/models/payloads{path}"


def test_blocking_clients_write_and_read(node: Node, tmp_path: Path) -> None:
    data = content(2 * MIB + 7, seed=9)
    file = tmp_path / "content"
    file.write_bytes(data)
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.create_stream("images", "images")
        with client.open_payload("images", key="a") as out:
            out.write(data[:100])
            out.sync()
            assert out.acknowledged == 100
            out.write_from(data[at : at + MIB] for at in range(100, len(data), MIB))
            assert out.position == len(data)
        assert out.ack is not None
        assert out.ack.payload_crc32c == crc32c(data)
        with client.open_payload("images") as out:
            out.write_from(file)
        with pytest.raises(RuntimeError, match="not this"), client.open_payload("images") as out:
            out.write(b"begun")
            raise RuntimeError("not this")
        messages = list(client.read("images", end="latest"))
        assert [message.payload.size for message in messages if message.payload] == [len(data)] * 2
        with client.read_payload("images", messages[0]) as payload:
            assert payload.size == len(data)
            assert b"".join(payload) == data
        with client.read_payload("images", messages[1], start=5, end=50) as payload:
            assert payload.read() == data[5:50]
        with pytest.raises(UnknownPayload), client.read_payload("images", 9):
            pass


def test_http_stores_a_body_of_any_size(node: Node, client: SyncClient) -> None:
    data = content(20 * MIB + 5)
    answer = httpx.post(
        url(node, "?subject=models.a&key=k%00"),
        content=iter([data[at : at + 700_000] for at in range(0, len(data), 700_000)]),
        headers={"Content-Type": "image/png", "Nats-Msg-Id": "one"},
        timeout=60,
    )
    assert answer.status_code == 201, answer.text
    ack = answer.json()
    assert (ack["bytes"], ack["crc32c"]) == (len(data), f"{crc32c(data):08x}")
    (message,) = client.read("models", end="latest")
    assert (message.key, message.subject) == (b"k\0", "models.a")
    assert message.header("Content-Type") == b"image/png"
    assert message.header("Nats-Msg-Id") == b"one"
    assert message.payload is not None
    assert message.payload.id == ack["id"]
    found = httpx.get(node.addresses["http"] + answer.headers["Location"])
    assert found.content == data
    assert found.headers["ETag"] == answer.headers["ETag"]
    empty = httpx.post(url(node, "?subject=models.a"), headers=OCTETS)
    assert empty.status_code == 201
    assert empty.json()["bytes"] == 0


def test_http_sends_from_the_file_to_the_socket(node: Node, client: SyncClient) -> None:
    """The kernel counts what `sendfile` writes to a socket, and not what `send` does."""
    data = content(8 * MIB, seed=5)
    client.create_stream("sent", "sent")
    with client.open_payload("sent") as out:
        out.write(data)
    assert node.process is not None
    written = Path(f"/proc/{node.process.pid}/io")

    def got(**headers: str) -> int:
        where = f"{node.addresses['http']}/v1/streams/sent/partitions/0/payloads/0"
        before = re.search(r"wchar: (\d+)", written.read_text())
        found = httpx.get(where, headers=headers)
        start = 3 if headers else 0
        assert found.content == data[start:]
        after = re.search(r"wchar: (\d+)", written.read_text())
        assert before is not None
        assert after is not None
        return int(after[1]) - int(before[1])

    assert len(data) <= got() < len(data) + MIB
    assert len(data) - 3 <= got(range="bytes=3-") < len(data) + MIB


def test_a_repeated_put_is_stored_once(node: Node, client: SyncClient) -> None:
    path, data = "/00112233445566778899aabbccddeeff?subject=models.b", content(3 * MIB)
    first = httpx.put(url(node, path), content=data)
    again = httpx.put(url(node, path), content=data)
    assert (first.status_code, again.status_code) == (201, 200)
    assert (first.json()["duplicate"], again.json()["duplicate"]) == (False, True)
    assert first.json() == again.json() | {"duplicate": False}
    assert first.json()["why"] == "one replica"
    assert first.headers["Location"] == again.headers["Location"]
    for other in (content(3 * MIB, seed=2), data + b"x", data[:-1]):
        refused = httpx.put(url(node, path), content=other)
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "payload_damaged"


def test_message_ids_of_payloads_outlive_their_records(tmp_path: Path) -> None:
    def post(data: bytes) -> tuple[int, int, int, str]:
        where = node.addresses["http"] + "/v1/streams/models/payloads?subject=models.a"
        headers = {**OCTETS, "Nats-Msg-Id": "one"}
        answer = httpx.post(where, content=data, headers=headers, timeout=60)
        ack = answer.json()
        return answer.status_code, ack["offset"], ack["bytes"], ack["crc32c"]

    def expected(data: bytes, status: int = 200) -> tuple[int, int, int, str]:
        return status, 0, len(data), f"{crc32c(data):08x}"

    with running_node(tmp_path) as node:
        node.call("POST", "/v1/streams", {"name": "models", "subject": "models.>"})
        assert post(b"first") == expected(b"first", 201)
        assert post(b"another") == expected(b"first")
        node.stop()
        (file,) = (node.directory / "data/streams/models/0/payloads").glob("*.linked")
        file.unlink()
        node.start()
        assert post(b"another") == expected(b"first")
        node.call("POST", "/v1/streams/models/purge", {"partition": 0})
        assert post(b"another") == expected(b"another")


def test_what_http_refuses(node: Node, client: SyncClient) -> None:
    def refusal(method: str, path: str, **options: object) -> tuple[int, str]:
        answer = httpx.request(method, url(node, path), content=b"x", **options)  # type: ignore[arg-type]
        return answer.status_code, answer.json()["error"]["code"]

    assert refusal("POST", "?subject=models.c")[0] == 415
    for kind in ("text/plain; charset=utf-8", "application/x-www-form-urlencoded"):
        assert refusal("POST", "?subject=models.c", headers={"Content-Type": kind})[0] == 415
    assert refusal("POST", "", headers=OCTETS)[0] == 400
    assert refusal("POST", "?subject=other", headers=OCTETS)[0] == 400
    assert refusal("POST", "?subject=models.c&partition=7", headers=OCTETS)[0] == 404
    assert refusal("POST", "?subject=models.c&topology=ring", headers=OCTETS)[0] == 400
    assert refusal("POST", "?subject=models.c&quorum=1", headers=OCTETS)[0] == 400
    assert refusal("POST", "?colour=red", headers=OCTETS)[0] == 400
    assert refusal("PUT", "/xyz?subject=models.c") == (400, "malformed_request")
    conflict = {**OCTETS, "Nats-Expected-Last-Sequence": "999"}
    assert refusal("POST", "?subject=models.c", headers=conflict) == (412, "wrong_sequence")
    missing = node.addresses["http"] + "/v1/streams/nowhere/payloads"
    assert httpx.post(missing, content=b"x", headers=OCTETS).json()["error"]["code"] == (
        "unknown_stream"
    )
    assert all(message.subject != "models.c" for message in client.read("models", end="latest"))


@pytest.mark.parametrize(
    ("header", "err_code"),
    [("Nats-TTL: 5s", 20004), ("Nats-Foo: 1", 20004), ("Nats-Expected-Stream: other", 10060)],
)
def test_what_no_repetition_changes_is_refused_before_the_body(
    node: Node, client: SyncClient, header: str, err_code: int
) -> None:
    host, port = node.addresses["http"].removeprefix("http://").split(":")
    head = (
        f"POST /v1/streams/models/payloads?subject=models.c HTTP/1.1\r\nHost: localhost\r\n{header}"
        "\r\nContent-Type: a/b\r\nContent-Length: 1000000\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(head.encode())
        answer = b""
        while part := sock.recv(1 << 16):
            answer += part
    found, _, body = answer.partition(b"\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 400"), answer
    error = json.loads(body)["error"]
    assert (error["code"], error["err_code"]) == ("message_refused", err_code)
    assert "retriable" not in error
    name, _, value = header.partition(": ")
    with (
        pytest.raises(PublishRejected),
        client.open_payload("models", subject="models.c", headers={name: value}) as out,
    ):
        raise AssertionError(f"payload {out.id} is open")


def test_a_payload_of_a_table_needs_a_key_of_it(node: Node) -> None:
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.create_stream(
            "table", "$KV.table.>", key_from="subject", cleanup=["compact"], table=True
        )
    where = node.addresses["http"] + "/v1/streams/table/payloads?subject=$KV.table."
    assert httpx.post(where + "a", content=b"x", headers=OCTETS).status_code == 201
    refused = httpx.post(where + "%25zz", content=b"x", headers=OCTETS)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["err_code"]) == (
        400,
        "message_refused",
        20009,
    )
    with_ttl = {**OCTETS, "Nats-TTL": "1h"}
    assert httpx.post(where + "b", content=b"x", headers=with_ttl).status_code == 201


def test_a_body_may_take_long_as_long_as_it_goes_on(node: Node, client: SyncClient) -> None:
    """Each MiB has the time of a request; one that stops is closed, and stores nothing."""
    host, port = node.addresses["http"].removeprefix("http://").split(":")
    head = (
        "PUT /v1/streams/models/payloads/%032x?subject=models.slow HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Length: {4 * MIB}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall((head % 1).encode())
        began = time.monotonic()
        for _ in range(4):
            sock.sendall(bytes(MIB))
            time.sleep(0.8)
        assert time.monotonic() - began > 3
        assert sock.recv(100).startswith(b"HTTP/1.1 201 ")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall((head % 2).encode() + bytes(2 * MIB))
        try:
            assert b"201" not in sock.recv(100)
        except ConnectionError:
            pass
    stored = list(client.read("models", end="latest"))
    assert [m.payload.size for m in stored if m.payload and m.subject == "models.slow"] == [4 * MIB]


def test_any_node_takes_a_body(cluster: RunningCluster) -> None:
    data = content(2 * MIB, seed=4)
    nodes = [node.addresses["http"] for node in cluster.alive()]
    with bascule.connect_sync(nodes[0]) as client:
        client.create_stream("one", "one", replicas=1)
        for address in nodes:
            answer = httpx.post(f"{address}/v1/streams/one/payloads", content=data, headers=OCTETS)
            assert answer.status_code == 201, answer.text
        for message in client.read("one", end="latest"):
            with client.read_payload("one", message) as payload:
                assert payload.read() == data
        client.create_stream("three", "three", replicas=3)
        where = f"{nodes[0]}/v1/streams/three/payloads"
        for asked, tree in (("topology=chain", "chain"), ("quorum=true", "star")):
            answer = httpx.post(f"{where}?{asked}", content=data, headers=OCTETS)
            assert answer.status_code == 201, answer.text
            assert answer.json()["why"].startswith(tree), answer.text
