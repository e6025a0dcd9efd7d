"""The longest time without an ack when a node of three dies or is paused.

Three nodes with one `nats-server`, one stream with three replicas, `sync = always`. A publisher
sends a new message every `BETWEEN_S`, whether or not those before it are answered, and each again
until it is. So what is measured is how long the cluster acknowledges nothing, and not how long a
publisher waits until it sends again. In each round one node is killed with -9, or paused for three
seconds, and the longest time between two acks around that is measured. The node starts again, or
goes on, and is in sync before the next round.

The scenes are those of `SCENES`. In the last one the leader of the partition is the controller,
too; in the others that is as it happens, and noted.

Beside it the leader of a JetStream R3 file stream is killed in the same way. Its publisher sends as
many messages, each once, and is connected to a server that lives.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import time
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any, Final

import nats

import bascule
from bascule.client import Client
from bascule.errors import BasculeError
from bench.clusters import (
    NODES,
    ClusterNode,
    JetStreamCluster,
    jetstream_cluster,
    served_cluster,
    wait_until,
)
from bench.harness import report, row, work_directory

ROUNDS: Final = 20
ROUNDS_OF_DEFAULTS: Final = 30
"""Of the scene in which the leader is killed."""
JETSTREAM_ROUNDS: Final = 10
"""Each takes some ten seconds."""
STREAM: Final = "flights"
UNANSWERED_MAX: Final = 2_000
BETWEEN_S: Final = 0.005
PAUSE_S: Final = 3.0
CALM_S: Final = 1.0
JETSTREAM_S_MAX: Final = 60.0
"""Its servers elect a leader after 4 to 9 s without the one before."""
MEDIAN_BAR_S: Final = 1.0
WORST_BAR_S: Final = 3.0


@dataclass(frozen=True)
class Scene:
    """What happens to which node."""

    name: str
    is_leader: bool
    is_paused: bool = False
    is_controller: bool = False
    """Whether it has to be the controller."""
    rounds: int = ROUNDS


SCENES: Final = (
    Scene("leader killed", is_leader=True, rounds=ROUNDS_OF_DEFAULTS),
    Scene("follower killed", is_leader=False),
    Scene("leader paused", is_leader=True, is_paused=True),
    Scene("follower paused", is_leader=False, is_paused=True),
    Scene("leader and controller killed", is_leader=True, is_controller=True),
)


class SteadyLoad:
    """Publishes without end, and notes when acks arrive."""

    def __init__(self, client: Client, *, between_s: float = BETWEEN_S) -> None:
        self._client = client
        self._between_s = between_s
        self._run = time.monotonic_ns()
        """Begins the message ids: no run sends those of another."""
        self._unanswered: set[asyncio.Task[None]] = set()
        self.acked_at: list[float] = []
        self.stopping = False

    async def run(self) -> None:
        """Send a message every `between_s` until `stopping`; return once all are answered."""
        due = time.monotonic()
        for number in count():
            if self.stopping:
                break
            if len(self._unanswered) < UNANSWERED_MAX:
                task = asyncio.create_task(self._publish(f"{self._run}.{number}"))
                self._unanswered.add(task)
                task.add_done_callback(self._unanswered.discard)
            due = max(due + self._between_s, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
        await asyncio.gather(*self._unanswered)

    async def _publish(self, message_id: str) -> None:
        while True:
            try:
                await self._client.publish(f"{STREAM}.x", bytes(128), message_id=message_id)
            except BasculeError:
                await asyncio.sleep(BETWEEN_S)
                continue
            self.acked_at.append(time.monotonic())
            return

    def longest_gap(self, since: float) -> float:
        """See `longest_gap`."""
        return longest_gap(self.acked_at, since)


def longest_gap(acked_at: list[float], since: float) -> float:
    """The longest time without an ack since `since`, in seconds."""
    times = [since, *(at for at in acked_at if at >= since), time.monotonic()]
    return max(after - before for before, after in pairwise(times))


def state_of(node: ClusterNode) -> dict[str, Any]:
    """The partition, as the node knows it."""
    return node.partition(STREAM)


def in_sync(node: ClusterNode) -> bool:
    return len(state_of(node)["isr"]) == NODES


def controller_of(node: ClusterNode) -> int:
    return int(node.call("GET", "/v1/cluster")["controller"])


def choose(scene: Scene, nodes: dict[int, ClusterNode]) -> tuple[int, bool]:
    """The node to hurt, and whether it is the controller."""
    controller = controller_of(nodes[1])
    if scene.is_controller:
        # The first replica leads, once the controller gets to it.
        order = [controller, *(number for number in nodes if number != controller)]
        nodes[1].call("POST", f"/v1/streams/{STREAM}/reassign", {"replicas": order})
        wait_until(lambda: state_of(nodes[1])["leader"] == controller_of(nodes[1]))
        controller = controller_of(nodes[1])
    leader = int(state_of(nodes[1])["leader"])
    followers = [number for number in nodes if number != leader]
    victim = leader if scene.is_leader else followers[0]
    return victim, victim == controller


async def measure(scene: Scene, nodes: dict[int, ClusterNode], rounds: int) -> dict[str, Any]:
    """The longest time without an ack of each round."""
    gaps: list[float] = []
    were_controllers: list[bool] = []
    servers = ",".join(node.http for node in nodes.values())
    async with bascule.connect(servers) as client:
        load = SteadyLoad(client)
        run = asyncio.create_task(load.run())
        while len(gaps) < rounds:
            await asyncio.sleep(CALM_S)
            victim, is_controller = await asyncio.to_thread(choose, scene, nodes)
            were_controllers.append(is_controller)
            node, began = nodes[victim], time.monotonic()
            if scene.is_paused:
                node.process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(PAUSE_S)
                node.process.send_signal(signal.SIGCONT)
            else:
                await asyncio.to_thread(node.end)
                await asyncio.sleep(PAUSE_S)
            gaps.append(load.longest_gap(began))
            if not scene.is_paused:
                await asyncio.to_thread(node.start)
            for each in nodes.values():
                await asyncio.to_thread(each.wait_ready)
                await asyncio.to_thread(wait_until, lambda each=each: in_sync(each))
            load.acked_at.clear()
        load.stopping = True
        await run
    return {"gaps": gaps, "controllers": were_controllers}


def jetstream_gaps(cluster: JetStreamCluster, rounds: int) -> list[float]:
    """The longest time without an ack around each kill of the leader of a JetStream stream."""
    gaps = []
    cluster.create(STREAM, f"{STREAM}.>")
    while len(gaps) < rounds:
        leader = cluster.leader(STREAM)
        publishing = jetstream_gap(cluster, leader, cluster.other(leader))
        gaps.append(asyncio.run(publishing))
        cluster.servers[leader].start()
    return gaps


async def jetstream_gap(cluster: JetStreamCluster, leader: str, other: str) -> float:
    """Publish through one server, kill another, and go on until acks come again."""
    acked_at: list[float] = []

    async def on_ack(message: Any) -> None:
        if b'"seq"' in message.data:
            acked_at.append(time.monotonic())

    client = await nats.connect(cluster.servers[other].url)
    inbox = client.new_inbox()
    await client.subscribe(inbox, cb=on_ack)
    run = f"{time.monotonic_ns()}"
    began = due = time.monotonic()
    killed = 0.0
    for number in count():
        headers = {"Nats-Msg-Id": f"{run}.{number}"}
        await client.publish(f"{STREAM}.x", bytes(128), reply=inbox, headers=headers)
        due = max(due + BETWEEN_S, time.monotonic())
        await asyncio.sleep(due - time.monotonic())
        if not killed and time.monotonic() - began > CALM_S:
            killed = time.monotonic()
            cluster.servers[leader].end()
        elif killed and acked_at and acked_at[-1] - killed > PAUSE_S:
            break
        elif killed and time.monotonic() - killed > JETSTREAM_S_MAX:
            raise TimeoutError("JetStream acknowledges nothing any more")
    gap = longest_gap(acked_at, killed)
    await client.close()
    return gap


def run(*, quick: bool = False, rounds: int | None = None) -> None:
    rows: list[dict[str, object]] = []
    with work_directory() as place, served_cluster(place) as (nodes, _):
        nodes[1].create(STREAM, f"{STREAM}.>", replicas=NODES)
        for scene in SCENES:
            asked = rounds or (3 if quick else scene.rounds)
            measured = asyncio.run(measure(scene, nodes, asked))
            rows += rows_of(scene, measured)
            print(scene.name, rows[-2]["rounds"], flush=True)
    with work_directory() as place, jetstream_cluster(place) as other:
        gaps = jetstream_gaps(other, rounds or (3 if quick else JETSTREAM_ROUNDS))
        figure = "JetStream R3, leader killed: longest time without an ack, median, s"
        rows.append({"figure": figure, **summary(gaps)})
    report("cluster_failover", rows)


def summary(gaps: list[float]) -> dict[str, Any]:
    return {
        "value": round(statistics.median(gaps), 3),
        "max": round(max(gaps), 3),
        "rounds": [round(gap, 3) for gap in gaps],
    }


def rows_of(scene: Scene, measured: dict[str, Any]) -> list[dict[str, object]]:
    found = measured["gaps"]
    median = {**summary(found), "was_controller": measured["controllers"]}
    worst = {"value": round(max(found), 3)}
    of = f"{scene.name}: longest time without an ack"
    return [
        row(f"{of}, median, s", median, at_most=MEDIAN_BAR_S),
        row(f"{of}, worst, s", worst, at_most=WORST_BAR_S),
    ]
