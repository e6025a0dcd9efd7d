"""Who shall own which partitions: the assignors of the coordinator.

    uniform    members have the same number of partitions, as far as their subscriptions allow
    range      a member has a range of the partitions of each stream, the same of each stream

Both are pure functions of subscriptions, partitions and the targets before, and move little:
`uniform` nothing that need not move; `range` keeps the members in the order of their ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from bascule.groups.consumer.messages import NOTHING, Partitions, TopicPartition

Targets: TypeAlias = dict[str, Partitions]


class MemberSubscription(NamedTuple):
    """What an assignor knows of a member."""

    topics: frozenset[bytes]
    """Ids of streams that exist."""
    target: Partitions
    """The one before."""
    rank: str
    """Orders members that have nothing yet: the instance id or the member id."""


Members: TypeAlias = Mapping[str, MemberSubscription]
Counts: TypeAlias = Mapping[bytes, int]
"""Id of a stream -> how many partitions it has."""


def assign_uniform(members: Members, counts: Counts) -> Targets:
    """Each partition has one subscriber. No single move would bring two members closer together."""
    kept = _kept(members, counts)
    taken = {each for owned in kept.values() for each in owned}
    free = [each for each in _all_partitions(members, counts) if each not in taken]
    if len({subscription.topics for subscription in members.values()}) == 1:
        _share_equally(kept, free, members)
    else:
        _share_by_subscription(kept, free, members)
    return {member_id: frozenset(owned) for member_id, owned in kept.items()}


def assign_range(members: Members, counts: Counts) -> Targets:
    """Each stream is cut into ranges that differ by at most one partition in length."""
    targets: dict[str, set[TopicPartition]] = {member_id: set() for member_id in members}
    order = sorted(members, key=lambda each: _position(members[each], counts))
    for topic_id in sorted({topic for each in members.values() for topic in each.topics}):
        subscribers = [each for each in order if topic_id in members[each].topics]
        size, more = divmod(counts[topic_id], len(subscribers))
        ends = [(n * size) + min(n, more) for n in range(len(subscribers) + 1)]
        for member_id, (start, end) in zip(subscribers, pairwise(ends), strict=True):
            targets[member_id].update(TopicPartition(topic_id, n) for n in range(start, end))
    return {member_id: frozenset(owned) for member_id, owned in targets.items()}


ASSIGNORS: Final[Mapping[str, Callable[[Members, Counts], Targets]]] = {
    "uniform": assign_uniform,
    "range": assign_range,
}
DEFAULT_ASSIGNOR: Final = "uniform"


def _all_partitions(members: Members, counts: Counts) -> list[TopicPartition]:
    topics = sorted({topic for each in members.values() for topic in each.topics})
    return [TopicPartition(topic, n) for topic in topics for n in range(counts[topic])]


def _kept(members: Members, counts: Counts) -> dict[str, list[TopicPartition]]:
    """What members may keep of their targets, in order."""
    kept: dict[str, list[TopicPartition]] = {}
    taken: set[TopicPartition] = set()
    for member_id, (topics, target, _) in members.items():
        mine = [
            each
            for each in target
            if each.topic_id in topics
            and each.partition < counts[each.topic_id]
            and each not in taken
        ]
        taken.update(mine)
        kept[member_id] = sorted(mine)
    return kept


def _share_equally(
    kept: dict[str, list[TopicPartition]], free: list[TopicPartition], members: Members
) -> None:
    """All members subscribe to the same: `kept` becomes the new targets."""
    total = len(free) + sum(map(len, kept.values()))
    size, more = divmod(total, len(kept))
    # Who has most keeps one more, so that nothing moves that need not.
    order = sorted(kept, key=lambda each: (-len(kept[each]), members[each].rank))
    quotas = {member_id: size + (row < more) for row, member_id in enumerate(order)}
    for member_id, quota in quotas.items():
        free += kept[member_id][quota:]
        del kept[member_id][quota:]
    free.sort(reverse=True)
    for member_id, quota in quotas.items():
        while len(kept[member_id]) < quota:
            kept[member_id].append(free.pop())


def _share_by_subscription(
    kept: dict[str, list[TopicPartition]], free: list[TopicPartition], members: Members
) -> None:
    """Members subscribe to different streams: `kept` becomes the new targets."""
    subscribers: dict[bytes, list[str]] = {}
    for member_id, subscription in members.items():
        for topic in subscription.topics:
            subscribers.setdefault(topic, []).append(member_id)

    def load(member_id: str) -> tuple[int, str]:
        return len(kept[member_id]), members[member_id].rank

    # The subscribers of each stream, who has least first. Loads that have grown since are corrected
    # where they come up, so that a partition costs no look at all members.
    queues: dict[bytes, list[tuple[int, str, str]]] = {}
    # Streams with few subscribers first: the other ones fill up the members with less.
    for each in sorted(free, key=lambda p: (len(subscribers[p.topic_id]), p)):
        topic = each.topic_id
        if (queue := queues.get(topic)) is None:
            queue = queues[topic] = [(*load(found), found) for found in subscribers[topic]]
            heapify(queue)
        while queue[0][:2] != load(queue[0][2]):
            heapreplace(queue, (*load(queue[0][2]), queue[0][2]))
        kept[queue[0][2]].append(each)
    owned: dict[tuple[str, bytes], list[TopicPartition]] = {}
    for member_id, partitions in kept.items():
        for each in sorted(partitions):
            owned.setdefault((member_id, each.topic_id), []).append(each)
    moved = True
    while moved:
        # Each move makes the sum of the squares of the loads smaller, so this ends.
        moved = False
        for topic, candidates in subscribers.items():
            owners = [each for each in candidates if owned.get((each, topic))]
            if not owners:
                continue
            most, least = max(owners, key=load), min(candidates, key=load)
            for _ in range((len(kept[most]) - len(kept[least])) // 2):
                if not (found := owned[most, topic]):
                    break
                each = found.pop()
                kept[most].remove(each)
                kept[least].append(each)
                owned.setdefault((least, topic), []).append(each)
                moved = True


def _position(subscription: MemberSubscription, counts: Counts) -> tuple[float, str]:
    """Where the ranges of a member begin, as a share of a stream; new members are last."""
    starts = [
        each.partition / counts[each.topic_id]
        for each in subscription.target or NOTHING
        if counts.get(each.topic_id)
    ]
    return min(starts, default=2.0), subscription.rank
