"""Messages of every legal size and shape, read back exactly by a Kafka client and by ours."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

import bascule
from support.nats_servers import configured_nats, metric
from support.processes import NatsServer, Node, RawNats, running_node

Headers = list[tuple[str, bytes]]

LONG = b"v" * 60_000
BLOCKS: dict[str, tuple[bytes, Headers]] = {
    "one": (b"A: 1\r\n", [("A", b"1")]),
    "none": (b"", []),
    "duplicates in order": (
        b"A: 1\r\nB: x\r\nA: 2\r\nA: 1\r\n",
        [("A", b"1"), ("B", b"x"), ("A", b"2"), ("A", b"1")],
    ),
    "empty values": (b"A:\r\nB: \r\nC:  \r\n", [("A", b""), ("B", b""), ("C", b"")]),
    "odd case": (b"aCCept-X: 1\r\nACCEPT-X: 2\r\n", [("aCCept-X", b"1"), ("ACCEPT-X", b"2")]),
    "no space behind the colon": (b"A:1\r\nB:  2  \r\n", [("A", b"1"), ("B", b"2")]),
    "colons in the value": (b"Url: http://a:80/b\r\n", [("Url", b"http://a:80/b")]),
    "every character of a name": (
        b"!#$%&'*+-.^_`|~0aZ()<>@,;\\\"/[]?={}: 1\r\n",
        [("!#$%&'*+-.^_`|~0aZ()<>@,;\\\"/[]?={}", b"1")],
    ),
    "values in UTF-8": ("Ort: Zürich → 東京\r\n".encode(), [("Ort", "Zürich → 東京".encode())]),
    "values that are no text": (b"Raw: \x01\xff\xfe\t\x7f\r\n", [("Raw", b"\x01\xff\xfe\t\x7f")]),
    "a lone return or feed": (b"A: x\ry\nz\r\n", [("A", b"x\ry\nz")]),
    "long": (b"N" * 300 + b": " + LONG + b"\r\n", [("N" * 300, LONG)]),
    "many": (
        b"".join(b"H%d: %d\r\n" % (n, n) for n in range(500)),
        [(f"H{n}", b"%d" % n) for n in range(500)],
    ),
    "names of our own": (b"subject: s\r\nreply: r\r\n", [("subject", b"s"), ("reply", b"r")]),
}
STATUS = b"NATS/1.0 503 No Responders\r\nA: 1\r\n\r\n"
"""A status line in place of the version: legal from servers, odd from publishers."""

SUBJECTS = (
    "s.plain", "s.with-dash_and_under", "s.$dollar", "s.UPPER.lower.123",
    "s.!#%&'()+,/:;<=?@[]^`{|}~", "s.ünï.çødé", "s.東京.🚀",
    "s." + ".".join("t" * 20 for _ in range(40)), "s.*x", "s.x>", 's.\\back"quote',
)  # fmt: skip
SIZES = (0, 1, 1 << 20, (1 << 20) + 1, (8 << 20) - 1, 8 << 20)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    config = "max_payload: 8MB\nmax_control_line: 8KB"
    with configured_nats(tmp_path_factory.mktemp("nats"), config) as running:
        yield running


@pytest.fixture(scope="module")
def node(server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("node"), nats=server.url) as running:
        yield running


def kafka_read(node: Node, stream: str, count: int) -> list[tuple[bytes | None, Headers]]:
    """(value, headers) of the first records, by librdkafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.addresses["client"], "group.id": "test",
            "enable.auto.commit": False, "fetch.message.max.bytes": 16 << 20,
            "receive.message.max.bytes": 100 << 20,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(stream, 0, 0)])
    found: list[tuple[bytes | None, Headers]] = []
    deadline = time.monotonic() + 120
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        message = consumer.poll(1.0)
        if message is not None:
            assert message.error() is None, message.error()
            found.append((message.value(), [(k, v) for k, v in message.headers() or []]))
    consumer.close()
    return found


def own_read(node: Node, stream: str) -> list[tuple[bytes | None, Headers, str]]:
    async def scene() -> list[tuple[bytes | None, Headers, str]]:
        async with bascule.connect(node.addresses["http"]) as client:
            return [(m.value, list(m.headers), m.subject) async for m in client.read(stream)]

    return asyncio.run(scene())


def acked(publisher: RawNats, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += [json.loads(payload) for _, payload in publisher.messages()]
    return found


def hpub(subject: str, block: bytes, payload: bytes) -> bytes:
    return b"HPUB %s in %d %d\r\n%s%s\r\n" % (
        subject.encode(), len(block), len(block) + len(payload), block, payload,
    )  # fmt: skip


@pytest.mark.parametrize("stored", [(), ("subject", "reply")], ids=["lean", "full"])
def test_headers_of_every_legal_shape(
    node: Node, server: NatsServer, stored: tuple[str, ...]
) -> None:
    name = "h" + "".join(stored)
    node.create(name, name, record_headers=stored)
    malformed = metric(node, "bascule_ingest_malformed_headers_total")
    publisher = RawNats(server.port)
    publisher.send(b"SUB in 1\r\n")
    blocks = [b"NATS/1.0\r\n" + lines + b"\r\n" for lines, _ in BLOCKS.values()]
    for number, block in enumerate([*blocks, STATUS]):
        publisher.send(hpub(name, block, b"payload %d" % number))
    answers = acked(publisher, len(blocks) + 1)
    assert [a.get("offset") for a in answers] == list(range(len(blocks) + 1)), answers
    kafka = kafka_read(node, name, len(blocks) + 1)
    own = own_read(node, name)
    added: Headers = [("subject", name.encode()), ("reply", b"in")] if stored else []
    for number, (shape, (_, expected)) in enumerate(BLOCKS.items()):
        value, headers = kafka[number]
        assert value == b"payload %d" % number
        # Behind the subject a publisher's header of that name cannot pass for it.
        before = added or [("subject", name.encode())] * (shape == "names of our own")
        assert headers == [*before, *expected], shape
        assert own[number] == (value, expected, name), shape
    # What no record header can say is kept whole.
    assert kafka[-1][1] == [*added, ("Nats-Header-Block", STATUS)]
    assert own[-1][1] == [("Nats-Header-Block", STATUS)]
    assert metric(node, "bascule_ingest_malformed_headers_total") == malformed + 1


def test_what_a_malformed_block_asks_for_is_refused(node: Node, server: NatsServer) -> None:
    """In a table it would set a key that a client removes, or does not want to be set."""
    node.create("t", "t.>", table=True, cleanup=["compact"], key_from="subject")
    asking = (b"Nats-Msg-Id: 1", b"Nats-Expected-Last-Subject-Sequence: 77", b"Bascule-Ack: none",
              b"KV-Operation: DEL", b"Nats-TTL: 1s")  # fmt: skip
    publisher = RawNats(server.port)
    publisher.send(b"SUB in 1\r\n")
    for lines in (b"A: 1", *asking):
        publisher.send(hpub("t.k", b"NATS/1.0\r\n%b\r\nOrder Type: v\r\n\r\n" % lines, b"v"))
    answers = acked(publisher, 1 + len(asking))
    refused = [answer for answer in answers if "error" in answer]
    assert len(refused) == len(asking), answers
    for answer in refused:
        assert answer["error"]["err_code"] == 20004
        assert "malformed header block at 'Order Type'" in answer["error"]["description"]
    assert len(own_read(node, "t")) == 1


def test_subjects_of_unusual_characters(node: Node, server: NatsServer) -> None:
    node.create("s", "s.>")
    publisher = RawNats(server.port)
    publisher.send(b"SUB in 1\r\n")
    for subject in SUBJECTS:
        publisher.send(b"PUB %s in 1\r\nx\r\n" % subject.encode())
    assert [a.get("offset") for a in acked(publisher, len(SUBJECTS))] == list(range(len(SUBJECTS)))
    kafka = kafka_read(node, "s", len(SUBJECTS))
    assert [headers[0] for _, headers in kafka] == [("subject", s.encode()) for s in SUBJECTS]
    assert [subject for _, _, subject in own_read(node, "s")] == list(SUBJECTS)


def test_payloads_up_to_8_mib(node: Node, server: NatsServer) -> None:
    node.create("p", "p.>")
    node.create("q", "p.*")
    pattern = bytes(range(251))
    payloads = [(pattern * (size // 251 + 1))[:size] for size in SIZES]
    publisher = RawNats(server.port)
    publisher.send(b"SUB in 1\r\n")
    for payload in payloads:
        publisher.send(b"PUB p.x in %d\r\n%s\r\n" % (len(payload), payload))
    answers = acked(publisher, 2 * len(payloads))
    assert all("error" not in answer for answer in answers), answers
    for stream in ("p", "q"):
        assert [v for v, _ in kafka_read(node, stream, len(payloads))] == payloads
        assert [v for v, _, _ in own_read(node, stream)] == payloads


def port_of(node: Node) -> int:
    return int(node.addresses["nats"].rsplit(":", 1)[1])


def test_the_embedded_server_takes_what_the_streams_take(tmp_path: Path) -> None:
    """Its max_payload follows the largest message_bytes_max, with room for values in base64, also
    of a stream that comes later."""
    environment = {"BASCULE_STREAMS_MESSAGE_BYTES_MAX": str(9 << 20)}
    with running_node(tmp_path, environment=environment) as node:
        node.create("s", "s")
        assert b'"max_payload":12599296,' in RawNats(port_of(node)).info
        node.create("large", "large", message_bytes_max=17 << 20)
        assert b'"max_payload":23784108,' in RawNats(port_of(node)).info

        async def publish() -> None:
            async with bascule.connect(node.addresses["http"]) as client:
                assert (await client.publish("s", b"x" * (9 << 20))).offset == 0
                assert (await client.publish("large", b"y" * (17 << 20))).offset == 0
                (message,) = [m async for m in client.read("large")]
                assert message.value == b"y" * (17 << 20)

        asyncio.run(publish())
