"""Which replica leads, where an operator or the balance of the cluster says so and nothing has
failed: leadership passes by a planned handover. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from operator import itemgetter
from typing import Final

from bascule.errors import CannotLead, UnknownPartition
from bascule.metadata.commands import ChangePartitions, PartitionChange
from bascule.metadata.image import Image
from bascule.model import NO_LEADER, PartitionState, StreamDefinition

PREFERRED: Final = "the preferred leader is in sync"
ASKED: Final = "an operator has asked for it"
DRAINED: Final = "its node is drained or is to be removed"
LACKING: Final = "its node has no NATS connection"


def why_not_lead(image: Image, state: PartitionState, node: int) -> str:
    """Why a node cannot be given the leadership of a partition; empty: it can."""
    if node not in state.replicas:
        return f"it is not one of the replicas, which are on {_listed(state.replicas)}"
    if state.leader == node:
        return "it leads already"
    if not image.is_alive(node):
        return "it is not alive"
    if node not in state.isr:
        return f"it is not in sync; in sync are {_listed(state.isr)}"
    if node in state.lossy:
        return "its machine went down, and its log is compared with those of the others first"
    if image.is_stopping(node):
        return "it is about to stop"
    if image.lacks_nats(node) and any(map(image.serves_publishers, state.isr)):
        return "it has no NATS connection"
    if image.nodes[node].is_leaving:
        return f"it is to be removed; `bascule node remove {node} --cancel` keeps it"
    if image.nodes[node].is_drained:
        return f"it is drained; `bascule node resume {node}` ends that"
    return ""


def elect_leaders(
    image: Image, definition: StreamDefinition, *, partition: int | None, node: int | None
) -> ChangePartitions | None:
    """Give the leadership of a stream, or of one partition, to `node`, or to the preferred leaders.

    A node that is named becomes the preferred leader: else the leadership would return soon. Of
    several partitions those change that can. None: each is led like that already.

    Raises: UnknownPartition; CannotLead where none changes that is not led like that.
    """
    changes = []
    refused: list[CannotLead] = []
    for index, state in _chosen(image, definition, partition):
        leader = state.replicas[0] if node is None else node
        if leader == state.leader == state.replicas[0]:
            continue
        why = why_not_lead(image, state, leader)
        # Without a leader `state.leader` is NO_LEADER, which a request may have as its node.
        leads = leader == state.leader and leader in state.replicas
        if why and not leads:
            refused.append(CannotLead(definition.name, index, leader, why))
            continue
        target = state.target
        after = replace(
            state,
            replicas=_first(state.replicas, leader),
            target=_first(target, leader) if leader in target else target,
            leader=leader,
            leader_epoch=state.leader_epoch + (state.leader != leader),
            version=state.version + 1,
        )
        reason = ASKED if state.leader != leader else ""
        changes.append(PartitionChange(definition.id, index, after, reason))
    if not changes and refused:
        raise refused[0]
    return ChangePartitions(tuple(changes)) if changes else None


def moves_to_preferred(image: Image, *, count_max: int) -> ChangePartitions | None:
    """Give up to `count_max` partitions back to their preferred leaders, which are in sync.

    Nodes that lead the most beyond their own give first. Those that are about to stop, to be
    removed or drained get nothing, nor do those that lack NATS where others have it. None: nothing
    to do.
    """
    found = []
    for stream_id, index, state in image.away_states():
        preferred = state.replicas[0]
        if state.leader == NO_LEADER or state.target:
            continue
        if not why_not_lead(image, state, preferred):
            found.append((stream_id, index, state))
    excess = Counter(state.leader for _, _, state in found)
    found.sort(key=lambda each: -excess[each[2].leader])
    changes = [
        PartitionChange(stream_id, index, _led_by(state, state.replicas[0]), PREFERRED)
        for stream_id, index, state in found[:count_max]
    ]
    return ChangePartitions(tuple(changes)) if changes else None


def moves_from_drained(
    image: Image, *, count_max: int = 0, ids: Iterable[bytes] | None = None
) -> ChangePartitions | None:
    """Have others lead what nodes lead that are drained or to be removed, where another replica is
    in sync that is none of these. With `ids` only in the streams with these ids.

    `count_max` 0: all of them. None: nothing to do.
    """
    giving = {n for n, each in image.nodes.items() if each.alive and each.gives_leaders}
    if not any(image.index.leaders_on(node) for node in giving):
        return None
    led = Counter({node: load.led for node, load in image.index.loads.items()})
    changes: list[PartitionChange] = []
    given = (each for each in image.partition_states(ids) if each[2].leader in giving)
    for stream_id, index, state in sorted(given, key=itemgetter(0, 1)):
        able = [node for node in state.isr if not why_not_lead(image, state, node)]
        if able:
            leader = min(able, key=lambda node: (led[node], state.replicas.index(node)))
            led[leader] += 1
            changes.append(PartitionChange(stream_id, index, _led_by(state, leader), DRAINED))
            if len(changes) == count_max:
                break
    return ChangePartitions(tuple(changes)) if changes else None


def moves_from_lacking(
    image: Image, lacking: Collection[int], able: Collection[int], *, count_max: int
) -> ChangePartitions | None:
    """Have some of the nodes `able` lead what nodes lead that are `lacking` NATS, where they are in
    sync. Those of both that are otherwise in this image are left out.

    At most `count_max` partitions change. None: nothing to do.
    """
    giving = {node for node in lacking if image.lacks_nats(node)}
    if not any(image.index.leaders_on(node) for node in giving):
        return None
    led = Counter({node: load.led for node, load in image.index.loads.items()})
    changes: list[PartitionChange] = []
    given = (each for each in image.partition_states() if each[2].leader in giving)
    for stream_id, index, state in sorted(given, key=itemgetter(0, 1)):
        order = state.replicas
        found = [n for n in state.isr if n in able and n in order and image.serves_publishers(n)]
        if found:
            leader = min(found, key=lambda n: (image.reluctance(n), led[n], order.index(n)))
            led[leader] += 1
            changes.append(PartitionChange(stream_id, index, _led_by(state, leader), LACKING))
            if len(changes) == count_max:
                break
    return ChangePartitions(tuple(changes)) if changes else None


def _chosen(
    image: Image, definition: StreamDefinition, partition: int | None
) -> Iterator[tuple[int, PartitionState]]:
    states = image.partitions[definition.id]
    if partition is not None and not 0 <= partition < len(states):
        raise UnknownPartition(definition.name, partition, len(states))
    return (each for each in enumerate(states) if partition in (None, each[0]))


def _led_by(state: PartitionState, leader: int) -> PartitionState:
    epoch, version = state.leader_epoch + 1, state.version + 1
    return replace(state, leader=leader, leader_epoch=epoch, version=version)


def _first(nodes: tuple[int, ...], node: int) -> tuple[int, ...]:
    return (node, *(each for each in nodes if each != node))


def _listed(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(nodes))) or "none"
