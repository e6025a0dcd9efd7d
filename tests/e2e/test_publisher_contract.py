"""What a JetStream publisher may ask of a stream, asked by nats-py and raw NATS of a real node."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import nats.js.errors
import pytest
from confluent_kafka import Consumer, TopicPartition
from nats.js import JetStreamContext

import bascule
from bascule.errors import PublishRejected
from bascule.ingest.routing import partition_of
from support.processes import Node, RawNats, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("node")) as running:
        yield running


def publishing(node: Node, what: Callable[[JetStreamContext], Awaitable[None]]) -> None:
    async def run() -> None:
        client = await nats.connect(node.addresses["nats"])
        try:
            await what(client.jetstream())
        finally:
            await client.close()

    asyncio.run(run())


async def refusal(publishing: Awaitable[Any]) -> nats.js.errors.APIError:
    with pytest.raises(nats.js.errors.APIError) as caught:
        await publishing
    return caught.value


def consumed(node: Node, name: str, partition: int, count: int) -> list[tuple[bytes, bytes, int]]:
    """(key, value, offset) of the first `count` records, by librdkafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.addresses["client"],
            "group.id": "t",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(name, partition, 0)])
    found: list[tuple[bytes, bytes, int]] = []
    while len(found) < count:
        for message in consumer.consume(count - len(found), timeout=20):
            assert message.error() is None, message.error()
            found.append((message.key(), message.value(), message.offset()))
    consumer.close()
    return found


def test_a_message_id_is_stored_once_and_acked_again(node: Node) -> None:
    node.create("once", "once.>")

    async def talk(js: JetStreamContext) -> None:
        first = await js.publish("once.a", b"1", headers={"Nats-Msg-Id": "x"})
        again = await js.publish("once.b", b"2", headers={"nats-msg-id": "x"})
        other = await js.publish("once.a", b"3", headers={"Nats-Msg-Id": "y"})
        assert (first.seq, again.seq, other.seq) == (1, 1, 2)
        assert first.duplicate is None
        assert again.duplicate is True
        # A burst of which every second one is known: one batch, judged message by message.
        acks = await asyncio.gather(
            *(
                js.publish("once.c", b"%d" % n, headers={"Nats-Msg-Id": f"m{n // 2}"})
                for n in range(400)
            )
        )
        assert [ack.seq for ack in acks] == [3 + n // 2 for n in range(400)]
        assert [bool(ack.duplicate) for ack in acks] == [n % 2 == 1 for n in range(400)]

    publishing(node, talk)
    assert node.partition("once")["end_offset"] == 202
    values = [value for _, value, _ in consumed(node, "once", 0, 202)]
    assert values == [b"1", b"3", *(b"%d" % n for n in range(0, 400, 2))]


def test_ids_are_known_after_kill_9(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        node.create("once", "once.>", compression="zstd")
        ids = [f"id-{n}" for n in range(300)]

        async def talk(js: JetStreamContext) -> None:
            await asyncio.gather(
                *(js.publish("once.a", b"x" * 40, headers={"Nats-Msg-Id": i}) for i in ids)
            )

        publishing(node, talk)
        node.stop(signal.SIGKILL)
        node.start()

        async def again(js: JetStreamContext) -> None:
            expected = await js.publish(
                "once.a", b"x", headers={"Nats-Expected-Last-Msg-Id": ids[-1]}
            )
            assert expected.seq == 301
            for i in ids:
                ack = await js.publish("once.a", b"x" * 40, headers={"Nats-Msg-Id": i})
                assert ack.duplicate, i

        publishing(node, again)
        assert node.partition("once")["end_offset"] == 301


def test_expectations_hold_or_the_message_is_refused(node: Node) -> None:
    node.create("cas", "cas.>")

    async def talk(js: JetStreamContext) -> None:
        def send(**headers: str) -> Awaitable[Any]:
            names = {"seq": "Nats-Expected-Last-Sequence", "id": "Nats-Expected-Last-Msg-Id",
                     "stream": "Nats-Expected-Stream", "own": "Nats-Msg-Id"}  # fmt: skip
            return js.publish("cas.a", b"v", headers={names[k]: v for k, v in headers.items()})

        assert (await send(seq="0", stream="cas")).seq == 1
        wrong = await refusal(send(seq="0"))
        assert (wrong.err_code, wrong.description) == (10071, "wrong last sequence: 1")
        assert (await send(seq="1", own="a")).seq == 2
        assert (await refusal(send(id="b"))).err_code == 10070
        assert (await send(id="a")).seq == 3
        assert (await refusal(send(id="a"))).err_code == 10070
        assert (await refusal(send(stream="other"))).err_code == 10060
        assert (await refusal(send(seq="three"))).err_code == 20006
        # Of writers that race for one place, one gets it.
        outcomes = await asyncio.gather(*(send(seq="3") for _ in range(50)), return_exceptions=True)
        assert sum(not isinstance(o, Exception) for o in outcomes) == 1

    publishing(node, talk)
    assert node.partition("cas")["end_offset"] == 4


@pytest.mark.parametrize(
    ("header", "value", "code"),
    [
        ("Nats-Expected-Last-Subject-Sequence", "1", 20004),
        ("Nats-Rollup", "sub", 20004),
        ("Nats-TTL", "1m", 20004),
        ("Nats-Batch-Id", "b", 20004),
        ("Nats-Schedule", "@every 1m", 20004),
        ("Nats-Incr", "+1", 20004),
        ("Nats-Required-Api-Level", "0", 20004),
        ("Nats-Something-New", "1", 20004),
        ("Bascule-Payload-Id", "7" * 32, 20004),
        ("bascule-PAYLOAD-bytes", "1", 20004),
        ("Bascule-Ack", "maybe", 20005),
    ],
)
def test_what_is_not_supported_is_refused(node: Node, header: str, value: str, code: int) -> None:
    node.create("strict", "strict.>")
    before = node.partition("strict")["end_offset"]

    async def talk(js: JetStreamContext) -> None:
        refused = await refusal(js.publish("strict.a", b"", headers={header: value}))
        assert refused.err_code == code
        assert header in str(refused.description)

    publishing(node, talk)
    assert node.partition("strict")["end_offset"] == before


def test_headers_that_request_nothing_are_stored(node: Node) -> None:
    """As of a message that JetStream republished, and of a traced request to a service."""
    node.create("informed", "informed.>")
    headers = {"Nats-Stream": "orders", "Nats-Subject": "orders.a", "Nats-Sequence": "7",
               "Nats-Time-Stamp": "2026-01-31T12:00:00Z", "Nats-Last-Sequence": "6",
               "Nats-Trace-Dest": "traces", "Nats-Service-Error": "no"}  # fmt: skip

    async def talk(js: JetStreamContext) -> None:
        assert (await js.publish("informed.a", b"v", headers=headers)).seq == 1

    publishing(node, talk)


def test_no_ack_for_who_wants_none(node: Node) -> None:
    node.create("quiet", "quiet.>")
    nats_port = int(node.addresses["nats"].rsplit(":", 1)[1])
    raw = RawNats(nats_port)
    raw.send(b"SUB inbox 1\r\n")
    block = b"NATS/1.0\r\nBascule-Ack: none\r\n\r\n"
    raw.send(b"HPUB quiet.a inbox %d %d\r\n%s1\r\n" % (len(block), len(block) + 1, block))
    raw.send(b"PUB quiet.a inbox 1\r\n2\r\n")
    raw.flush()
    ((_, payload),) = raw.messages()
    assert json.loads(payload)["seq"] == 2


def test_an_envelope_is_stored_at_the_offset_it_expects_or_not_at_all(node: Node) -> None:
    node.create("lifted", "lifted")
    raw = RawNats(int(node.addresses["nats"].rsplit(":", 1)[1]))
    raw.send(b"SUB in.box 1\r\n")

    def error_of(offset: int) -> bytes:
        body = b"\x08%c\x1a\x05value\x52\x06in.box" % offset
        envelope = b"\xb9\x0e\x43\xb4\0\x08\0\0" + body
        raw.send(b"PUB lifted %d\r\n%s\r\n" % (len(envelope), envelope))
        ((_, ack),) = raw.messages()
        # Field 10 of Liftbridge's Ack, where it is not 0.
        return ack[-2:] if ack[-2:-1] == b"\x50" else b""

    assert error_of(1) == b"\x50\x02"
    assert error_of(0) == b""
    assert error_of(1) == b""
    assert error_of(1) == b"\x50\x02"
    assert node.partition("lifted")["end_offset"] == 2


def test_limits_refuse_what_is_beyond_them(node: Node) -> None:
    node.create("few", "few.>", discard="new", retention_messages_max=10)
    node.create("small", "small.>", discard="new", retention_bytes_max=5_000)
    node.create("slow", "slow.>", rate_messages_max=5)

    async def talk(js: JetStreamContext) -> None:
        async def many(subject: str, count: int, size: int) -> tuple[int, set[str]]:
            outcomes = await asyncio.gather(
                *(js.publish(subject, b"x" * size) for _ in range(count)), return_exceptions=True
            )
            refused = [o for o in outcomes if isinstance(o, nats.js.errors.APIError)]
            assert len(refused) == sum(isinstance(o, BaseException) for o in outcomes)
            return count - len(refused), {f"{o.err_code} {o.description}" for o in refused}

        assert await many("few.a", 30, 1) == (10, {"10077 maximum messages exceeded"})
        stored, told = await many("small.a", 30, 400)
        assert (0 < stored < 13, told) == (True, {"10077 maximum bytes exceeded"})
        stored, told = await many("slow.a", 40, 1)
        assert 5 <= stored < 40
        assert told == {"20003 the stream's rate of messages is exceeded"}

    publishing(node, talk)
    assert node.partition("small")["bytes"] <= 5_000


def test_paused_and_read_only_streams_say_so(node: Node) -> None:
    node.create("stop", "stop.>")

    async def talk(js: JetStreamContext) -> None:
        assert (await js.publish("stop.a", b"1")).seq == 1
        node.call("POST", "/v1/streams/stop/pause")
        paused = await refusal(js.publish("stop.a", b"2"))
        assert (paused.err_code, paused.description) == (20001, "stream is paused")
        node.call("POST", "/v1/streams/stop/resume")
        assert (await js.publish("stop.a", b"2")).seq == 2
        node.call("PATCH", "/v1/streams/stop", {"read_only": True})
        assert (await refusal(js.publish("stop.a", b"3"))).err_code == 20002
        node.call("PATCH", "/v1/streams/stop", {"read_only": False})
        assert (await js.publish("stop.a", b"3")).seq == 3

    publishing(node, talk)
    assert [value for _, value, _ in consumed(node, "stop", 0, 3)] == [b"1", b"2", b"3"]


def test_partitions_by_key_are_those_of_kafkas_java_client(node: Node) -> None:
    node.create("keyed", "keyed.>", partitions=4, partition_by="key")
    keys = [f"key-{n}" for n in range(60)]

    async def talk(js: JetStreamContext) -> None:
        for turn in range(3):
            await asyncio.gather(
                *(js.publish("keyed.a", b"%d" % turn, headers={"Bascule-Key": key}) for key in keys)
            )

    publishing(node, talk)
    for partition in range(4):
        mine = [key.encode() for key in keys if partition_of(key.encode(), 4) == partition]
        found = consumed(node, "keyed", partition, 3 * len(mine))
        for key in mine:
            assert [value for k, value, _ in found if k == key] == [b"0", b"1", b"2"]


def test_partitions_by_subject_keep_the_order_of_a_subject_until_some_are_added(
    node: Node,
) -> None:
    node.create("spread", "spread.>", partitions=2, partition_by="subject", key_from="subject")
    subjects = [f"spread.{n}" for n in range(40)]

    async def talk(js: JetStreamContext) -> None:
        await asyncio.gather(*(js.publish(s, b"before") for s in subjects))
        node.call("PATCH", "/v1/streams/spread", {"partitions": 5})
        await asyncio.gather(*(js.publish(s, b"after") for s in subjects))

    publishing(node, talk)
    where: dict[tuple[bytes, bytes], int] = {}
    parts = node.call("GET", "/v1/streams/spread")["partitions"]
    assert len(parts) == 5
    for part in parts:
        for key, value, _ in consumed(node, "spread", part["partition"], part["end_offset"]):
            where[key, value] = part["partition"]
    for subject in subjects:
        key = subject.encode()
        assert where[key, b"before"] == partition_of(key, 2)
        assert where[key, b"after"] == partition_of(key, 5)


def test_partitions_by_group_share_the_messages_and_can_be_added(node: Node) -> None:
    node.create("shared", "shared.>")

    async def talk(js: JetStreamContext) -> None:
        await asyncio.gather(*(js.publish("shared.a", b"%d" % n) for n in range(50)))
        node.call("PATCH", "/v1/streams/shared", {"partitions": 3})
        await asyncio.gather(*(js.publish("shared.a", b"%d" % n) for n in range(50, 350)))

    publishing(node, talk)
    parts = node.call("GET", "/v1/streams/shared")["partitions"]
    counts = [part["end_offset"] for part in parts]
    assert sum(counts) == 350
    assert all(count > 20 for count in counts)
    found = {
        int(value)
        for part in parts
        for _, value, _ in consumed(node, "shared", part["partition"], part["end_offset"])
    }
    assert found == set(range(350))


def test_a_deletion_marker_becomes_a_null_value(node: Node) -> None:
    node.create("kv", "$KV.bucket.>", key_from="subject")

    async def talk(js: JetStreamContext) -> None:
        await js.publish("$KV.bucket.a", b"1")
        await js.publish("$KV.bucket.a", b"")
        await js.publish("$KV.bucket.a", b"", headers={"KV-Operation": "DEL"})

    publishing(node, talk)
    assert [(key, value) for key, value, _ in consumed(node, "kv", 0, 3)] == [
        (b"$KV.bucket.a", b"1"),
        (b"$KV.bucket.a", b""),
        (b"$KV.bucket.a", None),
    ]


def test_the_python_client_asks_the_same(node: Node) -> None:
    node.create("asked", "asked.>")
    with bascule.connect_sync(node.addresses["http"]) as client:
        first = client.publish("asked.a", b"1", message_id="one", expected_last_sequence=0)
        again = client.publish("asked.a", b"1", message_id="one", headers=[("a", "b"), ("a", "c")])
        assert (first.seq, first.duplicate) == (1, False)
        assert (again.seq, again.duplicate, again.synced) == (1, True, True)
        with pytest.raises(PublishRejected, match="wrong last sequence: 1"):
            client.publish("asked.a", b"2", expected_last_sequence=7)
        acks = client.publish_many(
            ("asked.a", b"%d" % n, None, {"Nats-Msg-Id": f"many-{n % 50}"}) for n in range(100)
        )
        assert [ack.seq for ack in acks] == [2 + n % 50 for n in range(100)]
        assert [ack.duplicate for ack in acks] == [n >= 50 for n in range(100)]
