"""The longest stall of a controller's event loop when a node of a large cluster is lost.

One process has the metadata group, with a real store. Its image has three nodes, and partitions
with a replica on each: once streams of one partition, once of 100. Then a node hands over what it
leads, as one that stops; another one is lost and registers again. A task that runs in every turn of
the loop measures how much CPU time of the loop's thread lies between two turns: that does not
depend on who else uses the machine. Beside it is what one decision for all, and its application,
would take.
"""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from bascule.controller.cluster.metadata_group import MetadataGroup
from bascule.controller.cluster.metadata_group.metadata_group import COMMIT_COMMANDS
from bascule.host.real import RealRandom
from bascule.metadata.apply import apply
from bascule.metadata.commands import CreateStream
from bascule.metadata.image import Image
from bascule.metadata.requests import LoseNode, RegisterProcess, StepDown, decide
from bascule.model import NodeRegistration, PartitionState, StreamConfig, StreamDefinition
from bascule.raft_driver.driver import DriverSettings, RaftDriver
from bench.harness import report, row, work_directory

COUNT: Final = 100_000
SHAPES: Final = (1, 100)
"""Partitions of a stream."""
STALL_MS_MAX: Final = 100.0
"""A small part of the shortest session of a node with its controller."""
NODES: Final = (1, 2, 3)
LOST: Final = 2
STOPPING: Final = 3


class NoPeers:
    """The group has one voter, which asks nobody."""

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        raise AssertionError(kind)


class Turns:
    """The thread's CPU time at each turn of the loop."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            self._times.append(time.thread_time())
            await asyncio.sleep(0)

    def longest_ms(self) -> float:
        """The longest time between two turns; ends the measurement."""
        self._task.cancel()
        return 1000 * max(after - before for before, after in pairwise(self._times))


def registration(node: int, incarnation: int) -> NodeRegistration:
    return NodeRegistration(node, f"h{node}:1", f"h{node}:2", f"http://h{node}:3",
                            incarnation=incarnation)  # fmt: skip


def creations(count: int, partitions: int) -> list[CreateStream]:
    random = RealRandom(1)
    config = StreamConfig("s", partitions=partitions, replicas=len(NODES))
    commands = []
    for number in range(count // partitions):
        states = []
        for index in range(partitions):
            first = (number + index) % len(NODES)
            replicas = (*NODES[first:], *NODES[:first])
            states.append(PartitionState(replicas, NODES, replicas[0], 0, 0))
        stream = StreamDefinition(f"s{number}", random.bytes(16), 0,
                                  replace(config, subject=f"s.{number}"))  # fmt: skip
        commands.append(CreateStream(stream, tuple(states)))
    return commands


async def measure(count: int, partitions: int, place: Path) -> dict[str, float]:
    """The longest stalls in ms, and seconds until each request is answered."""
    driver = RaftDriver(NODES[0], DriverSettings(cluster="bench"))
    await driver.start(directory=str(place), peers={})
    group = MetadataGroup(
        driver, NoPeers(), RealRandom(1), cluster_id="bench", make_room=lambda: None
    )
    try:
        await group.open(voters=[NODES[0]])
        await group.lead_alone()
        for node in NODES:
            await group.submit(RegisterProcess(registration(node, 1)))
        commands = creations(count, partitions)
        for start in range(0, len(commands), COMMIT_COMMANDS):
            await group.commit(commands[start : start + COMMIT_COMMANDS])
        found = {"at_once_ms": at_once_ms(group.image)}
        gc.freeze()  # as a node does when it is ready
        for step, request in (
            ("stop", lambda: StepDown(STOPPING, group.image.nodes[STOPPING].epoch)),
            ("lost", lambda: LoseNode(LOST, group.image.nodes[LOST].epoch)),
            ("back", lambda: RegisterProcess(registration(LOST, 2))),
        ):
            turns, began, used = Turns(), time.monotonic(), time.thread_time()
            await group.submit(request())
            found[f"{step}_seconds"] = round(time.monotonic() - began, 2)
            found[f"{step}_cpu_seconds"] = round(time.thread_time() - used, 2)
            found[f"{step}_stall_ms"] = round(turns.longest_ms(), 1)
        assert not any(LOST in state.isr for _, _, state in group.image.partition_states())
    finally:
        await driver.stop()
    return found


def at_once_ms(image: Image) -> float:
    """The time for one decision on all partitions, and for its application."""
    began = time.thread_time()
    for command in decide(image, LoseNode(LOST, image.nodes[LOST].epoch)):
        image = apply(image, command)
    return round(1000 * (time.thread_time() - began), 1)


def run(*, quick: bool = False, count: int | None = None) -> None:
    count = count or (10_000 if quick else COUNT)
    rows: list[dict[str, object]] = []
    for partitions in SHAPES:
        with work_directory() as place:
            found = asyncio.run(measure(count, partitions, place))
        rows.append(
            row(f"{count} partitions, {partitions} a stream: longest stall at the loss of a node, "
                "ms of CPU", {"value": found["lost_stall_ms"], **found},
                at_most=STALL_MS_MAX)
        )  # fmt: skip
    report("node_loss", rows)
