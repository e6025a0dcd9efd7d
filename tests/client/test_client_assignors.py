"""Who gets which partition: as Kafka's assignors of the same names, and always fair."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bascule.client.consumers.assignors import (
    Assignments,
    SubscribedMember,
    assign_range,
    assign_round_robin,
    assign_sticky,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

TOPICS = ("flights", "gates", "weather")
COUNTS = st.fixed_dictionaries({topic: st.integers(0, 9) for topic in TOPICS})


@st.composite
def groups(draw: st.DrawFn) -> list[SubscribedMember]:
    ids = draw(st.lists(st.integers(0, 99), min_size=1, max_size=8, unique=True))
    topics = st.frozensets(st.sampled_from(TOPICS), min_size=1)
    return [
        SubscribedMember(f"m{n:02}", draw(st.sampled_from([None, f"i{99 - n:02}"])), draw(topics))
        for n in ids
    ]


def by_kafka_python(assignor: Any, members: list[SubscribedMember], counts: dict[str, int]) -> Any:
    cluster = SimpleNamespace(partitions_for_topic=lambda topic: set(range(counts[topic])))
    theirs = [
        SimpleNamespace(
            member_id=m.member_id,
            group_instance_id=m.instance_id,
            metadata=SimpleNamespace(topics=sorted(m.topics)),
        )
        for m in members
    ]
    found = assignor.assign(cluster, theirs)
    return {name: sorted(map(tuple, each.partitions())) for name, each in found.items()}


def in_order(assignments: Assignments) -> dict[str, list[tuple[str, int]]]:
    return {name: sorted(each) for name, each in assignments.items()}


@given(groups(), COUNTS, st.booleans())
def test_the_assignments_are_those_of_another_client(
    members: list[SubscribedMember], counts: dict[str, int], are_static: bool
) -> None:
    """With members of one kind, and for `roundrobin` one subscription: with others it fails."""
    members = [replace(m, instance_id=f"i{m.member_id}" if are_static else None) for m in members]
    ours = in_order(assign_range(members, counts))
    assert ours == by_kafka_python(RangePartitionAssignor, members, counts)
    members = [replace(m, topics=members[0].topics) for m in members]
    turns = in_order(assign_round_robin(members, counts))
    assert turns == by_kafka_python(RoundRobinPartitionAssignor, members, counts)


@given(groups(), COUNTS)
def test_every_partition_has_one_subscriber(
    members: list[SubscribedMember], counts: dict[str, int]
) -> None:
    topics = {topic for m in members for topic in m.topics}
    everything = sorted((t, p) for t in topics for p in range(counts[t]))
    for assign in (assign_range, assign_round_robin, assign_sticky):
        assigned = assign(members, counts)
        assert sorted(p for each in assigned.values() for p in each) == everything
        assert all(t in m.topics for m in members for t, _ in assigned[m.member_id])


@given(groups(), COUNTS, st.data())
def test_sticky_rounds_end_in_a_fair_assignment(
    members: list[SubscribedMember], counts: dict[str, int], data: st.DataObject
) -> None:
    """Members join again while they give something up. Nobody ever has what another one keeps."""
    everything = {
        (t, p) for t, n in counts.items() for p in range(n) if any(t in m.topics for m in members)
    }
    claims = {p: data.draw(st.sampled_from([None, *members])) for p in sorted(everything)}
    members = [
        replace(m, owned=frozenset(p for p, owner in claims.items() if owner is m), generation=1)
        for m in members
    ]
    for _ in range(3):
        assigned = assign_sticky(members, counts)
        given = [p for each in assigned.values() for p in each]
        assert len(given) == len(set(given))
        for member in members:
            for other in members:
                if other is not member:
                    kept = {p for p in other.owned if p[0] in other.topics}
                    assert not kept & set(assigned[member.member_id])
        settled = all(m.owned == frozenset(assigned[m.member_id]) for m in members)
        members = [
            replace(m, owned=frozenset(assigned[m.member_id]), generation=m.generation + 1)
            for m in members
        ]
        if settled:
            break
    assert settled
    assert set(given) == everything
    for member in members:
        for other in members:
            mine, theirs = assigned[member.member_id], assigned[other.member_id]
            movable = [p for p in mine if p[0] in other.topics]
            assert not movable or len(mine) <= len(theirs) + 1


def test_members_keep_what_they_have_when_one_comes_and_goes() -> None:
    counts, topics = {"flights": 6}, frozenset({"flights"})
    one = SubscribedMember("one", None, topics, frozenset(("flights", p) for p in range(6)), 1)
    two = SubscribedMember("two", None, topics)
    first = assign_sticky([one, two], counts)
    assert len(first["one"]) == 3
    assert first["two"] == []
    one = replace(one, owned=frozenset(first["one"]), generation=2)
    second = assign_sticky([one, two], counts)
    assert second["one"] == first["one"]
    assert len(second["two"]) == 3
    assert assign_sticky([one], counts)["one"] == [("flights", p) for p in range(6)]


def test_of_two_who_own_a_partition_the_later_generation_does() -> None:
    counts, topics = {"flights": 2}, frozenset({"flights"})
    both = frozenset({("flights", 0), ("flights", 1)})
    late = SubscribedMember("late", None, topics, both, 4)
    early = SubscribedMember("early", None, topics, both, 3)
    assigned = assign_sticky([early, late], counts)
    assert assigned["early"] == []
    assert len(assigned["late"]) == 1
