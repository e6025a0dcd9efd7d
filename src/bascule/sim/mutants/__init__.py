"""Bugs to be put into the production code, so that the simulator can show that it finds them.

Each is a patch of a production class while a context is open; the production code has no switch
for any of them. `tests/sim/test_mutants.py` finds each within its bound of seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bascule.sim.mutants import durability, elections, logs, membership, reading
from bascule.sim.mutants.base import Planted

PLANTED: Final[Mapping[str, Planted]] = {
    bug.name: bug
    for module in (elections, durability, logs, reading, membership)
    for bug in module.BUGS
}
"""All of them by name."""

__all__ = ["PLANTED", "Planted"]
