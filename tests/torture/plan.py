"""Which faults come in which order: a pure function of the seed.

A run has rounds. In each, one fault happens alone, or several overlap; then everything is healed
and the cluster has to be in sync again before the next round. How many rounds fit into a run
depends on the machine; what they are does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

WEIGHTS: Final = {
    "kill": 5,
    "kill-two": 2,
    "kill-all": 1,
    "pause": 4,
    "pause-two": 1,
    "terminate": 2,
    "roll": 1,
    "isolate": 3,
    "one-way": 2,
    "halves": 2,
    "ring": 1,
    "delay": 2,
    "nats": 2,
    "nats-pause": 1,
    "disk": 2,
    "flip": 3,
    "truncate": 2,
    "power": 2,
    "power-all": 1,
    "reassign": 3,
    "drain": 2,
    "join-remove": 1,
    "replace": 1,
    "versions": 6,
}
"""Kind -> how often it is drawn, relative to the others."""
KINDS: Final = tuple(WEIGHTS)
VERSIONS: Final = "versions"
"""With this kind a run begins with the release before."""
DEFAULT_KINDS: Final = tuple(kind for kind in KINDS if kind != VERSIONS)
"""Of a run in which all nodes have this release, so that all it brings can be used."""
SECONDS_OF_KIND: Final = {
    "kill-all": (0.0, 2.0),
    "pause": (0.5, 8.0),
    "pause-two": (0.5, 6.0),
    "nats": (0.0, 3.0),
    "nats-pause": (0.5, 4.0),
}
SECONDS_USUAL: Final = (0.0, 6.0)
"""Between the beginning of a fault and its end, where it has one."""
ALONE_SHARE: Final = 0.45
OVERLAPPING_MAX: Final = 4


@dataclass(frozen=True)
class PlannedFault:
    """One fault. Everything else about it is drawn from `seed`, too."""

    number: int
    kind: str
    after_s: float
    """Since the beginning of its round."""
    seconds: float
    seed: str


@dataclass(frozen=True)
class Round:
    """Faults that overlap."""

    number: int
    faults: tuple[PlannedFault, ...]
    seconds: float
    """When everything is healed, since the beginning of the round."""


def plan(seed: int, kinds: Sequence[str] = DEFAULT_KINDS) -> Iterator[Round]:
    """The rounds of a run, without end. Raises: ValueError for an unknown kind."""
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown or not kinds:
        raise ValueError(f"unknown faults {unknown}; expected some of {', '.join(KINDS)}")
    dice = Random(f"torture {seed} {','.join(sorted(kinds))}")
    chosen = [kind for kind in KINDS if kind in kinds]
    weights = [WEIGHTS[kind] for kind in chosen]
    number = fault_number = 0
    while True:
        count = 1 if dice.random() < ALONE_SHARE else dice.randint(2, OVERLAPPING_MAX)
        span = 0.0 if count == 1 else dice.uniform(1, 6)
        faults = []
        for each in range(count):
            (kind,) = dice.choices(chosen, weights)
            after = dice.uniform(0, span) if each else 0.0
            seconds = dice.uniform(*SECONDS_OF_KIND.get(kind, SECONDS_USUAL))
            faults.append(
                PlannedFault(fault_number, kind, after, seconds, f"{seed} {fault_number}")
            )
            fault_number += 1
        faults.sort(key=lambda fault: fault.after_s)
        end = max(fault.after_s + fault.seconds for fault in faults) + dice.uniform(0.5, 2)
        yield Round(number, tuple(faults), end)
        number += 1
