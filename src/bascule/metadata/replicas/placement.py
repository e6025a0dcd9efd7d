"""Chooses the nodes of partitions: few replicas and leaders on each, racks apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from bascule.errors import NotEnoughNodes
from bascule.metadata.image import Image
from bascule.model import PartitionState


@dataclass(slots=True)
class Load:
    """What each node holds. It grows as partitions are placed."""

    held: Counter[int] = field(default_factory=Counter)
    """Replicas."""
    led: Counter[int] = field(default_factory=Counter)
    """Partitions."""


def count_load(image: Image) -> Load:
    """What the nodes hold in this image; replicas that move count where they will be."""
    load = Load()
    for node, each in image.index.loads.items():
        load.held[node], load.led[node] = each.replicas, each.led
    for _, _, state in image.moving_states():
        load.held.subtract(state.replicas)
        load.held.update(state.target)
    return load


def place_partitions(image: Image, count: int, *, replicas: int) -> tuple[PartitionState, ...]:
    """The states of `count` new partitions with `replicas` copies each.

    The replicas of a partition are on different nodes, and in different racks as far as there are
    any. Nodes with the fewest replicas are taken first, then those that lead the fewest partitions.
    One that lacks NATS leads only where no other is left.
    The result depends on the arguments alone.

    Raises: NotEnoughNodes.
    """
    nodes = image.usable()
    if replicas > len(nodes):
        raise NotEnoughNodes(replicas, nodes)
    load = count_load(image)
    states = []
    for _ in range(count):
        chosen = _choose(image, nodes, load, replicas)
        leader = min(chosen, key=lambda node: (image.lacks_nats(node), load.led[node], node))
        chosen.remove(leader)
        load.held.update((leader, *chosen))
        load.led[leader] += 1
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


def choose_target(image: Image, state: PartitionState, count: int, load: Load) -> tuple[int, ...]:
    """The `count` replicas that a partition is to have, the preferred leader first.

    Nodes that give their replicas away are left out. The other replicas stay; where there are too
    many, those go first that were not in sync last, then those of nodes with the most replicas.
    `load` is changed to the result. Raises: NotEnoughNodes.
    """
    base = state.target or state.replicas
    kept = [n for n in base if n in image.nodes and not image.nodes[n].gives_replicas]
    known = {*state.isr, *state.eligible, *state.lossy}
    while len(kept) > count:
        kept.remove(
            max(
                (node for node in kept if node != state.leader or len(kept) == 1),
                key=lambda n: (n not in known, not image.nodes[n].alive, load.held[n], n),
            )
        )
    usable = image.usable()
    missing = count - len(kept)
    if missing > len(set(usable) - set(kept)):
        raise NotEnoughNodes(count, sorted({*usable, *kept}))
    added = _choose(image, usable, load, missing, kept)
    load.held.subtract(base)
    load.held.update((*kept, *added))
    return (*kept, *added)


def _choose(
    image: Image, nodes: Collection[int], load: Load, count: int, kept: Sequence[int] = ()
) -> list[int]:
    """`count` of `nodes` beside those of `kept`; the first of all one that does not lack NATS."""
    held, led = load.held, load.led
    chosen: list[int] = []
    racks = Counter(image.nodes[node].rack for node in kept)
    for _ in range(count):
        free = [node for node in nodes if node not in chosen and node not in kept]
        able = [] if kept or chosen else [node for node in free if not image.lacks_nats(node)]
        best = min(able or free, key=lambda n: (racks[image.nodes[n].rack], held[n], led[n], n))
        chosen.append(best)
        racks[image.nodes[best].rack] += 1
    return chosen
