"""Reading all partitions of a stream with the Python client, against a real node."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator

import pytest

import bascule
from bascule.client import Client, Message, Outgoing, SyncClient
from bascule.errors import Closed, ConfigError, UnknownPartition
from support.processes import Node, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture(scope="module")
def sync_client(node: Node) -> Iterator[SyncClient]:
    with bascule.connect_sync(node.addresses["http"]) as client:
        yield client


names = (f"stream{n}" for n in itertools.count())


def fill(client: SyncClient, stream: str, *, keys: int = 32, each: int = 10) -> None:
    """A stream of four partitions, of which each has messages; values count from 0."""
    client.create_stream(stream, f"{stream}.*", partitions=4, partition_by="key")
    client.publish_many(keyed(stream, range(keys * each), keys=keys))
    assert all(part.high_watermark for part in client.stream(stream).partitions)


def keyed(stream: str, numbers: range, *, keys: int = 32) -> Iterator[Outgoing]:
    return (Outgoing(f"{stream}.x", b"%d" % n, str(n % keys)) for n in numbers)


def assert_each_in_order(found: list[Message], count: int) -> None:
    assert sorted(int(m.value) for m in found) == list(range(count))
    for partition in range(4):
        offsets = [m.offset for m in found if m.partition == partition]
        assert offsets == list(range(len(offsets)))


def test_a_read_covers_all_partitions(node: Node, sync_client: SyncClient) -> None:
    name = next(names)
    fill(sync_client, name)
    assert_each_in_order(list(sync_client.read(name)), 320)
    with sync_client.read_batches(name) as batches:
        assert sorted(batches.ranges) == [0, 1, 2, 3]
        assert sum(end - start for start, end in batches.ranges.values()) == 320
        assert sum(batch.num_rows for batch in batches) == 320
    one = list(sync_client.read(name, partition=2))
    assert {m.partition for m in one} == {2}
    assert len(one) == sync_client.stream(name).partitions[2].high_watermark

    async def scene() -> None:
        async with bascule.connect(node.addresses["http"]) as client:
            await check(client)

    async def check(client: Client) -> None:
        assert_each_in_order([m async for m in client.read(name)], 320)
        rows = [batch.num_rows async for batch in client.read_batches(name, order="timestamp")]
        assert sum(rows) == 320
        assert [m async for m in client.read(name, start="latest")] == []

    asyncio.run(scene())


def test_partitions_are_merged_by_timestamp(sync_client: SyncClient) -> None:
    name = next(names)
    fill(sync_client, name)
    found = list(sync_client.read(name, order="timestamp"))
    assert_each_in_order(found, 320)
    stamps = [m.timestamp_ms for m in found]
    assert stamps == sorted(stamps)
    middle = found[160].timestamp
    later = list(sync_client.read(name, start=middle, order="timestamp"))
    assert len(later) == sum(m.timestamp >= middle for m in found)
    with pytest.raises(ValueError, match="expected partition or timestamp"):
        sync_client.read_batches(name, order="time")  # type: ignore[arg-type]


def test_an_offset_needs_a_partition_if_there_are_several(
    node: Node, sync_client: SyncClient
) -> None:
    name = next(names)
    fill(sync_client, name)
    for asked in ({"start": 3}, {"end": 5}):
        with pytest.raises(ConfigError, match="has 4 partitions, each with its own offsets"):
            list(sync_client.read(name, **asked))  # type: ignore[arg-type]
    with (
        pytest.raises(ConfigError, match="has 4 partitions, each with its own offsets"),
        sync_client.consume(name, "billing", start=3),
    ):
        pass
    assert [m.offset for m in sync_client.read(name, start=3, end=5, partition=1)] == [3, 4]
    with pytest.raises(UnknownPartition):
        sync_client.read_batches(name, partition=4)


def test_a_followed_stream_includes_added_partitions(
    node: Node, sync_client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bascule.client.stream_reader.reader.CHECK_SECONDS", 0.1)
    name = next(names)
    fill(sync_client, name)
    messages = sync_client.read(name, follow=True, order="timestamp")
    found = [next(messages) for _ in range(320)]
    stamps = [m.timestamp_ms for m in found]
    assert stamps == sorted(stamps)
    sync_client.publish_many(keyed(name, range(320, 400)))
    found += [next(messages) for _ in range(80)]
    assert_each_in_order(found, 400)
    sync_client.alter_stream(name, partitions=16)
    sync_client.publish_many(keyed(name, range(400, 480), keys=1_000))
    added = [next(messages) for _ in range(80)]
    assert sorted(int(m.value) for m in added) == list(range(400, 480))
    assert {m.partition for m in added} & set(range(4, 16))
    messages.close()
    for thread in threading.enumerate():
        if thread.name.startswith("bascule-follow"):
            thread.join(30)
            assert not thread.is_alive()


def test_closing_ends_a_followed_stream(node: Node, sync_client: SyncClient) -> None:
    name = next(names)
    fill(sync_client, name, each=1)
    with sync_client.read_batches(name, follow=True) as batches:
        rows = 0
        while rows < 32:
            rows += next(batches).num_rows
        assert rows == 32
        threading.Timer(0.2, batches.close).start()
        with pytest.raises(Closed):
            next(batches)
        with pytest.raises(Closed):
            next(batches)

    async def scene() -> None:
        async with bascule.connect(node.addresses["http"]) as client:
            await check(client)

    async def check(client: Client) -> None:
        values: list[bytes | None] = []
        async with asyncio.timeout(30):
            async for message in client.read(name, follow=True):
                values.append(message.value)
                if len(values) == 32:
                    await client.publish(f"{name}.x", b"last")
                if len(values) == 33:
                    break
        assert values[-1] == b"last"

    asyncio.run(scene())
