"""The assignors: balanced, sticky, and whole."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.groups.consumer import TopicPartition
from bascule.groups.consumer.assignors import (
    MemberSubscription,
    Targets,
    assign_range,
    assign_uniform,
)

TOPICS = [bytes([n]) * 16 for n in range(4)]
COUNTS = st.lists(st.integers(1, 9), min_size=4, max_size=4).map(
    lambda counts: dict(zip(TOPICS, counts, strict=True))
)
SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from("abcdef"), st.frozensets(st.sampled_from(TOPICS), min_size=1), min_size=1
)


def members(
    subscriptions: dict[str, frozenset[bytes]], before: Targets | None = None
) -> dict[str, MemberSubscription]:
    return {
        name: MemberSubscription(topics, (before or {}).get(name, frozenset()), name)
        for name, topics in subscriptions.items()
    }


def check_whole(
    targets: Targets, subscriptions: dict[str, frozenset[bytes]], counts: dict[bytes, int]
) -> None:
    """Each partition of a subscribed stream is in one target, of a subscriber."""
    topics = {topic for subscribed in subscriptions.values() for topic in subscribed}
    assert sorted(each for target in targets.values() for each in target) == sorted(
        TopicPartition(topic, n) for topic in topics for n in range(counts[topic])
    )
    for name, target in targets.items():
        assert {each.topic_id for each in target} <= subscriptions[name]


def check_balanced(targets: Targets, subscriptions: dict[str, frozenset[bytes]]) -> None:
    """No single move would bring two members closer together."""
    for most, mine in targets.items():
        for least, theirs in targets.items():
            if len(mine) - len(theirs) > 1:
                assert not any(each.topic_id in subscriptions[least] for each in mine), most


@settings(max_examples=300)
@given(SUBSCRIPTIONS, SUBSCRIPTIONS, COUNTS, COUNTS)
def test_uniform_is_whole_and_balanced_whatever_was_before(
    before: dict[str, frozenset[bytes]],
    after: dict[str, frozenset[bytes]],
    counts_before: dict[bytes, int],
    counts: dict[bytes, int],
) -> None:
    first = assign_uniform(members(before), counts_before)
    targets = assign_uniform(members(after, first), counts)
    check_whole(targets, after, counts)
    check_balanced(targets, after)
    assert assign_uniform(members(after, targets), counts) == targets, "nothing moves again"


@settings(max_examples=200)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 9))
def test_uniform_moves_only_what_it_must(partitions: int, before: int, after: int) -> None:
    """With the same subscription for all: as many moves as any balanced assignment needs."""
    counts = {TOPICS[0]: partitions}
    names = "abcdefghi"
    first = assign_uniform(members(dict.fromkeys(names[:before], frozenset(counts))), counts)
    second = assign_uniform(members(dict.fromkeys(names[:after], frozenset(counts)), first), counts)
    stayed = sum(len(first[name] & target) for name, target in second.items() if name in first)
    size, more = divmod(partitions, after)
    kept = sorted((len(first[name]) for name in names[: min(before, after)]), reverse=True)
    assert stayed == sum(min(had, size + (n < more)) for n, had in enumerate(kept))


@settings(max_examples=300)
@given(SUBSCRIPTIONS, SUBSCRIPTIONS, COUNTS)
def test_range_gives_ranges_of_each_stream(
    before: dict[str, frozenset[bytes]],
    after: dict[str, frozenset[bytes]],
    counts: dict[bytes, int],
) -> None:
    targets = assign_range(members(after, assign_range(members(before), counts)), counts)
    check_whole(targets, after, counts)
    for topic in TOPICS:
        lengths = []
        for name, target in targets.items():
            numbers = sorted(each.partition for each in target if each.topic_id == topic)
            if topic in after[name]:
                lengths.append(len(numbers))
            if numbers:
                assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert not lengths or max(lengths) - min(lengths) <= 1
    if len(set(after.values())) == 1:
        assert assign_range(members(after, targets), counts) == targets, "nothing moves again"


def test_range_puts_the_same_partitions_of_streams_together() -> None:
    counts = {TOPICS[0]: 7, TOPICS[1]: 7}
    both = frozenset(counts)
    subscriptions = {"c": both, "a": both, "b": both}
    targets = assign_range(members(subscriptions), counts)
    targets = assign_range(members({**subscriptions, "0": both}, targets), counts)
    for target in targets.values():
        numbers: list[list[int]] = [[], []]
        for topic_id, partition in sorted(target):
            numbers[TOPICS.index(topic_id)].append(partition)
        assert numbers[0] == numbers[1]
    assert min(partition for _, partition in targets["0"]) == 6, "who is new comes last"


def test_who_is_one_too_many_gets_nothing_and_nothing_moves() -> None:
    counts = {TOPICS[0]: 1_000}
    everyone = {f"m{n}": frozenset(counts) for n in range(1_000)}
    targets = assign_uniform(members(everyone), counts)
    again = assign_uniform(members({**everyone, "new": frozenset(counts)}, targets), counts)
    moved = sum(len(targets[name] - again[name]) for name in targets)
    assert moved == 0
    assert len(again["new"]) == 0


class Counted(dict[str, MemberSubscription]):
    """Counts how often a member is looked at."""

    looks = 0

    def __getitem__(self, name: str) -> MemberSubscription:
        self.looks += 1
        return super().__getitem__(name)


def test_a_partition_costs_no_look_at_all_members() -> None:
    """The event loop waits while a large group is shared out, of which one member differs."""
    names = [f"{n:03}" for n in range(200)]
    counts = dict.fromkeys(TOPICS, 250)
    subscriptions = {name: frozenset(TOPICS[:3]) for name in names} | {"000": frozenset(TOPICS)}
    found = Counted(members(subscriptions))
    before = assign_uniform(found, counts)
    found = Counted(members(subscriptions | {"001": frozenset(TOPICS)}, before))
    after = assign_uniform(found, counts)
    check_whole(after, {name: each.topics for name, each in found.items()}, counts)
    assert found.looks < 30 * (len(names) + sum(counts.values()))
