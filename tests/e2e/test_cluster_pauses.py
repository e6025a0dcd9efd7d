"""Nodes that are paused: their processes exist, and do nothing."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import nats.errors
import pytest

import bascule
from bascule.client import fetcher
from bascule.controller.cluster.followed_decisions import FOLLOW_SECONDS_MAX
from support.clusters import RunningCluster, running_cluster
from support.ids_published import IdsPublished, check_published
from support.processes import WAIT_SECONDS_MAX, running_nats, wait_for

pytestmark = pytest.mark.tier3

BY_HEARTBEATS = re.compile(r' node lost node=\d reason="no heartbeat for ')
ATTEMPTS = 5
"""On a machine that stands still something else may notice first."""


@contextlib.asynccontextmanager
async def paused(cluster: RunningCluster, number: int) -> AsyncIterator[None]:
    process = cluster.nodes[number].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def controller_seen_by(cluster: RunningCluster, number: int) -> int:
    return int(cluster.nodes[number].call("GET", "/v1/cluster")["controller"])


def wait_replaced(cluster: RunningCluster, number: int) -> None:
    """Return once the others have another leader, and another controller, than this node."""
    other = next(each for each in cluster.nodes if each != number)
    node = cluster.nodes[other]

    def look() -> bool | None:
        leader = node.call("GET", "/v1/streams/flights")["partitions"][0]["leader"]
        controller = controller_seen_by(cluster, other)
        return True if number not in (leader, controller) and leader > 0 < controller else None

    wait_for(look, node.process, node.log)


def wait_in_sync(cluster: RunningCluster) -> None:
    """Return once all nodes say so: one that was paused may not know better."""

    def look() -> bool | None:
        views = [
            node.call("GET", "/v1/streams/flights")["partitions"][0]
            for node in cluster.nodes.values()
        ]
        return True if all(len(each["isr"]) == 3 for each in views) else None

    node = cluster.nodes[1]
    wait_for(look, node.process, node.log)


def lost_by_heartbeats(cluster: RunningCluster) -> int:
    return sum(len(BY_HEARTBEATS.findall(n.log.read_text())) for n in cluster.nodes.values())


def test_a_paused_leader_and_a_paused_controller_are_replaced_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    with (
        running_nats(tmp_path / "nats") as nats,
        running_cluster(tmp_path / "nodes", nats=nats.url) as cluster,
    ):
        cluster.nodes[1].create("flights", "flights.>", replicas=3)
        wait_in_sync(cluster)
        every = ",".join(node.addresses["http"] for node in cluster.nodes.values())

        async def pause(number: int, published: IdsPublished) -> None:
            """Pause a node until the others go on without it."""
            async with paused(cluster, number):
                await asyncio.to_thread(wait_replaced, cluster, number)
                await published.wait_more(200)
            await asyncio.to_thread(wait_in_sync, cluster)

        async def scene() -> tuple[list[int], dict[int, bytes]]:
            async with bascule.connect(every) as client:
                published = IdsPublished(client)
                run = asyncio.create_task(published.run())
                await published.wait_more(200)
                for _ in range(ATTEMPTS):
                    await pause(await asyncio.to_thread(cluster.leader, "flights"), published)
                    await pause(await asyncio.to_thread(controller_seen_by, cluster, 1), published)
                    if lost_by_heartbeats(cluster) >= 2:
                        break
                published.stopping = True
                await run
                stored = {m.offset: m.value async for m in client.read("flights")}
                return published.offsets, stored

        offsets, stored = asyncio.run(scene())
        check_published(offsets, stored)
        assert lost_by_heartbeats(cluster) >= 2
        cluster.stop()
        assert len({cluster.log_bytes(node, "flights") for node in cluster.nodes}) == 1


def test_an_alteration_does_not_wait_for_a_leader_that_hangs(cluster: RunningCluster) -> None:
    """It is stored, and whoever leads next follows it."""
    node = cluster.nodes[1]
    for number in cluster.nodes:
        node.create(f"s{number}", f"s{number}.>", replicas=3)
        cluster.wait_in_sync(f"s{number}")
    name, leader = next(
        (found, leader)
        for found in ("s1", "s2", "s3")
        if (leader := cluster.leader(found)) != controller_seen_by(cluster, 1)
    )
    witness = next(each for number, each in cluster.nodes.items() if number != leader)

    async def scene() -> float:
        async with (
            bascule.connect(witness.addresses["http"], timeout=120) as client,
            paused(cluster, leader),
        ):
            began = time.monotonic()
            await client.alter_stream(name, retention_messages_max=1_000)
            return time.monotonic() - began

    assert asyncio.run(scene()) < FOLLOW_SECONDS_MAX / 2


def test_a_client_goes_on_at_other_nodes_while_one_hangs(cluster: RunningCluster) -> None:
    """The one that it has used so far, and one that it begins with."""
    every = [node.addresses["http"] for node in cluster.nodes.values()]

    async def use(client: bascule.Client) -> tuple[int, bytes, int]:
        """The number of streams, a value of a table, and the number of messages."""
        streams = await client.streams()
        entry = await client.table("kv", consistency="linearizable").get("key")
        assert entry is not None
        await client.table("kv").set("key", b"another")
        await client.publish("flights.a", b"x")
        await client.alter_stream("flights", retention_messages_max=1_000)
        stored = [message async for message in client.read("flights")]
        return len(streams), entry.value, len(stored)

    async def scene() -> None:
        async with bascule.connect(",".join(every)) as client:
            await client.create_stream("flights", "flights.>", replicas=3)
            await client.create_table("kv", replicas=3)
            await client.table("kv").set("key", b"value")
            streams, _, count = await use(client)
            for name in ("flights", "kv", "_offsets"):
                await asyncio.to_thread(cluster.wait_in_sync, name)
            async with paused(cluster, 1):
                assert await use(client) == (streams, b"another", count + 1)
                async with bascule.connect(",".join(every)) as another:
                    assert await use(another) == (streams, b"another", count + 2)

    asyncio.run(scene())


def test_a_reader_leaves_a_leader_that_hangs(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as the others name another one, and not when it has been silent for too long."""
    monkeypatch.setattr(fetcher, "ASK_TIMEOUT_S", 10 * WAIT_SECONDS_MAX)
    cluster.nodes[1].create("flights", "flights.>", replicas=3)
    cluster.wait_in_sync("flights")
    leader = cluster.leader("flights")
    every = [node.addresses["http"] for node in cluster.nodes.values()]

    async def scene() -> list[bytes]:
        async with bascule.connect(",".join(every)) as client:
            await client.publish("flights.a", b"before")
            reading = client.read("flights", follow=True)
            values = [(await anext(reading)).value]
            async with paused(cluster, leader):
                await client.publish("flights.a", b"while it hangs", timeout=WAIT_SECONDS_MAX)
                async with asyncio.timeout(WAIT_SECONDS_MAX):
                    values.append((await anext(reading)).value)
            return values

    assert asyncio.run(scene()) == [b"before", b"while it hangs"]


def test_a_leader_that_no_controller_reaches_unsubscribes_and_answers_nothing(
    cluster: RunningCluster,
) -> None:
    """Nobody but it holds the stream, and the image says that it leads."""
    cluster.nodes[1].create("flights", "flights.>", replicas=1)
    leader = cluster.leader("flights")
    node = cluster.nodes[leader]
    others = [number for number in cluster.nodes if number != leader]

    async def answer(client: nats.NATS) -> str:
        try:
            reply = await client.request("flights.a", b"x", timeout=2)
        except nats.errors.NoRespondersError:
            return "nobody subscribes"
        except nats.errors.TimeoutError:
            return "no answer"
        return "acked" if b'"offset"' in reply.data else reply.data.decode()

    async def scene() -> None:
        client = await nats.connect(node.addresses["nats"])
        assert await answer(client) == "acked"
        async with paused(cluster, others[0]), paused(cluster, others[1]):
            event = "no controller; this node leads nothing"
            await asyncio.to_thread(
                wait_for, lambda: event in node.log.read_text() or None, node.process, node.log
            )
            while (found := await answer(client)) in ("acked", "no answer"):
                await asyncio.sleep(0.05)  # it is about to unsubscribe
            assert found == "nobody subscribes"
        while await answer(client) != "acked":
            await asyncio.sleep(0.05)
        await client.close()

    asyncio.run(asyncio.wait_for(scene(), WAIT_SECONDS_MAX))


def test_a_follower_that_is_paused_leaves_the_isr_and_comes_back(
    tmp_path: Path,
) -> None:
    with (
        running_nats(tmp_path / "nats") as nats,
        running_cluster(tmp_path / "nodes", nats=nats.url) as cluster,
    ):
        cluster.nodes[1].create("flights", "flights.>", replicas=3)
        wait_in_sync(cluster)
        leader = cluster.leader("flights")
        follower = next(number for number in cluster.nodes if number != leader)

        async def scene() -> int:
            async with bascule.connect(cluster.nodes[leader].addresses["http"]) as client:
                async with paused(cluster, follower):
                    ack = await client.publish("flights.a", b"while it is paused", timeout=60)
                await asyncio.to_thread(wait_in_sync, cluster)
                return ack.offset

        assert asyncio.run(scene()) == 0
        cluster.stop()
        assert len({cluster.log_bytes(node, "flights") for node in cluster.nodes}) == 1
