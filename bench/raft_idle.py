"""The cost of a thousand idle groups: CPU and messages, with three nodes in one process.

Each node is a `RaftDriver` with its own listener; bundles pass over loopback TCP, a tick takes
100 ms. Stores are in memory: nothing is written while groups are idle. All groups elect their
leaders and come to rest first; what is measured begins after that. For comparison, some groups that
are kept from resting, each of which sends its own heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from bascule.raft.config import RaftConfig
from bascule.raft.membership import Members
from bascule.raft.messages import Entry, RaftSnapshot
from bascule.raft.node import RaftNode
from bascule.raft.testing.memory_store import MemoryStore
from bascule.raft_driver.driver import DriverSettings, RaftDriver
from bench.harness import report, row

NODES = (1, 2, 3)
TICK_MS = 100
AWAKE = 200
"""Groups of the comparison: each costs a fixed share, and 2,000 would ask for a core."""
CONFIG = RaftConfig()


class Nothing:
    """The state machine of a group that is not used."""

    def apply(self, entries: Sequence[Entry]) -> Sequence[Any]:
        return [None] * len(entries)

    def take_snapshot(self) -> list[bytes]:
        return [b""]

    def restore(self, snapshot: RaftSnapshot) -> None:
        return None


@contextlib.asynccontextmanager
async def cluster(groups: int) -> AsyncIterator[list[RaftDriver]]:
    settings = DriverSettings(cluster="idle", tick_ms=TICK_MS)
    drivers = [RaftDriver(node, settings, config=CONFIG) for node in NODES]
    try:
        addresses = {}
        for driver in drivers:
            addresses[driver.node_id] = await driver.start(listen=("127.0.0.1", 0))
        for driver in drivers:
            driver.transport.set_peers(addresses)
        members = Members.of(*NODES)
        for number in range(1, groups + 1):
            for driver in drivers:
                await driver.open_group(
                    number, Nothing(), initial_members=members, store=MemoryStore(f"group {number}")
                )
        yield drivers
    finally:
        for driver in drivers:
            await driver.stop()


async def settled(drivers: list[RaftDriver], *, hibernating: bool) -> None:
    """Return once every group has a leader, and rests where it is to."""
    deadline = time.monotonic() + 120
    while True:
        reports = [driver._multi_raft.report() for driver in drivers]
        led = sum(driver.group(n).is_leader for driver in drivers for n in driver._groups)
        resting = sum(one.hibernating for one in reports)
        groups = reports[0].groups
        if led == groups and (resting == len(NODES) * groups or not hibernating):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{led} of {groups} groups led, {resting} nodes at rest")
        await asyncio.sleep(0.5)


def frames(drivers: list[RaftDriver]) -> tuple[int, int]:
    """(bundles, bytes) received by all so far."""
    found = [driver.statistics().transport for driver in drivers]
    return sum(one.frames_received for one in found), sum(one.bytes_received for one in found)


async def measure(groups: int, seconds: float, *, hibernating: bool = True) -> dict[str, float]:
    """CPU as a share of one core, bundles and bytes per second, of all three nodes together."""
    async with cluster(groups) as drivers:
        await settled(drivers, hibernating=hibernating)
        await asyncio.sleep(3 * CONFIG.election_ticks * TICK_MS / 1000)
        before, cpu, wall = frames(drivers), time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        after = frames(drivers)
        took = time.perf_counter() - wall
        return {
            "cpu_percent": round(100 * (time.process_time() - cpu) / took, 2),
            "bundles_per_s": round((after[0] - before[0]) / took, 1),
            "bytes_per_s": round((after[1] - before[1]) / took),
        }


@contextlib.contextmanager
def kept_awake() -> Iterator[None]:
    """No group may rest meanwhile."""
    may_hibernate = RaftNode.may_hibernate
    RaftNode.may_hibernate = lambda self, away=(): False  # type: ignore[method-assign]
    try:
        yield
    finally:
        RaftNode.may_hibernate = may_hibernate  # type: ignore[method-assign]


def run(*, quick: bool = False) -> None:
    seconds = 5.0 if quick else 30.0
    found = {groups: asyncio.run(measure(groups, seconds)) for groups in (10, 100, 1_000)}
    with kept_awake():
        awake = asyncio.run(measure(AWAKE, seconds / 2, hibernating=False))
    rates = {groups: one["bundles_per_s"] for groups, one in found.items()}
    report(
        "raft_idle",
        [
            row("CPU of 1,000 idle groups, three nodes of each in one process, percent of one core",
                {"value": found[1_000]["cpu_percent"],
                 "of_10_and_100": [found[10]["cpu_percent"], found[100]["cpu_percent"]],
                 f"of_{AWAKE}_kept_awake": awake["cpu_percent"]}, at_most=3),
            row("bundles per second of 1,000 idle groups over those of 10",
                {"value": round(rates[1_000] / rates[10], 3), "bundles_per_s": rates,
                 "bytes_per_s": {g: one["bytes_per_s"] for g, one in found.items()},
                 f"of_{AWAKE}_kept_awake": awake},
                at_most=1.1),
        ],
    )  # fmt: skip
