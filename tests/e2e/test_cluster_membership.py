"""Nodes that join a cluster and leave it, and replicas that move, under real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import signal
import tarfile
import urllib.error
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import bascule
from bascule.client import Client
from support import commands
from support.clusters import RunningCluster, running_cluster
from support.ids_published import IdsPublished, check_published
from support.ports import reserve_ports
from support.processes import BIN, WAIT_SECONDS_MAX, NatsServer, Node, wait_for

pytestmark = pytest.mark.tier3

DATA = Path(__file__).parents[1] / "data"
MOVES = 3
"""Of a stream under load; `--rounds=50` makes more."""


def refused(node: Node) -> str:
    """The log of a node that ends by itself, with an error."""
    assert node.process is not None
    try:
        assert node.process.wait(WAIT_SECONDS_MAX) != 0
    finally:
        node.stop(signal.SIGKILL)
    return node.log.read_text()


def with_ids(kind: str, count: int) -> list[tuple[str, bytes, None, dict[str, str]]]:
    """Messages that are stored once, however often they are sent."""
    return [
        (f"flights.{n % 7}", b"%d" % n, None, {"Nats-Msg-Id": f"{kind}{n}"}) for n in range(count)
    ]


def run_command(cluster: RunningCluster, *arguments: str) -> Any:
    """What a command says in JSON."""
    servers = ",".join(node.addresses["http"] for node in cluster.alive())
    done = commands.run(*arguments, "--server", servers, "--json", check=True)
    return json.loads(done.stdout)


def commit(cluster: RunningCluster, stream: str) -> None:
    """Commit an offset of the stream, once `_offsets` has a leader."""

    def attempt() -> bool | None:
        try:
            cluster.nodes[cluster.leader("_offsets")].call(
                "POST", "/v1/groups/billing/reset-offsets", {"stream": stream, "offset": 0}
            )
        except urllib.error.HTTPError:
            return None
        return True

    node = cluster.nodes[1]
    wait_for(attempt, node.process, node.log)


def test_a_node_joins_and_takes_the_place_of_another(cluster: RunningCluster) -> None:
    """Under acked load a fourth node joins, gets a replica, and the controller is removed."""
    cluster.nodes[1].create("flights", "flights.>", replicas=3)
    every = ",".join(node.addresses["http"] for node in cluster.nodes.values())
    leaving = cluster.info()["controller"]
    target = [4, *(each for each in (1, 2, 3) if each != leaving)]
    commit(cluster, "flights")

    async def scene() -> tuple[list[int], dict[int, bytes]]:
        async with bascule.connect(every) as client:
            published = IdsPublished(client)
            run = asyncio.create_task(published.run())
            await published.wait_more(300)
            await asyncio.to_thread(cluster.join, 4)
            await client.reassign_stream("flights", target)
            await asyncio.to_thread(cluster.wait_moved, "flights")
            assert cluster.partition("flights")["replicas"] == target
            await asyncio.to_thread(cluster.wait_removed, leaving, "flights")
            await published.wait_more(300)
            await client.remove_node(leaving)
            text = await asyncio.to_thread(refused, cluster.nodes[leaving])
            assert "it was removed from the cluster" in text
            await published.wait_more(300)
            published.stopping = True
            await run
            stored = {m.offset: m.value async for m in client.read("flights")}
            return published.offsets, stored

    offsets, stored = asyncio.run(scene())
    check_published(offsets, stored)
    assert [node["node_id"] for node in cluster.info()["nodes"]] == sorted(target)
    cluster.wait_voters(*sorted(target))
    cluster.wait_in_sync("flights")
    commits = cluster.nodes[cluster.leader("_offsets")].call("GET", "/v1/offsets")["offsets"]
    assert [each["consumer"] for each in commits] == ["billing"]
    cluster.nodes[leaving].spawn_again()
    assert "was removed from the cluster" in refused(cluster.nodes[leaving])
    cluster.stop()
    logs = {cluster.log_bytes(node, "flights") for node in target}
    assert len(logs) == 1, "the replicas differ"


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL]
)
def test_nodes_that_joined_are_found_at_other_addresses(
    cluster: RunningCluster, number: signal.Signals
) -> None:
    """No controller reaches them there before they register, and they know none."""
    cluster.nodes[1].create("flights", "flights.>", replicas=3)
    for joined in (4, 5):
        cluster.join(joined)
    cluster.wait_voters(1, 2, 3, 4, 5)
    run_command(cluster, "stream", "reassign", "flights", "--replicas-on", "4,5,1")
    cluster.wait_moved("flights")
    for joined in (4, 5):
        cluster.nodes[joined].stop(number)
    for joined in (4, 5):
        options, (port,) = cluster.nodes[joined].options, reserve_ports(1)
        options[options.index("--peer-port") + 1] = str(port)
        cluster.peer_ports[joined] = port
    cluster.start(4, 5)
    cluster.wait_in_sync("flights")
    found = {node["node_id"]: node["peer"] for node in cluster.info()["nodes"]}
    assert found == {each: f"127.0.0.1:{port}" for each, port in cluster.peer_ports.items()}
    assert cluster.info()["voters"] == [1, 2, 3, 4, 5]


@pytest.mark.long
def test_those_who_came_later_go_on_without_the_founders(cluster: RunningCluster) -> None:
    """Nodes find their peers again by themselves, whoever founded the cluster."""
    for number in (4, 5):
        cluster.join(number)
    cluster.wait_voters(1, 2, 3, 4, 5)
    cluster.nodes[4].create("flights", "flights.>", replicas=3)
    for number in (1, 2):
        answer = run_command(cluster, "node", "remove", str(number), "--yes", "--wait")
        assert answer["node_id"] == number
        assert "it was removed from the cluster" in refused(cluster.nodes.pop(number))
    cluster.wait_voters(3, 4, 5)
    cluster.stop()
    founder, *later = cluster.nodes.values()
    for node in later:
        node.options = [each for each in node.options if not each.startswith(("--join", "127."))]
    # The founder knows the addresses of those who joined later from its disk, too.
    cluster.start()
    cluster.wait_voters(3, 4, 5)
    assert sorted(cluster.partition("flights")["replicas"]) == [3, 4, 5]
    cluster.wait_in_sync("flights")
    with bascule.connect_sync(founder.addresses["http"]) as client:
        assert client.publish("flights.x", b"1", timeout=30).replicas >= 2


def test_a_number_is_used_again_by_an_empty_directory(cluster: RunningCluster) -> None:
    """A disk is lost: the node is removed by force, and comes back as another one."""
    cluster.nodes[1].create("flights", "flights.>", replicas=3)
    lost = cluster.nodes[2]
    lost.stop(signal.SIGKILL)
    shutil.rmtree(lost.directory / "data")
    survivor = cluster.nodes[1]

    def remove() -> bool | None:
        try:
            survivor.call("DELETE", "/v1/nodes/2?force=true")
        except urllib.error.HTTPError as error:
            assert error.code == 409, "the controller has not lost it yet"
            return None
        return True

    wait_for(remove, survivor.process, survivor.log)
    assert 2 not in cluster.partition("flights")["replicas"]
    again = cluster.add(2, 1, 3)
    again.start()
    cluster.wait_voters(1, 2, 3)
    wait_for(
        lambda: sorted(cluster.partition("flights")["isr"]) == [1, 2, 3] or None,
        survivor.process,
        survivor.log,
    )
    with bascule.connect_sync(survivor.addresses["http"]) as client:
        assert client.publish("flights.x", b"1", timeout=30).replicas >= 2


@dataclass
class NodeByCommand(Node):
    """A node that `bascule node join --run` starts."""

    join: Sequence[str] = ()

    def command(self, ready: Path) -> list[str]:
        data = str(self.directory / "data")
        return [
            str(BIN / "bascule"), "node", "join", "--run", "--data", data, *self.join, "--",
            "--ready-file", str(ready),
        ]  # fmt: skip


def test_the_cluster_says_how_a_node_joins_it(cluster: RunningCluster, tmp_path: Path) -> None:
    servers = ",".join(node.addresses["http"] for node in cluster.nodes.values())
    said = run_command(cluster, "node", "join", "--data", "d4")
    peers = ",".join(f"127.0.0.1:{port}" for port in cluster.peer_ports.values())
    assert said == {
        "node_id": 4,
        "command": [
            "bascule", "serve", "--node-id", "4", "--join", peers, "--data", "d4",
            "--cluster", "bascule", "--nats", cluster.nats,
            "--peer-port", "0", "--client-port", "0", "--http-port", "0",
        ],
    }  # fmt: skip
    (tmp_path / "joined").mkdir()
    joined = NodeByCommand(tmp_path / "joined", join=["--server", servers, "--node-id", "7"])
    cluster.nodes[7] = joined
    joined.start()
    assert [each["node_id"] for each in cluster.info()["nodes"]] == [1, 2, 3, 7]
    for options, text in (
        (["--node-id", "7", "--data", "other"], "the cluster has a node 7"),
        (["--data", str(joined.directory / "data"), "--run"], "is not empty"),
    ):
        done = commands.run("node", "join", "--server", servers, *options, text=True)
        assert done.returncode == 2
        assert text in done.stderr


def test_a_node_that_was_removed_while_it_was_away_is_refused(cluster: RunningCluster) -> None:
    cluster.join(4)
    cluster.nodes[4].stop()
    survivor = cluster.nodes[1]
    assert run_command(cluster, "node", "remove", "4", "--yes") == {"node_id": 4, "replicas": 0}
    wait_for(lambda: len(cluster.info()["nodes"]) == 3 or None, survivor.process, survivor.log)
    cluster.nodes[4].spawn_again()
    assert "it was removed from the cluster" in refused(cluster.nodes[4])


@pytest.mark.long
def test_a_removal_is_taken_back_while_it_is_in_progress(cluster: RunningCluster) -> None:
    """The only node that could take over the replicas hangs, so the removal waits for it."""
    cluster.nodes[1].create("flights", "flights.>", replicas=3)
    cluster.join(4)
    cluster.wait_in_sync("flights")
    survivor, spare = cluster.nodes[1], cluster.nodes[4].process
    assert spare is not None

    def is_alive() -> bool:
        return any(each["node_id"] == 4 and each["alive"] for each in cluster.info()["nodes"])

    def begin() -> bool | None:
        """Begin before the controller notices that node 4 hangs; refused afterwards."""
        wait_for(lambda: is_alive() or None, survivor.process, survivor.log)
        spare.send_signal(signal.SIGSTOP)
        try:
            survivor.call("DELETE", "/v1/nodes/2")
        except urllib.error.HTTPError as error:
            assert error.code == 503, "too few nodes"
            spare.send_signal(signal.SIGCONT)
            return None
        return True

    def node_2() -> dict[str, Any]:
        found = next(each for each in cluster.info()["nodes"] if each["node_id"] == 2)
        return dict(found)

    try:
        wait_for(begin, survivor.process, survivor.log)
        assert node_2()["is_leaving"]
        wait_for(lambda: None if is_alive() else True, survivor.process, survivor.log)
        answer = run_command(cluster, "node", "remove", "2", "--cancel")
        assert answer["node_id"] == 2
        assert answer["replicas"] >= 1
        assert not node_2()["is_leaving"]
    finally:
        spare.send_signal(signal.SIGCONT)
    wait_for(lambda: is_alive() or None, survivor.process, survivor.log)
    for stream in ("flights", "_offsets"):
        cluster.wait_moved(stream)
        cluster.wait_in_sync(stream)
    with bascule.connect_sync(cluster.nodes[2].addresses["http"]) as client:
        assert client.publish("flights.x", b"1", timeout=30).replicas >= 2
    # The node that stayed is there for what comes next.
    moved = run_command(
        cluster, "stream", "reassign", "flights", "--replicas-on", "2,4,1", "--wait"
    )
    assert moved["partitions"][0]["replicas"] == [2, 4, 1]
    assert [each["node_id"] for each in cluster.info()["nodes"]] == [1, 2, 3, 4]
    with pytest.raises(urllib.error.HTTPError, match="404"):
        survivor.call("POST", "/v1/nodes/9/cancel-removal")


def test_numbers_and_directories_belong_together(
    cluster: RunningCluster, tmp_path: Path, nats_server: NatsServer
) -> None:
    other = cluster.add(4)
    other.options = ["--node-id", "1", *other.options[2:]]
    other.spawn_again()
    assert "its number belongs to another data directory" in refused(other)
    shutil.rmtree(other.directory / "data")
    other.environment = {"BASCULE_CLUSTER_NAME": "elsewhere"}
    other.spawn_again()
    assert "the peer belongs to cluster 'elsewhere', expected 'bascule'" in refused(other)
    other.environment = {}
    other.options = ["--node-id", "4", *other.options[2:]]
    other.start()
    other.stop()
    with running_cluster(tmp_path / "another", nats=nats_server.url, count=1) as another:
        port = another.peer_ports[1]
        at = list(other.options).index("--join") + 1
        other.options = [*other.options[:at], f"127.0.0.1:{port}", *other.options[at + 1 :]]
        other.spawn_again()
        assert "says that the node belongs to cluster" in refused(other)


def test_a_stream_gets_more_replicas_and_fewer(cluster: RunningCluster) -> None:
    """While messages are published, and the controller is killed in between."""
    cluster.nodes[1].create(
        "flights", "flights.>", replicas=1, partitions=2, partition_by="subject"
    )
    every = ",".join(node.addresses["http"] for node in cluster.nodes.values())

    async def scene() -> None:
        async with bascule.connect(every) as client:
            await client.publish_many(with_ids("a", 5_000))
            await client.alter_stream("flights", replicas=3)
            controller = cluster.nodes[(await client.cluster()).controller]
            await asyncio.to_thread(controller.stop, signal.SIGKILL)
            await asyncio.to_thread(controller.start)
            await asyncio.to_thread(cluster.wait_moved, "flights")
            await asyncio.to_thread(cluster.wait_in_sync, "flights")
            for partition in (0, 1):
                assert sorted(cluster.partition("flights", partition)["isr"]) == [1, 2, 3]
            acks = await client.publish_many(with_ids("b", 5_000))
            assert len(acks.offsets) == 5_000
            await client.alter_stream("flights", replicas=2)
            await asyncio.to_thread(cluster.wait_moved, "flights")
            on = cluster.partition("flights")["replicas"]
            on = [*on[1:], *({1, 2, 3} - set(on))]
            nodes = ",".join(map(str, on))
            command = ("stream", "reassign", "flights", "--replicas-on", nodes, "--wait")
            moved = await asyncio.to_thread(run_command, cluster, *command)
            assert [each["replicas"] for each in moved["partitions"]] == [on, on]
            stored = [m.value async for m in client.read("flights")]
            assert sorted(stored) == sorted(2 * [b"%d" % n for n in range(5_000)])

    asyncio.run(scene())
    for partition in (0, 1):
        state = cluster.partition("flights", partition)
        (dropped,) = {1, 2, 3} - set(state["replicas"])
        cluster.wait_removed(dropped, "flights", partition)
    cluster.stop()
    for partition in (0, 1):
        logs = [cluster.log_bytes(n, "flights", partition) for n in (1, 2, 3)]
        assert sorted(map(bool, logs)) == [False, True, True]
        assert len({each for each in logs if each}) == 1, "the replicas differ"


def test_retention_waits_for_an_archive_on_nodes_without_its_commits(
    cluster: RunningCluster,
) -> None:
    """As in a cluster that has grown: not every node holds a replica of `_offsets`."""
    node = cluster.nodes[1]
    wait_for(lambda: node.call("GET", "/v1/cluster")["partitions"] or None, node.process, node.log)
    run_command(cluster, "stream", "alter", "_offsets", "--replicas", "1")
    cluster.wait_moved("_offsets")
    (holder,) = cluster.partition("_offsets")["replicas"]
    node.create(
        "flights", "flights.>", replicas=1, partitions=3, partition_by="subject",
        retention_messages_max=100, retention_after="lake",
    )  # fmt: skip
    led = {n: cluster.partition("flights", n)["leader"] for n in range(3)}
    assert set(led.values()) == {1, 2, 3}
    with bascule.connect_sync(node.addresses["http"]) as client:
        for _ in range(20):  # small batches: no segment holds more than 500 messages
            client.publish_many((f"flights.{n % 100}", bytes(100)) for n in range(300))
        client.reset_offsets("lake", "flights", offset=500)
        found = client.offsets(consumer="lake", stream="flights")
    assert {each.offset for each in found} == {500}

    def starts() -> list[int]:
        return [cluster.partition("flights", n)["start_offset"] for n in range(3)]

    wait_for(lambda: all(starts()) or None, node.process, node.log)
    assert max(starts()) <= 500
    assert holder in led.values()


def test_leadership_returns_to_the_preferred_leader(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    environment = {"BASCULE_CLUSTER_LEADER_BALANCE_MS": "500"}
    with running_cluster(tmp_path, nats=nats_server.url, environment=environment) as cluster:
        cluster.nodes[1].create("flights", "flights.>", replicas=3)
        preferred = cluster.leader("flights")
        cluster.nodes[preferred].stop(signal.SIGKILL)
        assert cluster.leader("flights") != preferred
        cluster.nodes[preferred].start()
        node = cluster.nodes[preferred]
        wait_for(lambda: cluster.leader("flights") == preferred or None, node.process, node.log)

        def look() -> bool | None:
            logs = "".join(each.log.read_text() for each in cluster.nodes.values())
            has_reason = "leader changed" in logs and "the preferred leader is in sync" in logs
            return True if has_reason else None

        wait_for(look, node.process, node.log)


def test_replicas_move_while_nodes_are_killed(
    tmp_path: Path, nats_server: NatsServer, request: pytest.FixtureRequest
) -> None:
    """Move after move, and kill -9 of any node in each: none lost, none doubled, replicas equal."""
    rounds = request.config.getoption("--rounds") or MOVES
    dice = random.Random(rounds)
    environment = {"BASCULE_CLUSTER_LEADER_BALANCE_MS": "1000"}
    with running_cluster(tmp_path, nats=nats_server.url, environment=environment) as cluster:
        cluster.nodes[1].create("flights", "flights.>", replicas=3)
        cluster.join(4)
        every = ",".join(node.addresses["http"] for node in cluster.nodes.values())

        async def scene() -> tuple[list[int], dict[int, bytes]]:
            async with bascule.connect(every) as client:
                published = IdsPublished(client)
                run = asyncio.create_task(published.run())
                for _ in range(rounds):
                    await published.wait_more(100)
                    target = dice.sample(list(cluster.nodes), 3)
                    await client.reassign_stream("flights", target)
                    victim = cluster.nodes[dice.choice(list(cluster.nodes))]
                    await asyncio.to_thread(victim.stop, signal.SIGKILL)
                    await published.wait_more(100)
                    await asyncio.to_thread(victim.start)
                    await asyncio.to_thread(cluster.wait_moved, "flights")
                    await asyncio.to_thread(cluster.wait_in_sync, "flights")
                    assert cluster.partition("flights")["replicas"] == target
                published.stopping = True
                await run
                stored = {m.offset: m.value async for m in client.read("flights")}
                return published.offsets, stored

        offsets, stored = asyncio.run(scene())
        check_published(offsets, stored)
        replicas = cluster.partition("flights")["replicas"]
        (spare,) = cluster.nodes.keys() - set(replicas)
        cluster.wait_removed(spare, "flights")
        cluster.stop()
        assert len({cluster.log_bytes(node, "flights") for node in replicas}) == 1


def test_a_publisher_may_use_the_server_of_a_node_that_joined(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        joined = cluster.join(4)
        joined.create("flights", "flights.>", replicas=3)
        with bascule.connect_sync(joined.addresses["http"]) as client:
            headers = {"Nats-Msg-Id": "1"}
            client.publish("flights.x", b"1", headers=headers, timeout=WAIT_SECONDS_MAX)
            assert [m.value for m in client.read("flights")] == [b"1"]


def test_one_node_grows_to_three(tmp_path: Path, nats_server: NatsServer) -> None:
    with running_cluster(tmp_path, nats=nats_server.url, count=1) as cluster:
        cluster.nodes[1].create("flights", "flights.>")
        cluster.join(2)
        assert cluster.info()["voters"] == [1], "two voters would survive no loss at all"
        cluster.join(3)
        cluster.wait_voters(1, 2, 3)
        with bascule.connect_sync(cluster.nodes[1].addresses["http"]) as client:
            client.publish("flights.x", b"1", headers={"Nats-Msg-Id": "1"}, timeout=30)
            client.alter_stream("flights", replicas=3)
            client.alter_stream("_offsets", replicas=3)
        for stream in ("flights", "_offsets"):
            cluster.wait_moved(stream)
            assert sorted(cluster.partition(stream)["isr"]) == [1, 2, 3]
        cluster.nodes[1].stop(signal.SIGKILL)
        assert cluster.leader("flights") != 1
        with bascule.connect_sync(cluster.nodes[2].addresses["http"]) as client:
            assert [m.value for m in client.read("flights")] == [b"1"]


def test_a_node_alone_with_data_of_the_release_before_grows_to_three(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    with contextlib.ExitStack() as stack:
        cluster = RunningCluster(directory=tmp_path, nats=nats_server.url)
        stack.callback(cluster.stop)
        peer, *ports = reserve_ports(4)
        with tarfile.open(DATA / "release-0.1.0-killed.tar.xz") as archive:
            archive.extractall(tmp_path / "node1", filter="data")
        alone = Node(
            tmp_path / "node1",
            nats_server.url,
            ["--peer-port", str(peer)],
            keep_ports=True,
            ports=ports,
        )
        cluster.nodes[1], cluster.peer_ports[1] = alone, peer
        alone.start()
        names = [each["name"] for each in alone.call("GET", "/v1/streams")["streams"]]
        alone.create("flights", "flights.>")

        async def grow(client: Client, published: IdsPublished) -> None:
            await published.wait_more(100)
            for number in (2, 3):
                await asyncio.to_thread(cluster.join, number)
                await published.wait_more(100)
            await asyncio.to_thread(cluster.wait_voters, 1, 2, 3)
            for stream in (*names, "flights"):
                await client.alter_stream(stream, replicas=3)
                await asyncio.to_thread(cluster.wait_moved, stream)
                await published.wait_more(100)
                assert sorted(cluster.partition(stream)["isr"]) == [1, 2, 3]

        async def scene() -> None:
            """Messages flow all the time."""
            async with bascule.connect(alone.addresses["http"]) as client:
                published = IdsPublished(client)
                run = asyncio.create_task(published.run())
                await grow(client, published)
                await asyncio.to_thread(alone.stop, signal.SIGKILL)
                await published.wait_more(100)
                published.stopping = True
                await run
            async with bascule.connect(cluster.nodes[2].addresses["http"]) as client:
                stored = {m.offset: m.value async for m in client.read("flights")}
            check_published(published.offsets, stored)

        asyncio.run(scene())
        assert cluster.leader("flights") != 1
        cluster.start(1)
        for stream in (*names, "flights"):
            cluster.wait_in_sync(stream)
        cluster.stop()
        logs = {cluster.log_bytes(node, "flights") for node in cluster.nodes}
        assert len(logs) == 1, "the replicas differ"
