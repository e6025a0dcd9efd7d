"""What is wrong in a cluster, as far as the image says. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

from bascule.metadata.elections import why_leaderless
from bascule.metadata.image import Image
from bascule.metadata.image_index import is_short, is_troubled
from bascule.metadata.replicas.drained import why_move_waits
from bascule.metadata.replicas.reassignment import wanted_count
from bascule.model import NO_LEADER, PartitionRef, PartitionState, StreamDefinition


@dataclass(frozen=True, slots=True)
class Troubles:
    """Partitions that are not as they should be; one may be in several lists."""

    leaderless: tuple[PartitionRef, ...]
    under_min_isr: tuple[PartitionRef, ...]
    under_replicated: tuple[PartitionRef, ...]
    unclean: tuple[PartitionRef, ...]
    short: tuple[PartitionRef, ...]
    """Those of `under_replicated` that lack nothing but a node: all replicas that they have are in
    sync, and there is no node for more."""
    moving: tuple[PartitionRef, ...]
    """Those that move to other replicas, which is no trouble as long as they do."""


def how_to_repair(
    image: Image,
    definition: StreamDefinition,
    state: PartitionState,
    node: int,
    *,
    leader_damaged: bool = False,
) -> str:
    """What it means that the replica on `node` has failed, and what an operator can do.

    `leader_damaged`: the replica of the leader is damaged and has not failed, since nobody else has
    all records; it may be that on `node`.
    """
    repair = f"`bascule stream repair {definition.name} --accept-loss`"
    if leader_damaged:
        return _how_to_go_on(image, state, node, repair)
    if node not in state.isr:
        serves = f"node {state.leader} leads" if state.leader != NO_LEADER else "nobody leads"
        return f"{serves}; a damaged log heals by itself, and {repair} has any copied again"
    others = sorted({*state.isr, *state.eligible} - {node})
    if any(map(image.is_alive, others)):
        return "another replica is to lead"
    if others:
        nodes = " or ".join(map(str, others))
        return f"the partition takes and serves nothing; start node {nodes}, which has all records"
    if len(state.replicas) == 1:
        return f"it is the only replica; {repair} goes on with what can be read"
    return (
        "it is the last in sync, and the partition takes and serves nothing; "
        f"{repair} goes on with what can be read, or stop node {node} and let another replica lead "
        f"with what it has: `bascule stream recover {definition.name} --accept-loss`"
    )


def _how_to_go_on(image: Image, state: PartitionState, node: int, repair: str) -> str:
    """What an operator can do about a replica while the log of the leader is damaged, too."""
    leader = state.leader
    others = sorted({*state.isr, *state.eligible} - {leader})
    if node != leader:
        said = f"node {leader} leads with a damaged log, so what this one has is kept; it heals"
    else:
        said = "it serves what can be read, since nobody else has all records; it heals"
    if any(map(image.is_alive, others)):
        return f"{said} once another replica leads"
    if others:
        nodes = " or ".join(map(str, others))
        return f"{said} once another replica leads: start node {nodes}, which has all records"
    return (
        f"{said} once another replica has caught up; where none can, save what the replicas have, "
        f"with `bascule backup --data` of their stopped nodes, then restart node {leader}, and "
        f"{repair} goes on with what can be read of it"
    )


def find_troubles(image: Image) -> Troubles:
    """Look at the partitions of the streams that have any, sorted by stream name."""
    leaderless, under_min_isr, under_replicated, unclean = [], [], [], []
    short, moving = [], []
    takers = {*image.usable()}
    for definition in sorted(_suspects(image), key=attrgetter("name")):
        wanted = wanted_count(image, definition)
        for index, state in enumerate(image.partitions[definition.id]):
            if not is_troubled(state) and not is_short(state, wanted):
                continue
            ref = PartitionRef(
                definition.name,
                index,
                state.leader,
                state.replicas,
                state.isr,
                unclean_epoch=state.shown_unclean_epoch,
                waits=why_leaderless(image, definition, state),
                wanted=wanted,
                short=_why_short(image, state, wanted, takers),
                target=state.target,
                move_waits=why_move_waits(image, state, {}),
            )
            if ref.unclean_epoch:
                unclean.append(ref)
            if state.leader == NO_LEADER:
                leaderless.append(ref)
            if len(state.isr) < definition.needed_in_sync(state):
                under_min_isr.append(ref)
            if _is_under_replicated(state, wanted):
                under_replicated.append(ref)
            if _lacks_only_a_node(image, state, wanted, takers):
                short.append(ref)
            if state.target:
                moving.append(ref)
    return Troubles(
        tuple(leaderless),
        tuple(under_min_isr),
        tuple(under_replicated),
        tuple(unclean),
        tuple(short),
        tuple(moving),
    )


def _suspects(image: Image) -> Iterator[StreamDefinition]:
    """The streams that may have a partition in trouble."""
    names, troubled = image.index.names, image.index.troubled
    for stream_id in chain(troubled, (id for id in image.index.short if id not in troubled)):
        yield image.streams[names[stream_id]]


def _is_under_replicated(state: PartitionState, wanted: int) -> bool:
    return len(state.isr) < len(state.replicas) or is_short(state, wanted)


def _lacks_only_a_node(
    image: Image, state: PartitionState, wanted: int, takers: Collection[int]
) -> bool:
    """Whether a partition has fewer replicas than it is to have, all of them in sync, and there is
    no node for more: `takers` are the nodes that may get replicas."""
    is_all = is_short(state, wanted) and len(state.isr) == len(state.replicas)
    return is_all and _nodes_for(image, state, takers) < wanted


def _nodes_for(image: Image, state: PartitionState, takers: Collection[int]) -> int:
    """How many nodes there are for the replicas of a partition."""
    # As `choose_target`: the other replicas stay where they are, also on a drained node.
    base = state.target or state.replicas
    staying = (n for n in base if n in image.nodes and not image.nodes[n].gives_replicas)
    return len({*takers, *staying})


def _why_short(image: Image, state: PartitionState, wanted: int, takers: Collection[int]) -> str:
    """Why a partition has fewer replicas than it is to have, and what helps; empty: it has not."""
    if not is_short(state, wanted):
        return ""
    base = state.target or state.replicas
    has = f"it has {len(base)} of {wanted} replicas"
    if _nodes_for(image, state, takers) >= wanted:
        return f"{has}; another node is about to copy it"
    others = [(n, node) for n, node in sorted(image.nodes.items()) if n not in base]
    lost = [str(n) for n, node in others if not node.alive and not node.is_leaving]
    ways = [f"start node {' or '.join(lost)}"] if lost else []
    ways += [f"`bascule node resume {n}`" for n, node in others if node.alive and node.is_drained]
    ways.append("add a node with `bascule node join`")
    return f"{has}, for want of a node: {', or '.join(ways)}"


@dataclass(frozen=True, slots=True)
class TroubleCounts:
    """How many partitions each list of `Troubles` has."""

    leaderless: int = 0
    under_min_isr: int = 0
    under_replicated: int = 0
    unclean: int = 0
    short: int = 0


def count_troubles(image: Image) -> TroubleCounts:
    """As `find_troubles`, at less cost where there are many."""
    leaderless = under_min_isr = under_replicated = unclean = short = 0
    takers = {*image.usable()}
    for definition in _suspects(image):
        wanted = wanted_count(image, definition)
        for state in image.partitions[definition.id]:
            leaderless += state.leader == NO_LEADER
            under_min_isr += len(state.isr) < definition.needed_in_sync(state)
            under_replicated += _is_under_replicated(state, wanted)
            unclean += state.shown_unclean_epoch > 0
            short += _lacks_only_a_node(image, state, wanted, takers)
    return TroubleCounts(leaderless, under_min_isr, under_replicated, unclean, short)
