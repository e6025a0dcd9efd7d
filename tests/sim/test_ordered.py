"""The sets of a simulation, which keep an order, against those of Python."""

from __future__ import annotations

import operator
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.sim.cluster.world.ordered import OrderedKeys, OrderedSet

NUMBERS: Final = st.lists(st.integers(0, 9))
NO_MATTER: Final = {"__class_getitem__", "__getstate__", "__rxor__"}
"""Of `set`, in which nothing that a node does differs."""


def test_there_is_all_that_a_set_has() -> None:
    missing = [
        name
        for name in vars(set)
        if name not in NO_MATTER and getattr(OrderedSet, name, None) is getattr(dict, name, None)
    ]
    kept = {"__contains__", "__iter__", "__len__", "__getattribute__", "__repr__", "__new__"}
    assert set(missing) <= kept | {"__sizeof__", "__reduce__", "__doc__", "clear"}


@given(NUMBERS, NUMBERS)
@pytest.mark.parametrize(
    "name",
    ["union", "difference", "intersection", "symmetric_difference", "update", "difference_update",
     "intersection_update", "symmetric_difference_update", "isdisjoint", "issubset", "issuperset"],
)  # fmt: skip
def test_methods_are_as_those_of_a_set(name: str, first: list[int], second: list[int]) -> None:
    expected, found = set(first), OrderedSet(first)
    wanted = getattr(expected, name)(second)
    result = getattr(found, name)(second)
    assert (set(result) if isinstance(result, OrderedSet) else result) == wanted
    assert set(found) == expected
    assert list(found) == sorted(found, key=[*first, *second].index)


@given(NUMBERS, NUMBERS)
@pytest.mark.parametrize("name", ["or_", "and_", "sub", "xor", "le", "lt", "ge", "gt", "eq", "ne"])
def test_operators_are_as_those_of_a_set(name: str, first: list[int], second: list[int]) -> None:
    call = getattr(operator, name)
    wanted = call(set(first), set(second))
    for other in (OrderedSet(second), frozenset(second)):
        result = call(OrderedSet(first), other)
        assert (set(result) if isinstance(result, OrderedSet) else result) == wanted
    for name_in_place in ("ior", "iand", "isub", "ixor"):
        expected, found = set(first), OrderedSet(first)
        expected = getattr(operator, name_in_place)(expected, set(second))
        assert set(getattr(operator, name_in_place)(found, OrderedSet(second))) == expected


@given(NUMBERS, st.integers(0, 9))
def test_keys_change_as_those_of_a_map(items: list[int], item: int) -> None:
    keys = OrderedKeys(items)
    assert list(keys) == list(dict.fromkeys(items))
    assert list(keys.insert(item)) == list(dict.fromkeys([*items, item]))
    assert list(keys.discard(item)) == [each for each in dict.fromkeys(items) if each != item]
    assert list(keys) == list(dict.fromkeys(items))


def test_an_item_is_taken_from_a_set() -> None:
    found = OrderedSet([1, 2])
    assert {found.pop(), found.pop()} == {1, 2}
    with pytest.raises(KeyError):
        found.pop()
