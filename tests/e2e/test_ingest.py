"""Publishing to a real node: unmodified clients, overlapping streams, strange servers."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import nats.js.errors
import pytest

from bascule.record.batch import Record, RecordBatch, scan_batches
from support.nats_servers import metric
from support.ports import reserve_ports
from support.processes import BIN, WAIT_SECONDS_MAX, Node, RawNats, running_nats, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("node")) as running:
        yield running


def raw(node: Node) -> RawNats:
    return RawNats(int(node.addresses["nats"].rsplit(":", 1)[1]))


def records(node: Node, name: str, count: int) -> list[Record]:
    """The first `count` records, read from the segment files once they are stored."""
    node.wait_stored(name, count)
    found: list[Record] = []
    for path in sorted((node.directory / "data/streams" / name / "0").glob("*.log")):
        data = path.read_bytes()
        for batch in scan_batches(data, origin=str(path)):
            found.extend(RecordBatch(memoryview(data)[batch.start : batch.end]))
    return found


def answers(connection: RawNats, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += [json.loads(payload) for _, payload in connection.messages()]
    return found


def test_js_publish_of_an_unmodified_client(node: Node) -> None:
    node.create("js", "js.>")

    async def publish() -> None:
        client = await nats.connect(node.addresses["nats"])
        stream = client.jetstream()
        for number in range(20):
            ack = await stream.publish(
                f"js.{number}", b"payload %d" % number, headers={"Bascule-Key": "k", "Other": "x y"}
            )
            assert ack.stream == "js"
            assert ack.seq == number + 1
        await client.close()

    asyncio.run(publish())
    found = records(node, "js", 20)
    assert [r.value for r in found] == [b"payload %d" % n for n in range(20)]
    assert found[3].key == b"k"
    assert found[3].headers == (("subject", b"js.3"), ("Other", b"x y"))
    timestamps = [r.timestamp for r in found]
    assert timestamps == sorted(timestamps)


def test_overlapping_streams_each_get_every_message(node: Node) -> None:
    for name, subject in (("o1", "over.a"), ("o2", "over.a"), ("o3", "over.*"), ("o4", "over.>")):
        node.create(name, subject)
    publisher = raw(node)
    publisher.send(
        b"SUB in 1\r\nPUB over.a in 1\r\nx\r\nPUB over.b 1\r\ny\r\nPUB over.a.b 1\r\nz\r\n"
    )
    publisher.flush()
    assert sorted(a["stream"] for a in answers(publisher, 4)) == ["o1", "o2", "o3", "o4"]
    assert [r.value for r in records(node, "o4", 3)] == [b"x", b"y", b"z"]
    assert [r.value for r in records(node, "o3", 2)] == [b"x", b"y"]
    assert [r.value for r in records(node, "o2", 1)] == [b"x"]


def test_streams_of_one_group_share_the_subject(node: Node) -> None:
    node.create("g1", "grouped", group="g")
    node.create("g2", "grouped", group="g")
    publisher = raw(node)
    publisher.send(b"".join(b"PUB grouped 4\r\n%04d\r\n" % n for n in range(400)))
    publisher.flush()
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while sum(node.partition(g)["high_watermark"] for g in ("g1", "g2")) < 400:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    one, two = (
        {r.value for r in records(node, g, node.partition(g)["high_watermark"])}
        for g in ("g1", "g2")
    )
    assert len(one) + len(two) == len(one | two) == 400
    assert one
    assert two


def test_a_message_over_the_limit_gets_an_error_ack(node: Node) -> None:
    node.create("small", "small", message_bytes_max=100)
    publisher = raw(node)
    publisher.send(b"SUB in 1\r\nPUB small in 101\r\n%s\r\nPUB small in 1\r\nx\r\n" % (b"x" * 101))
    found = answers(publisher, 2)
    refused = next(a for a in found if "error" in a)
    assert refused["stream"] == "small"
    assert refused["error"]["err_code"] == 10054
    wanted = "message of 101 bytes exceeds the stream's limit of 100 bytes"
    assert refused["error"]["description"] == wanted
    assert next(a for a in found if "error" not in a)["offset"] == 0

    async def publish() -> None:
        client = await nats.connect(node.addresses["nats"])
        with pytest.raises(nats.js.errors.APIError) as caught:
            await client.jetstream().publish("small", b"x" * 200)
        assert caught.value.err_code == 10054
        await client.close()

    asyncio.run(publish())


def test_a_large_message_and_an_empty_one_are_stored(node: Node) -> None:
    node.create("sizes", "sizes")
    payloads = [b"a" * (7 << 20), b"", b"b" * 300_000, b"c"]
    publisher = raw(node)
    publisher.send(b"SUB in 1\r\n")
    for payload in payloads:
        publisher.send(b"PUB sizes in %d\r\n%s\r\n" % (len(payload), payload))
    assert [a["offset"] for a in answers(publisher, 4)] == [0, 1, 2, 3]
    assert [r.value for r in records(node, "sizes", 4)] == payloads


def test_a_liftbridge_envelope_is_unpacked_and_acked_in_its_own_way(node: Node) -> None:
    node.create("lift", "lift")
    body = b"\x12\x03key\x1a\x05value\x4a\x08\x0a\x02h1\x12\x02v1\x52\x06in.box\x5a\x05corr1"
    envelope = b"\xb9\x0e\x43\xb4\0\x08\0\0" + body
    publisher = raw(node)
    publisher.send(b"SUB in.box 1\r\nPUB lift %d\r\n%s\r\n" % (len(envelope), envelope))
    ((subject, ack),) = publisher.messages()
    assert subject == b"in.box"
    assert ack[:8] == b"\xb9\x0e\x43\xb4\0\x08\0\x01"
    assert b"corr1" in ack
    assert b"lift" in ack
    (record,) = records(node, "lift", 1)
    assert (record.key, record.value) == (b"key", b"value")
    assert record.headers == (("h1", b"v1"),)


def test_an_envelope_with_a_long_inbox_costs_the_node_no_connection(node: Node) -> None:
    """NATS closes the connection of a client whose control line is too long."""
    node.create("long", "long.>")
    publisher = raw(node)
    publisher.send(b"SUB in.> 1\r\n")
    connects = metric(node, "bascule_nats_connects_total")
    for size in (4_000, 4_001, 4_096):
        inbox = b"in." + b"x" * (size - 3)
        body = b"\x1a\x01v\x52" + bytes([size & 127 | 128, size >> 7]) + inbox
        envelope = b"\xb9\x0e\x43\xb4\0\x08\0\0" + body
        publisher.send(b"PUB long.a %d\r\n%s\r\n" % (len(envelope), envelope))
        publisher.send(b"PUB long.b in.box 1\r\nx\r\n")
    subjects: list[bytes] = []
    # The ack of an envelope waits for the leader alone: it may come behind those of the others.
    while len(subjects) < 4:
        subjects += [subject for subject, _ in publisher.messages()]
    assert subjects.count(b"in.box") == 3, "only the shortest inbox is one"
    assert metric(node, "bascule_nats_connects_total") == connects


def test_a_deleted_stream_takes_nothing_and_its_name_is_free(node: Node) -> None:
    node.create("gone", "gone")
    publisher = raw(node)
    publisher.send(b"PUB gone 1\r\nx\r\n")
    publisher.flush()
    records(node, "gone", 1)
    node.call("DELETE", "/v1/streams/gone")
    assert not (node.directory / "data/streams/gone").exists()
    publisher.send(b"PUB gone 1\r\ny\r\n")
    publisher.flush()
    node.create("gone", "gone")
    assert node.partition("gone")["end_offset"] == 0
    publisher.send(b"PUB gone 1\r\nz\r\n")
    publisher.flush()
    assert [r.value for r in records(node, "gone", 1)] == [b"z"]


def test_a_stream_of_everything_does_not_store_its_own_acks(node: Node) -> None:
    node.create("all", ">")
    publisher = raw(node)
    publisher.send(b"SUB in.me 1\r\nPUB quite.new in.me 1\r\nx\r\n")
    assert [a["stream"] for a in answers(publisher, 1)] == ["all"]
    publisher.send(b"PUB quite.new 1\r\ny\r\n")
    publisher.flush()
    assert [r.value for r in records(node, "all", 2)] == [b"x", b"y"]
    node.call("DELETE", "/v1/streams/all")


def test_tls(tmp_path: Path) -> None:
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            "-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem"),
            "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    options = (
        "--tls", "--tlscert", str(tmp_path / "cert.pem"), "--tlskey", str(tmp_path / "key.pem"),
    )  # fmt: skip
    with running_nats(tmp_path / "nats", *options) as server:
        with running_node(
            tmp_path,
            nats=f"tls://localhost:{server.port}",
            environment={"BASCULE_NATS_TLS_CA": str(tmp_path / "cert.pem")},
        ) as node:
            node.create("s", "s")

            async def publish() -> None:
                context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
                client = await nats.connect(f"tls://localhost:{server.port}", tls=context)
                stream = client.jetstream()
                for number in range(50):
                    ack = await stream.publish("s", b"x" * 20_000)
                    assert ack.seq == number + 1
                await client.close()

            asyncio.run(publish())
            assert len(records(node, "s", 50)) == 50
        untrusting = Node(tmp_path / "other", nats=f"tls://localhost:{server.port}")
        untrusting.directory.mkdir()
        untrusting.spawn(tmp_path / "other" / "ready.json")
        assert untrusting.process is not None
        assert untrusting.process.wait(WAIT_SECONDS_MAX) == 5
        assert "certificate verify failed" in untrusting.log.read_text()


def test_a_subject_the_server_does_not_permit_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text(
        "authorization { users: [{user: u, password: p, permissions: "
        '{subscribe: {allow: ["ok.>"]}, publish: ">"}}] }'
    )
    with (
        running_nats(tmp_path / "nats", "-c", str(config)) as server,
        running_node(tmp_path, nats=f"nats://u:p@127.0.0.1:{server.port}") as node,
    ):
        node.create("fine", "ok.a")
        with pytest.raises(OSError, match="HTTP Error") as caught:
            node.create("denied", "secret.a")
        assert "Permissions Violation" in str(caught.value.__notes__)
        names = [s["name"] for s in node.call("GET", "/v1/streams")["streams"]]
        assert names == ["fine"]


class StrangeServer(threading.Thread):
    """Speaks NATS just well enough to be connected to, then says what it is told."""

    def __init__(self, sayings: list[bytes]) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.sayings = sayings
        self.served = 0

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                self.serve(connection)

    def serve(self, connection: socket.socket) -> None:
        connection.sendall(b'INFO {"max_payload":1048576,"headers":true}\r\n')
        try:
            while data := connection.recv(1 << 16):
                if b"PING\r\n" in data:
                    connection.sendall(b"PONG\r\n" * data.count(b"PING\r\n"))
                sid = re.search(rb"SUB s (\d+)\r\n", data)
                if sid is not None and self.served < len(self.sayings):
                    self.served += 1
                    saying = self.sayings[self.served - 1]
                    connection.sendall(saying.replace(b"SID", sid.group(1)))
        except OSError:
            return


def test_a_server_that_says_nonsense_costs_a_connection_and_nothing_else(tmp_path: Path) -> None:
    sayings = [
        b"MSG s SID 3\r\nabc\r\nGARBAGE\r\n",
        b"MSG s SID 999999999999\r\n",
        b"MSG s\r\n",
        b"\x00\xff\xfe\r\n",
        b"HMSG s SID 10 5\r\n",
        b"MSG s 77 3\r\nabc\r\n-ERR 'Stale Connection'\r\nX\r\n",
        b"MSG s SID 3\r\nabcdefg\r\n",
        b"x" * (3 << 20),
        b"MSG s SID 3\r\nend\r\n",
    ]
    strange = StrangeServer(sayings)
    strange.start()
    with running_node(
        tmp_path,
        nats=f"nats://127.0.0.1:{strange.port}",
        environment={"BASCULE_NATS_KEY_VALUE": "false"},
    ) as node:
        node.create("s", "s")
        assert [r.value for r in records(node, "s", 2)] == [b"abc", b"end"]
        assert strange.served == len(sayings)
        assert node.call("GET", "/v1/node")["ready"] is True
    strange.listener.close()


def test_no_server_is_an_error_that_says_where(tmp_path: Path) -> None:
    (port,) = reserve_ports(1)
    node = Node(tmp_path, nats=f"nats://127.0.0.1:{port}")
    node.spawn(tmp_path / "ready.json")
    assert node.process is not None
    assert node.process.wait(WAIT_SECONDS_MAX) == 5
    text = node.log.read_text()
    assert f"127.0.0.1:{port}" in text
    assert "Traceback" not in text


def test_the_embedded_server_s_port_in_use_is_an_error_that_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = subprocess.run(
            [
                str(BIN / "bascule"), "serve", "--data", str(tmp_path / "d"), "--client-port", "0",
                "--http-port", "0", "--peer-port", "0", "--nats-port", str(port),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )  # fmt: skip
    assert run.returncode == 2
    assert "address already in use" in run.stderr
    assert "Traceback" not in run.stderr
