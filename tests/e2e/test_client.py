"""The Python client against a real node: what goes in comes out, whatever happens between."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nats
import pyarrow as pa
import pytest

import bascule
from bascule.client import Client, Message, Outgoing, SyncClient
from bascule.errors import (
    Broken,
    Closed,
    Indeterminate,
    InvalidName,
    LimitExceeded,
    NoResponders,
    OffsetOutOfRange,
    PublishRejected,
    StreamConflict,
    UnknownPartition,
    UnknownStream,
)
from bascule.nats_connection.connection import REFUSED_S_MAX
from bascule.record.columns import SCHEMA
from bascule.wire.nats import NatsRefused
from support.processes import NatsServer, Node, running_nats, running_node

Scene = Callable[[Client], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture(scope="module")
def sync_client(node: Node) -> Iterator[SyncClient]:
    with bascule.connect_sync(node.addresses["http"]) as client:
        yield client


names = (f"stream{n}" for n in itertools.count())


@pytest.fixture
def stream(sync_client: SyncClient) -> str:
    """A new stream; it takes `<its name>.>`."""
    name = next(names)
    sync_client.create_stream(name, f"{name}.>", record_headers=["reply"])
    return name


def play(node: Node, scene: Scene, **options: Any) -> None:
    async def run() -> None:
        async with bascule.connect(node.addresses["http"], **options) as client:
            await asyncio.wait_for(scene(client), 60)

    asyncio.run(run())


# Admin


def test_streams_are_made_found_and_deleted(node: Node) -> None:
    async def scene(client: Client) -> None:
        info, created = await client.create_stream("made", "made.*", sync="never")
        assert created
        assert info.definition.config.subject == "made.*"
        again, created = await client.create_stream("made", "made.*", sync="never")
        assert not created
        assert again.definition == info.definition
        assert await client.stream("made") == again
        assert "made" in [s.definition.name for s in await client.streams()]
        with pytest.raises(StreamConflict) as conflict:
            await client.create_stream("made", "other.*", sync="never")
        assert conflict.value.differences == {"subject": ("made.*", "other.*")}
        await client.delete_stream("made")
        for asked in (client.stream("made"), client.delete_stream("made")):
            with pytest.raises(UnknownStream, match="'made'"):
                await asked
        with pytest.raises(InvalidName):
            await client.create_stream("../up", "a")
        assert (await client.node()).client == node.addresses["client"]

    play(node, scene)


def test_where_no_node_is_the_text_says_what_to_do() -> None:
    with pytest.raises(Broken, match="bascule serve"):
        bascule.connect_sync("http://127.0.0.1:9")


def test_a_client_that_is_not_open_says_so(node: Node) -> None:
    async def scene() -> None:
        client = bascule.connect(node.addresses["http"])
        with pytest.raises(Closed, match="async with"):
            await client.streams()
        async with client:
            await client.streams()
        with pytest.raises(Closed):
            await client.publish("a", b"")

    asyncio.run(scene())


# Publishing and reading back

CONTENT = [
    Outgoing("a", b""),
    Outgoing("a.b", b"text", "key"),
    Outgoing("a", bytes(range(256)), b"\x00\xff key"),
    Outgoing("a", b"x" * 1_000_000),
    Outgoing("a", b"\r\n\r\nPUB evil 0\r\n\r\n", "", {"A": "1", "b": "ä", "empty": ""}),
    Outgoing("a", b"v", None, [("A", "1"), ("A", b"2"), ("reply", "mine")]),
    Outgoing("ü.ä", b"subject that is not ASCII"),
]


def assert_is(message: Message, out: Outgoing, stream: str) -> None:
    assert message.subject == f"{stream}.{out.subject}"
    assert message.value == out.value
    assert message.key == (out.key.encode() if isinstance(out.key, str) else out.key)
    given = out.headers.items() if isinstance(out.headers, dict) else out.headers or ()
    expected = [(k, v.encode() if isinstance(v, str) else v) for k, v in given]
    assert list(message.headers) == expected


def test_every_content_comes_back_as_it_went(node: Node, stream: str) -> None:
    async def scene(client: Client) -> None:
        out = [o._replace(subject=f"{stream}.{o.subject}") for o in CONTENT]
        for n, o in enumerate(out):
            ack = await client.publish(o.subject, o.value, key=o.key, headers=o.headers)
            assert ack == (stream, n + 1, n, 0, 1, True, False)
        acks = await client.publish_many(out)
        assert list(acks.offsets) == list(range(len(out), 2 * len(out)))
        for o in out:
            await client.publish_nowait(o.subject, o.value, key=o.key, headers=o.headers)
        await client.flush()
        node.wait_stored(stream, 3 * len(out))
        messages = [m async for m in client.read(stream)]
        assert [m.offset for m in messages] == list(range(3 * len(out)))
        for message, o in zip(messages, CONTENT * 3, strict=True):
            assert_is(message, o, stream)
        assert all(m.reply for m in messages[: 2 * len(out)])
        assert not any(m.reply for m in messages[2 * len(out) :])
        stamps = [m.timestamp for m in messages]
        assert stamps == sorted(stamps)
        assert abs(stamps[0] - datetime.now(UTC)) < timedelta(minutes=5)

    play(node, scene)


def test_a_js_publish_of_another_client_is_read(node: Node, stream: str) -> None:
    async def scene(client: Client) -> None:
        other = await nats.connect(node.addresses["nats"])
        ack = await other.jetstream().publish(f"{stream}.js", b"\x00js", headers={"A": "1"})
        assert (ack.stream, ack.seq) == (stream, 1)
        await other.close()
        (message,) = [m async for m in client.read(stream)]
        assert message.value == b"\x00js"
        assert message.header("A") == b"1"

    play(node, scene)


def test_publish_many_keeps_order_through_a_small_window(node: Node, stream: str) -> None:
    seen: list[int] = []

    async def source() -> AsyncIterator[tuple[str, bytes]]:
        for n in range(3_000):
            if n % 1_000 == 500:
                await asyncio.sleep(0.01)
            yield f"{stream}.{n % 3}", b"%d" % n

    async def scene(client: Client) -> None:
        one, two = await asyncio.gather(
            client.publish_many(source(), window=7, on_progress=seen.append),
            client.publish_many(((f"{stream}.two", b"") for _ in range(500)), window=100),
        )
        assert (len(one), len(two)) == (3_000, 500)
        assert sorted((*one.offsets, *two.offsets)) == list(range(3_500))
        assert list(one.offsets) == sorted(one.offsets)
        assert all(ack.stream == stream and ack.synced for ack in one)
        assert seen[-1] == 3_000
        assert seen == sorted(seen)
        values = [m.value async for m in client.read(stream) if m.subject != f"{stream}.two"]
        assert values == [b"%d" % n for n in range(3_000)]

    play(node, scene)


def test_an_empty_publish_many_is_nothing(node: Node) -> None:
    async def scene(client: Client) -> None:
        assert len(await client.publish_many([])) == 0

    play(node, scene)


def test_many_single_publishes_at_once(node: Node, stream: str) -> None:
    async def scene(client: Client) -> None:
        acks = await asyncio.gather(*(client.publish(f"{stream}.x", b"%d" % n) for n in range(500)))
        assert sorted(ack.offset for ack in acks) == list(range(500))

    play(node, scene)


def test_the_ack_of_one_stream_of_several_may_be_asked_for(node: Node, stream: str) -> None:
    async def scene(client: Client) -> None:
        await client.create_stream(f"{stream}too", f"{stream}.*")
        await client.publish(f"{stream}.a.b", b"only the first takes this")
        for name, offset in ((stream, 1), (f"{stream}too", 1)):
            ack = await client.publish(f"{stream}.x", b"", stream=name)
            assert ack.stream == name
            assert ack.offset >= offset - 1
        acks = await client.publish_many([(f"{stream}.x", b"")] * 50, stream=f"{stream}too")
        assert list(acks.offsets) == list(range(2, 52))

    play(node, scene)


def test_refusals_are_told_apart(node: Node, stream: str) -> None:
    async def scene(client: Client) -> None:
        await client.create_stream(f"{stream}small", f"small{stream}", message_bytes_max=1_000)
        with pytest.raises(PublishRejected, match="limit of 1000 bytes"):
            await client.publish(f"small{stream}", bytes(1_001))
        with pytest.raises(PublishRejected) as rejected:
            await client.publish_many([(f"small{stream}", bytes(n)) for n in (1, 2, 2_000)])
        assert any("message 2" in note for note in rejected.value.__notes__)
        with pytest.raises(NoResponders, match="no stream takes"):
            await client.publish(f"nobody{stream}", b"")
        with pytest.raises(NoResponders):
            await client.publish_many([(f"nobody{stream}", b"")] * 10)
        with pytest.raises(LimitExceeded, match="max_payload"):
            await client.publish(f"{stream}.x", bytes(65 << 20))
        with pytest.raises(LimitExceeded, match="max_payload"):
            await client.publish_many([(f"{stream}.x", bytes(65 << 20))])
        for subject in ("", "a b", "a.*", "a\r\nb"):
            with pytest.raises(InvalidName):
                await client.publish(subject, b"")
        assert (await client.publish(f"{stream}.x", b"")).offset == 0

    play(node, scene)


def test_silence_is_indeterminate(node: Node, stream: str) -> None:
    """A subscriber that answers nobody: the publish may or may not have been stored."""

    async def scene(client: Client) -> None:
        other = await nats.connect(node.addresses["nats"])
        await other.subscribe(f"silent{stream}")
        await other.flush()
        with pytest.raises(Indeterminate, match="may or may not be stored"):
            await client.publish(f"silent{stream}", b"", timeout=0.3)
        with pytest.raises(Indeterminate, match="message 0"):
            await client.publish_many([(f"silent{stream}", b"")], timeout=0.3)
        await other.close()

    play(node, scene)


# Reading


def filled(client: SyncClient, stream: str, count: int) -> None:
    client.publish_many((f"{stream}.{n % 5}", b"%d" % n, f"k{n % 3}") for n in range(count))


def offsets(batches: Any) -> list[int]:
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


def test_ranges(sync_client: SyncClient, stream: str) -> None:
    filled(sync_client, stream, 5_000)

    def read(**options: Any) -> list[int]:
        return offsets(sync_client.read_batches(stream, fetch_bytes=20_000, **options))

    assert read() == list(range(5_000))
    assert read(start=1_234, end=1_240) == list(range(1_234, 1_240))
    assert read(start=4_999) == [4_999]
    assert read(start=5_000) == read(start="latest") == read(start=7, end=7) == []
    assert read(end="latest", batch_bytes=1_000) == list(range(5_000))
    assert read(start=10, end=5_000, follow=True) == list(range(10, 5_000))
    for options in ({"start": 5_001}, {"start": -1}, {"end": 5_001}):
        with pytest.raises(OffsetOutOfRange, match=r"\[0, 5000\)"):
            read(**options)
    with pytest.raises(UnknownPartition):
        read(partition=1)
    with pytest.raises(UnknownStream):
        offsets(sync_client.read_batches("nowhere"))


def test_an_empty_stream_reads_as_nothing(sync_client: SyncClient, stream: str) -> None:
    assert list(sync_client.read(stream)) == []


def test_columns_equal_messages(sync_client: SyncClient, stream: str) -> None:
    filled(sync_client, stream, 3_000)
    table = pa.Table.from_batches(sync_client.read_batches(stream, fetch_bytes=30_000))
    assert table.schema == SCHEMA
    for row, message in zip(table.to_pylist(), sync_client.read(stream), strict=True):
        assert row == {
            "offset": message.offset,
            "partition": message.partition,
            "timestamp": message.timestamp,
            "key": message.key,
            "value": message.value,
            "subject": message.subject,
            "headers": [{"key": "reply", "value": (message.reply or "").encode()}],
        }
        assert message.value == b"%d" % message.offset


def test_reading_from_a_time(sync_client: SyncClient, stream: str) -> None:
    for n in range(5):
        sync_client.publish(f"{stream}.x", b"%d" % n)
    messages = list(sync_client.read(stream))
    for at in messages:
        expected = [m.offset for m in messages if m.timestamp >= at.timestamp]
        assert [m.offset for m in sync_client.read(stream, start=at.timestamp)] == expected
    later = messages[-1].timestamp + timedelta(hours=1)
    assert list(sync_client.read(stream, start=later)) == []
    assert len(list(sync_client.read(stream, start=datetime(2020, 1, 1, tzinfo=UTC)))) == 5
    with pytest.raises(ValueError, match="time zone"):
        list(sync_client.read(stream, start=datetime(2020, 1, 1)))  # noqa: DTZ001


def test_following_sees_what_comes(node: Node, stream: str) -> None:
    async def scene(client: Client) -> None:
        await client.publish(f"{stream}.x", b"before")
        seen: list[bytes | None] = []

        async def follow() -> None:
            async for message in client.read(stream, start="latest", follow=True):
                seen.append(message.value)
                if len(seen) == 20:
                    return

        task = asyncio.create_task(follow())
        # Not before the reader has found its place: the stream is empty until then for it.
        while not client._readers:
            await asyncio.sleep(0.01)
        for n in range(20):
            await client.publish(f"{stream}.x", b"%d" % n)
        await asyncio.wait_for(task, 20)
        assert seen == [b"%d" % n for n in range(20)]

    play(node, scene)


def test_a_follower_ends_with_its_task_and_with_its_client(node: Node, stream: str) -> None:
    async def wait_for_ever(client: Client) -> None:
        async for _ in client.read(stream, follow=True):
            raise AssertionError("nothing was published")

    async def scene(client: Client) -> None:
        task = asyncio.create_task(wait_for_ever(client))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        task = asyncio.create_task(wait_for_ever(client))
        await asyncio.sleep(0.3)
        await client.close()
        with pytest.raises(Closed):
            await task

    play(node, scene)


def test_stopping_half_way_leaves_nothing_behind(sync_client: SyncClient, stream: str) -> None:
    filled(sync_client, stream, 2_000)
    for message in sync_client.read(stream):
        if message.offset == 10:
            break
    with sync_client.read_batches(stream, fetch_bytes=5_000) as batches:
        next(batches)
    with pytest.raises(Closed):
        next(batches)


def test_a_stream_deleted_under_its_reader_ends_it(sync_client: SyncClient, stream: str) -> None:
    sync_client.publish(f"{stream}.x", b"")
    reader = sync_client.read_batches(stream, follow=True)
    assert next(reader).num_rows == 1
    sync_client.delete_stream(stream)
    with pytest.raises(UnknownStream):
        next(reader)


# When the world breaks


def test_publishing_survives_a_restart_of_nats(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats") as server,
        running_node(tmp_path / "node", nats=server.url) as node,
    ):

        async def scene(client: Client) -> None:
            await client.create_stream("s", "s.>")
            sent = itertools.count()
            half = asyncio.Event()

            async def source() -> AsyncIterator[tuple[str, bytes]]:
                for n in sent:
                    if n == 4_000:
                        return
                    if n == 2_000:
                        half.set()
                    if n % 100 == 0:
                        await asyncio.sleep(0.01)
                    yield "s.x", b"%d" % n

            run = asyncio.create_task(client.publish_many(source(), window=500))
            await half.wait()
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            acks = await run
            single = await client.publish("s.x", b"after")
            assert len(acks) == 4_000
            stored = {m.offset: m.value async for m in client.read("s")}
            assert all(stored[offset] == b"%d" % n for n, offset in enumerate(acks.offsets))
            assert stored[single.offset] == b"after"

        play(node, scene)


def test_publishing_survives_a_server_that_refuses_at_first(tmp_path: Path) -> None:
    """An embedded server that starts refuses everyone until its node is connected."""
    with (
        running_nats(tmp_path / "nats") as server,
        running_node(tmp_path / "node", nats=server.url) as node,
    ):

        async def scene(client: Client) -> None:
            await client.create_stream("s", "s")
            assert (await client.publish("s", b"before")).offset == 0
            await _restart(server, "--auth", "secret")
            sent = asyncio.create_task(client.publish("s", b"meanwhile", timeout=30))
            await asyncio.sleep(REFUSED_S_MAX / 4)
            await _restart(server)
            assert (await sent).offset == 1

        play(node, scene)


def test_credentials_that_no_longer_count_end_a_client(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats") as server,
        running_node(tmp_path / "node", nats=server.url) as node,
    ):

        async def scene(client: Client) -> None:
            await client.create_stream("s", "s")
            await client.publish("s", b"before")
            await _restart(server, "--auth", "secret")
            with pytest.raises(NatsRefused, match="Authorization Violation"):
                await client.publish("s", b"meanwhile", timeout=30)

        play(node, scene)


async def _restart(server: NatsServer, *options: str) -> None:
    await asyncio.to_thread(server.stop)
    server.options = options
    await asyncio.to_thread(server.start)


def test_publishing_survives_a_killed_node(tmp_path: Path) -> None:
    """NATS stays: it answers for the node that is gone that nobody is there."""
    with running_nats(tmp_path / "nats") as server:
        node = Node(tmp_path / "node", server.url, keep_ports=True)
        node.directory.mkdir()
        node.start()

        async def scene(client: Client) -> None:
            await client.create_stream("s", "s.>")
            half = asyncio.Event()

            async def source() -> AsyncIterator[tuple[str, bytes]]:
                for n in range(20_000):
                    if n == 10_000:
                        half.set()
                    if n % 100 == 0:
                        await asyncio.sleep(0.005)
                    yield "s.x", b"%d" % n

            run = asyncio.create_task(client.publish_many(source(), window=2_000))
            await half.wait()
            await asyncio.to_thread(node.stop, 9)
            await asyncio.to_thread(node.start)
            acks = await run
            stored = {m.offset: m.value async for m in client.read("s")}
            assert sorted(stored) == list(range(len(stored)))
            assert all(stored[offset] == b"%d" % n for n, offset in enumerate(acks.offsets))

        try:
            play(node, scene)
        finally:
            node.stop()


def test_reading_survives_a_restart_of_the_node(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as server:
        node = Node(tmp_path / "node", server.url, keep_ports=True)
        node.directory.mkdir()
        node.start()
        try:
            with bascule.connect_sync(node.addresses["http"]) as client:
                client.create_stream("s", "s.>")
                filled(client, "s", 1_000)
                reader = client.read_batches("s", end=2_000, follow=True, fetch_bytes=5_000)
                found = next(reader).column(0).to_pylist()
                node.stop(9)
                node.start()
                filled(client, "s", 1_000)
                found += offsets(reader)
                assert found == list(range(2_000))
        finally:
            node.stop()


# Who may connect


def test_credentials(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats", "--user", "u", "--pass", "p:@w") as server,
        running_node(
            tmp_path / "node", nats=server.url.replace("nats://", "nats://u:p%3A%40w@")
        ) as node,
    ):

        async def scene(client: Client) -> None:
            await client.create_stream("s", "s")
            for options in (
                {"user": "u", "password": "p:@w"},
                {"nats": server.url.replace("nats://", "nats://u:p%3A%40w@")},
                {"nats": f"nats://127.0.0.1:9,{server.url}", "user": "u", "password": "p:@w"},
            ):
                async with bascule.connect(node.addresses["http"], **options) as other:
                    assert (await other.publish("s", b"")).stream == "s"
            for options in ({}, {"user": "u", "password": "wrong"}, {"token": "t"}):
                async with bascule.connect(node.addresses["http"], **options) as other:
                    with pytest.raises(NatsRefused, match="Authorization Violation"):
                        await other.publish("s", b"")
            async with bascule.connect(node.addresses["http"], nats="nats://127.0.0.1:9") as other:
                with pytest.raises(Broken, match="cannot connect to NATS"):
                    await other.publish("s", b"")

        play(node, scene)


def test_tls(tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            "-keyout", key, "-out", certificate, "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost",
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    tls = ("--tls", "--tlscert", certificate, "--tlskey", key)
    with running_nats(tmp_path / "nats", *tls) as server:
        url = f"tls://localhost:{server.port}"
        trust = {"BASCULE_NATS_TLS_CA": certificate}
        with running_node(tmp_path / "node", nats=url, environment=trust) as node:

            async def scene(client: Client) -> None:
                await client.create_stream("s", "s")
                acks = await client.publish_many([("s", bytes(10_000))] * 200)
                assert list(acks.offsets) == list(range(200))
                async with bascule.connect(node.addresses["http"], nats=url) as other:
                    with pytest.raises(Broken, match="certificate verify failed"):
                        await other.publish("s", b"")

            context = ssl.create_default_context(cafile=certificate)
            play(node, scene, nats=url, tls=context)
