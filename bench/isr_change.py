"""What one change of an in-sync set costs the metadata, however many partitions there are.

No process, no network, no disk: a leader's request is decided, the commands are encoded, decoded
and applied to an image of 100,000 partitions, which is what the controller and each other node
compute for it. Beside it is an image of 1,000. A follower leaves and comes back in turn, of
partitions in random order.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from typing import Final

from bascule.cluster_version import NEWEST
from bascule.metadata.apply import apply
from bascule.metadata.command_codec import decode_commands, encode_commands
from bascule.metadata.image import Image
from bascule.metadata.requests import ChangeIsrs, IsrChange, RegisterProcess, decide
from bench.harness import report, row
from bench.node_loss import NODES, creations, registration

COUNT: Final = 100_000
COUNT_BESIDE: Final = 1_000
SHAPES: Final = (1, 100)
"""Partitions of a stream."""
CHANGES: Final = 2_000
CPU_US_MAX: Final = 200.0
GROWTH_MAX: Final = 1.0
"""Bytes with many partitions over those with few."""


def image_of(count: int, partitions: int) -> Image:
    image = Image()
    for node in NODES:
        for command in decide(image, RegisterProcess(registration(node, 1))):
            image = apply(image, command)
    for creation in creations(count, partitions):
        image = apply(image, creation)
    return image


def measure(image: Image, changes: int) -> tuple[list[float], list[int]]:
    """Microseconds of CPU and bytes of each change."""
    places = random.Random(1).choices(
        [(id, index) for id, states in image.partitions.items() for index in range(len(states))],
        k=changes // 2,
    )
    times, sizes = list[float](), list[int]()
    for id, index in places:
        for leaves in (True, False):
            state = image.partitions[id][index]
            members: Sequence[int] = state.replicas[:2] if leaves else state.replicas
            epochs = tuple((node, image.nodes[node].epoch) for node in members)
            change = IsrChange(id, index, state.leader_epoch, state.version, epochs)
            began = time.thread_time()
            commands = decide(image, ChangeIsrs(state.leader, (change,)))
            payload = encode_commands(commands, version=NEWEST)
            for command in decode_commands(payload)[1]:
                image = apply(image, command)
            times.append(1e6 * (time.thread_time() - began))
            sizes.append(len(payload))
            assert sorted(image.partitions[id][index].isr) == sorted(members)
    return times, sizes


def run(*, quick: bool = False, count: int | None = None) -> None:
    count = count or (10_000 if quick else COUNT)
    rows: list[dict[str, object]] = []
    for partitions in SHAPES:
        found = {
            size: measure(image_of(size, partitions), CHANGES) for size in (COUNT_BESIDE, count)
        }
        cpu = {size: statistics.median(times) for size, (times, _) in found.items()}
        sizes = {size: statistics.median(each) for size, (_, each) in found.items()}
        of = f"{count} partitions, {partitions} a stream: one ISR change"
        rows += [
            row(f"{of}, us of CPU, median",
                {"value": round(cpu[count], 1), f"of_{COUNT_BESIDE}": round(cpu[COUNT_BESIDE], 1),
                 "p99": round(statistics.quantiles(found[count][0], n=100)[98], 1)},
                at_most=CPU_US_MAX),
            row(f"{of}, bytes over those with {COUNT_BESIDE}",
                {"value": round(sizes[count] / sizes[COUNT_BESIDE], 3), "bytes": sizes[count]},
                at_most=GROWTH_MAX),
        ]  # fmt: skip
    report("isr_change", rows)
