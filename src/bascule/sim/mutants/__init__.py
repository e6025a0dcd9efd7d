"""Mutants: bugs in the production code that the simulator has to find.

Each one patches a production class while a context is open; the production code has no switch for
them. `tests/sim/test_mutants.py` checks that each one is found within its number of seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bascule.sim.mutants import durability, elections, logs, membership, reading
from bascule.sim.mutants.base import Mutant

MUTANTS: Final[Mapping[str, Mutant]] = {
    mutant.name: mutant
    for module in (elections, durability, logs, reading, membership)
    for mutant in module.MUTANTS
}
"""All mutants by name."""

__all__ = ["MUTANTS", "Mutant"]
