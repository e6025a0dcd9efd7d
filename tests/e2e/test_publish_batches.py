"""Arrow batches published to a real node: every row once, whatever happens between."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import bascule
from bascule.client import SyncClient
from bascule.errors import (
    Broken,
    ColumnMismatch,
    ConfigError,
    Indeterminate,
    NoResponders,
    PublishRejected,
    RowRefused,
)
from support.processes import Node, running_nats, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[SyncClient]:
    with bascule.connect_sync(node.addresses["http"]) as client:
        yield client


names = (f"rows{n}" for n in itertools.count())


@pytest.fixture
def stream(client: SyncClient) -> str:
    """A new stream; it takes `<its name>.>`."""
    name = next(names)
    client.create_stream(name, f"{name}.>", sync="interval")
    return name


def batches(stream: str, count: int, *, rows: int = 1_000) -> Iterator[pa.RecordBatch]:
    for first in range(0, count, rows):
        numbers = range(first, min(first + rows, count))
        yield pa.RecordBatch.from_pydict(
            {
                "subject": [f"{stream}.{n % 7}" for n in numbers],
                "key": [b"k%d" % (n % 5) for n in numbers],
                "value": [None if n % 11 == 0 else b"%d" % n for n in numbers],
                "headers": pa.array(
                    [[("H", "x")] if n % 3 else None for n in numbers],
                    pa.map_(pa.string(), pa.string()),
                ),
            }
        )


def check(client: SyncClient, stream: str, count: int, *, ordered: bool = True) -> None:
    """The stream holds the rows of `batches`, each once, and in order unless some were sent again
    when later ones had arrived.
    """
    messages = list(client.read(stream))
    assert len(messages) == count
    if not ordered:
        found = Counter((m.subject, m.key, m.value) for m in messages)
        columns = [batch.to_pydict() for batch in batches(stream, count)]
        rows = (
            row for c in columns for row in zip(c["subject"], c["key"], c["value"], strict=True)
        )
        assert found == Counter(rows)
        return
    for n, message in enumerate(messages):
        assert message.subject == f"{stream}.{n % 7}"
        assert message.key == b"k%d" % (n % 5)
        assert message.value == (None if n % 11 == 0 else b"%d" % n)
        assert message.header("H") == (b"x" if n % 3 else None)


def test_what_goes_in_comes_out(client: SyncClient, stream: str) -> None:
    published = client.publish_batches(batches(stream, 5_500), stream=stream)
    assert (published.messages, published.duplicates) == (5_500, 0)
    (span,) = published.spans
    assert (span.stream, span.partition) == (stream, 0)
    assert (span.messages, span.start_offset, span.end_offset) == (5_500, 0, 5_500)
    check(client, stream, 5_500)


def test_the_asynchronous_face(node: Node, client: SyncClient, stream: str) -> None:
    async def go() -> None:
        async def more() -> AsyncIterator[pa.RecordBatch]:
            for batch in batches(stream, 2_500):
                yield batch

        told: list[int] = []
        async with bascule.connect(node.addresses["http"]) as client:
            published = await client.publish_batches(more(), on_progress=told.append)
            assert published.messages == told[-1] == 2_500
            assert (await client.publish_batches([])).messages == 0

    asyncio.run(go())
    check(client, stream, 2_500)


def test_published_again_stores_nothing_twice(client: SyncClient, stream: str) -> None:
    first = client.publish_batches(batches(stream, 3_000), message_ids="load-1.")
    again = client.publish_batches(batches(stream, 3_000, rows=777), message_ids="load-1.")
    assert (first.duplicates, again.duplicates) == (0, 3_000)
    assert again.spans[0].end_offset == 3_000
    check(client, stream, 3_000)
    other = client.publish_batches(batches(stream, 10), message_ids="load-2.")
    assert (other.duplicates, other.spans[0].start_offset) == (0, 3_000)


def test_what_was_read_is_published_as_it_is(client: SyncClient, stream: str) -> None:
    client.publish_batches(batches(stream, 1_000))
    copy = f"{stream}-copy"
    client.create_stream(copy, f"{copy}.>")
    client.publish_batches(client.read_batches(stream), subject=f"{copy}.all", stream=copy)
    pairs = zip(client.read(stream), client.read(copy), strict=True)
    assert all((a.key, a.value) == (b.key, b.value) for a, b in pairs)


def test_partitions_are_told_apart(client: SyncClient) -> None:
    name = next(names)
    client.create_stream(name, f"{name}.>", partitions=3, partition_by="key")
    published = client.publish_batches(batches(name, 1_000), stream=name)
    held = {p.partition: p.high_watermark for p in client.stream(name).partitions}
    assert {span.partition: span.messages for span in published.spans} == {
        partition: count for partition, count in held.items() if count
    }
    assert sum(held.values()) == 1_000


def test_large_messages_wait_for_their_acks(client: SyncClient, stream: str) -> None:
    """More bytes than may be without ack, and rows larger than a chunk."""
    value = pa.array([b"x" * 900_000] * 60)
    batch = pa.RecordBatch.from_arrays([value], names=["value"])
    published = client.publish_batches([batch], subject=f"{stream}.big", stream=stream)
    assert published.messages == 60
    assert [len(m.value or b"") for m in client.read(stream)] == [900_000] * 60


def test_a_bad_row_is_told_and_the_rows_before_it_are_there(
    client: SyncClient, stream: str
) -> None:
    good = next(batches(stream, 1_500, rows=1_500))
    bad = good.set_column(
        0, "subject", pa.array([*good.column(0).to_pylist()[:1_400], *["elsewhere"] * 100])
    )
    with client.batch_publisher(stream=stream) as out:
        out.send(good)
        with pytest.raises(RowRefused, match=f"takes subjects '{stream}.>' only") as caught:
            out.send(bad)
        assert caught.value.row == out.failed_row == 2_900
        assert out.failed_subject == "elsewhere"
    with pytest.raises(ColumnMismatch, match="column 'value'"):
        client.publish_batches([good.drop_columns("value")])
    with pytest.raises(ConfigError, match="does not match the stream's subject"):
        client.publish_batches([good], stream=stream, subject="elsewhere")


def test_a_refused_row_is_named(client: SyncClient) -> None:
    name = next(names)
    client.create_stream(name, f"{name}.>", message_bytes_max=1_000)
    batch = pa.RecordBatch.from_pydict(
        {"value": [b"x" * (2_000 if n >= 7 else 1) for n in range(20)]}
    )
    with client.batch_publisher(subject=f"{name}.a") as out:
        with pytest.raises(PublishRejected) as caught:
            out.send(batch)
            out.finish()
        assert out.failed_row == 7
        assert "message 7" in caught.value.__notes__[0]
    with pytest.raises(NoResponders):
        client.publish_batches([batch], subject="nobody.takes.this")


def test_restarts_of_the_nats_server_lose_and_repeat_nothing(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as server, running_node(tmp_path, nats=server.url) as node:
        node.create("rows", "rows.>")
        with bascule.connect_sync(node.addresses["http"]) as client:
            with client.batch_publisher(message_ids="x.", stream="rows", window=2_000) as out:
                for number, batch in enumerate(batches("rows", 40_000)):
                    out.send(batch)
                    if number in (7, 23):
                        server.stop(signal.SIGKILL)
                        server.start()
                published = out.finish()
            assert published.messages == 40_000
            assert published.spans[0].end_offset == 40_000
            messages = sorted(int(m.value) for m in client.read("rows") if m.value is not None)
            assert messages == [n for n in range(40_000) if n % 11]


def test_a_node_that_is_away_is_waited_for(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as server, running_node(tmp_path, nats=server.url) as node:
        node.create("rows", "rows.>")
        with bascule.connect_sync(node.addresses["http"]) as client:
            with client.batch_publisher(message_ids="x.", stream="rows") as out:
                node.stop(signal.SIGKILL)
                back = threading.Timer(1.5, node.start)
                back.start()
                for batch in batches("rows", 3_000):
                    out.send(batch)
                assert out.finish().messages == 3_000
                back.join()
            node.stop(signal.SIGKILL)
            with pytest.raises((NoResponders, Indeterminate, Broken)):
                client.publish_batches(batches("rows", 10), timeout=0.5)
            node.start()
        with bascule.connect_sync(node.addresses["http"]) as client:
            check(client, "rows", 3_000, ordered=False)
