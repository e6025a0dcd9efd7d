"""NATS's subject mapping distributes a stream over the nodes of a cluster."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

import bascule
from bascule.errors import BasculeError, NoResponders
from support.clusters import running_cluster
from support.nats_servers import configured_nats, metric

pytestmark = pytest.mark.tier3

COUNT = 3_000
MAPPING = {"shop.*": "shop.{{partition(3,1)}}.{{wildcard(1)}}"}


def test_each_leader_gets_its_share_and_no_more(tmp_path: Path) -> None:
    config = f"listen: 127.0.0.1:-1\nmappings = {json.dumps(MAPPING)}\n"
    with (
        configured_nats(tmp_path / "nats", config) as nats,
        running_cluster(tmp_path, nats=nats.url) as cluster,
    ):
        every = ",".join(node.addresses["http"] for node in cluster.nodes.values())
        with (
            bascule.connect_sync(every) as admin,
            pytest.raises(BasculeError, match=r"has none: use a subject such as 'orders"),
        ):
            admin.create_stream("bad", "shop.>", partitions=3, partition_by="mapping")
        cluster.nodes[1].create(
            "shop", "shop.*.*", partitions=3, partition_by="mapping", replicas=3, min_isr=1
        )
        leaders = {cluster.leader("shop", partition) for partition in range(3)}
        assert len(leaders) == 3, "new leaders are spread"

        def received() -> float:
            return sum(metric(node, "bascule_ingest_messages_total") for node in cluster.alive())

        before = received()

        async def publish(first: int) -> None:
            async with bascule.connect(every) as client:
                messages = (
                    (f"shop.c{n % 50}", b"%d" % n, None, {"Nats-Msg-Id": f"m{n}"})
                    for n in range(first, first + COUNT)
                )
                await client.publish_many(messages, window=500, stream="shop")

        asyncio.run(publish(0))
        assert received() - before == COUNT, "each node gets its share, and nothing else"

        asyncio.run(publish(COUNT))
        cluster.nodes[cluster.leader("shop", 1)].stop(signal.SIGKILL)
        asyncio.run(publish(2 * COUNT))

        async def wait_for_a_leader() -> None:
            """A node tells the publisher to wait, although no stream has the subject `shop.c0`."""
            async with bascule.connect(alive) as client:
                with pytest.raises(NoResponders):
                    await client.publish("nothing.c0", b"", stream="shop-2")
                waiting = client.publish(
                    "shop.c0", b"%d" % (3 * COUNT), message_id="last", stream="shop", timeout=60
                )
                publishing = asyncio.create_task(waiting)
                await asyncio.wait([publishing], timeout=2)
                assert not publishing.done()
                for number in dead:
                    await asyncio.to_thread(cluster.nodes[number].start)
                await publishing

        dead = [n for n, node in cluster.nodes.items() if node not in cluster.alive()]
        other = next(n for n in cluster.nodes if n not in dead)
        cluster.nodes[other].stop(signal.SIGKILL)
        dead.append(other)
        alive = cluster.alive()[0].addresses["http"]
        asyncio.run(wait_for_a_leader())

        async def stored() -> dict[str, list[int]]:
            found: dict[str, list[int]] = {}
            async with bascule.connect(every) as client:
                async for message in client.read("shop"):
                    _, partition, customer = message.subject.split(".")
                    assert message.partition == int(partition)
                    found.setdefault(customer, []).append(int(message.value))
            return found

        found = asyncio.run(stored())
        assert len(found) == 50
        for values in found.values():
            calm = [n for n in values if n < 2 * COUNT]
            assert calm == sorted(calm), "the order of a customer is kept"
        assert sorted(n for values in found.values() for n in values) == [*range(3 * COUNT + 1)]
