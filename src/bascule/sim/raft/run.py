"""A run of one seed: a plan, a phase with faults, a phase without, and the final checks."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from bascule.host.real import RealRandom
from bascule.raft.membership import Members
from bascule.sim.checkers.base import Checker, Checkers, InvariantBroken
from bascule.sim.loop import SECOND
from bascule.sim.prng import Prng
from bascule.sim.raft.burst_clients import BurstClients
from bascule.sim.raft.clients import SimClients
from bascule.sim.raft.cluster import Cluster
from bascule.sim.raft.environment import Environment
from bascule.sim.raft.faults import Faults, NextLeaderWatcher
from bascule.sim.raft.member import SimMember
from bascule.sim.raft.operator import Operator
from bascule.sim.raft.plan import HeartbeatPace, draw_plan
from bascule.sim.raft.trace import Trace

CRASHED: Final = "no exception"
"""The name under which an exception is reported that no checker raised."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Restrictions of what is drawn. Seed and options determine a run."""

    nodes: int = 0
    """Number of initial members; 0: drawn."""
    pace: HeartbeatPace = HeartbeatPace.ANY
    all_faults: bool = False
    """Whether every kind of fault occurs."""
    by_codec: bool = False
    """Whether every message is encoded and decoded."""
    seconds: int = 0
    """Simulated length of the phase with faults; 0: drawn."""

    def as_arguments(self) -> str:
        """As options of the command line."""
        parts = []
        if self.nodes:
            parts.append(f"--nodes {self.nodes}")
        if self.pace is not HeartbeatPace.ANY:
            parts.append(f"--pace {self.pace.value}")
        if self.all_faults:
            parts.append("--all-faults")
        if self.by_codec:
            parts.append("--by-codec")
        if self.seconds:
            parts.append(f"--seconds {self.seconds}")
        return "".join(f" {part}" for part in parts)


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run that broke no invariant."""

    seed: int
    nodes: int
    simulated_seconds: float
    heartbeat_ms: float
    events: int
    messages: int
    committed: int
    """Commit index of the group."""
    acknowledged: int
    """Writes that were acknowledged to clients."""
    operations: int
    crashes: int
    changes: int
    """Committed changes of members."""
    faults: dict[str, int]
    digest: str
    """Equal runs have equal digests."""


class SimulationFailed(Exception):
    """A run broke an invariant; the text is the report without the program's version."""

    def __init__(
        self, seed: int, invariant: str, text: str, *, last_events: tuple[str, ...], replay: str
    ) -> None:
        lines = ["the last events:", *last_events, "", f"seed {seed} broke {invariant}: {text}"]
        super().__init__("\n".join([*lines, f"replay: {replay}"]))
        self.seed = seed
        self.invariant = invariant
        self.text = text
        self.last_events = last_events
        self.replay = replay

    def __reduce__(self) -> tuple[Callable[..., SimulationFailed], tuple[object, ...]]:
        # For other processes: by default pickle calls the class without keyword arguments.
        arguments = (self.seed, self.invariant, self.text, self.last_events, self.replay)
        return _failed, arguments


def _failed(
    seed: int, invariant: str, text: str, last_events: tuple[str, ...], replay: str
) -> SimulationFailed:
    return SimulationFailed(seed, invariant, text, last_events=last_events, replay=replay)


def no_checkers() -> Sequence[Checker]:
    """Without checkers a run only checks progress and the final state."""
    return ()


def run_seed(
    seed: int,
    options: RunOptions | None = None,
    *,
    checkers: Callable[[], Sequence[Checker]] = no_checkers,
    trace: Trace | None = None,
    mutant: str = "",
) -> RunResult:
    """Run a seed. `mutant` is only named in the replay line.

    Raises: SimulationFailed. Without `trace`, a failed run is repeated to record its last events.
    """
    options = options or RunOptions()
    if trace is not None:
        return _run(seed, options, (*checkers(), trace), trace, mutant)
    try:
        return _run(seed, options, checkers(), None, mutant)
    except SimulationFailed as failed:
        again = Trace()
        try:
            _run(seed, options, (*checkers(), again), again, mutant)
        except SimulationFailed:
            pass
        raise SimulationFailed(
            seed,
            failed.invariant,
            failed.text,
            last_events=tuple(again.last),
            replay=failed.replay,
        ) from failed.__cause__


def _run(
    seed: int, options: RunOptions, checkers: Sequence[Checker], trace: Trace | None, mutant: str
) -> RunResult:
    run = SimulationRun(seed, options, checkers, trace)
    replay = f"python -m bascule.sim raft --seed {seed}{options.as_arguments()}"
    if mutant:
        replay += f' --mutant "{mutant}"'
    last = () if trace is None else tuple(trace.last)
    try:
        return run.play()
    except InvariantBroken as broken:
        last = () if trace is None else tuple(trace.last)
        raise SimulationFailed(
            seed, broken.name, broken.text, last_events=last, replay=replay
        ) from broken
    except Exception as error:
        # An exception of the production code.
        text = f"{type(error).__name__}: {error}"
        raise SimulationFailed(seed, CRASHED, text, last_events=last, replay=replay) from error


class SimulationRun:
    """One seed's cluster, clients and faults."""

    def __init__(
        self, seed: int, options: RunOptions, checkers: Sequence[Checker], trace: Trace | None
    ) -> None:
        prng = Prng(RealRandom(seed))
        self.plan = draw_plan(
            seed, prng, nodes=options.nodes, pace=options.pace, all_faults=options.all_faults,
            by_codec=options.by_codec,
        )  # fmt: skip
        next_leader = NextLeaderWatcher()
        self._checkers = Checkers((*checkers, next_leader))
        self._safety = options.seconds * SECOND or self.plan.safety
        self.cluster = Cluster(Environment(self.plan, prng, self._checkers, trace))
        self.operator = Operator(self.cluster)
        self.clients = SimClients(self.cluster)
        self.faults = Faults(self.cluster, self.operator, BurstClients(self.clients), next_leader)

    def play(self) -> RunResult:
        """Run both phases. Raises: InvariantBroken."""
        cluster = self.cluster
        cluster.start()
        cluster.loop.run(self._safety)
        cluster.note(0, "faults end")
        self.faults.stop()
        self.clients.end_faults()
        before = [client.acknowledged for client in self.clients.all]
        self._until(lambda: self._unacknowledged(before))
        cluster.note(0, "clients stop")
        self.clients.active = False
        self._until(self._unsettled)
        self._check_states_equal()
        self._checkers.at_end(cluster.nodes())
        return self._result()

    def _until(self, pending: Callable[[], str]) -> None:
        """Run until `pending` returns no reason to wait, within the bound of the plan."""
        loop, plan = self.cluster.loop, self.plan
        deadline = loop.now + plan.liveness
        while reason := pending():
            if loop.now >= deadline:
                raise InvariantBroken(
                    "progress", f"{plan.liveness / SECOND:.0f} s without faults, and {reason}"
                )
            loop.run(loop.now + plan.election)

    def _unacknowledged(self, before: list[int]) -> str:
        """Why not every client has had a write committed since `before`; empty if all have."""
        if self.cluster.leader() is None:
            return "nobody leads"
        for client, acknowledged in zip(self.clients.all, before, strict=True):
            if client.acknowledged == acknowledged:
                return f"client {client.process} has had no write committed"
        return ""

    def _unsettled(self) -> str:
        """Why the members differ or still have work; empty if they do not."""
        leader = self.cluster.leader()
        if leader is None or leader.node is None:
            return "nobody leads"
        if any(client.is_busy for client in self.clients.all):
            return "a client waits"
        if leader.node.commit != leader.node.log.last:
            return f"leader {leader.id} has entries {leader.node.commit + 1} on not committed"
        for member in self._in_force(leader.node.members):
            node = member.node
            if node is None:
                return f"member {member.id} is down"
            if node.log.last != leader.node.log.last or node.applied != leader.node.commit:
                return (
                    f"member {member.id} has applied {node.applied} and has entries to "
                    f"{node.log.last}, leader {leader.id} has committed {leader.node.commit}"
                )
            if member.state.applied != node.applied:
                return f"member {member.id}'s state machine is at {member.state.applied}"
            if member.waiting:
                return f"member {member.id} has not answered {member.waiting} requests"
        return ""

    def _in_force(self, members: Members) -> list[SimMember]:
        """The machines of `members` that are not destroyed or switched off."""
        found = [self.cluster.members[number] for number in members.all]
        return [
            member
            for member in found
            if not member.wrecked and member.id not in self.cluster.retired
        ]

    def _check_states_equal(self) -> None:
        """Check that all state machines are equal."""
        leader = self.cluster.leader()
        assert leader is not None
        assert leader.node is not None
        for member in self._in_force(leader.node.members):
            if member.state.values != leader.state.values:
                raise InvariantBroken(
                    "state machines",
                    f"at index {leader.state.applied} node {leader.id} holds "
                    f"{leader.state.values} and node {member.id} {member.state.values}",
                )

    def _result(self) -> RunResult:
        cluster, plan = self.cluster, self.plan
        leader = cluster.leader()
        assert leader is not None
        assert leader.node is not None
        state = zlib.crc32(b"".join(leader.state.take_snapshot()))
        return RunResult(
            seed=plan.seed,
            nodes=plan.nodes,
            simulated_seconds=cluster.loop.now / SECOND,
            heartbeat_ms=plan.beat / 1_000,
            events=cluster.loop.events,
            messages=cluster.network.sent,
            committed=leader.node.commit,
            acknowledged=self.clients.acknowledged,
            operations=self.clients.operations,
            crashes=cluster.crashes,
            changes=self.operator.changes,
            faults={fault.value: times for fault, times in self.faults.counts.items()},
            digest=f"{cluster.loop.digest:016x}{state:08x}",
        )
