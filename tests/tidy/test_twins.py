"""The loader of twins itself: both sides load, and are what they say."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from support.twins import Twin, hot_modules, load_twin

MODULES = hot_modules()


@pytest.mark.parametrize("module", MODULES)
def test_each_twin_says_what_it_is(
    module: str, twin: Twin, hot: Callable[[str], ModuleType]
) -> None:
    assert (twin == "compiled") is hot(module).IS_COMPILED


@pytest.mark.parametrize("module", MODULES)
def test_both_twins_offer_the_same_names(module: str, hot: Callable[[str], ModuleType]) -> None:
    offered = {n for n in vars(hot(module)) if not n.startswith("_") and n != "cython"}
    interpreted = {
        n
        for n in vars(load_twin(module, "interpreted"))
        if not n.startswith("_") and n not in {"cython", "annotations"}
    }
    assert offered - {"annotations"} == interpreted
