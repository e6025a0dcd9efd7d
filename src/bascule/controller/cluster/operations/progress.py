"""What is left to do of a drain, or of the balance of replicas, as operators are told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from bascule.metadata.commands import ChangePartitions, Command
from bascule.metadata.image import Image
from bascule.metadata.replicas.balance import balancing_moves
from bascule.metadata.replicas.drained import left_on
from bascule.model import FailedReplica, PartitionInfo, StreamInfo
from bascule.operation_results import BalanceMove, BalancePlan, LeftPartition, NodeDrain

LISTED_MAX: Final = 200
"""Partitions in an answer; all of them are counted."""


def streams_left(image: Image, number: int) -> set[str]:
    """The streams with the partitions that `drain_of` lists."""
    listed = islice(left_on(image, number), LISTED_MAX)
    return {image.index.names[each.stream_id] for each in listed}


def drain_of(
    image: Image,
    number: int,
    infos: Mapping[str, StreamInfo],
    failed: Iterable[FailedReplica] = (),
) -> NodeDrain:
    """How far a node of the image is drained; `infos` are those of `streams_left`, and `failed` the
    replicas that do not heal by themselves."""
    node, names = image.nodes[number], image.index.names
    failures = {
        (image.streams[each.stream].id, each.partition, each.node): f"{each.failure}; {each.advice}"
        for each in failed
        if each.stream in image.streams
    }
    left: list[LeftPartition] = []
    pending = stuck = bytes_left = 0
    for each in left_on(image, number, failures):
        pending += each.is_pending
        stuck += not each.is_pending
        if len(left) < LISTED_MAX:
            name = names[each.stream_id]
            left.append(LeftPartition(name, each.partition, each.leads, each.why, each.is_pending))
            if name in infos and each.partition < len(infos[name].partitions):
                bytes_left += infos[name].partitions[each.partition].bytes_behind or 0
    return NodeDrain(
        node_id=number,
        is_drained=node.is_drained,
        is_emptied=node.is_emptied,
        leaders=image.index.leaders_on(number),
        replicas=image.index.replicas_on(number),
        left=tuple(sorted(left, key=lambda each: (each.is_pending, each.stream, each.partition))),
        pending_count=pending,
        stuck_count=stuck,
        bytes_left=bytes_left,
        is_leaving=node.is_leaving,
    )


def plan_of(image: Image, infos: Mapping[str, StreamInfo]) -> BalancePlan:
    """The moves that are left; `infos` are those of their streams, by name."""
    moves: list[BalanceMove] = []
    planned: dict[tuple[bytes, int], tuple[int, ...]] = {}
    count = 0
    for move in balancing_moves(image):
        count += 1
        key = move.stream_id, move.partition
        before = planned.get(key, image.partitions[move.stream_id][move.partition].replicas)
        planned[key] = move.replicas
        if len(moves) < LISTED_MAX:
            name = image.index.names[move.stream_id]
            is_copied = move.copies(before)
            # The stream of this name may be a later one by now, with fewer partitions.
            said = infos[name].partitions[move.partition :] if name in infos else ()
            size = (said[0].bytes or 0) if said else 0
            moves.append(
                BalanceMove(
                    name,
                    move.partition,
                    move.source,
                    move.destination,
                    size if is_copied else 0,
                    is_copied,
                )
            )
    return BalancePlan(
        is_balancing=image.is_balancing,
        moving=sum(1 for _ in image.moving_states()),
        moves=tuple(moves),
        count=count,
        bytes=sum(each.bytes for each in moves),
        replicas={node: image.index.replicas_on(node) for node in sorted(image.nodes)},
    )


def streams_planned(image: Image) -> set[str]:
    """The streams with the moves that `plan_of` lists."""
    moves = islice(balancing_moves(image), LISTED_MAX)
    return {image.index.names[move.stream_id] for move in moves}


def with_moves(
    info: StreamInfo, commands: Iterable[Command], target: tuple[int, ...]
) -> StreamInfo:
    """A stream as it would be if its partitions in `commands` moved to `target`. What their new
    replicas would copy is in `bytes_behind`."""
    moving = {
        change.partition
        for command in commands
        if isinstance(command, ChangePartitions)
        for change in command.changes
    }
    partitions = tuple(
        replace(each, target=target, bytes_behind=_copied(each, target))
        if each.partition in moving
        else each
        for each in info.partitions
    )
    return replace(info, partitions=partitions)


def _copied(partition: PartitionInfo, target: tuple[int, ...]) -> int | None:
    """What the new replicas of a partition copy; None: not known."""
    added = {*target} - {*partition.replicas}
    return None if partition.bytes is None else partition.bytes * len(added)
