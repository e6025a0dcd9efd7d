"""What a node that is drained or to be removed still leads or holds, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from bascule.metadata.image import Image
from bascule.metadata.replicas.leadership import why_not_lead
from bascule.metadata.replicas.reassignment import wanted_count
from bascule.model import NO_LEADER, PartitionState

Failures: TypeAlias = Mapping[tuple[bytes, int, int], str]
"""Stream id, partition and node of replicas that have failed and do not heal by themselves -> why,
and what to do."""
NO_FAILURES: Final[Failures] = MappingProxyType({})


class Left(NamedTuple):
    """A partition that a node leads, or holds although its replicas are to move."""

    stream_id: bytes
    partition: int
    leads: bool
    why: str
    is_pending: bool
    """Whether that changes by itself."""


def left_on(image: Image, number: int, failures: Failures = NO_FAILURES) -> Iterator[Left]:
    """The partitions that are to leave a node and have not left it yet."""
    node = image.nodes[number]
    if not node.gives_leaders and not node.gives_replicas:
        return
    for stream_id, index, state in image.partition_states():
        leads = state.leader == number
        failed = {
            node: failures[stream_id, index, node]
            for node in (state.replicas if failures else ())
            if (stream_id, index, node) in failures
        }
        if leads and len(state.replicas) > 1:
            why, is_pending = _why_it_leads(image, state, number, failed)
            if not is_pending and node.gives_replicas:
                moves = _why_it_holds(image, stream_id, state, number, failed)
                why, is_pending = moves if moves[1] else (why, is_pending)
            yield Left(stream_id, index, True, why, is_pending)
        elif node.gives_replicas and number in state.replicas:
            why, is_pending = _why_it_holds(image, stream_id, state, number, failed)
            yield Left(stream_id, index, leads, why, is_pending)
        elif leads:
            yield Left(stream_id, index, True, "it has no other replica", False)


def _why_it_leads(
    image: Image, state: PartitionState, number: int, failed: Mapping[int, str]
) -> tuple[str, bool]:
    others = [node for node in state.replicas if node != number]
    if any(not why_not_lead(image, state, node) for node in others):
        return "its leadership is about to be handed over", True
    able = [node for node in others if image.is_alive(node) and not image.gives_leaders(node)]
    if lacking := [node for node in able if node in state.isr and image.lacks_nats(node)]:
        return f"node {_listed(lacking)} has no NATS connection, and no other is in sync", True
    copying = [] if number in failed else [node for node in able if node not in failed]
    if copying:
        return f"no other replica is in sync yet; node {_listed(copying)} catches up", True
    if able:
        return f"no other replica is in sync, and {_failure((number, *able), failed)}", False
    return f"its other replicas, on node {_listed(others)}, are not alive or drained, too", False


def _why_it_holds(
    image: Image,
    stream_id: bytes,
    state: PartitionState,
    number: int,
    failed: Mapping[int, str],
) -> tuple[str, bool]:
    definition = image.stream_of(stream_id)
    assert definition is not None, "partitions belong to streams"
    if state.target and number not in state.target:
        if why := why_move_waits(image, state, failed):
            return why, False
        if behind := _behind(state):
            return f"node {_listed(behind)} copies it", True
        return "its move is about to end", True
    count = wanted_count(image, definition)
    # As `choose_target`: the other replicas stay where they are, also on a drained node.
    staying = [n for n in state.target or state.replicas if n in image.nodes]
    able = {*image.usable(), *(n for n in staying if not image.nodes[n].gives_replicas)}
    if count > len(able):
        return f"it is to have {count} replicas, and {len(able)} other nodes take any", False
    return "its move has not begun", True


def why_move_waits(image: Image, state: PartitionState, failed: Mapping[int, str]) -> str:
    """Why the move of a partition does not go on by itself; empty: it does, or nothing moves.

    `failed` says for nodes of its replicas why these have failed.
    """
    if not state.target:
        return ""
    behind = _behind(state)
    if lost := [node for node in behind if not image.is_alive(node)]:
        force = " and ".join(f"`bascule node remove {node} --force`" for node in sorted(lost))
        return (
            f"its move waits for node {_listed(lost)}, which is not alive: start it, or give it up "
            f"for good with {force}"
        )
    if state.leader == NO_LEADER:
        return "its move waits for a leader"
    if behind and not failed.keys().isdisjoint((state.leader, *behind)):
        return f"its move waits: {_failure((state.leader, *behind), failed)}"
    lacking = [node for node in state.target if image.lacks_nats(node)]
    if state.leader not in state.target and len(lacking) == len(state.target):
        return f"its move waits for a NATS connection of node {_listed(lacking)}, which is to lead"
    return ""


def _behind(state: PartitionState) -> list[int]:
    """The replicas of the target that are not in sync."""
    return [node for node in state.target if node not in state.isr]


def _failure(nodes: Sequence[int], failed: Mapping[int, str]) -> str:
    """The first failure of a replica on one of these nodes."""
    node = next(each for each in nodes if each in failed)
    return f"the replica on node {node} has failed: {failed[node]}"


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))
