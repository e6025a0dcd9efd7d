"""Which cases of a parametrized test `.ci/run` takes; the others are for `make test-long`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def in_ci(cases: Iterable[Any], kept: Collection[Any]) -> list[ParameterSet]:
    """The cases, those that are not `kept` with the mark `long`. Cases of several parameters are
    tuples."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else [case]),
            marks=[] if case in kept else [pytest.mark.long],
        )
        for case in cases
    ]
