"""What operators do to a running cluster, on real processes under acked load."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

import bascule
from bascule.client import Client
from bascule.errors import BasculeError
from support import http_calls
from support.asked_once import AskedOnce
from support.cluster_commands import (
    ask,
    log_sizes,
    node_of,
    run,
    servers_of,
    until_smooth,
    wait,
    why_not_smooth,
)
from support.clusters import RunningCluster, running_cluster
from support.ids_published import IdsPublished, check_published
from support.processes import WAIT_SECONDS_MAX, NatsServer, Node

pytestmark = pytest.mark.tier3

FILL_BYTES = 1 << 20
FILL_COUNT = 24
T = TypeVar("T")


def eventually(scene: Callable[[], None]) -> None:
    """Repeat a scene until what it asserts holds: on a machine that stalls a node may be taken for
    lost in the middle of it, and comes back."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            scene()
            return
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


async def persist(request: Callable[[], Awaitable[T]]) -> T:
    """Repeat a request that is refused while a node is taken for lost."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            try:
                return await request()
            except BasculeError:
                await asyncio.sleep(0.2)


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer
) -> Iterator[RunningCluster]:
    """Three nodes that no test leaves changed."""
    with running_cluster(tmp_path_factory.mktemp("shared"), nats=nats_server.url) as running:
        yield running


def test_an_operator_says_who_leads(shared: RunningCluster) -> None:
    shared.nodes[1].create("led", "led.>", replicas=3, partitions=2)
    shared.wait_in_sync("led")
    elect = ("stream", "elect-leader", "led")

    def scene() -> None:
        before = shared.partition("led", 1)
        other = next(each for each in before["replicas"] if each != before["leader"])
        said = ask(shared, *elect, "--partition", "1", "--node", str(other))
        (row,) = said["partitions"]
        assert (row["before"], row["leader"], row["why"]) == (before["leader"], other, "")
        after = shared.partition("led", 1)
        assert (after["leader"], after["replicas"][0]) == (other, other)
        assert after["leader_epoch"] == row["leader_epoch"] == before["leader_epoch"] + 1
        for again in ((), ("--node", str(other))):
            same = run(shared, *elect, "--partition", "1", *again)
            assert same.returncode == 0, same.stderr
            assert "led as asked: nothing was to be changed" in same.stdout
        shown = run(shared, *elect, "--node", str(before["leader"]))
        assert shown.returncode == 0, shown.stderr
        assert "leads now" in shown.stdout
        assert shared.partition("led", 1)["leader"] == before["leader"]

    eventually(scene)
    refused = run(shared, *elect, "--node", "9")
    assert "it is not one of the replicas, which are on 1, 2, 3" in refused.stderr


def test_a_move_is_shown_before_it_begins(shared: RunningCluster) -> None:
    shared.nodes[1].create("planned", "planned.>", replicas=2, partitions=2)
    shared.wait_in_sync("planned")
    with bascule.connect_sync(servers_of(shared)) as client:
        client.publish_many((f"planned.{n}", bytes(1_000)) for n in range(100))
    before = shared.partition("planned", 1)
    (added,) = {1, 2, 3} - {*before["replicas"]}
    target = [before["replicas"][0], added]
    command = ("stream", "reassign", "planned", "--partition", "1", "--dry-run", "--replicas-on")
    found = ask(shared, *command, ",".join(map(str, target)))["partitions"]
    assert [each["target"] for each in found] == [[], target]
    assert found[1]["bytes_behind"] == found[1]["bytes"] > 0
    shown = run(shared, *command, ",".join(map(str, target)))
    assert "to copy: nothing has been changed" in shown.stdout
    after = shared.partition("planned", 1)
    assert (after["target"], after["replicas"]) == ([], before["replicas"])
    refused = run(shared, *command, "1,9")
    assert refused.returncode == 2
    assert "names node 9, which cannot get replicas" in refused.stderr
    assert run(shared, *command, "1,2", "--wait").returncode == 2


@pytest.mark.long
def test_a_drained_node_leads_nothing_also_after_a_restart_and_another_controller(
    shared: RunningCluster,
) -> None:
    shared.nodes[1].create("many", "many.>", replicas=3, partitions=3)
    shared.nodes[1].create("alone", "alone.>", replicas=1)
    shared.wait_in_sync("many")
    (number,) = shared.partition("alone")["replicas"]
    # Which nodes are preferred depends on the streams that other tests have left.
    ask(shared, "stream", "elect-leader", "many", "--partition", "0", "--node", str(number))

    def drain() -> None:
        drained = run(shared, "node", "drain", str(number), "--wait")
        assert drained.returncode == 1, drained.stderr
        assert "it has no other replica" in drained.stdout
        assert f"node {number} is drained" in drained.stdout

    eventually(drain)
    wait(shared, lambda: shared.info()["controller"] not in (number, 0))

    def led() -> set[int]:
        found = shared.alive()[0].call("GET", "/v1/streams/many")["partitions"]
        return {each["leader"] for each in found}

    wait(shared, lambda: number not in led())
    # Nobody else has it.
    wait(shared, lambda: shared.partition("alone")["leader"] == number)
    node = shared.nodes[number]
    node.stop()
    waited = run(shared, "cluster", "wait", "--timeout", "0")
    assert waited.returncode == 1
    assert f"not alive: node {number}" in waited.stderr
    shared.start(number)
    waited = run(shared, "cluster", "wait", "--timeout", str(WAIT_SECONDS_MAX / 2))
    assert waited.returncode == 0, waited.stderr
    shared.wait_in_sync("many")
    assert node_of(shared, number)["is_drained"]
    assert "drained" in run(shared, "node", "list").stdout
    assert ask(shared, "node", "info", str(number))["is_drained"] is True
    metrics = http_calls.get(shared.alive()[0].addresses["http"] + "/metrics")
    assert f'bascule_cluster_node_drained{{node="{number}"}} 1' in metrics

    def refuse() -> None:
        refused = run(shared, "stream", "elect-leader", "many", "--node", str(number))
        assert f"`bascule node resume {number}` ends that" in refused.stderr

    eventually(refuse)
    controller = shared.nodes[shared.info()["controller"]]
    controller.stop(signal.SIGKILL)
    wait(shared, lambda: shared.info()["controller"] in {
        each for each, node in shared.nodes.items() if node in shared.alive()
    })  # fmt: skip
    assert node_of(shared, number)["is_drained"], "another controller knows"
    for each, other in shared.nodes.items():
        if other is controller:
            shared.start(each)
    shared.wait_in_sync("many")
    assert ask(shared, "node", "resume", str(number))["is_drained"] is False
    wait(shared, lambda: number in led())


def test_each_node_is_drained_restarted_and_resumed_under_load(cluster: RunningCluster) -> None:
    """No publisher gets an error, and nothing that was acknowledged is lost."""
    cluster.nodes[1].create("flights", "flights.>", replicas=3)
    cluster.wait_in_sync("flights")

    async def restart(client: Client, number: int) -> None:
        found = await persist(lambda: client.drain_node(number))
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while found.leaders:
                await asyncio.sleep(0.05)
                found = await persist(lambda: client.node_drain(number))
        node = cluster.nodes[number]
        assert await asyncio.to_thread(node.stop) == 0
        await asyncio.to_thread(node.start)
        await asyncio.to_thread(cluster.wait_in_sync, "flights")
        await persist(lambda: client.resume_node(number))

    async def restart_all() -> tuple[AskedOnce, dict[int, bytes]]:
        async with bascule.connect(servers_of(cluster)) as client:
            load = AskedOnce(client)
            run = asyncio.create_task(load.run())
            await load.wait_more(50)
            for number in (1, 2, 3):
                await restart(client, number)
                await load.wait_more(50)
            load.stopping = True
            await run
            stored = {m.offset: m.value async for m in client.read("flights")}
            return load, stored

    def scene() -> list[str]:
        sizes = log_sizes(cluster)
        load, stored = asyncio.run(restart_all())
        assert all(stored[offset] == b"%d" % n for n, offset in load.acked.items())
        reasons = why_not_smooth(cluster, sizes, restarts=3)
        assert reasons or load.errors == []
        return reasons

    until_smooth(scene)


def fill(cluster: RunningCluster, subject: str) -> None:
    """Enough that copying takes a while under a limit."""
    with bascule.connect_sync(servers_of(cluster)) as client:
        for _ in range(FILL_COUNT):
            client.publish(subject, bytes(FILL_BYTES - 1_000), timeout=60)


def test_a_move_is_cancelled_under_load(cluster: RunningCluster) -> None:
    """The limit keeps the new replica from being in sync, until the move is taken back."""
    cluster.nodes[1].create("flights", "flights.>", replicas=2, min_isr=2)
    cluster.wait_in_sync("flights")
    before = cluster.partition("flights")["replicas"]
    (added,) = {1, 2, 3} - {*before}
    fill(cluster, "flights.f")
    ask(cluster, "cluster", "throttle", "64KiB")

    async def scene() -> tuple[list[int], dict[int, bytes]]:
        async with bascule.connect(servers_of(cluster)) as client:
            published = IdsPublished(client)
            run = asyncio.create_task(published.run())
            await published.wait_more(100)
            target = [added, before[0]]
            moved = await persist(lambda: client.reassign_stream("flights", target))
            assert list(moved.partitions[0].target) == target
            await published.wait_more(100)  # the replicas in sync have no limit
            info = await client.stream("flights")
            assert info.partitions[0].bytes_behind > FILL_BYTES
            assert added not in info.partitions[0].isr
            await client.cancel_moves("flights")
            await asyncio.to_thread(cluster.wait_moved, "flights")
            assert cluster.partition("flights")["replicas"] == before
            await asyncio.to_thread(cluster.wait_removed, added, "flights")
            await published.wait_more(100)
            published.stopping = True
            await run
            stored = {m.offset: m.value async for m in client.read("flights")}
            return published.offsets, stored

    offsets, stored = asyncio.run(scene())
    check_published(offsets, {at: each for at, each in stored.items() if len(each) < 100})
    refused = run(cluster, "stream", "reassign", "flights", "--cancel")
    assert refused.returncode == 1
    assert "nothing moves" in refused.stderr
    cluster.wait_in_sync("flights")
    cluster.stop()
    assert len({cluster.log_bytes(node, "flights") for node in before}) == 1


@pytest.mark.long
def test_the_limit_changes_while_replicas_move_and_the_controller_dies(
    cluster: RunningCluster,
) -> None:
    cluster.join(4)
    cluster.nodes[1].create("flights", "flights.>", replicas=3)
    cluster.wait_in_sync("flights")
    before = cluster.partition("flights")["replicas"]
    (added,) = {1, 2, 3, 4} - {*before}
    fill(cluster, "flights.f")
    target = ",".join(map(str, [before[0], before[1], added]))
    options = ("--replicas", target, "--throttle", "64KiB")

    def begin() -> None:
        moved = ask(cluster, "stream", "reassign", "flights", *options)
        assert moved["partitions"][0]["target"]

    eventually(begin)
    assert cluster.info()["catch_up_rate"] == 64 << 10

    async def scene() -> tuple[list[int], dict[int, bytes]]:
        async with bascule.connect(servers_of(cluster)) as client:
            published = IdsPublished(client)
            run = asyncio.create_task(published.run())
            await published.wait_more(100)
            controller = cluster.info()["controller"]
            await asyncio.to_thread(cluster.nodes[controller].stop, signal.SIGKILL)
            await published.wait_more(100)
            assert (await client.stream("flights")).partitions[0].target, "it goes on"
            await asyncio.to_thread(cluster.start, controller)
            await persist(lambda: client.throttle(0))
            await asyncio.to_thread(cluster.wait_moved, "flights")
            await published.wait_more(100)
            published.stopping = True
            await run
            stored = {m.offset: m.value async for m in client.read("flights")}
            return published.offsets, stored

    offsets, stored = asyncio.run(scene())
    check_published(offsets, {at: each for at, each in stored.items() if len(each) < 100})
    assert sorted(cluster.partition("flights")["replicas"]) == sorted([*before[:2], added])
    cluster.wait_in_sync("flights")


def test_a_node_is_emptied_and_the_nodes_are_balanced_again(cluster: RunningCluster) -> None:
    cluster.nodes[1].create("flights", "flights.>", replicas=2, partitions=6)
    cluster.nodes[1].create("wide", "wide.>", replicas=3)
    for name in ("flights", "wide", "_offsets"):
        wait(cluster, lambda name=name: name in streams(cluster.nodes[1]))
        cluster.wait_in_sync(name)

    def empty() -> None:
        done = run(cluster, "node", "drain", "3", "--replicas", "--wait")
        assert done.returncode == 1, done.stderr
        assert "it is to have 3 replicas, and 2 other nodes take any" in done.stdout
        held = cluster.nodes[1].call("GET", "/v1/streams/flights")["partitions"]
        assert all(sorted(each["replicas"]) == [1, 2] for each in held)

    eventually(empty)
    assert 3 in cluster.partition("wide")["replicas"]
    plan = ask(cluster, "cluster", "balance", "--dry-run")
    assert 3 not in {each["destination"] for each in plan["moves"]}, "a drained node gets nothing"
    ask(cluster, "node", "resume", "3")

    def look() -> None:
        plan = ask(cluster, "cluster", "balance", "--dry-run")
        assert 3 in {each["destination"] for each in plan["moves"]}
        assert not plan["is_balancing"]

    def balance() -> None:
        done = run(cluster, "cluster", "balance", "--wait")
        assert done.returncode == 0, done.stderr
        replicas = ask(cluster, "cluster", "balance", "--dry-run")["replicas"]
        assert max(replicas.values()) - min(replicas.values()) <= 1
        assert not cluster.info()["is_balancing"]

    eventually(look)
    eventually(balance)


def streams(node: Node) -> list[str]:
    return [each["name"] for each in node.call("GET", "/v1/streams")["streams"]]


def test_a_drain_waits_for_no_replica_that_needs_an_operator(cluster: RunningCluster) -> None:
    """The node to which it moves cannot make its directory. Once it can, the drain goes on."""
    other = cluster.nodes[1]
    other.create("flights", "flights.>", replicas=2)
    cluster.wait_in_sync("flights")
    leaving, _ = cluster.partition("flights")["replicas"]
    (taking,) = {1, 2, 3} - set(cluster.partition("flights")["replicas"])
    in_the_way = cluster.nodes[taking].directory / "data/streams/flights"
    in_the_way.touch()
    drained = run(cluster, "node", "drain", str(leaving), "--replicas", "--wait", "--json")
    assert drained.returncode == 1, drained.stderr
    (left,) = (each for each in json.loads(drained.stdout)["left"] if each["stream"] == "flights")
    assert not left["is_pending"]
    assert f"the replica on node {taking} has failed: " in left["why"]
    assert str(in_the_way) in left["why"]
    in_the_way.unlink()
    cluster.wait_moved("flights")
    again = run(cluster, "node", "drain", str(leaving), "--replicas", "--wait", "--json")
    assert "flights" not in {each["stream"] for each in json.loads(again.stdout)["left"]}
    assert leaving not in cluster.partition("flights")["replicas"]
