"""A mutant can be called as what it replaces: else a run ends with a TypeError of the mutant."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable
from types import FunctionType, MethodType

import pytest

from bascule.sim.mutants.cluster import CLUSTER_MUTANTS

Callables = FunctionType | MethodType


def function_of(owner: object, attribute: str) -> Callables | None:
    """The function that the owner has; None where it has a property, a class or a constant."""
    found = getattr(owner, attribute)
    return found if isinstance(found, Callables) else None


def accepts(function: Callables, parameters: Iterable[inspect.Parameter]) -> bool:
    """Whether it can be called with these, some of them by position and the others by name."""
    usual = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    signature = inspect.signature(function)
    for count in range(len(usual), -1, -1):
        by_position, by_name = usual[:count], {p.name: None for p in usual[count:]}
        if any(p.kind is p.KEYWORD_ONLY for p in by_position):
            continue
        with contextlib.suppress(TypeError):
            signature.bind(*by_position, **by_name)
            return True
    return False


@pytest.mark.parametrize("name", CLUSTER_MUTANTS)
def test_a_mutant_takes_the_arguments_of_what_it_replaces(name: str) -> None:
    mutant = CLUSTER_MUTANTS[name]
    replaced = function_of(mutant.owner, mutant.attribute)
    with mutant.patch():
        patched = function_of(mutant.owner, mutant.attribute)
    if replaced is None or patched is None:
        return
    assert replaced is not patched
    parameters = inspect.signature(replaced).parameters.values()
    required = [p for p in parameters if p.default is p.empty or p.kind is p.KEYWORD_ONLY]
    assert accepts(patched, parameters)
    assert accepts(patched, required)


def test_some_mutants_replace_functions() -> None:
    found = [function_of(m.owner, m.attribute) for m in CLUSTER_MUTANTS.values()]
    assert sum(function is not None for function in found) > 40
