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


def is_inline(value: object, interpreted: ModuleType) -> bool:
    home = getattr(value, "__module__", None) or ""
    return "._hot_" in home and home != interpreted.__name__


@pytest.mark.parametrize("module", MODULES)
def test_both_twins_offer_the_same_names(module: str, hot: Callable[[str], ModuleType]) -> None:
    def names(twin: ModuleType) -> set[str]:
        return {
            name
            for name, value in vars(twin).items()
            if not name.startswith("_")
            and name not in {"cython", "annotations"}
            # Inline functions of a `.pxd` have no name in the compiled modules that call them.
            and not is_inline(value, twin)
        }

    assert names(hot(module)) == names(load_twin(module, "interpreted"))
