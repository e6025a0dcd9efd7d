"""Publishes to streams that ack nothing: stored once, and the error says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import bascule
from bascule.errors import AcksNothing
from support.processes import Node, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("node")) as running:
        running.create("quiet", "quiet.>", ack_policy="none")
        running.create("audit", "audit.>", acks=False)
        running.create("loud", "loud.>")
        yield running


def refused(node: Node, publish: Callable[[bascule.Client], Awaitable[Any]]) -> str:
    """The error of a publish."""

    async def run() -> str:
        async with bascule.connect(node.addresses["http"]) as client:
            with pytest.raises(AcksNothing) as caught:
                await publish(client)
            return str(caught.value)

    return asyncio.run(run())


def values(node: Node, stream: str) -> list[bytes | None]:
    with bascule.connect_sync(node.addresses["http"]) as client:
        return [message.value for message in client.read(stream, end="latest")]


def test_one_message_is_stored_once(node: Node) -> None:
    text = refused(node, lambda client: client.publish("quiet.one", b"one"))
    assert "stream quiet acks nothing; add the header `Bascule-Ack: leader`" in text
    assert values(node, "quiet").count(b"one") == 1


def test_many_messages_are_stored_once(node: Node) -> None:
    many = [("quiet.many", b"many") for _ in range(10)]
    text = refused(node, lambda client: client.publish_many(many))
    assert "add the header `Bascule-Ack: leader`" in text
    assert values(node, "quiet").count(b"many") == 10


def test_rows_are_stored_once(node: Node) -> None:
    rows = pa.RecordBatch.from_pydict({"value": [b"row"] * 10})
    text = refused(node, lambda client: client.publish_batches([rows], subject="quiet.rows"))
    assert "add the header `Bascule-Ack: leader`" in text
    assert values(node, "quiet").count(b"row") == 10


@pytest.mark.parametrize("stream", [None, "audit"])
def test_a_stream_that_never_answers_is_to_be_altered(node: Node, stream: str | None) -> None:
    text = refused(node, lambda client: client.publish("audit.a", b"a", stream=stream))
    assert "stream audit acks nothing; `bascule stream alter audit --acks`" in text


def test_a_message_that_wants_no_ack_says_so(node: Node) -> None:
    text = refused(
        node, lambda client: client.publish("loud.a", b"a", headers={"Bascule-Ack": "none"})
    )
    assert "leave out the header `Bascule-Ack: none`" in text
    assert len(values(node, "loud")) == 1


def test_the_header_gets_an_ack(node: Node) -> None:
    async def run() -> bascule.Ack:
        async with bascule.connect(node.addresses["http"]) as client:
            return await client.publish("quiet.b", b"b", headers={"Bascule-Ack": "leader"})

    assert asyncio.run(run()).stream == "quiet"
