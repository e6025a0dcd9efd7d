"""How a partition moves to other replicas, and its leadership back to the preferred leader. Pure.

A partition that moves has a `target`. Its new replicas follow the leader outside the ISR, and enter
it as any other follower. The change of the ISR that brings all of the target in sync also ends the
move: the other replicas leave, and a leader among them hands over to a member of the target. So
there are never fewer replicas in sync than before, and nothing is left for another controller.

Whenever a replica leaves, another leader epoch begins, also where the leader stays: it forgets how
far its followers were, so that a replica that is added again counts from its empty log on.

    replicas 1 2 3                      a move is asked for
    replicas 1 2 3 4, target 2 3 4      4 copies the log
    replicas 2 3 4                      4 is in sync: 1 leaves, and another node leads for it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from bascule.errors import NotEnoughNodes
from bascule.metadata.commands import ChangePartitions, PartitionChange
from bascule.metadata.image import Image
from bascule.metadata.replicas.placement import choose_target, count_load
from bascule.model import NO_LEADER, PartitionState, StreamDefinition, is_internal_stream

MOVED: Final = "the replicas have moved"
PREFERRED: Final = "the preferred leader is in sync"


def reassign(
    image: Image, state: PartitionState, target: Sequence[int], *, min_isr: int = 0
) -> PartitionState:
    """The next state of a partition that is to have the replicas `target`, the preferred leader
    first. `min_isr` is what messages need until then; 0: what the stream says.

    A move that is under way is given up: replicas that it added, and that are not in sync, leave.
    """
    known = {*target, *state.isr, *state.eligible, *state.lossy}
    kept = [n for n in state.replicas if n in known or not state.target]
    added = [node for node in target if node not in kept]
    moving = replace(
        state,
        replicas=(*kept, *added),
        target=tuple(target),
        min_isr=state.min_isr or min_isr,
        leader_epoch=state.leader_epoch + (len(kept) < len(state.replicas)),
        version=state.version + 1,
    )
    return completed(image, moving)


def completed(image: Image, state: PartitionState) -> PartitionState:
    """`state` without the replicas that are to go, if all of the target are in sync; else `state`.

    The version is the same: the caller has raised it.
    """
    target = state.target
    if not target or not set(target) <= set(state.isr):
        return state
    leader = state.leader
    if leader not in (*target, NO_LEADER):
        alive = [node for node in target if image.is_alive(node)]
        if not alive:
            return state
        leader = alive[0]
    return replace(
        state,
        replicas=target,
        isr=tuple(sorted(target)),
        leader=leader,
        leader_epoch=state.leader_epoch + (len(target) < len(state.replicas)),
        target=(),
        min_isr=0,
        eligible=(),
        lossy=(),
    )


def wanted_count(image: Image, definition: StreamDefinition) -> int:
    """How many replicas the partitions of a stream are to have.

    A stream of the cluster itself has as many as there are nodes for.
    """
    replicas = definition.config.replicas
    if is_internal_stream(definition.name):
        return max(1, min(replicas, len(image.usable())))
    return replicas


def next_moves(image: Image, *, moving_max: int) -> ChangePartitions | None:
    """Begin to move partitions from nodes that leave, and to those that lack a replica.

    No more than `moving_max` move at a time. None: nothing to begin.
    """
    leaving = {node_id for node_id, node in image.nodes.items() if node.is_leaving}
    load = count_load(image)
    changes: list[PartitionChange] = []
    moving = sum(1 for _ in image.moving_states())
    for _, definition in sorted(image.streams.items()):
        count = wanted_count(image, definition)
        for index, state in enumerate(image.partitions.get(definition.id, ())):
            base = state.target or state.replicas
            if not leaving.intersection(base) and len(base) >= count:
                continue
            if moving + len(changes) >= moving_max:
                break
            try:
                target = choose_target(image, state, count, load)
            except NotEnoughNodes:
                continue
            if set(target) != set(base):
                after = reassign(image, state, target)
                reason = MOVED if after.leader != state.leader else ""
                changes.append(PartitionChange(definition.id, index, after, reason))
    return ChangePartitions(tuple(changes)) if changes else None


def holds_replicas(image: Image, node: int) -> bool:
    """Whether a node is a replica of some partition, or is to be one."""
    return image.index.replicas_on(node) > 0


def moves_to_preferred(image: Image, *, count_max: int) -> ChangePartitions | None:
    """Give up to `count_max` partitions back to their preferred leaders, which are in sync.

    Nodes that lead the most beyond their own give first. Those that are about to stop get nothing.
    None: nothing to do.
    """
    found = []
    for stream_id, index, state in image.away_states():
        preferred = state.replicas[0]
        node = image.nodes.get(preferred)
        if (
            state.leader not in (preferred, NO_LEADER)
            and not state.target
            and preferred in state.isr
            and node is not None
            and node.alive
            and not node.is_leaving
            and not node.is_stopping
        ):
            found.append((stream_id, index, state))
    excess = Counter(state.leader for _, _, state in found)
    found.sort(key=lambda each: -excess[each[2].leader])
    changes = [
        PartitionChange(
            stream_id,
            index,
            replace(
                state,
                leader=state.replicas[0],
                leader_epoch=state.leader_epoch + 1,
                version=state.version + 1,
            ),
            PREFERRED,
        )
        for stream_id, index, state in found[:count_max]
    ]
    return ChangePartitions(tuple(changes)) if changes else None
