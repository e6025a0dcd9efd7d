"""Chooses the nodes of new partitions: few replicas and leaders on each, racks apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from bascule.errors import NotEnoughNodes
from bascule.metadata.image import Image
from bascule.model import PartitionState


def place_partitions(image: Image, count: int, *, replicas: int) -> tuple[PartitionState, ...]:
    """The states of `count` new partitions with `replicas` copies each.

    The replicas of a partition are on different nodes, and in different racks as far as there are
    any. Nodes with the fewest replicas are taken first, then those that lead the fewest partitions.
    The result depends on the arguments alone.

    Raises: NotEnoughNodes.
    """
    nodes = image.alive()
    if replicas > len(nodes):
        raise NotEnoughNodes(replicas, nodes)
    loads = image.index.loads
    held = Counter({node: load.replicas for node, load in loads.items()})
    led = Counter({node: load.led for node, load in loads.items()})
    states = []
    for _ in range(count):
        chosen = _choose(image, nodes, held, led, replicas)
        leader = min(chosen, key=lambda node: (led[node], node))
        chosen.remove(leader)
        held.update((leader, *chosen))
        led[leader] += 1
        states.append(
            PartitionState(
                replicas=(leader, *chosen),
                isr=tuple(sorted((leader, *chosen))),
                leader=leader,
                leader_epoch=0,
                version=0,
            )
        )
    return tuple(states)


def _choose(
    image: Image, nodes: Collection[int], held: Counter[int], led: Counter[int], replicas: int
) -> list[int]:
    chosen: list[int] = []
    racks: Counter[str] = Counter()
    for _ in range(replicas):
        free = [node for node in nodes if node not in chosen]
        best = min(free, key=lambda n: (racks[image.nodes[n].rack], held[n], led[n], n))
        chosen.append(best)
        racks[image.nodes[best].rack] += 1
    return chosen
