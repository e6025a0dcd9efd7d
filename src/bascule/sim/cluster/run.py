"""A run of one seed: its plan, its phases, and what is reported of it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Final
from zlib import crc32

import msgspec

from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.consumers.traits import draw_group_traits
from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.installation import installed
from bascule.sim.cluster.payloads.drawn import draw_payloads
from bascule.sim.cluster.plan import draw_plan
from bascule.sim.cluster.simulation import Simulation, make_prng
from bascule.sim.cluster.trace import ClusterTrace
from bascule.sim.cluster.wide import draw_wide
from bascule.sim.cluster.world.loop import NS, ClusterLoop
from bascule.sim.raft.run import SimulationFailed

CRASHED: Final = "no exception"
"""The name under which an exception is reported that no checker raised."""


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Restrictions of what is drawn. Seed and options determine a run."""

    nodes: int = 0
    """0: drawn."""
    streams: int = 0
    """0: drawn."""
    groups: int = -1
    """Of consumers; -1: drawn."""
    readers: int = -1
    """Consumers without a group; -1: drawn where no faults are chosen, otherwise none."""
    seconds: int = 0
    """Simulated length of the phase with faults; 0: drawn."""
    all_faults: bool = False
    faults: str = ""
    """Kinds of faults, separated by commas; empty: drawn."""
    traits: str = ""
    """What all streams have, separated by commas; empty: drawn."""
    group_traits: str = ""
    """What all groups have, separated by commas; empty: drawn."""
    wide: bool = False
    """Also what other runs do not draw."""

    def as_arguments(self) -> str:
        """As options of the command line."""
        parts = [
            f" --{name} {value}"
            for name, value in (
                ("nodes", self.nodes), ("streams", self.streams), ("seconds", self.seconds),
            )
            if value
        ]  # fmt: skip
        if self.groups >= 0:
            parts.append(f" --groups {self.groups}")
        if self.readers >= 0:
            parts.append(f" --readers {self.readers}")
        if self.all_faults:
            parts.append(" --all-faults")
        if self.faults:
            parts.append(f' --faults "{self.faults}"')
        if self.traits:
            parts.append(f' --traits "{self.traits}"')
        if self.group_traits:
            parts.append(f' --group-traits "{self.group_traits}"')
        if self.wide:
            parts.append(" --wide")
        return "".join(parts)


class ClusterResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run that broke no invariant."""

    seed: int
    nodes: int
    streams: int
    simulated_seconds: float
    events: int
    packets: int
    published: int
    acked: int
    starts: int
    """Processes that were started."""
    unrepaired: int
    """Partitions that only a repair by hand would bring back. All others were checked to the end.
    """
    unclean: int
    """Partitions that had an unclean election."""
    repairs: int
    """Requests of the operator for replicas that their nodes heal no more."""
    consumer_rounds: int
    """Heartbeats of consumers that were answered: all is well."""
    read: int
    """Records that readers got, again and again."""
    table_reads: int
    table_writes: int
    """Operations of clients of tables that were answered."""
    watched: int
    """Changes of tables that watchers were told of."""
    forgotten: int
    """Rows that the replicas of tables have deleted, as of the end."""
    payloads: int
    """Payloads that were acknowledged."""
    payloads_read: int
    """Payloads, and parts of them, that were read."""
    faults: dict[str, int]
    digest: str
    """Equal runs have equal digests."""


def run_seed(
    seed: int,
    options: ClusterOptions | None = None,
    *,
    mutant: str = "",
    write: Callable[[str], None] | None = None,
) -> ClusterResult:
    """Run a seed. `mutant` is only named in the replay line; `write` gets every event.

    Raises: SimulationFailed.
    """
    options = options or ClusterOptions()
    prng = make_prng(seed)
    plan = draw_plan(
        seed, prng, nodes=options.nodes, streams=options.streams, seconds=options.seconds,
        groups=options.groups, readers=options.readers, all_faults=options.all_faults,
        faults=_names(options.faults), traits=_names(options.traits),
    )  # fmt: skip
    if options.wide:
        plan = draw_wide(
            plan, streams=options.streams, seconds=options.seconds,
            faults=_names(options.faults), traits=_names(options.traits),
        )  # fmt: skip
    groups = draw_group_traits(seed, plan.groups, _names(options.group_traits))
    plan = replace(plan, groups=groups)
    plan = draw_payloads(plan, traits=_names(options.traits), faults=_names(options.faults))
    loop = ClusterLoop(prng)  # type: ignore[abstract]
    trace = ClusterTrace(loop, write)
    was_enabled = gc.isenabled()
    gc.disable()  # a run makes few cycles, and has many objects
    try:
        with trace.open(), installed(loop):
            world = ClusterEnvironment(plan, prng, loop, trace)
            simulation = Simulation(world)
            try:
                simulation.play()
                return _result(simulation)
            finally:
                loop.close()
                for close in world.closing:
                    close()
    except InvariantBroken as broken:
        raise _failed(seed, broken.name, broken.text, trace, options, mutant) from broken
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise _failed(seed, CRASHED, text, trace, options, mutant) from error
    finally:
        if was_enabled:
            gc.enable()


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _failed(
    seed: int,
    invariant: str,
    text: str,
    trace: ClusterTrace,
    options: ClusterOptions,
    mutant: str,
) -> SimulationFailed:
    replay = f"python -m bascule.sim cluster --seed {seed}{options.as_arguments()}"
    if mutant:
        replay += f' --mutant "{mutant}"'
    return SimulationFailed(seed, invariant, text, last_events=tuple(trace.last()), replay=replay)


def _result(simulation: Simulation) -> ClusterResult:
    world = simulation.world
    acks = "".join(
        f"{each.id}@{each.offset},"
        for publisher in simulation.publishers
        for each in publisher.sent
    )
    return ClusterResult(
        seed=world.plan.seed,
        nodes=world.plan.nodes,
        streams=len(world.plan.streams),
        simulated_seconds=world.loop.now_ns / NS,
        events=world.loop.events,
        packets=world.network.messages,
        published=sum(len(publisher.sent) for publisher in simulation.publishers),
        acked=sum(publisher.acked for publisher in simulation.publishers),
        starts=sum(machine.starts for machine in simulation.machines.values()),
        unrepaired=len(simulation.unrepaired()),
        unclean=simulation.checkers.losses.count,
        repairs=simulation.faults.operator.repairs,
        consumer_rounds=sum(member.rounds for member in simulation.members),
        read=sum(reader.has_read for reader in simulation.readers),
        table_reads=simulation.tables.reads,
        table_writes=simulation.tables.writes,
        watched=simulation.tables.watched,
        forgotten=simulation.tables.forgotten,
        payloads=sum(client.acked for client in simulation.payload_clients),
        payloads_read=sum(client.has_read for client in simulation.payload_clients),
        faults={fault.value: count for fault, count in simulation.faults.counts.items()},
        digest=f"{world.loop.digest:016x}{crc32(acks.encode()):08x}",
    )
