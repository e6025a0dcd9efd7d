"""Who leads a partition after a node was lost or has started, and who may change an ISR. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter

from bascule.errors import FencedEpoch, UnknownPartition
from bascule.metadata.commands import ChangePartitions, PartitionChange
from bascule.metadata.image import Image
from bascule.metadata.replicas.reassignment import MOVED, completed
from bascule.model import NO_LEADER, PartitionState


def changes_after_loss(image: Image, lost: int) -> ChangePartitions | None:
    """What changes when the process of node `lost` is gone; None: nothing.

    The node leaves every ISR that has another member alive. Partitions that it led get another
    leader from their ISR. A node that is the only member of an ISR stays in it, and the partition
    has no leader until it is back: no other node is sure to have every committed record.
    """
    led = _leaders(image)
    changes = []
    affected = [each for each in image.partition_states() if lost in each[2].isr]
    # The image has no order, and which node gets the next partition depends on the one before.
    affected.sort(key=itemgetter(0, 1))
    for stream_id, index, state in affected:
        others = [node for node in state.isr if node != lost]
        if not any(_is_alive(image, node) for node in others):
            if state.leader == lost:
                changes.append(PartitionChange(stream_id, index, _elected(state, NO_LEADER)))
            continue
        after = replace(state, isr=tuple(others), version=state.version + 1)
        if state.leader == lost:
            leader = _candidate(image, after, led)
            led[leader] += 1
            after = replace(after, leader=leader, leader_epoch=state.leader_epoch + 1)
        changes.append(PartitionChange(stream_id, index, after))
    return ChangePartitions(tuple(changes)) if changes else None


def changes_after_return(image: Image) -> ChangePartitions | None:
    """Elect a leader for every partition that has none and whose ISR has a member alive.

    None: nothing to do.
    """
    led = _leaders(image)
    changes = []
    for stream_id, index, state in image.troubled_states():
        if state.leader != NO_LEADER or not any(_is_alive(image, node) for node in state.isr):
            continue
        leader = _candidate(image, state, led)
        led[leader] += 1
        changes.append(PartitionChange(stream_id, index, _elected(state, leader)))
    return ChangePartitions(tuple(changes)) if changes else None


def resign(
    image: Image, stream_id: bytes, partition: int, *, node: int, leader_epoch: int
) -> ChangePartitions | None:
    """What changes when `node` cannot serve its replica as it is: its log is damaged, or was opened
    again in the epoch that it led.

    It leaves the ISR where another member is alive, and that one leads. The last member stays and
    leads in a new epoch. None: the partition has changed since the node looked.
    """
    states = image.partitions.get(stream_id, ())
    if not 0 <= partition < len(states):
        return None
    state = states[partition]
    if state.leader_epoch != leader_epoch or node not in state.isr or not _is_alive(image, node):
        return None
    others = tuple(each for each in state.isr if each != node)
    if any(_is_alive(image, each) for each in others):
        after = replace(state, isr=others, version=state.version + 1)
        if state.leader == node:
            leader = _candidate(image, after, _leaders(image))
            after = replace(after, leader=leader, leader_epoch=leader_epoch + 1)
    elif state.leader in (node, NO_LEADER):
        after = _elected(state, node)
    else:
        return None
    return ChangePartitions((PartitionChange(stream_id, partition, after),))


def change_isr(
    image: Image,
    stream_id: bytes,
    partition: int,
    *,
    leader: int,
    leader_epoch: int,
    version: int,
    members: Iterable[tuple[int, int]],
) -> PartitionChange | None:
    """The change of an ISR to `members` (node id, node epoch) that its leader asks for. Where that
    brings the target of a move in sync, it also ends the move; see `reassignment`.

    None: the partition has changed since the leader looked; it asks again. Raises: FencedEpoch for
    a leader that was deposed; UnknownPartition for a deleted stream.
    """
    states = image.partitions.get(stream_id, ())
    if not 0 <= partition < len(states):
        raise UnknownPartition(stream_id.hex(), partition, len(states))
    state = states[partition]
    if state.leader != leader or state.leader_epoch != leader_epoch:
        raise FencedEpoch(leader_epoch, state.leader_epoch)
    isr = dict(members)
    valid = leader in isr and all(
        node in state.replicas and _is_alive(image, node) and image.nodes[node].epoch == epoch
        for node, epoch in isr.items()
    )
    if state.version != version or not valid:
        return None
    after = replace(state, isr=tuple(sorted(isr)), version=version + 1)
    done = completed(image, after)
    reason = MOVED if done.leader != after.leader else ""
    return PartitionChange(stream_id, partition, done, reason)


def _elected(state: PartitionState, leader: int) -> PartitionState:
    epoch, version = state.leader_epoch + 1, state.version + 1
    return replace(state, leader=leader, leader_epoch=epoch, version=version)


def _candidate(image: Image, state: PartitionState, led: Counter[int]) -> int:
    """The member of the ISR that is alive and leads the fewest partitions."""
    alive = [node for node in state.isr if _is_alive(image, node)]
    return min(alive, key=lambda node: (led[node], state.replicas.index(node)))


def _leaders(image: Image) -> Counter[int]:
    return Counter({node: load.led for node, load in image.index.loads.items()})


def _is_alive(image: Image, node: int) -> bool:
    found = image.nodes.get(node)
    return found is not None and found.alive
