"""The order of faults comes from the seed alone."""

from __future__ import annotations

from itertools import islice

import pytest

from torture.plan import KINDS, plan


def test_a_seed_repeats_its_rounds_exactly() -> None:
    assert list(islice(plan(7), 200)) == list(islice(plan(7), 200))
    assert list(islice(plan(7), 20)) != list(islice(plan(8), 20))


def test_only_the_chosen_kinds_are_drawn_and_all_of_them() -> None:
    few = {fault.kind for each in islice(plan(1, ["kill", "flip"]), 50) for fault in each.faults}
    assert few == {"kill", "flip"}
    every = {fault.kind for each in islice(plan(1, KINDS), 300) for fault in each.faults}
    assert every == set(KINDS)


def test_the_order_in_which_kinds_are_named_does_not_matter() -> None:
    rounds = list(islice(plan(3, ["pause", "kill"]), 20))
    assert rounds == list(islice(plan(3, ["kill", "pause"]), 20))


def test_faults_happen_alone_and_overlap() -> None:
    counts = {len(each.faults) for each in islice(plan(2), 100)}
    assert counts == {1, 2, 3, 4}
    for each in islice(plan(2), 100):
        assert all(fault.after_s + fault.seconds <= each.seconds for fault in each.faults)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown faults \['flood'\]; expected some of kill, "):
        next(plan(1, ["kill", "flood"]))
