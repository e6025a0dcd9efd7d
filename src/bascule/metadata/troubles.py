"""What is wrong in a cluster, as far as the image says. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from bascule.metadata.image import Image
from bascule.model import NO_LEADER, PartitionRef


@dataclass(frozen=True, slots=True)
class Troubles:
    """Partitions that are not as they should be; one may be in several lists."""

    leaderless: tuple[PartitionRef, ...]
    under_min_isr: tuple[PartitionRef, ...]
    under_replicated: tuple[PartitionRef, ...]


def find_troubles(image: Image) -> Troubles:
    """Look at every partition of the image."""
    leaderless, under_min_isr, under_replicated = [], [], []
    for definition in image.streams.values():
        for index, state in enumerate(image.partitions.get(definition.id, ())):
            has_leader = state.leader != NO_LEADER
            if has_leader and len(state.isr) == len(state.replicas):
                continue
            ref = PartitionRef(definition.name, index, state.leader, state.replicas, state.isr)
            if not has_leader:
                leaderless.append(ref)
            if len(state.isr) < (state.min_isr or definition.min_isr):
                under_min_isr.append(ref)
            if len(state.isr) < len(state.replicas):
                under_replicated.append(ref)
    return Troubles(tuple(leaderless), tuple(under_min_isr), tuple(under_replicated))
