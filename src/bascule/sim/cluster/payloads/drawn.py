"""Which streams of a run have payloads, and how many clients send them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from bascule.host.real import RealRandom
from bascule.sim.cluster.plan import ClusterPlan
from bascule.sim.cluster.streams import StreamTrait
from bascule.sim.prng import Prng

APART: Final = 0x9A71 << 48
"""Makes the seed of what is drawn here: all other things are drawn as without payloads."""
SHARE: Final = 0.2
"""Of the runs, where neither faults nor traits are chosen."""


def draw_payloads(
    plan: ClusterPlan, *, traits: Collection[str] = (), faults: Collection[str] = ()
) -> ClusterPlan:
    """The plan with clients that send payloads: where the trait is chosen, and to one stream of
    some other runs. `traits` are those that all streams have."""
    prng = Prng(RealRandom(plan.seed ^ APART))
    is_drawn, chosen = prng.happens(SHARE), prng.pick(plan.streams)
    clients = prng.between(1, 3)
    if StreamTrait.PAYLOADS.value in traits:
        return replace(plan, payload_clients=clients + 1)
    if traits or faults or not is_drawn:
        return plan
    streams = tuple(
        replace(each, traits=each.traits | {StreamTrait.PAYLOADS}) if each is chosen else each
        for each in plan.streams
    )
    return replace(plan, streams=streams, payload_clients=clients)
