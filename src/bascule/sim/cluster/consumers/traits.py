"""What a group has besides its members: drawn apart, so that other choices of a seed stay."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from enum import Enum
from typing import Final

from bascule.host.real import RealRandom
from bascule.sim.cluster.plan import GroupPlan
from bascule.sim.prng import Prng

_APART: Final = 1 << 40
"""Added to the seed of a run."""


class GroupTrait(Enum):
    """A trait of a group."""

    STATIC = "static"
    """Its members have instance ids, and the place of one that stands still is taken."""
    DELETED = "deleted"
    """Somebody tries to delete it, again and again."""
    PLAIN = "plain"
    """None of these. It is never drawn."""


def draw_group_traits(
    seed: int, groups: tuple[GroupPlan, ...], wanted: Collection[str] = ()
) -> tuple[GroupPlan, ...]:
    """The groups with their traits: those of `wanted`, if there are any, else drawn."""
    prng = Prng(RealRandom(seed + _APART))
    found = []
    for group in groups:
        drawn = {each.value for each in GroupTrait if prng.happens(0.3)}
        has = set(wanted) or drawn
        plan = replace(
            group,
            is_static=GroupTrait.STATIC.value in has,
            is_deleted=GroupTrait.DELETED.value in has,
        )
        found.append(plan)
    return tuple(found)
