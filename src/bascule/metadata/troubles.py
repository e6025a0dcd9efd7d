"""What is wrong in a cluster, as far as the image says. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from bascule.metadata.elections import why_leaderless
from bascule.metadata.image import Image
from bascule.metadata.image_index import is_troubled
from bascule.model import NO_LEADER, PartitionRef, PartitionState, StreamDefinition


@dataclass(frozen=True, slots=True)
class Troubles:
    """Partitions that are not as they should be; one may be in several lists."""

    leaderless: tuple[PartitionRef, ...]
    under_min_isr: tuple[PartitionRef, ...]
    under_replicated: tuple[PartitionRef, ...]
    unclean: tuple[PartitionRef, ...]


def how_to_repair(
    image: Image, definition: StreamDefinition, state: PartitionState, node: int
) -> str:
    """What it means that the replica on `node` has failed, and what an operator can do."""
    repair = f"`bascule stream repair {definition.name} --accept-loss`"
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


def find_troubles(image: Image) -> Troubles:
    """Look at the partitions of the streams that have any, sorted by stream name."""
    leaderless, under_min_isr, under_replicated, unclean = [], [], [], []
    names = image.index.names
    for name in sorted(names[stream_id] for stream_id in image.index.troubled):
        definition = image.streams[name]
        for index, state in enumerate(image.partitions[definition.id]):
            if not is_troubled(state):
                continue
            ref = PartitionRef(
                name,
                index,
                state.leader,
                state.replicas,
                state.isr,
                unclean_epoch=state.shown_unclean_epoch,
                waits=why_leaderless(image, definition, state),
            )
            if ref.unclean_epoch:
                unclean.append(ref)
            if state.leader == NO_LEADER:
                leaderless.append(ref)
            if len(state.isr) < definition.needed_in_sync(state):
                under_min_isr.append(ref)
            if len(state.isr) < len(state.replicas):
                under_replicated.append(ref)
    return Troubles(
        tuple(leaderless), tuple(under_min_isr), tuple(under_replicated), tuple(unclean)
    )


@dataclass(frozen=True, slots=True)
class TroubleCounts:
    """How many partitions each list of `Troubles` has."""

    leaderless: int = 0
    under_min_isr: int = 0
    under_replicated: int = 0
    unclean: int = 0


def count_troubles(image: Image) -> TroubleCounts:
    """As `find_troubles`, at less cost where there are many."""
    leaderless = under_min_isr = under_replicated = unclean = 0
    for stream_id, _, state in image.troubled_states():
        definition = image.stream_of(stream_id)
        assert definition is not None, "only streams of the image are troubled"
        leaderless += state.leader == NO_LEADER
        under_min_isr += len(state.isr) < definition.needed_in_sync(state)
        under_replicated += len(state.isr) < len(state.replicas)
        unclean += state.shown_unclean_epoch > 0
    return TroubleCounts(leaderless, under_min_isr, under_replicated, unclean)
