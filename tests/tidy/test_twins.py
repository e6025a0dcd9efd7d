"""The loader of twins itself: both sides load, and are what they say."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from support.twins import SOURCE_ROOT, Twin

PACKAGES = sorted(
    path.parent.relative_to(SOURCE_ROOT).as_posix() for path in SOURCE_ROOT.rglob("_hot.py")
)


@pytest.mark.parametrize("package", PACKAGES)
def test_each_twin_says_what_it_is(
    package: str, twin: Twin, hot: Callable[[str], ModuleType]
) -> None:
    assert (twin == "compiled") is hot(package).IS_COMPILED


@pytest.mark.parametrize("package", PACKAGES)
def test_both_twins_offer_the_same_names(package: str, hot: Callable[[str], ModuleType]) -> None:
    from support.twins import load_twin

    offered = {n for n in vars(hot(package)) if not n.startswith("_") and n != "cython"}
    interpreted = {
        n
        for n in vars(load_twin(package, "interpreted"))
        if not n.startswith("_") and n not in {"cython", "annotations"}
    }
    assert offered - {"annotations"} == interpreted
