"""What records say of their subject: in foreign Kafka clients, in our readers, over releases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import nats
import pytest

import bascule
from support import commands
from support.kafka_readers import HEADERS, ClientRecord, read_confluent, read_kafka_python
from support.processes import Node, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("node")) as running:
        yield running


def publish(node: Node, to: str, payload: bytes, /, **headers: str) -> None:
    """One acked message of an unmodified NATS client."""

    async def run() -> None:
        client = await nats.connect(node.addresses["nats"])
        named: dict[str, Any] = {name.replace("_", "-"): v for name, v in headers.items()}
        ack = await client.jetstream().publish(to, payload, headers=named or None)
        assert ack.stream
        await client.close()

    asyncio.run(run())


def kafka_records(node: Node, stream: str, count: int) -> list[ClientRecord]:
    node.wait_stored(stream, count)
    return read_confluent(node.addresses["client"], stream, count)


def kafka_headers(node: Node, stream: str, count: int) -> list[HEADERS]:
    return [record.headers for record in kafka_records(node, stream, count)]


def our_rows(node: Node, stream: str) -> list[tuple[str | None, str | None, list[Any]]]:
    """Subject, reply and headers of each message, from both readers of the Python client."""
    with bascule.connect_sync(node.addresses["http"]) as client:
        messages = list(client.read(stream))
        with client.read_batches(stream) as batches:
            subjects = [s for batch in batches for s in batch.column("subject").to_pylist()]
    assert subjects == [message.subject for message in messages]
    return [(message.subject, message.reply, list(message.headers)) for message in messages]


def command(node: Node, *words: str) -> list[dict[str, Any]]:
    server = {"BASCULE_SERVER": node.addresses["http"]}
    ended = commands.run(*words, "--json", env=server, check=True)
    if words[0] == "stream":
        return [json.loads(ended.stdout)]
    return [json.loads(line) for line in ended.stdout.splitlines()]


def segment(node: Node, stream: str) -> str:
    (found,) = (node.directory / "data/streams" / stream / "0").glob("*.log")
    return str(found)


def test_a_record_on_a_literal_subject_has_the_publishers_headers_only(node: Node) -> None:
    node.create("literal", "meter.power")
    publish(node, "meter.power", b"plain")
    publish(node, "meter.power", b"with", unit="W")
    publish(node, "meter.power", b"forged", subject="fake", reply="fake")
    publish(node, "meter.power", b"forged", reply="fake")
    assert kafka_headers(node, "literal", 4) == [
        [],
        [("unit", b"W")],
        [("subject", b"meter.power"), ("subject", b"fake"), ("reply", b"fake")],
        [("reply", None), ("reply", b"fake")],
    ]
    again = read_kafka_python(node.addresses["client"], "literal", 4)
    assert [record.headers for record in again] == kafka_headers(node, "literal", 4)
    assert our_rows(node, "literal") == [
        ("meter.power", None, []),
        ("meter.power", None, [("unit", b"W")]),
        ("meter.power", None, [("subject", b"fake"), ("reply", b"fake")]),
        ("meter.power", None, [("reply", b"fake")]),
    ]
    rows = command(node, "read", "literal")
    assert [row["subject"] for row in rows] == ["meter.power"] * 4
    rows = command(node, "inspect", segment(node, "literal"), "--records")
    assert [row["subject"] for row in rows] == ["meter.power"] * 4
    assert rows[0]["headers"] == []


def test_a_record_of_a_stream_with_wildcards_has_its_subject(node: Node) -> None:
    node.create("wild", "wild.*")
    publish(node, "wild.one", b"x")
    publish(node, "wild.two", b"x", A="1")
    assert kafka_headers(node, "wild", 2) == [
        [("subject", b"wild.one")], [("subject", b"wild.two"), ("A", b"1")],
    ]  # fmt: skip
    assert our_rows(node, "wild") == [("wild.one", None, []), ("wild.two", None, [("A", b"1")])]
    rows = command(node, "inspect", segment(node, "wild"), "--records")
    assert [row["subject"] for row in rows] == ["wild.one", "wild.two"]


def test_headers_are_stored_on_request_and_old_and_new_records_mix(node: Node) -> None:
    created = node.create("mixed", "mixed.one", record_headers=["reply", "subject"])
    assert created["config"]["record_headers"] == ["subject", "reply"]
    # As a program of today creates a stream that an earlier release created.
    assert node.create("mixed", "mixed.one")["config"] == created["config"]
    publish(node, "mixed.one", b"0")
    command(node, "stream", "alter", "mixed", "--record-headers", "none")
    publish(node, "mixed.one", b"1")
    command(node, "stream", "alter", "mixed", "--record-headers", "reply")
    publish(node, "mixed.one", b"2", A="1")
    command(node, "stream", "alter", "mixed", "--record-headers", "subject")
    publish(node, "mixed.one", b"3")
    names = [[name for name, _ in headers] for headers in kafka_headers(node, "mixed", 4)]
    assert names == [["subject", "reply"], [], ["reply", "A"], ["subject"]]
    rows = our_rows(node, "mixed")
    assert [subject for subject, _, _ in rows] == ["mixed.one"] * 4
    assert [reply is not None for _, reply, _ in rows] == [True, False, True, False]
    assert [headers for _, _, headers in rows] == [[], [], [("A", b"1")], []]


def test_the_subject_as_key_does_not_need_the_header(node: Node) -> None:
    node.create("keyed", "keyed.one", key_from="subject", cleanup=["compact"])
    publish(node, "keyed.one", b"x")
    publish(node, "keyed.one", b"y", Bascule_Key="own")
    found = kafka_records(node, "keyed", 2)
    assert [(r.key, r.headers) for r in found] == [(b"keyed.one", []), (b"own", [])]


@pytest.mark.parametrize("by", ["subject", "key"])
def test_streams_with_partitions(node: Node, by: str) -> None:
    name = f"by-{by}"
    node.create(name, f"{name}.one", partitions=3, partition_by=by)
    for number in range(6):
        publish(node, f"{name}.one", b"%d" % number, Bascule_Key=f"k{number}")
    assert our_rows(node, name) == [(f"{name}.one", None, [])] * 6


def test_message_ids_are_recognized_without_the_header(node: Node) -> None:
    node.create("ids", "ids.one")
    for _ in range(2):
        publish(node, "ids.one", b"x", Nats_Msg_Id="a")
    publish(node, "ids.one", b"y", Nats_Msg_Id="b")
    assert kafka_headers(node, "ids", 2) == [[("Nats-Msg-Id", b"a")], [("Nats-Msg-Id", b"b")]]


def test_another_streams_message_is_answered_by_it(node: Node) -> None:
    """A stream that the message does not name compares its subject, which no record has."""
    node.create("left", "pair.one")
    node.create("right", "pair.*")

    async def replies() -> list[dict[str, Any]]:
        client = await nats.connect(node.addresses["nats"])
        inbox = client.new_inbox()
        waiting = await client.subscribe(inbox)
        for number in range(10):
            await client.publish(
                "pair.one", b"%d" % number, reply=inbox, headers={"Nats-Expected-Stream": "right"}
            )
        await client.publish("pair.one", b"end", reply=inbox, headers={"Nats-Expected-Stream": "x"})
        found = [json.loads((await waiting.next_msg(60)).data) for _ in range(12)]
        await client.close()
        return found

    found = asyncio.run(replies())
    assert sum(reply["stream"] == "right" and "error" not in reply for reply in found) == 10
    # Both streams refuse the last one.
    assert sum("error" in reply for reply in found) == 2


def test_a_kafka_client_can_ask_for_the_subject_of_a_topic(node: Node) -> None:
    node.create("asked", "asked.one")
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.addresses["client"]})
    resource = confluent_kafka.admin.ConfigResource("topic", "asked")
    (future,) = admin.describe_configs([resource]).values()
    found = future.result(30)
    assert found["bascule.subject"].value == "asked.one"
    assert found["cleanup.policy"].value == "delete"
    missing = confluent_kafka.admin.ConfigResource("topic", "nobody")
    (future,) = admin.describe_configs([missing]).values()
    with pytest.raises(confluent_kafka.KafkaException, match="unknown stream"):
        future.result(30)


def test_a_stream_that_is_created_again_has_its_new_subject(node: Node) -> None:
    for subject in ("again.one", "again.two"):
        node.create("again", subject)
        publish(node, subject, b"x")
        assert [row[0] for row in our_rows(node, "again")] == [subject]
        node.call("DELETE", "/v1/streams/again")
