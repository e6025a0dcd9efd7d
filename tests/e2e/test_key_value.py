"""NATS's own key-value client, unchanged, against real nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import ConsumerConfig, DeliverPolicy, KeyValueConfig
from nats.js.errors import (
    APIError,
    BucketNotFoundError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NoKeysError,
)
from nats.js.kv import KeyValue

import bascule
from support.clusters import RunningCluster, running_cluster
from support.ports import reserve_ports
from support.processes import Node, running_nats, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("key-value")) as node:
        yield node


@asynccontextmanager
async def connected(node: Node) -> AsyncIterator[Any]:
    client = await nats.connect(node.addresses["nats"])
    try:
        yield client
    finally:
        await client.close()


async def until(look: Callable[[], Awaitable[Any]], seconds: float = 20.0) -> Any:
    """What `look` returns once it returns something, errors of the client taken for nothing."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            if found := await look():
                return found
        except (nats.errors.Error, nats.js.errors.Error):
            if asyncio.get_running_loop().time() > deadline:
                raise
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.1)


def test_a_node_that_is_ready_serves_key_value_clients(tmp_path: Path) -> None:
    """The first request had no responders where the node was not subscribed to it yet."""

    async def create(number: int) -> None:
        async with connected(node) as client:
            await client.jetstream().create_key_value(KeyValueConfig(bucket=f"b{number}"))

    for number in range(3):
        with running_node(tmp_path) as node:
            asyncio.run(create(number))


def test_a_bucket_from_its_creation_to_its_deletion(node: Node) -> None:
    async def test() -> None:
        async with connected(node) as client:
            js = client.jetstream()
            with pytest.raises(BucketNotFoundError):
                await js.key_value("life")
            bucket = await js.create_key_value(KeyValueConfig(bucket="life"))
            await js.create_key_value(KeyValueConfig(bucket="life"))
            with pytest.raises(NoKeysError):
                await bucket.keys()
            first = await bucket.put("user.1", b"one")
            entry = await bucket.get("user.1")
            assert (entry.value, entry.revision) == (b"one", first)
            assert (await bucket.get("user.1", revision=first)).value == b"one"
            with pytest.raises(KeyWrongLastSequenceError):
                await bucket.create("user.1", b"x")
            second = await bucket.update("user.1", b"two", last=first)
            with pytest.raises(KeyWrongLastSequenceError, match=str(second)):
                await bucket.update("user.1", b"x", last=first)
            await bucket.delete("user.1")
            with pytest.raises(KeyNotFoundError):
                await bucket.get("user.1")
            await bucket.create("user.1", b"three")
            await bucket.put("user.2", b"")
            await bucket.purge("user.2")
            await bucket.put("other", b"4")
            assert sorted(await bucket.keys()) == ["other", "user.1"]
            history = await bucket.history("user.1")
            assert [each.value for each in history] == [b"three"]
            await bucket.purge_deletes(olderthan=-1)
            status = await (await js.key_value("life")).status()
            assert (status.bucket, status.values, status.history) == ("life", 2, 1)
            assert "KV_life" in [each.config.name for each in await js.streams_info()]
            assert await js.find_stream_name_by_subject("$KV.life.x") == "KV_life"
            assert (await js.account_info()).streams >= 1
            await js.delete_key_value("life")
            with pytest.raises(BucketNotFoundError):
                await js.key_value("life")

    asyncio.run(test())


def test_watchers_see_the_state_and_then_each_change(node: Node) -> None:
    async def test() -> None:
        async with connected(node) as client:
            js = client.jetstream()
            bucket = await js.create_key_value(KeyValueConfig(bucket="watched"))
            await bucket.put("a.2", b"1")
            await bucket.put("a.1", b"1")
            await bucket.put("b", b"1")
            watcher = await bucket.watch("a.*")
            seen = [await watcher.updates() for _ in range(3)]
            assert [each and (each.key, each.delta) for each in seen] == [
                ("a.2", 1),
                ("a.1", 0),
                None,
            ]
            await bucket.put("b", b"2")
            await bucket.put("a.3", b"x")
            await bucket.delete("a.2")
            changes = [await watcher.updates() for _ in range(2)]
            assert [(each.key, each.value, each.operation) for each in changes] == [
                ("a.3", b"x", None),
                ("a.2", b"", "DEL"),
            ]
            consumers = await js.consumers_info("KV_watched")
            assert [each.delivered.consumer_seq for each in consumers] == [4]
            await watcher.stop()

            async def is_gone() -> bool:
                return not await js.consumers_info("KV_watched")

            await until(is_gone)

    asyncio.run(test())


def test_an_escaped_wildcard_is_a_part_of_a_key(node: Node) -> None:
    """The watcher of one key saw all others, too."""
    keys = ["*", "a*b", "other", "q.>", "q.z", "a b"]

    async def test() -> None:
        async with (
            connected(node) as client,
            bascule.connect(node.addresses["http"]) as opened,
        ):
            await opened.create_table("starred")
            for key in keys:
                await opened.table("starred").set(key, b"v")
            bucket = await client.jetstream().key_value("starred")
            for pattern, expected in (
                ("%2A", ["%2A"]),
                ("a%2Ab", ["a%2Ab"]),
                ("q.%3E", ["q.%3E"]),
                ("q.*", ["q.%3E", "q.z"]),
                ("a%20b", ["a%20b"]),
            ):
                watcher = await bucket.watch(pattern)
                found = []
                while (each := await watcher.updates()) is not None:
                    found.append(each.key)
                assert found == expected, pattern
                await watcher.stop()
            with pytest.raises(APIError, match="expected a%2Ab"):
                await bucket.watch("a%2ab")

    asyncio.run(test())


def test_a_watcher_whose_client_is_gone_ends(node: Node) -> None:
    async def test() -> None:
        async with connected(node) as client:
            js = client.jetstream()
            bucket = await js.create_key_value(KeyValueConfig(bucket="left"))
            other = await nats.connect(node.addresses["nats"])
            watched = await other.jetstream().key_value("left")
            watcher = await watched.watchall()
            assert await watcher.updates() is None
            await bucket.put("a", b"1")
            assert len(await js.consumers_info("KV_left")) == 1
            other._transport.close()
            await other.close()

            async def is_gone() -> bool:
                return not await js.consumers_info("KV_left")

            await until(is_gone)

    asyncio.run(test())


def test_a_slow_watcher_is_waited_for_and_sees_the_newest_values(node: Node) -> None:
    """It gives no sign that it has read, so nothing is sent beyond a window."""

    async def test() -> None:
        async with connected(node) as client:
            js = client.jetstream()
            bucket = await js.create_key_value(KeyValueConfig(bucket="slow"))
            inbox = client.new_inbox()
            received: list[Any] = []
            asked: list[str] = []

            async def take(message: Any) -> None:
                if message.headers and "FlowControl" in str(message.headers):
                    asked.append(message.reply)
                elif not message.headers:
                    received.append(message)

            await client.subscribe(inbox, cb=take)
            config = {
                "deliver_subject": inbox,
                "deliver_policy": "last_per_subject",
                "ack_policy": "none",
                "filter_subject": "$KV.slow.>",
                "flow_control": True,
                "idle_heartbeat": 5_000_000_000,
            }
            body = json.dumps({"stream_name": "KV_slow", "config": config}).encode()
            answer = await client.request("$JS.API.CONSUMER.CREATE.KV_slow.one", body)
            assert "error" not in json.loads(answer.data)
            value = bytes(100_000)
            for n in range(60):
                await bucket.put("k", b"%d " % n + value)
            await bucket.put("end", b"")

            async def is_asked() -> bool:
                return bool(asked)

            await until(is_asked)
            before = len(received)
            assert before < 30

            async def has_the_end() -> bool:
                while asked:
                    await client.publish(asked.pop(), b"")
                return any(each.subject == "$KV.slow.end" for each in received)

            await until(has_the_end)
            keys = [each for each in received if each.subject == "$KV.slow.k"]
            assert keys[-1].data.startswith(b"59 ")
            sequences = [int(each.reply.split(".")[5]) for each in received]
            assert sequences == sorted(set(sequences))

    asyncio.run(test())


@pytest.mark.parametrize(
    ("subject", "body", "text"),
    [
        ("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["o"]}, "is no bucket"),
        ("STREAM.CREATE.KV_h", {"max_msgs_per_subject": 5}, "history of 5"),
        ("STREAM.CREATE.KV_h", {"num_replicas": 3}, "replicas"),
        ("STREAM.CREATE.KV_refusing", {"max_msg_size": 7_000}, "refusing"),
        ("STREAM.UPDATE.KV_none", {}, "stream not found"),
        ("STREAM.UPDATE.KV_refusing", {"max_msgs_per_subject": 2}, "history of 2"),
        ("STREAM.UPDATE.KV_refusing", {"num_replicas": 99}, "replicas"),
        ("STREAM.PURGE.KV_refusing", {}, "bascule stream purge"),
        ("STREAM.INFO.KV_none", {}, "stream not found"),
        ("STREAM.MSG.GET.KV_refusing", {"last_by_subj": "$KV.refusing.x"}, "no message found"),
        ("STREAM.MSG.GET.KV_refusing", {}, "last_by_subj or seq"),
        ("CONSUMER.DURABLE.CREATE.KV_refusing.d", {}, "durable"),
        ("CONSUMER.CREATE.KV_refusing.p", {"config": {"ack_policy": "none"}}, "pull consumers"),
        (
            "CONSUMER.CREATE.KV_refusing.p",
            {"config": {"deliver_subject": "d", "filter_subject": "$KV.refusing.a*"}},
            "wildcard",
        ),
        (
            "CONSUMER.CREATE.KV_refusing.p",
            {"config": {"deliver_subject": "d 2\r\nPUB x 0\r\n"}},
            "subject",
        ),
        (
            "CONSUMER.CREATE.KV_refusing",
            {"config": {"deliver_subject": "d", "name": "a b"}},
            "subject",
        ),
        ("CONSUMER.CREATE.KV_refusing.p", {"config": {"idle_heartbeat": "x"}}, "not valid"),
        ("CONSUMER.CREATE.KV_refusing.p", {"config": 7}, "not valid"),
        ("CONSUMER.CREATE.KV_refusing.p", {}, "not valid"),
        ("STREAM.CREATE.KV_x", {"duplicate_window": "x"}, "not valid"),
        ("STREAM.CREATE.KV_x", {"num_replicas": 99}, "replicas"),
        ("STREAM.CREATE.KV_x", {"max_msg_size": 1 << 60}, "message_bytes_max"),
        ("STREAM.LIST", {"offset": -1}, "not valid"),
        ("STREAM.MSG.GET.KV_refusing", {"seq": -1}, "not valid"),
        ("STREAM.MSG.GET.KV_refusing", {"seq": 1 << 62}, "no message found"),
        ("STREAM.MSG.GET.KV_refusing", {"last_by_subj": "a\r\nb"}, "expected $KV.refusing.>"),
        ("STREAM.PURGE.KV_refusing", {"filter": "$KV.refusing.>"}, "found > in the subject"),
        ("CONSUMER.INFO.KV_refusing.none", {}, "consumer not found"),
        ("META.LEADER.STEPDOWN", {}, "not all of JetStream"),
    ],
)
def test_requests_that_are_not_served_say_why(
    node: Node, subject: str, body: dict[str, Any], text: str
) -> None:
    async def test() -> None:
        async with connected(node) as client:
            await client.jetstream().create_key_value(KeyValueConfig(bucket="refusing"))
            answer = await client.request(
                f"$JS.API.{subject}", json.dumps(body).encode(), timeout=5
            )
            error = json.loads(answer.data)["error"]
            assert text in error["description"]
            assert error["err_code"] > 10_000

    asyncio.run(test())


def test_a_bucket_is_a_table(node: Node) -> None:
    async def test() -> None:
        async with connected(node) as client, bascule.connect(node.addresses["http"]) as ours:
            bucket = await client.jetstream().create_key_value(KeyValueConfig(bucket="both"))
            revision = await bucket.put("a.b", b"1")
            table = ours.table("both", consistency="linearizable")
            found = await table.get("a.b")
            assert found is not None
            assert (found.value, found.version + 1) == (b"1", revision)
            await table.set(b"two words", b"2")
            assert sorted(await bucket.keys()) == ["a.b", "two%20words"]

    asyncio.run(test())


def test_without_leafnodes_all_but_watching_is_served(tmp_path: Path) -> None:
    async def test(node: Node, *, watches: bool) -> None:
        async with connected(node) as client:
            bucket = await client.jetstream().create_key_value(KeyValueConfig(bucket="b"))
            await bucket.put("a", b"1")
            assert (await bucket.get("a")).value == b"1"
            if watches:
                assert await bucket.keys() == ["a"]
            else:
                with pytest.raises(APIError, match=r"nats\.leaf_url"):
                    await bucket.keys()

    with (
        running_nats(tmp_path / "nats") as server,
        running_node(tmp_path / "node", nats=server.url) as node,
    ):
        asyncio.run(test(node, watches=False))
    leaf = reserve_ports(1)[0]
    config = tmp_path / "leaf.conf"
    config.write_text(f"leafnodes {{ host: 127.0.0.1, port: {leaf} }}")
    with (
        running_nats(tmp_path / "leaf", "--config", str(config)) as server,
        running_node(
            tmp_path / "other",
            nats=server.url,
            environment={"BASCULE_NATS_LEAF_URL": f"nats://127.0.0.1:{leaf}"},
        ) as node,
    ):
        asyncio.run(test(node, watches=True))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("key-value-cluster")) as cluster:
        yield cluster


def test_every_node_serves_a_bucket_that_one_holds(cluster: RunningCluster) -> None:
    async def test() -> None:
        nodes = list(cluster.nodes.values())
        async with connected(nodes[0]) as client:
            await client.jetstream().create_key_value(KeyValueConfig(bucket="one", replicas=1))
            await (await client.jetstream().key_value("one")).put("a", b"1")
        for node in nodes:
            async with connected(node) as client:
                bucket = await client.jetstream().key_value("one")
                assert (await bucket.get("a")).value == b"1"
                assert await bucket.keys() == ["a"]
                assert await bucket.put("a", b"1") > 1

    asyncio.run(test())


def test_a_bucket_is_written_as_soon_as_it_is_created(cluster: RunningCluster) -> None:
    """The NATS server of the client knows by then that the leader is subscribed."""

    async def test() -> None:
        nodes = list(cluster.nodes.values())
        for number in range(24):
            async with connected(nodes[number % 3]) as client:
                config = KeyValueConfig(bucket=f"new-{number}", replicas=1 + 2 * (number % 2))
                bucket: KeyValue = await client.jetstream().create_key_value(config)
                assert await bucket.put("a", b"1") == 1

    asyncio.run(test())


def test_a_watcher_goes_on_at_once_where_its_replica_moves(cluster: RunningCluster) -> None:
    """The node says so: this client would miss no heartbeat for 20 minutes."""

    async def test() -> None:
        async with connected(cluster.nodes[1]) as client:
            js = client.jetstream()
            bucket: KeyValue = await js.create_key_value(KeyValueConfig(bucket="away", replicas=1))
            watcher = await js.subscribe(
                "$KV.away.>",
                stream="KV_away",
                ordered_consumer=True,
                idle_heartbeat=600.0,
                config=ConsumerConfig(deliver_policy=DeliverPolicy.LAST_PER_SUBJECT),
            )
            revisions: list[int] = []

            async def write(count: int) -> None:
                for n in range(count):
                    key = f"k{len(revisions)}"
                    revision = await until(lambda key=key, n=n: bucket.put(key, b"%d" % n))
                    message = await watcher.next_msg(timeout=60)
                    assert message.subject == f"$KV.away.{key}"
                    assert message.metadata.sequence.stream == revision
                    revisions.append(revision)

            await write(5)
            for _ in range(2):
                (holder,) = cluster.partition("away")["replicas"]
                target = {"replicas": [holder % 3 + 1]}
                call = partial(cluster.alive()[0].call, "POST", "/v1/streams/away/reassign", target)
                await asyncio.to_thread(call)
                await asyncio.to_thread(cluster.wait_removed, holder, "away")
                await write(5)

    asyncio.run(test())


def test_a_watcher_goes_on_when_its_node_is_killed(cluster: RunningCluster) -> None:
    """Each key's newest value is seen, and no version twice."""

    async def test() -> None:
        nodes = cluster.nodes
        async with connected(nodes[1]) as client:
            js = client.jetstream()
            bucket: KeyValue = await js.create_key_value(
                KeyValueConfig(bucket="moving", replicas=3)
            )
            cluster.wait_in_sync("moving")
            watcher = await bucket.watchall()
            assert await watcher.updates() is None
            revisions: dict[str, list[int]] = {}
            values: dict[str, bytes] = {}

            async def follow() -> None:
                async for entry in watcher:
                    if entry is not None:
                        revisions.setdefault(entry.key, []).append(entry.revision)
                        values[entry.key] = entry.value

            following = asyncio.create_task(follow())
            written: dict[str, bytes] = {}

            async def write(count: int) -> None:
                for n in range(count):
                    key, value = f"k{n % 7}", b"%d" % (len(written) * 1_000 + n)

                    async def put(key: str = key, value: bytes = value) -> bool:
                        return await bucket.put(key, value) > 0

                    await until(put, 30)
                    written[key] = value

            await write(50)
            await asyncio.to_thread(nodes[2].stop, 9)
            await asyncio.to_thread(nodes[3].stop, 9)
            await asyncio.to_thread(nodes[3].start)
            await write(50)
            await asyncio.to_thread(nodes[2].start)
            await write(50)

            async def is_same() -> bool:
                return values == written

            await until(is_same, 60)
            for key, found in revisions.items():
                assert found == sorted(set(found)), key
            following.cancel()

    asyncio.run(test())
