"""What a deposed leader of a table had, and nobody acknowledged, is nowhere."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

import bascule
from bascule.errors import BasculeError
from support.clusters import RunningCluster, running_cluster
from support.processes import NatsServer, Node, wait_for

FIRST, LOST, LAST = b"acknowledged", b"never acknowledged", b"of the next leader"


def value_at(node: Node, consistency: str) -> tuple[int, bytes]:
    """The status of a read at one node, and what it has."""
    answer = httpx.get(
        f"{node.addresses['http']}/v1/tables/t/keys/k",
        params={"consistency": consistency}, timeout=20,
    )  # fmt: skip
    return answer.status_code, answer.content


async def watched(node: Node, seen: list[bytes | None]) -> None:
    async with bascule.connect(node.addresses["http"]) as client:
        async for change in client.table("t").watch(start="state"):
            seen.append(change.value)


async def write_in_vain(client: bascule.Client) -> None:
    """Have the leader append a value that nobody else hears of: others lead a second later."""
    with pytest.raises(BasculeError):
        await client.table("t").set("k", LOST, timeout=0.5)


def wait_until(node: Node, look: Any) -> None:
    def safely() -> bool | None:
        try:
            return look() or None
        except (OSError, BasculeError, httpx.HTTPError):
            return None

    wait_for(safely, node.process, node.log)


@pytest.mark.parametrize("how", ["cut off", pytest.param("killed", marks=pytest.mark.long)])
def test_a_write_that_only_a_deposed_leader_has_is_nowhere(
    tmp_path: Path, nats_server: NatsServer, how: str
) -> None:
    with running_cluster(tmp_path, nats=nats_server.url, linked=True) as cluster:
        with bascule.connect_sync(cluster.nodes[1].addresses["http"]) as client:
            client.create_table("t", replicas=3, min_isr=2)
            cluster.wait_in_sync("t")
            before = client.table("t").set("k", FIRST)
        asyncio.run(depose(cluster, how, before))


async def depose(cluster: RunningCluster, how: str, before: int) -> None:
    first = await asyncio.to_thread(cluster.leader, "t")
    old = cluster.nodes[first]
    others = {number: node for number, node in cluster.nodes.items() if number != first}
    links = [(first, n) for n in others] + [(n, first) for n in others]
    seen: dict[int, list[bytes | None]] = {number: [] for number in cluster.nodes}
    watchers = [
        asyncio.create_task(watched(node, seen[number])) for number, node in cluster.nodes.items()
    ]
    while not all(seen.values()):
        await asyncio.sleep(0.05)
    assert cluster.links is not None
    async with bascule.connect(old.addresses["http"]) as client:
        # So that the client has a connection: the write comes before others lead.
        assert await client.table("t").get("k") is not None
        cluster.links.hold(links)
        await write_in_vain(client)
    assert old.partition("t")["end_offset"] == before + 2, "the leader has appended it"
    assert await asyncio.to_thread(value_at, old, "eventual") == (200, FIRST)
    status, _ = await asyncio.to_thread(value_at, old, "linearizable")
    assert status == 503, "no majority says that it still leads"
    if how == "killed":
        old.stop(signal.SIGKILL)
    next_node = next(iter(others.values()))
    await asyncio.to_thread(
        wait_until, next_node, lambda: next_node.partition("t")["leader"] in others
    )
    async with bascule.connect(next_node.addresses["http"]) as client:
        after = await client.table("t").set("k", LAST)
    assert after > before
    # What is under way does not arrive any more.
    for number in others:
        cluster.links.reset(first, number)
    cluster.links.release(links)
    if how == "killed":
        await asyncio.to_thread(cluster.start, first)
    await asyncio.to_thread(cluster.wait_in_sync, "t")
    for node in cluster.nodes.values():
        await asyncio.to_thread(wait_until, node, partial(has_last, node))
        assert await asyncio.to_thread(value_at, node, "linearizable") == (200, LAST)
    async with bascule.connect(old.addresses["http"]) as client:
        values = [message.value async for message in client.read("t")]
    assert values == [FIRST, LAST], "the record that nobody acknowledged is in no log"
    while not all(LAST in each for each in seen.values()):
        await asyncio.sleep(0.05)
    for watcher in watchers:
        watcher.cancel()
    await asyncio.gather(*watchers, return_exceptions=True)
    assert all(each == [FIRST, LAST] for each in seen.values()), seen


def has_last(node: Node) -> bool:
    return value_at(node, "eventual") == (200, LAST)
