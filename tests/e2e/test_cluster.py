"""Three nodes: what publishers were told is stored survives the loss of any of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import pytest

import bascule
from support.clusters import RunningCluster, running_cluster
from support.ids_published import IdsPublished, check_published
from support.processes import WAIT_SECONDS_MAX, NatsServer, Node, wait_for

pytestmark = pytest.mark.tier3

ROUNDS = 3
"""Of kills; `--rounds=50` makes more."""


def test_a_leader_is_killed_and_every_ack_is_kept(cluster: RunningCluster) -> None:
    cluster.nodes[1].create("flights", "flights.>", replicas=3)
    before = cluster.leader("flights")
    survivor = next(node for number, node in cluster.nodes.items() if number != before)

    async def scene() -> tuple[list[int], dict[int, bytes]]:
        async with bascule.connect(survivor.addresses["http"]) as client:
            half = asyncio.Event()

            async def source():
                for n in range(20_000):
                    if n == 5_000:
                        half.set()
                    if n % 50 == 0:
                        await asyncio.sleep(0.005)
                    yield f"flights.{n % 7}", b"%d" % n, None, {"Nats-Msg-Id": f"m{n}"}

            run = asyncio.create_task(client.publish_many(source(), window=1_000))
            await half.wait()
            await asyncio.to_thread(cluster.nodes[before].stop, signal.SIGKILL)
            acks = await run
            stored = {m.offset: m.value async for m in client.read("flights")}
            return list(acks.offsets), stored

    offsets, stored = asyncio.run(scene())
    assert cluster.leader("flights") != before
    assert len(set(offsets)) == 20_000, "each message has an offset of its own"
    assert {stored[offset] for offset in offsets} == {b"%d" % n for n in range(20_000)}
    assert all(stored[offset] == b"%d" % n for n, offset in enumerate(offsets))


def test_nodes_are_killed_in_turn(
    tmp_path: Path, nats_server: NatsServer, request: pytest.FixtureRequest
) -> None:
    """kill -9 of any node, again and again, under load: none lost, none doubled, replicas equal."""
    rounds = request.config.getoption("--rounds") or ROUNDS
    dice = random.Random(rounds)
    with running_cluster(tmp_path, nats=nats_server.url) as cluster:
        cluster.nodes[1].create("flights", "flights.>", replicas=3)
        every = ",".join(node.addresses["http"] for node in cluster.nodes.values())

        async def scene() -> tuple[list[int], dict[int, bytes]]:
            async with bascule.connect(every) as client:
                published = IdsPublished(client)
                run = asyncio.create_task(published.run())
                for _ in range(rounds):
                    await published.wait_more(300)
                    victim = cluster.nodes[dice.choice(list(cluster.nodes))]
                    await asyncio.to_thread(victim.stop, signal.SIGKILL)
                    await published.wait_more(300)
                    await asyncio.to_thread(victim.start)
                    await asyncio.to_thread(cluster.wait_in_sync, "flights")
                published.stopping = True
                await run
                stored = {m.offset: m.value async for m in client.read("flights")}
                return published.offsets, stored

        offsets, stored = asyncio.run(scene())
        check_published(offsets, stored)
        cluster.stop()
        logs = {cluster.log_bytes(node, "flights") for node in cluster.nodes}
        assert len(logs) == 1, "the replicas differ"


def test_a_leader_that_was_paused_gives_up_what_was_not_committed(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    stays = {"BASCULE_CLUSTER_LEADER_BALANCE_MS": "0"}
    with running_cluster(tmp_path, nats=nats_server.url, environment=stays) as cluster:
        cluster.nodes[1].create("flights", "flights.>", replicas=3)
        every = ",".join(node.addresses["http"] for node in cluster.nodes.values())
        before = cluster.leader("flights")
        paused = cluster.nodes[before]
        assert paused.process is not None

        async def scene() -> tuple[list[int], dict[int, bytes]]:
            assert paused.process is not None
            async with bascule.connect(every) as client:
                published = IdsPublished(client)
                run = asyncio.create_task(published.run())
                await published.wait_more(300)
                paused.process.send_signal(signal.SIGSTOP)
                try:
                    await published.wait_more(1_000)
                finally:
                    paused.process.send_signal(signal.SIGCONT)
                await published.wait_more(300)
                published.stopping = True
                await run
                await asyncio.to_thread(cluster.wait_in_sync, "flights")
                stored = {m.offset: m.value async for m in client.read("flights")}
                return published.offsets, stored

        offsets, stored = asyncio.run(scene())
        assert cluster.leader("flights") != before
        check_published(offsets, stored)
        cluster.stop()
        logs = {cluster.log_bytes(node, "flights") for node in cluster.nodes}
        assert len(logs) == 1, "the replicas differ"


def counted(cluster: RunningCluster, name: str) -> int:
    """The sum of a counter over all nodes."""
    total = 0
    for node in cluster.alive():
        with bascule.connect_sync(node.addresses["http"]) as client:
            lines = re.findall(rf"^bascule_{name}_total (\d+)", client.metrics(), re.MULTILINE)
            total += sum(map(int, lines))
    return total


def test_a_leader_that_is_cut_off_from_its_followers_is_replaced(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    """It answers the pings of the controller meanwhile."""
    with running_cluster(tmp_path, nats=nats_server.url, proxied=True) as cluster:
        cluster.nodes[1].create("flights", "flights.>", replicas=3)
        cluster.wait_in_sync("flights")
        every = ",".join(node.addresses["http"] for node in cluster.nodes.values())

        def wait_for_another(before: int) -> None:
            def look() -> bool | None:
                return True if cluster.partition("flights")["leader"] not in (before, -1) else None

            node = cluster.nodes[before]
            wait_for(look, node.process, node.log)

        async def cut_off(published: IdsPublished) -> None:
            """Cut the leader off until another one leads and acknowledges."""
            before = await asyncio.to_thread(cluster.leader, "flights")
            cluster.proxies[before].cuts_fetches.set()
            try:
                await asyncio.to_thread(wait_for_another, before)
                await published.wait_more(300)
            finally:
                cluster.proxies[before].cuts_fetches.clear()
            await asyncio.to_thread(cluster.wait_in_sync, "flights")

        async def scene() -> tuple[list[int], dict[int, bytes]]:
            async with bascule.connect(every) as client:
                published = IdsPublished(client)
                run = asyncio.create_task(published.run())
                await published.wait_more(300)
                # On a machine that stands still the controller may lose the leader first.
                for _ in range(5):
                    await cut_off(published)
                    if await asyncio.to_thread(counted, cluster, "silent_leaders_replaced"):
                        break
                published.stopping = True
                await run
                stored = {m.offset: m.value async for m in client.read("flights")}
                return published.offsets, stored

        offsets, stored = asyncio.run(scene())
        check_published(offsets, stored)
        assert counted(cluster, "silent_leaders_replaced") >= 1
        assert counted(cluster, "silence_reports") >= 2
        logs = [node.log.read_text() for node in cluster.nodes.values()]
        assert any(" silent leader replaced node=" in text for text in logs)
        cluster.stop()
        assert len({cluster.log_bytes(node, "flights") for node in cluster.nodes}) == 1


def test_metrics_of_replication(cluster: RunningCluster) -> None:
    cluster.nodes[1].create("flights", "flights.>", replicas=3)
    leader = cluster.leader("flights")
    with bascule.connect_sync(cluster.nodes[leader].addresses["http"]) as client:
        client.publish_many([("flights.x", bytes(100))] * 100)
        sent = client.metrics()
    assert re.search(r"^bascule_replica_fetch_sent_bytes_total [1-9]", sent, re.MULTILINE)
    follower = next(node for number, node in cluster.nodes.items() if number != leader)
    with bascule.connect_sync(follower.addresses["http"]) as client:
        received = client.metrics()
    wanted = rf'^bascule_fetcher_received_bytes_total{{leader="{leader}"}} [1-9]'
    assert re.search(wanted, received, re.MULTILINE)


def test_metrics_of_the_cluster(cluster: RunningCluster) -> None:
    """What `bascule cluster status` shows, on each node that is alive."""
    cluster.nodes[1].create("flights", "flights.>", replicas=3)
    cluster.nodes[1].create("strict", "strict.>", replicas=3, min_isr=3)
    cluster.nodes[1].create("single", "single.>", partitions=3, partition_by="subject")
    cluster.wait_in_sync("flights")
    lost = cluster.partition("single")["leader"]
    cluster.nodes[lost].stop(signal.SIGKILL)

    def gauges(node: Node) -> dict[str, float]:
        with bascule.connect_sync(node.addresses["http"]) as client:
            lines = client.metrics().splitlines()
        found = (line.rsplit(" ", 1) for line in lines if line.startswith("bascule_cluster_"))
        return {name.removeprefix("bascule_cluster_"): float(value) for name, value in found}

    for node in cluster.alive():

        def look(node: Node = node) -> bool | None:
            found, info = gauges(node), node.call("GET", "/v1/cluster")
            kinds = ("leaderless", "under_min_isr", "under_replicated", "unclean")
            as_told = {f"{kind}_partitions": len(info[kind]) for kind in kinds}
            as_told["controller"] = info["controller"]
            as_told |= {f'node_alive{{node="{n}"}}': int(n != lost) for n in (1, 2, 3)}
            as_told["version"] = info["cluster_version"]
            as_told |= {
                f'node_version_max{{node="{each["node_id"]}"}}': each["cluster_version_max"]
                for each in info["nodes"]
            }
            is_seen = info["leaderless"] and info["under_min_isr"] and info["under_replicated"]
            return True if is_seen and found.items() >= as_told.items() else None

        wait_for(look, node.process, node.log)


def test_every_change_is_logged_with_its_reason(cluster: RunningCluster) -> None:
    """Of a leader, of an in-sync replica set, and of the controller."""
    config = {"replicas": 3, "partitions": 3, "partition_by": "subject"}
    cluster.nodes[1].create("flights", "flights.>", **config)
    cluster.wait_in_sync("flights")
    lost = cluster.info()["controller"]
    before = [cluster.partition("flights", n) for n in range(3)]
    assert {each["leader"] for each in before} == {1, 2, 3}
    cluster.nodes[lost].stop(signal.SIGKILL)
    witness = cluster.alive()[0]

    def lines(event: str) -> list[str]:
        logs = "".join(node.log.read_text() for node in cluster.alive())
        return [line for line in logs.splitlines() if f" {event} " in line]

    def look() -> bool | None:
        controllers = lines("this node is the controller")
        about = "stream=flights"
        elected = [line for line in lines("leader elected") if about in line]
        removed = [line for line in lines("isr changed") if about in line]
        is_said = (
            any(f"node {lost} was: " in line for line in controllers)
            and len(elected) == 1
            and f"before={lost}" in elected[0]
            and len([line for line in removed if f"node {lost} is lost" in line]) == 2
        )
        return True if is_said and f"node {lost} is lost" in elected[0] else None

    wait_for(look, witness.process, witness.log)
    cluster.start(lost)

    def is_back() -> bool | None:
        said = [line for line in lines("isr changed") if f"node {lost} has caught up" in line]
        return True if len([line for line in said if "stream=flights" in line]) == 3 else None

    wait_for(is_back, witness.process, witness.log)


@pytest.mark.parametrize("sync", ["always", "never"])
def test_a_purge_outlives_its_leader(cluster: RunningCluster, sync: str) -> None:
    """What was purged is not there again when another replica leads, however soon."""
    cluster.nodes[1].create("flights", "flights.>", replicas=3, sync=sync)
    cluster.wait_in_sync("flights")
    leader = cluster.leader("flights")
    witness = next(node for number, node in cluster.nodes.items() if number != leader)
    with bascule.connect_sync(witness.addresses["http"]) as client:
        client.publish_many(("flights.x", b"%d" % n) for n in range(1_000))
        (purged,) = client.purge_stream("flights", to_offset=700)
        cluster.nodes[leader].stop(signal.SIGKILL)
        assert purged.start_offset == 700
    assert cluster.leader("flights") != leader
    for node in cluster.alive():
        with bascule.connect_sync(node.addresses["http"]) as client:
            found = [message.offset for message in client.read("flights", start="earliest")]
        assert found == list(range(700, 1_000))
    assert all(node.partition("flights")["start_offset"] == 700 for node in cluster.alive())


def test_committed_offsets_are_the_same_at_every_node(cluster: RunningCluster) -> None:
    """Also where a node neither leads the offsets nor holds the stream."""
    cluster.nodes[1].create("flights", "flights.>", partitions=3)
    with bascule.connect_sync(cluster.nodes[1].addresses["http"]) as client:
        client.publish_many([(f"flights.{n}", b"x") for n in range(60)])
        ends = {p.partition: p.end_offset for p in client.stream("flights").partitions}
        assert sum(ends.values()) == 60
    for number, node in cluster.nodes.items():
        with bascule.connect_sync(node.addresses["http"]) as client:
            done = client.reset_offsets(f"c{number}", "flights", to="latest")
            assert {each.partition: each.offset for each in done} == ends
    for node in cluster.nodes.values():
        with bascule.connect_sync(node.addresses["http"]) as client:
            found = client.offsets(stream="flights")
            assert {(e.consumer, e.partition, e.offset, e.lag) for e in found} == {
                (f"c{n}", partition, end, 0) for n in (1, 2, 3) for partition, end in ends.items()
            }
    with bascule.connect_sync(cluster.nodes[3].addresses["http"]) as client:
        assert client.delete_group("c1") == 3
        assert {e.consumer for e in client.offsets()} == {"c2", "c3"}


def test_a_replica_with_a_damaged_log_heals_from_the_others(cluster: RunningCluster) -> None:
    """It gives up its leadership, and copies the log again."""
    cluster.nodes[1].create("flights", "flights.>", replicas=3)
    damaged = cluster.leader("flights")
    survivor = next(node for number, node in cluster.nodes.items() if number != damaged)
    with bascule.connect_sync(survivor.addresses["http"]) as client:
        client.publish_many((f"flights.{n % 7}", b"%d" % n) for n in range(500))
        cluster.nodes[damaged].stop(signal.SIGTERM)
        (segment,) = (cluster.nodes[damaged].directory / "data/streams/flights/0").glob("*.log")
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 0xFF
        segment.write_bytes(data)
        client.publish_many((f"flights.{n % 7}", b"%d" % n) for n in range(500, 600))
        cluster.nodes[damaged].start()
        client.publish_many((f"flights.{n % 7}", b"%d" % n) for n in range(600, 700))
        node = cluster.nodes[damaged]
        healed = "replica opened up to its damage"
        wait_for(lambda: healed in node.log.read_text() or None, node.process, node.log)
        cluster.wait_in_sync("flights")
        assert client.repair_stream("flights", accept_loss=True) == []
        client.publish_many((f"flights.{n % 7}", b"%d" % n) for n in range(700, 800))
        assert [m.value for m in client.read("flights")] == [b"%d" % n for n in range(800)]
    cluster.stop()
    assert len({cluster.log_bytes(node, "flights") for node in cluster.nodes}) == 1


def test_embedded_servers_route_to_each_other(tmp_path: Path) -> None:
    """Three commands are a whole system, and a publisher may connect to any of them."""
    with running_cluster(tmp_path) as cluster:
        cluster.nodes[2].create("flights", "flights.>", replicas=3)

        async def scene() -> list[int]:
            offsets = []
            for number, node in cluster.nodes.items():
                async with bascule.connect(node.addresses["http"]) as client:
                    ack = await client.publish("flights.x", b"%d" % number, timeout=30)
                    assert ack.replicas >= 2
                    offsets.append(ack.offset)
            return offsets

        assert asyncio.run(scene()) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["confluent", "aiokafka", "kcat"])
def test_kafka_clients_go_on_at_the_new_leader(cluster: RunningCluster, kind: str) -> None:
    """They read everything once and in order, without an error to their user."""
    cluster.nodes[1].create("flights", "flights.>", replicas=3)
    before = cluster.leader("flights")
    survivor = next(node for number, node in cluster.nodes.items() if number != before)
    half, count = 1_000, 2_000
    with bascule.connect_sync(survivor.addresses["http"]) as client:
        client.publish_many((f"flights.{n % 7}", b"%d" % n) for n in range(half))
        addresses = [node.addresses["client"] for node in cluster.nodes.values()]
        with contextlib.closing(READERS[kind](addresses, count)) as consumer:
            found = list(itertools.islice(consumer, half))
            cluster.nodes[before].stop(signal.SIGKILL)
            cluster.leader("flights")
            client.publish_many((f"flights.{n % 7}", b"%d" % n) for n in range(half, count))
            found += consumer
    assert found == [b"%d" % n for n in range(count)]


def read_by_confluent(addresses: list[str], count: int) -> Generator[bytes, None, None]:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": ",".join(addresses), "group.id": "g", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition("flights", 0, 0)])
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            count -= 1
            yield message.value()
    consumer.close()


def read_by_aiokafka(addresses: list[str], count: int) -> Generator[bytes, None, None]:
    import aiokafka

    async def start() -> aiokafka.AIOKafkaConsumer:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=addresses)
        await consumer.start()
        partition = aiokafka.TopicPartition("flights", 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        return consumer

    with asyncio.Runner() as runner:
        consumer = runner.run(start())
        for _ in range(count):
            message = runner.run(asyncio.wait_for(consumer.getone(), WAIT_SECONDS_MAX))
            yield message.value
        runner.run(consumer.stop())


def read_by_kcat(addresses: list[str], count: int) -> Generator[bytes, None, None]:
    kcat = shutil.which("kcat")
    if kcat is None:
        pytest.skip("kcat is not installed (Debian package kcat)")
    command = [kcat, "-C", "-b", ",".join(addresses), "-t", "flights", "-p", "0"]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            [*command, "-o", "beginning", "-c", str(count), "-u"],
            stdout=subprocess.PIPE,
            stderr=said,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            for line in process.stdout:
                yield line.removesuffix(b"\n")
            code = process.wait(WAIT_SECONDS_MAX)
        finally:
            process.kill()
        said.seek(0)
        text = said.read().decode()
    # It says on standard error that it cannot connect to the lost node, and asks the others.
    assert (code, "% ERROR: Topic" in text) == (0, False), text


READERS = {"confluent": read_by_confluent, "aiokafka": read_by_aiokafka, "kcat": read_by_kcat}


def test_the_python_client_reads_on_at_the_new_leader(cluster: RunningCluster) -> None:
    cluster.nodes[1].create("flights", "flights.>", replicas=3)
    before = cluster.leader("flights")
    every = ",".join(node.addresses["http"] for node in cluster.nodes.values())
    with bascule.connect_sync(every) as client:
        client.publish_many((f"flights.{n % 7}", b"%d" % n) for n in range(1_000))
        reader = client.read("flights", end=2_000, follow=True)
        found = [next(reader).value for _ in range(500)]
        cluster.nodes[before].stop(signal.SIGKILL)
        client.publish_many((f"flights.{n % 7}", b"%d" % n) for n in range(1_000, 2_000))
        found += [message.value for message in reader]
    assert found[:1_000] == [b"%d" % n for n in range(1_000)]
    # Messages that are sent again, as nobody was subscribed, may be stored behind later ones.
    assert sorted(found[1_000:], key=int) == [b"%d" % n for n in range(1_000, 2_000)]


@pytest.mark.long
def test_reads_begin_while_the_leader_changes(cluster: RunningCluster) -> None:
    """A read that begins between two leaders finds the next one, also if the old one was killed."""
    cluster.nodes[1].create("flights", "flights.>", replicas=3)
    every = ",".join(node.addresses["http"] for node in cluster.nodes.values())
    values = [b"%d" % n for n in range(10)]
    with bascule.connect_sync(every) as client:
        client.publish_many(("flights.a", value) for value in values)
        cluster.wait_in_sync("flights")
        for _ in range(ROUNDS):
            leader = cluster.leader("flights")
            following = [(leader + step) % 3 + 1 for step in range(3)]
            cluster.alive()[0].call("POST", "/v1/streams/flights/reassign", {"replicas": following})
            moves = 0
            while cluster.leader("flights") == leader or moves < 20:
                assert [message.value for message in client.read("flights")] == values
                moves += 1
        cluster.nodes[cluster.leader("flights")].stop(signal.SIGKILL)
        assert [message.value for message in client.read("flights")] == values
