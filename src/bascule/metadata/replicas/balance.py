"""Which replicas move so that all nodes hold about as many, and are preferred by as many. Pure.

A move changes one replica of a partition: from a node to one that holds at least two fewer, at the
same place of the order. It never leaves the replicas in fewer racks than before. Where that is done
the preferred leaders are balanced by the order of replicas alone, which copies nothing.

Partitions that move, or have a replica that is not in sync, are left alone, and so are replicas on
nodes that are lost, drained or to be removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from bascule.metadata.commands import Command, SetBalancing
from bascule.metadata.image import Image
from bascule.metadata.replicas.placement import Load, count_load
from bascule.metadata.replicas.reassignment import PartitionMove, begin_moves
from bascule.model import PartitionState


class PlannedMove(NamedTuple):
    """A move that makes the nodes more equal."""

    stream_id: bytes
    partition: int
    replicas: tuple[int, ...]
    """Those that the partition is to have."""
    source: int
    """The node that gives a replica, or is to be the preferred leader no longer."""
    destination: int

    def copies(self, replicas: Collection[int]) -> bool:
        """Whether records are copied, where the partition has these replicas before the move."""
        return self.destination not in replicas


def balancing_moves(image: Image) -> Iterator[PlannedMove]:
    """All moves that are left, as if each were done at once."""
    usable = image.usable()
    load = count_load(image)
    preferred: Counter[int] = Counter()
    states = sorted(image.partition_states(), key=lambda each: (each[0], each[1]))
    orders = []
    for stream_id, index, state in states:
        replicas = state.target or state.replicas
        if not state.target and len(state.isr) == len(state.replicas):
            move = _swap(image, state, load, usable)
            if move is not None:
                source, destination = move
                load.held[source] -= 1
                load.held[destination] += 1
                replicas = tuple(destination if n == source else n for n in replicas)
                yield PlannedMove(stream_id, index, replicas, source, destination)
            orders.append((stream_id, index, replicas))
        preferred[replicas[0]] += 1
    for stream_id, index, replicas in orders:
        first, *others = (node for node in replicas if node in usable or node == replicas[0])
        if first not in usable or not others:
            continue
        best = min(others, key=lambda node: (preferred[node], node))
        if preferred[first] - preferred[best] >= 2:
            preferred[first] -= 1
            preferred[best] += 1
            order = (best, *(node for node in replicas if node != best))
            yield PlannedMove(stream_id, index, order, first, best)


def due_balancing(image: Image, *, count_max: int) -> tuple[PartitionMove, ...]:
    """The next of these moves, one for each partition; empty: the nodes are as equal as can be."""
    moves: dict[tuple[bytes, int], PartitionMove] = {}
    for move in balancing_moves(image):
        key = move.stream_id, move.partition
        if len(moves) >= count_max:
            break
        if key not in moves:  # else its order is changed by a later step
            version = image.partitions[move.stream_id][move.partition].version
            moves[key] = PartitionMove(*key, version, move.replicas)
    return tuple(moves.values())


def balance_replicas(
    image: Image, moves: Sequence[PartitionMove], *, by_itself: bool
) -> tuple[Command, ...]:
    """Begin planned moves, where an operator has asked for the balance or it is done `by_itself`.
    Without moves what the operator has asked for ends, if nothing is left to do."""
    if not image.is_balancing and not by_itself:
        return ()
    if moves:
        change = begin_moves(image, moves)
        return () if change is None else (change,)
    is_done = not any(True for _ in image.moving_states()) and not due_balancing(image, count_max=1)
    return (SetBalancing(False),) if image.is_balancing and is_done else ()


def _swap(
    image: Image, state: PartitionState, load: Load, usable: list[int]
) -> tuple[int, int] | None:
    """The replica to move, and where to; None: it would make nothing more equal."""
    held, racks = load.held, {node: image.nodes[node].rack for node in (*usable, *state.replicas)}
    count = len({racks[node] for node in state.replicas})
    best, most = None, 1
    for source in sorted(each for each in state.replicas if each in usable):
        rest = {racks[node] for node in state.replicas if node != source}
        for destination in usable:
            less = held[source] - held[destination]
            is_free = destination not in state.replicas
            if is_free and less > most and len(rest | {racks[destination]}) >= count:
                best, most = (source, destination), less
    return best
