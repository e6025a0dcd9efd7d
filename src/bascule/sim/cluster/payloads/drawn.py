"""Which streams of a run have payloads, how many clients send them, and what is lost meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from bascule.host.real import RealRandom
from bascule.sim.cluster.plan import FREQUENT_NS, OF_PAYLOADS, ClusterPlan
from bascule.sim.cluster.streams import StreamTrait
from bascule.sim.cluster.world.loop import NS
from bascule.sim.prng import Prng

APART: Final = 0x9A71 << 48
"""Makes the seed of what is drawn here: all other things are drawn as without payloads."""
SHARE: Final = 0.2
"""Of the runs, where neither faults nor traits are chosen."""
CLIENTS_MAX: Final = 4
FAULTY: Final = 0.4
"""The share of the runs with payloads that have a fault of payloads, where none are chosen."""


def draw_payloads(
    plan: ClusterPlan, *, traits: Collection[str] = (), faults: Collection[str] = ()
) -> ClusterPlan:
    """The plan with clients that send payloads: where the trait is chosen, and to one stream of
    some other runs. Tables have none: their records need keys of tables. `traits` are those that
    all streams have, and `faults` the chosen ones."""
    prng = Prng(RealRandom(plan.seed ^ APART))
    is_drawn, stream = prng.happens(SHARE), prng.pick(plan.streams)
    clients = prng.between(1, CLIENTS_MAX)
    means = dict(plan.faults)
    for fault in OF_PAYLOADS:
        mean_ns, is_faulty = int(prng.log_uniform(NS, 10 * NS)), prng.happens(FAULTY)
        if fault.value in faults:
            means[fault] = FREQUENT_NS
        elif is_faulty and not faults:
            means[fault] = mean_ns
    if any(StreamTrait.PAYLOADS in each.traits for each in plan.streams):
        return replace(plan, payload_clients=clients, faults=means)
    if traits or faults or not is_drawn or stream.is_table:
        return plan
    streams = tuple(
        replace(each, traits=each.traits | {StreamTrait.PAYLOADS}) if each is stream else each
        for each in plan.streams
    )
    return replace(plan, streams=streams, payload_clients=clients, faults=means)
