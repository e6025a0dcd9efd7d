"""Who gets which partition: Kafka's assignors by their names. Pure.

    range                 of each stream, neighbouring partitions to each member
    roundrobin            all partitions in turn
    cooperative-sticky    as even as possible, and members keep what they have (KIP-429)

The leader of a generation assigns for all members, which may be clients of other libraries, so each
assignor does what the one with its name does there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final, TypeAlias

COOPERATIVE: Final = "cooperative-sticky"

TopicPartition: TypeAlias = tuple[str, int]
Assignments: TypeAlias = dict[str, list[TopicPartition]]
"""Member id -> its partitions, in order."""


@dataclass(frozen=True, slots=True)
class SubscribedMember:
    """A member as an assignor sees it."""

    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    """In which it has owned them."""

    @property
    def rank(self) -> tuple[bool, str]:
        """Static members first, so that they get the same again when they come back."""
        return self.instance_id is None, self.instance_id or self.member_id


def assign_range(members: Sequence[SubscribedMember], counts: Mapping[str, int]) -> Assignments:
    """`counts` has the partitions of each topic."""
    assignments: Assignments = {member.member_id: [] for member in members}
    ordered = sorted(members, key=lambda member: member.rank)
    for topic in sorted(counts):
        takers = [member for member in ordered if topic in member.topics]
        at = 0
        for number, member in enumerate(takers):
            each, more = divmod(counts[topic], len(takers))
            end = at + each + (number < more)
            assignments[member.member_id] += [(topic, p) for p in range(at, end)]
            at = end
    return assignments


def assign_round_robin(
    members: Sequence[SubscribedMember], counts: Mapping[str, int]
) -> Assignments:
    """`counts` has the partitions of each topic."""
    assignments: Assignments = {member.member_id: [] for member in members}
    subscribed = {topic for member in members for topic in member.topics}
    turns = cycle(sorted(members, key=lambda member: member.rank))
    for topic, partition in _all_partitions(counts):
        if topic in subscribed:
            taker = next(member for member in turns if topic in member.topics)
            assignments[taker.member_id].append((topic, partition))
    return assignments


def assign_sticky(members: Sequence[SubscribedMember], counts: Mapping[str, int]) -> Assignments:
    """The assignment of this generation: a partition that goes from one member to another is
    assigned to nobody until its owner has given it up and joined again."""
    owners = _owners(members, counts)
    taken: dict[str, set[TopicPartition]] = {member.member_id: set() for member in members}
    for partition, member_id in owners.items():
        taken[member_id].add(partition)
    ordered = sorted(members, key=lambda member: member.rank)
    for partition in _all_partitions(counts):
        takers = [m.member_id for m in ordered if partition[0] in m.topics]
        if partition not in owners and takers:
            taken[min(takers, key=lambda each: len(taken[each]))].add(partition)
    _balance(ordered, taken)
    return {
        member_id: sorted(p for p in mine if owners.get(p, member_id) == member_id)
        for member_id, mine in taken.items()
    }


def _all_partitions(counts: Mapping[str, int]) -> list[TopicPartition]:
    return [(topic, p) for topic in sorted(counts) for p in range(counts[topic])]


def _owners(
    members: Sequence[SubscribedMember], counts: Mapping[str, int]
) -> dict[TopicPartition, str]:
    """Who owns which partition now. Of several who say so, the one of the latest generation does;
    of one generation, none."""
    owners: dict[TopicPartition, str] = {}
    latest: dict[TopicPartition, int] = {}
    for member in members:
        for partition in member.owned:
            topic, number = partition
            if topic not in member.topics or number >= counts.get(topic, 0):
                continue
            before = latest.get(partition, -2)
            if member.generation > before:
                owners[partition], latest[partition] = member.member_id, member.generation
            elif member.generation == before:
                owners.pop(partition, None)
    return owners


def _balance(members: Sequence[SubscribedMember], taken: dict[str, set[TopicPartition]]) -> None:
    """Move partitions until no move makes two members more even."""
    moved = True
    while moved:
        moved = False
        for giver in sorted(members, key=lambda member: -len(taken[member.member_id])):
            mine = taken[giver.member_id]
            for partition in sorted(mine):
                takers = [m.member_id for m in members if partition[0] in m.topics]
                least = min(takers, key=lambda each: len(taken[each]))
                if len(taken[least]) + 1 >= len(mine):
                    continue
                mine.remove(partition)
                taken[least].add(partition)
                moved = True


ASSIGNORS: Final[
    Mapping[str, Callable[[Sequence[SubscribedMember], Mapping[str, int]], Assignments]]
] = {
    "range": assign_range,
    "roundrobin": assign_round_robin,
    COOPERATIVE: assign_sticky,
}
