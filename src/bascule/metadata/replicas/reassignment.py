"""How a partition moves to other replicas. Pure.

A partition that moves has a `target`. Its new replicas follow the leader outside the ISR, and enter
it as any other follower. The change of the ISR that brings all of the target in sync also ends the
move: the other replicas leave. So there are never fewer replicas in sync than before.

A leader among them hands over to a member of the target with that change, and follows it for half a
second or more. It learns then which of its last records are committed, and acknowledges them. After
that the controller ends the move.

A move is cancelled by a move back to the replicas before, its `origin`. Those have all committed
records as far as they are in sync, so it ends once `min_isr` of them are: at once, as a rule.

Whenever a replica leaves, another leader epoch begins, also where the leader stays: it forgets how
far its followers were, so that a replica that is added again counts from its empty log on.

    replicas 1 2 3                      a move is asked for
    replicas 1 2 3 4, target 2 3 4      4 copies the log
    replicas 1 2 3 4, target 2 3 4      4 is in sync: 2 leads, if 1 did
    replicas 2 3 4                      1 leaves
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from bascule.cluster_version import REPLICAS_SINCE
from bascule.errors import CannotCancel, NotEnoughNodes, UnknownPartition
from bascule.metadata.commands import ChangePartitions, PartitionChange
from bascule.metadata.image import Image
from bascule.metadata.replicas.placement import choose_target, count_load
from bascule.model import NO_LEADER, PartitionState, StreamDefinition, is_internal_stream

MOVED: Final = "the replicas have moved"
CANCELLED: Final = "the move of the replicas was cancelled"


def reassign(
    image: Image,
    definition: StreamDefinition,
    state: PartitionState,
    target: Sequence[int],
    *,
    min_isr: int = 0,
) -> PartitionState:
    """The next state of a partition that is to have the replicas `target`, the preferred leader
    first. `min_isr` is what messages need until then; 0: what the stream says.

    A move that is under way is given up: replicas that it added, and that are not in sync, leave.
    Those of before the first move stay.
    """
    origin = state.origin if state.target else state.replicas
    known = {*target, *origin, *state.isr, *state.eligible, *state.lossy}
    kept = [n for n in state.replicas if n in known or not state.target]
    added = [node for node in target if node not in kept]
    version = state.version + 1
    moving = replace(
        state,
        replicas=(*kept, *added),
        since=_since(image, state, kept, added, version=version),
        target=tuple(target),
        origin=origin,
        min_isr=state.min_isr or min_isr,
        leader_epoch=state.leader_epoch + (len(kept) < len(state.replicas)),
        version=version,
    )
    return completed(image, definition, moving)


def _since(
    image: Image,
    state: PartitionState,
    kept: Collection[int],
    added: Iterable[int],
    *,
    version: int,
) -> tuple[tuple[int, int], ...]:
    """`PartitionState.since` once `added` are replicas beside `kept`."""
    if image.cluster_version < REPLICAS_SINCE:
        return state.since
    remaining = [(node, since) for node, since in state.since if node in kept]
    return tuple(sorted([*remaining, *((node, version) for node in added)]))


def completed(
    image: Image, definition: StreamDefinition | None, state: PartitionState
) -> PartitionState:
    """`state` without the replicas that are to go, if the move is done; else `state`.

    It is done once all of the target are in sync; a move back to where it began once `min_isr` of
    them are. While nobody leads no replica leaves: those in sync are lost, perhaps for good. A
    leader that is to go hands over first, and goes later; see `finish_moves`. It leads on while the
    others lack NATS. The version is the same: the caller has raised it.
    """
    target = state.target
    in_sync = tuple(sorted({*state.isr}.intersection(target)))
    needed = len(target)
    if definition is not None and target == state.origin:
        needed = min(needed, definition.needed_in_sync(state))
    if not target or len(in_sync) < needed:
        return state
    leader = state.leader
    if leader == NO_LEADER and len(target) < len(state.replicas):
        return state
    if leader not in (*in_sync, NO_LEADER):
        alive = [node for node in target if node in in_sync and image.is_alive(node)]
        if not alive:
            return state
        successor = min(alive, key=image.reluctance)
        if image.is_alive(leader):
            if image.lacks_nats(successor) and image.serves_publishers(leader):
                return state
            return replace(state, leader=successor, leader_epoch=state.leader_epoch + 1)
        leader = successor
    return replace(
        state,
        replicas=target,
        since=tuple(each for each in state.since if each[0] in target),
        isr=in_sync,
        leader=leader,
        leader_epoch=state.leader_epoch + (len(target) < len(state.replicas)),
        target=(),
        origin=(),
        min_isr=0,
        eligible=(),
        lossy=tuple(node for node in state.lossy if node in in_sync),
    )


def finishing_moves(image: Image) -> Iterator[tuple[bytes, int, int]]:
    """Stream id, index and version of the partitions whose move is done but for replicas that are
    to go."""
    for stream_id, index, state in image.moving_states():
        if completed(image, image.stream_of(stream_id), state) is not state:
            yield stream_id, index, state.version


def finish_moves(
    image: Image, finishing: Sequence[tuple[bytes, int, int]]
) -> ChangePartitions | None:
    """End these moves, as `finishing_moves` has found them; None: they have changed since."""
    changes = []
    for stream_id, index, version in finishing:
        states = image.partitions.get(stream_id, ())
        if not index < len(states) or states[index].version != version:
            continue
        state = states[index]
        done = completed(image, image.stream_of(stream_id), state)
        if done is not state:
            reason = MOVED if done.leader != state.leader else ""
            after = replace(done, version=version + 1)
            changes.append(PartitionChange(stream_id, index, after, reason))
    return ChangePartitions(tuple(changes)) if changes else None


def cancel_moves(
    image: Image, definition: StreamDefinition, partition: int | None
) -> ChangePartitions:
    """Move a stream, or one of its partitions, back to the replicas that it had before.

    New replicas go; those of them that are in sync go once `min_isr` of the others are.

    Raises: UnknownPartition; CannotCancel where nothing moves, or would begin to move again.
    """
    states = image.partitions[definition.id]
    if partition is not None and not 0 <= partition < len(states):
        raise UnknownPartition(definition.name, partition, len(states))
    changes = []
    for index, state in enumerate(states):
        if partition not in (None, index) or not state.target:
            continue
        if why := _why_not_back(image, definition, state):
            raise CannotCancel(definition.name, index, why)
        after = reassign(image, definition, state, state.origin)
        reason = CANCELLED if after.leader != state.leader else ""
        changes.append(PartitionChange(definition.id, index, after, reason))
    if not changes:
        raise CannotCancel(definition.name, partition, "nothing moves")
    return ChangePartitions(tuple(changes))


def _why_not_back(image: Image, definition: StreamDefinition, state: PartitionState) -> str:
    """Why a move cannot be taken back; empty: it can."""
    name, origin = definition.name, state.origin
    if not origin:
        return "an earlier release began it, and it is not known where the replicas were before"
    if len(origin) != wanted_count(image, definition):
        return (
            f"it had {len(origin)} replicas before, and is to have {definition.config.replicas}: "
            f"`bascule stream alter {name} --replicas {len(origin)}` takes that back"
        )
    for node in origin:
        found = image.nodes.get(node)
        if found is not None and found.is_leaving:
            return f"node {node} is to be removed: `bascule node remove {node} --cancel` keeps it"
        if found is not None and found.is_emptied:
            return f"node {node} gives its replicas away: `bascule node resume {node}` ends that"
    return ""


def wanted_count(image: Image, definition: StreamDefinition) -> int:
    """How many replicas the partitions of a stream are to have.

    A stream of the cluster itself has as many as there are nodes for. While nodes are drained or
    down, it keeps as many as have to be in sync: with fewer it would take no records.
    """
    replicas = definition.config.replicas
    if is_internal_stream(definition.name):
        staying = sum(not node.is_leaving for node in image.nodes.values())
        least = max(1, min(definition.min_isr, staying))
        return max(least, min(replicas, len(image.usable())))
    return replicas


class PartitionMove(msgspec.Struct, frozen=True):
    """The replicas that a partition is to have, planned for one version of its state."""

    stream_id: bytes
    partition: int
    version: int
    replicas: tuple[int, ...]
    """The preferred leader first."""


def due_moves(image: Image, *, count_max: int) -> tuple[PartitionMove, ...]:
    """The next moves off nodes that give their replicas away, and of partitions that lack a
    replica, as if each were done at once.

    It looks at all partitions: with very many of them this is for a thread.
    """
    giving = {node_id for node_id, node in image.nodes.items() if node.gives_replicas}
    load = count_load(image)
    moves: list[PartitionMove] = []
    for _, definition in sorted(image.streams.items()):
        count = wanted_count(image, definition)
        for index, state in enumerate(image.partitions.get(definition.id, ())):
            base = state.target or state.replicas
            if not giving.intersection(base) and len(base) >= count:
                continue
            if len(moves) >= count_max:
                return tuple(moves)
            try:
                target = choose_target(image, state, count, load)
            except NotEnoughNodes:
                continue
            if set(target) != set(base):
                moves.append(PartitionMove(definition.id, index, state.version, target))
    return tuple(moves)


def begin_moves(image: Image, moves: Iterable[PartitionMove]) -> ChangePartitions | None:
    """Begin planned moves. Left out are partitions that have changed since, and moves to a node
    that gets no replicas any more. None: nothing to begin."""
    usable = {*image.usable()}
    changes: list[PartitionChange] = []
    for move in moves:
        states = image.partitions.get(move.stream_id, ())
        definition = image.stream_of(move.stream_id)
        if definition is None or not move.partition < len(states):
            continue
        state = states[move.partition]
        added = {*move.replicas}.difference(state.replicas, state.target)
        if state.version != move.version or not added <= usable:
            continue
        after = reassign(image, definition, state, move.replicas)
        reason = MOVED if after.leader != state.leader else ""
        changes.append(PartitionChange(move.stream_id, move.partition, after, reason))
    return ChangePartitions(tuple(changes)) if changes else None


def holds_replicas(image: Image, node: int) -> bool:
    """Whether a node is a replica of some partition, or is to be one."""
    return image.index.replicas_on(node) > 0
