"""What a wide run draws in place of the faults and streams of its plan."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final, NamedTuple

from bascule.host.real import RealRandom
from bascule.sim.cluster.plan import CHOSEN, FREQUENT_NS, RARE, ClusterFault, ClusterPlan
from bascule.sim.cluster.streams import PROBABILITIES, StreamTrait, draw_streams
from bascule.sim.cluster.world.loop import NS
from bascule.sim.prng import Prng

APART: Final = 0x1DE << 50
"""Makes the seed of what is drawn here: all other things are drawn as in other runs."""
FAULTY: Final = 0.15
"""The share of the runs that have a kind of fault, beside those of their mix."""
MIXED: Final = 0.5
"""The share of the runs with a mix."""
RARELY: Final = 0.1
"""The share of the streams that are tables, or have a trait that other runs do not draw."""
STREAMS: Final = (1, 1, 2, 3)
SECONDS: Final = (8, 16)
OF_QUIET_TABLES: Final = (ClusterFault.UNHEARD, ClusterFault.DEPOSED)
"""Scenes that need streams of their own."""
DRAWN_LAST: Final = (ClusterFault.NATS_LOSS,)
"""In this order, so that seeds from before they existed draw the same else."""
ON_TOP: Final = (StreamTrait.TABLE, StreamTrait.EXPIRING, StreamTrait.BRIEF)


class _Mix(NamedTuple):
    """What has found something together."""

    traits: tuple[StreamTrait, ...]
    faults: tuple[ClusterFault, ...]


_T, _F = StreamTrait, ClusterFault
MIXES: Final = (
    _Mix((_T.COMPACTED, _T.UNSYNCED), (_F.OUTAGE, _F.POWER, _F.PURGE)),
    _Mix((_T.COMPACTED, _T.LENIENT), (_F.OUTAGE, _F.POWER, _F.REPLACE, _F.COPIED)),
    _Mix((_T.UNSYNCED, _T.LENIENT), (_F.OUTAGE, _F.POWER, _F.PURGE, _F.ISOLATE)),
    _Mix((_T.COMPACTED, _T.EXPIRING, _T.LIMITED), (_F.KILL, _F.PURGE, _F.LEADER)),
    _Mix((_T.COMPACTED, _T.EXPIRING, _T.AGED), (_F.KILL, _F.REASSIGN, _F.REPLACE)),
    _Mix((_T.SPLIT,), (_F.GROW, _F.KILL, _F.LEADER)),
    _Mix((_T.SPLIT, _T.COMPACTED), (_F.GROW, _F.ROLLING, _F.PURGE)),
    _Mix((_T.BRIEF, _T.COMPACTED), (_F.FLIP_HEADER, _F.KILL, _F.ELECT)),
    _Mix((_T.BRIEF,), (_F.CUT_DOWN, _F.FLIP_SMALL, _F.FLIP_HEADER, _F.LEADER)),
)


def draw_wide(
    plan: ClusterPlan,
    *,
    streams: int = 0,
    seconds: int = 0,
    faults: Collection[str] = (),
    traits: Collection[str] = (),
) -> ClusterPlan:
    """The plan with other faults and streams. Chosen `faults` and `traits`, numbers of `streams`
    and `seconds` stay."""
    prng = Prng(RealRandom(plan.seed ^ APART))
    is_mixed, mix = prng.happens(MIXED), prng.pick(MIXES)
    count, length = prng.pick(STREAMS), prng.between(*SECONDS)
    means: dict[ClusterFault, int] = {}

    def draw_fault(fault: ClusterFault) -> None:
        mean_ns = int(prng.log_uniform(3 * NS, 30 * NS)) * (3 if fault in RARE else 1)
        is_drawn = prng.happens(FAULTY) and fault not in OF_QUIET_TABLES
        if is_mixed and fault in mix.faults:
            means[fault] = FREQUENT_NS
        elif is_drawn:
            means[fault] = mean_ns

    for fault in ClusterFault:
        if fault not in (*DRAWN_LAST, *CHOSEN):
            draw_fault(fault)
    drawn = []
    for number in range(streams or count):
        chosen = [each for each, share in PROBABILITIES.items() if prng.happens(share)]
        chosen += [each for each in ON_TOP if prng.happens(RARELY)]
        if is_mixed and prng.happens(0.8):
            chosen += mix.traits
        names = [each.value for each in chosen] or [StreamTrait.PLAIN.value]
        (found,) = draw_streams(prng, 1, replicas=plan.replicas, traits=traits or names)
        drawn.append(replace(found, name=f"s{number}"))
    groups = tuple(
        replace(group, stream=stream.name, partitions=stream.partitions)
        for group in plan.groups
        for stream in (prng.pick(drawn),)
    )
    for fault in DRAWN_LAST:
        draw_fault(fault)
    return replace(
        plan,
        is_wide=True,
        streams=tuple(drawn),
        groups=groups,
        faults=plan.faults if faults else means,
        safety_ns=(seconds or length) * NS,
    )
