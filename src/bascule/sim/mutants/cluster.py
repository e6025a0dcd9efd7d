"""Mutants of whole nodes: what a cluster promises, broken in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bascule.sim.mutants.base import Mutant

CLUSTER_MUTANTS: Final[Mapping[str, Mutant]] = {}
"""All mutants by name."""
