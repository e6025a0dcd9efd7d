"""Groups: 100 members of one group beside Apache Kafka, a lost coordinator, idle groups.

All members are of the classic protocol, in this process, and read no records. Kafka is as it comes,
with its initial delay of a rebalance of 3 s (ours: 1 s), and once more with a delay of 1 s.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic

from bench.clusters import served_cluster, wait_until
from bench.commit_load import commit_at_rate
from bench.group_members import SESSION_MS, GroupMember, joined, settled
from bench.harness import (
    Running,
    median_ratio,
    node,
    report,
    row,
    work_directory,
)
from bench.kafka.broker import broker, class_path

TOPIC: Final = "shared"
MEMBERS: Final = 100
ROUNDS: Final = 5
FAILOVER_ROUNDS: Final = 20
COMMITS: Final = 10_000.0
"""A second, of all members."""
COMMIT_SECONDS: Final = 20.0
IDLE_GROUPS: Final = 1_000
IDLE_MEMBERS: Final = 3
IDLE_SECONDS: Final = 30.0
HEARTBEAT_SECONDS: Final = 3.0
"""The default of Kafka's clients."""
LONG_SESSION_MS: Final = 60_000
"""Of members that commit: on a machine without time to spare they are late, not dead."""
NO_DELAY: Final = "group.initial.rebalance.delay.ms=1000\n"


def create_topic(address: str, name: str, partitions: int) -> None:
    """Create a topic through Kafka's protocol, and wait until it can be used."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)
    wait_until(lambda: len(admin.list_topics(name, timeout=10).topics[name].partitions) > 0)


def members_of(
    addresses: Sequence[str],
    group: str,
    *,
    count: int = MEMBERS,
    heartbeat_seconds: float = 0.1,
    session_ms: int = SESSION_MS,
) -> list[GroupMember]:
    return [
        GroupMember(
            addresses, group, MEMBERS, heartbeat_seconds=heartbeat_seconds, session_ms=session_ms
        )
        for _ in range(count)
    ]


async def time_join(address: str, group: str) -> float:
    """Seconds from the first join until all members have their partitions."""
    members = members_of([address], group)
    began = time.monotonic()
    async with joined(members):
        return await settled(members) - began


async def time_takeover(address: str, group: str) -> float:
    """Seconds until the partitions of a member that died are owned again, beyond its session
    time-out."""
    members = members_of([address], group)
    async with joined(members) as tasks:
        await settled(members)
        await asyncio.sleep(0.5)
        lost, *others = members
        tasks[0].cancel()
        await asyncio.wait([tasks[0]])
        done = await settled(others, after=lost.generation)
        return done - lost.well_at - 6.0


async def cpu_of_commits(running: Running, address: str, group: str, seconds: float) -> float:
    """Microseconds of the server's CPU for a commit."""
    members = members_of(
        [address], group, heartbeat_seconds=HEARTBEAT_SECONDS, session_ms=LONG_SESSION_MS
    )
    async with joined(members):
        await settled(members)
        committers = [await member.committer(TOPIC) for member in members]
        load = partial(commit_at_rate, committers, rate=COMMITS)
        await asyncio.to_thread(load, seconds=2.0)
        before = running.cpu_seconds()
        count, took = await asyncio.to_thread(load, seconds=seconds)
        used = running.cpu_seconds() - before
        for each in committers:
            each.socket.close()
        if took > 1.1 * seconds:
            print(f"the members commit {count / took:,.0f} times a second, not {COMMITS:,.0f}")
        return 1e6 * used / count


def beside_kafka(*, quick: bool) -> list[dict[str, Any]]:
    """The figures whose bar is what Kafka takes."""
    rounds = 2 if quick else ROUNDS
    seconds = 5.0 if quick else COMMIT_SECONDS
    joins: dict[str, list[float]] = {"ours": [], "kafka": [], "kafka, delay 1 s": []}
    takeovers: dict[str, list[float]] = {"ours": [], "kafka": []}
    commits: dict[str, list[float]] = {"ours": [], "kafka": []}
    with work_directory() as directory:
        for name in ("node", "kafka", "quick"):
            (directory / name).mkdir()
        jars = class_path(directory)
        with (
            node(directory / "node") as ours,
            broker(directory / "kafka", jars) as kafka,
        ):
            sides = {"ours": (ours, ours.addresses["client"]), "kafka": (kafka, kafka.url)}
            for _, address in sides.values():
                create_topic(address, TOPIC, MEMBERS)
                asyncio.run(time_join(address, "warm"))
            for number in range(rounds):
                for name, (running, address) in sides.items():
                    joins[name].append(asyncio.run(time_join(address, f"join{number}")))
                    takeovers[name].append(asyncio.run(time_takeover(address, f"lost{number}")))
                    cost = cpu_of_commits(running, address, f"commit{number}", seconds)
                    commits[name].append(asyncio.run(cost))
        with broker(directory / "quick", jars, settings=NO_DELAY) as kafka:
            create_topic(kafka.url, TOPIC, MEMBERS)
            asyncio.run(time_join(kafka.url, "warm"))
            for number in range(rounds):
                joins["kafka, delay 1 s"].append(asyncio.run(time_join(kafka.url, f"j{number}")))
    figure = "100 members of one group, first join to all assigned, s, over Kafka"
    return [
        row(figure, median_ratio(joins["ours"], joins["kafka"]), at_most=1.0),
        row(f"{figure} with our initial delay, 1 s",
            median_ratio(joins["ours"], joins["kafka, delay 1 s"]), at_most=1.0),
        row("a member lost: its partitions owned again, s beyond the session time-out, "
            "heartbeats every 0.1 s, the worst", _worst(takeovers["ours"])
            | {"kafka": _rounded(takeovers["kafka"])}, at_most=0.2),
        row("10,000 commits/s of 100 members, CPU of the node over Kafka's",
            median_ratio(commits["ours"], commits["kafka"]), at_most=1.0),
    ]  # fmt: skip


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 3) for value in values]


def _worst(values: Sequence[float]) -> dict[str, Any]:
    return {"value": round(max(values), 3), "each": _rounded(values)}


async def time_failover(nodes: dict[int, Any], group: str, rounds: int) -> tuple[list[float], int]:
    """Seconds from kill -9 of the coordinator until it is well with all members, each round; and
    how often members joined again."""
    addresses = [f"127.0.0.1:{each.client_port}" for each in nodes.values()]
    members = members_of(addresses, group, heartbeat_seconds=0.1)
    found: list[float] = []
    async with joined(members):
        await settled(members)
        before = sum(m.joins for m in members)
        for _ in range(rounds):
            states = nodes[1].call("GET", "/v1/streams/_offsets")["partitions"]
            lost = nodes[int(states[0]["leader"])]
            killed = time.monotonic()
            await asyncio.to_thread(lost.end)
            dead = time.monotonic()
            while min(m.well_at for m in members) <= dead:
                await asyncio.sleep(0.002)
                if time.monotonic() > killed + 60:
                    raise TimeoutError("members do not go on")
            # By now each has had an answer of another coordinator.
            found.append(max(m.well_at for m in members) - killed)
            lost.start()
            await asyncio.to_thread(lost.wait_ready)
            await asyncio.to_thread(_wait_whole, nodes)
        return found, sum(m.joins for m in members) - before


def _wait_whole(nodes: dict[int, Any]) -> None:
    def is_whole() -> bool:
        (state,) = nodes[1].call("GET", "/v1/streams/_offsets")["partitions"]
        return len(state["isr"]) == len(nodes)

    wait_until(is_whole)


def lost_coordinators(*, quick: bool) -> list[dict[str, Any]]:
    """The coordinator of 100 members is killed, round after round."""
    with work_directory() as directory, served_cluster(directory) as (nodes, _):
        nodes[1].create(TOPIC, TOPIC, replicas=3, partitions=MEMBERS)
        found, rejoined = asyncio.run(time_failover(nodes, "lost", 3 if quick else FAILOVER_ROUNDS))
    measured = {
        "value": round(statistics.median(found), 3), "worst": round(max(found), 3),
        "each": _rounded(found), "joined_again": rejoined,
    }  # fmt: skip
    assert not rejoined, measured
    return [
        row("the coordinator's node is killed -9: 100 members go on, median, s", measured,
            at_most=2.0)
    ]  # fmt: skip


async def idle(running: Running, address: str, groups: int, seconds: float) -> tuple[float, float]:
    """Share of a core that groups take whose members only say that they are alive; their memory in
    MB."""
    before = running.resident_mb()
    all_groups = [
        members_of([address], f"idle{number}", count=IDLE_MEMBERS,
                   heartbeat_seconds=HEARTBEAT_SECONDS)
        for number in range(groups)
    ]  # fmt: skip
    members = [member for group in all_groups for member in group]
    async with joined(members):
        for group in all_groups:
            await settled(group)
        await asyncio.sleep(2 * HEARTBEAT_SECONDS)
        used, began = running.cpu_seconds(), time.monotonic()
        await asyncio.sleep(seconds)
        share = (running.cpu_seconds() - used) / (time.monotonic() - began)
        return share, running.resident_mb() - before


def idle_groups(*, quick: bool) -> list[dict[str, Any]]:
    """1,000 groups of three members, on one node."""
    with work_directory() as directory, node(directory) as running:
        create_topic(running.addresses["client"], TOPIC, MEMBERS)
        asyncio.run(time_join(running.addresses["client"], "warm"))
        share, memory = asyncio.run(
            idle(running, running.addresses["client"], IDLE_GROUPS, 10 if quick else IDLE_SECONDS)
        )
    measured = {"value": round(share, 3), "memory_mb": round(memory, 1)}
    return [row("1,000 idle groups of 3 members, CPU of the node, cores", measured, at_most=0.1)]


def run(*, quick: bool = False) -> None:
    report(
        "groups",
        [*idle_groups(quick=quick), *lost_coordinators(quick=quick), *beside_kafka(quick=quick)],
    )
