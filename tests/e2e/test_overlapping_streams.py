"""Two streams on one subject: who answers publishers, asked by nats-py of a real node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client

import bascule
from support.processes import Node, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    # Acks leave in the order of the appends, and not in that of the syncs of several partitions: so
    # the ack of a stream that ends the waiting is the last one.
    never = {"BASCULE_STREAMS_SYNC": "never"}
    with running_node(tmp_path_factory.mktemp("node"), environment=never) as running:
        yield running


def talking(node: Node, what: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        client = await nats.connect(node.addresses["nats"])
        try:
            await what(client)
        finally:
            await client.close()

    asyncio.run(run())


class Publisher:
    """Publishes with a reply subject, and gives all replies: stream -> `seq`, or error code."""

    def __init__(self, client: Client, end: str) -> None:
        self.client = client
        self.end = end
        """Subject of a stream that answers after all others: a bound without a time-out."""

    async def replies(self, subject: str, value: bytes = b"v", **headers: str) -> dict[str, int]:
        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(inbox)
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        await self.client.publish(subject, value, reply=inbox, headers=named or None)
        # Batches are answered in the order in which they came, and replies come in order.
        for _ in range(2):
            await self.client.request(self.end, b"", timeout=20)
        await self.client.flush()
        found: dict[str, int] = {}
        while subscription.pending_msgs:
            reply = json.loads((await subscription.next_msg(timeout=20)).data)
            assert reply["stream"] not in found
            error = reply.get("error")
            found[reply["stream"]] = reply["seq"] if error is None else error["err_code"]
        await subscription.unsubscribe()
        return found


def test_a_stream_that_is_not_expected_is_silent_where_the_expected_one_is_there(
    node: Node,
) -> None:
    node.create("s", "s.>")
    node.create("o", "s.1")
    node.create("end", "end")

    async def talk(client: Client) -> None:
        publisher = Publisher(client, "end")
        assert await publisher.replies("s.1") == {"s": 1, "o": 1}
        assert await publisher.replies("s.1", Nats_Expected_Stream="s") == {"s": 2}
        assert await publisher.replies("s.1", Nats_Expected_Stream="o") == {"o": 2}
        # `o` does not have this subject, so nobody else would answer.
        assert await publisher.replies("s.2", Nats_Expected_Stream="o") == {"s": 10060}
        assert await publisher.replies("s.1", Nats_Expected_Stream="x") == {"s": 10060, "o": 10060}
        # The other stream neither stores it nor has an opinion on the rest of its headers.
        asked = {"Nats_Expected_Stream": "s", "Nats_Expected_Last_Sequence": "2"}
        assert await publisher.replies("s.1", **asked) == {"s": 3}
        node.call("POST", "/v1/streams/o/pause")
        assert set(await publisher.replies("s.1", Nats_Expected_Stream="s")) == {"s"}
        assert (await publisher.replies("s.1"))["o"] == 20001
        node.call("POST", "/v1/streams/o/resume")
        node.call("PATCH", "/v1/streams/o", {"read_only": True})
        assert set(await publisher.replies("s.1", Nats_Expected_Stream="s")) == {"s"}
        node.call("PATCH", "/v1/streams/o", {"read_only": False})
        # Once the expected stream is gone, the other one says so.
        node.call("DELETE", "/v1/streams/s")
        assert await publisher.replies("s.1", Nats_Expected_Stream="s") == {"o": 10060}

    talking(node, talk)
    assert node.partition("o")["end_offset"] == 2


def test_streams_of_one_queue_group_do_not_rely_on_each_other(node: Node) -> None:
    """NATS gives a message to one of them, so it must answer."""
    node.create("g1", "g.>", group="workers")
    node.create("g2", "g.a", group="workers")
    node.create("end2", "end2")

    async def talk(client: Client) -> None:
        publisher = Publisher(client, "end2")
        for _ in range(20):
            found = await publisher.replies("g.a", Nats_Expected_Stream="g1")
            assert len(found) == 1, found
            assert "g1" in found or found == {"g2": 10060}

    talking(node, talk)
    assert node.call("GET", "/v1/streams/g1")["overlaps"] == []


def test_an_audit_stream_stores_everything_and_never_answers(node: Node) -> None:
    node.create("orders", "shop.orders")
    made = node.create("audit", "shop.>", acks=False, message_bytes_max=100)
    assert made["config"]["acks"] is False
    assert made["overlaps"] == [{"name": "orders", "subject": "shop.orders", "acks": True}]
    node.create("end3", "end3")

    async def talk(client: Client) -> None:
        publisher = Publisher(client, "end3")
        assert await publisher.replies("shop.orders") == {"orders": 1}
        assert await publisher.replies("shop.orders", Nats_Expected_Stream="orders") == {
            "orders": 2
        }
        seq = {"Nats_Expected_Last_Sequence": "2"}
        assert await publisher.replies("shop.orders", **seq) == {"orders": 3}
        # Refused there by its header, and stored here: it was published.
        assert await publisher.replies("shop.orders", Nats_Incr="1") == {"orders": 20004}
        assert await publisher.replies("shop.orders", b"x" * 200) == {"orders": 4}
        assert await publisher.replies("shop.else") == {}
        assert node.partition("audit")["end_offset"] == 5
        node.call("POST", "/v1/streams/audit/pause")
        assert await publisher.replies("shop.orders") == {"orders": 5}
        node.call("POST", "/v1/streams/audit/resume")
        node.call("PATCH", "/v1/streams/audit", {"acks": True})
        assert await publisher.replies("shop.orders") == {"orders": 6, "audit": 6}
        node.call("PATCH", "/v1/streams/audit", {"acks": False})
        assert await publisher.replies("shop.orders") == {"orders": 7}

    talking(node, talk)


def test_the_client_takes_the_answer_of_its_stream_only(node: Node) -> None:
    node.create("mine", "both.>")
    node.create("theirs", "both.a")
    node.call("POST", "/v1/streams/theirs/pause")
    with bascule.connect_sync(node.addresses["http"]) as client:
        for number in range(20):
            ack = client.publish("both.a", b"v", stream="mine")
            assert (ack.stream, ack.offset) == ("mine", number)
        acks = client.publish_many([("both.a", b"v")] * 300, stream="mine")
        assert {ack.stream for ack in acks} == {"mine"}
    node.call("POST", "/v1/streams/theirs/resume")
    overlap: Any = node.call("GET", "/v1/streams/theirs")["overlaps"]
    assert overlap == [{"name": "mine", "subject": "both.>", "acks": True}]
