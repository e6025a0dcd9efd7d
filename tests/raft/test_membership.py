"""Majorities and changes of members, compared with an implementation by enumeration."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.raft.membership import (
    MemberChange,
    Members,
    decode_members,
    encode_members,
    majority_value,
)

NODES = st.integers(1, 9)


@st.composite
def groups(draw: st.DrawFn) -> Members:
    voters = draw(st.sets(NODES, max_size=7))
    learners = draw(st.sets(NODES, max_size=3)) - voters
    index = draw(st.integers(0, 1 << 40))
    return Members(tuple(sorted(voters)), tuple(sorted(learners)), index)


# ------------------------------------------------------------ the model


def quorums(voters: tuple[int, ...]) -> list[set[int]]:
    """All sets of more than half of the voters."""
    return [
        set(chosen)
        for size in range(len(voters) + 1)
        for chosen in combinations(voters, size)
        if size > len(voters) - size
    ]


def reached_by_counting(voters: tuple[int, ...], values: Mapping[int, int]) -> int:
    """The largest value that all voters of some majority reach, by trying all of them."""
    candidates = {0, *values.values()}
    return max(
        (
            value
            for value in candidates
            if any(all(values.get(v, 0) >= value for v in quorum) for quorum in quorums(voters))
        ),
        default=0,
    )


# ------------------------------------------------------------ majorities


def reached(members: Members, values: Mapping[int, int]) -> int:
    """The value that a majority of the voters reaches; a voter without a value has 0."""
    return majority_value([values.get(voter, 0) for voter in members.voters])


@given(groups(), st.dictionaries(NODES, st.integers(0, 5)))
def test_majority_value_agrees_with_enumeration(members: Members, values: dict[int, int]) -> None:
    assert reached(members, values) == reached_by_counting(members.voters, values)


@given(groups(), st.sets(NODES))
def test_is_majority_agrees_with_enumeration(members: Members, yes: set[int]) -> None:
    expected = any(quorum <= yes for quorum in quorums(members.voters))
    assert members.is_majority(lambda voter: voter in yes) == expected


@given(groups())
def test_majority_is_the_size_of_the_smallest_majority(members: Members) -> None:
    if members.voters:
        assert members.majority == min(map(len, quorums(members.voters)))


@pytest.mark.parametrize(
    ("voters", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)]
)
def test_even_groups_need_more_than_half(voters: int, majority: int) -> None:
    """MicroRaft commits with half of an even group, but two halves may not overlap."""
    members = Members.of(*range(1, voters + 1))
    assert members.majority == majority
    acknowledged = dict.fromkeys(members.voters[: majority - 1], 8)
    assert reached(members, acknowledged) == 0
    assert reached(members, acknowledged | {voters: 8}) == 8


@given(groups(), st.dictionaries(NODES, st.integers(1, 9)))
def test_learners_count_in_no_majority(members: Members, values: dict[int, int]) -> None:
    only_learners = {node: value for node, value in values.items() if node in members.learners}
    assert reached(members, only_learners) == 0
    assert not members.is_majority(lambda node: node in members.learners)


def test_a_group_without_voters_has_no_majority() -> None:
    nobody = Members((), (3,))
    assert reached(nobody, {3: 9}) == 0
    assert not nobody.is_majority(lambda node: True)


# ------------------------------------------------------------ changes


@given(groups(), st.sampled_from(MemberChange), NODES, st.integers(1, 1 << 40))
def test_each_change_has_its_effect(
    members: Members, change: MemberChange, node: int, at: int
) -> None:
    after = members.changed(change, node, at)
    voters = dict.fromkeys(members.voters, "voter")
    kinds = voters | dict.fromkeys(members.learners, "learner")
    match change:
        case MemberChange.ADD_VOTER:
            kinds[node] = "voter"
        case MemberChange.ADD_LEARNER:
            kinds.setdefault(node, "learner")
        case MemberChange.REMOVE:
            kinds.pop(node, None)
        case MemberChange.DEMOTE:
            if node in kinds:
                kinds[node] = "learner"
    assert after.index == at
    assert after.voters == tuple(sorted(n for n, kind in kinds.items() if kind == "voter"))
    assert after.learners == tuple(sorted(n for n, kind in kinds.items() if kind == "learner"))
    assert set(after.all) == set(kinds)
    assert all((member in after) == (member in kinds) for member in range(1, 10))


@given(groups(), st.sampled_from(MemberChange), NODES)
def test_majorities_before_and_after_one_change_overlap(
    members: Members, change: MemberChange, node: int
) -> None:
    """The reason why changes of one member need no joint consensus (thesis 4.1)."""
    after = members.changed(change, node, 1)
    assert all(old & new for old in quorums(members.voters) for new in quorums(after.voters))


def test_majorities_two_changes_apart_may_not_overlap() -> None:
    """The reason why a second change waits until the first is committed."""
    before = Members.of(1, 2)
    after = before.changed(MemberChange.ADD_VOTER, 3, 1).changed(MemberChange.ADD_VOTER, 4, 2)
    after = after.changed(MemberChange.REMOVE, 1, 3)
    assert {1, 2} in quorums(before.voters)
    assert {3, 4} in quorums(after.voters)


def test_initial_members_are_sorted_and_unique() -> None:
    assert Members.of(3, 1, 2, 3) == Members((1, 2, 3), (), 0)


# ------------------------------------------------------------ bytes


@given(groups())
def test_members_are_decoded_as_encoded(members: Members) -> None:
    assert decode_members(encode_members(members)) == members


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x93\x91\xa1a\x90\x00", b"\x01"])
def test_other_bytes_are_refused_as_members(payload: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_members(payload)
