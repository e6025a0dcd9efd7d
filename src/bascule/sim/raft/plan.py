"""`RunPlan`: what is drawn before a run: the group, its machines, and the rates of faults.

Every run draws its own rates (swarm testing): a run with many crashes and no partitions reaches
states that a run with all kinds of faults does not. Times are proportional to the heartbeat
interval, so the number of faults between two heartbeats does not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from msgspec.structs import replace

from bascule.host.real import RealRandom
from bascule.raft.config import RaftConfig
from bascule.sim.loop import MILLISECOND, SECOND
from bascule.sim.network import NetworkConditions
from bascule.sim.prng import Prng
from bascule.sim.raft.disk_queue import DiskLatency

TIMES: Final = ((10, 2), (10, 2), (10, 1), (5, 1), (3, 1), (20, 4), (50, 10), (4, 2))
"""(election ticks, heartbeat ticks)."""
NODES: Final = (3, 3, 3, 3, 5, 5, 5, 5, 1, 2, 4, 6, 7)


class InjectedFault(Enum):
    """A kind of fault."""

    CRASH = "crash"
    OUTAGE = "outage"
    """All machines at once."""
    PAUSE = "pause"
    SPLIT = "split"
    """A partition into two parts."""
    ISOLATE = "isolate"
    """One member, in both directions or in one."""
    BRIDGE = "bridge"
    """Two parts with one member in common."""
    LINK = "link"
    """One direction of one link."""
    FLAP = "flap"
    """A partition that begins and ends repeatedly."""
    SLOW_LINK = "slow link"
    SLOW_DISK = "slow disk"
    FAIL_DISK = "failing disk"
    """One of the next calls fails: EIO, or the disk is full."""
    WRECK = "wrecked disk"
    """A disk is destroyed, and its member with it."""
    CLOCK_JUMP = "clock jump"
    CLOCK_DRIFT = "clock drift"
    CHANGE = "change of members"
    DEMOTION = "demotion"
    """A voter becomes a learner, or a learner votes again."""
    TRANSFER = "transfer"
    CAMPAIGN = "campaign"
    DUEL = "duel"
    """Two nodes campaign at once, and another one crashes meanwhile."""
    RELAY = "relay"
    """One leader after another is isolated with uncommitted entries, and earlier ones return (Raft
    paper, figure 8)."""
    LATE_ANSWERS = "late answers"
    """Messages to a leader are delayed, then those from it are lost, while it gets requests."""
    BURST = "burst"
    """Many proposals and reads at once."""


CLOCKS: Final = (InjectedFault.CLOCK_JUMP, InjectedFault.CLOCK_DRIFT)
RARE: Final = (InjectedFault.WRECK, InjectedFault.OUTAGE)
DRAWN_APART: Final = (InjectedFault.DEMOTION,)
"""With random numbers of their own, so that seeds from before they existed draw the same."""
APART: Final = 786 << 32
"""Added to the seed of a run, for these numbers. It was chosen so that the stored seeds of earlier
mutants draw none of these faults."""


class HeartbeatPace(Enum):
    """The range of heartbeat intervals."""

    ANY = "any"
    SLOW = "slow"
    """0.5 to 2 s: MicroRaft's default is 2 s."""
    FAST = "fast"
    """100 ms, the default of `bascule.raft_driver`."""


@dataclass(slots=True, frozen=True, kw_only=True)
class RunPlan:
    """The parameters of a run. Times in microseconds."""

    seed: int
    nodes: int
    config: RaftConfig
    tick: int
    network: NetworkConditions
    calm: NetworkConditions
    """The network in the phase without faults."""
    disk: DiskLatency
    busy_max: int
    apply_max: int
    chunk_bytes: int
    clients: int
    keys: int
    think: int
    """Mean time between two operations of a client."""
    request_delay_max: int
    request_loss: float
    safety: int
    """Length of the phase with faults."""
    faults: dict[InjectedFault, int] = field(default_factory=dict)
    """Mean time between two faults of a kind; kinds without one do not occur."""
    fault_lasts: int = 0
    """Mean duration of a fault."""
    drift: float = 0.0
    """Maximum clock drift, as a share."""
    learners: int = 0
    """Initial learners, in addition to `nodes`."""
    promotes: float = 0.8
    """Probability that the operator promotes a learner instead of removing it."""
    by_codec: bool = False
    """Whether messages are encoded and decoded."""
    by_process: bool = False
    """Whether each machine runs `MultiRaft`, as the driver does, and not a node alone."""
    drain_max: int = 0
    """Time from a request for a snapshot until it is complete; entries are applied meanwhile."""

    @property
    def beat(self) -> int:
        return self.tick * self.config.heartbeat_ticks

    @property
    def election(self) -> int:
        return self.tick * self.config.election_ticks

    @property
    def liveness(self) -> int:
        """Bound of the phase without faults: some elections, a snapshot in small chunks, and a
        round trip for each entry of a log."""
        calm = self.calm
        trip = 2 * (calm.delay + calm.jitter) + 4 * (self.disk.sync + self.disk.sync_jitter)
        trip += 2 * (self.busy_max + self.apply_max)
        snapshots = self.config.log_capacity // self.config.commit_count_to_take_snapshot + 2
        trip += self.drain_max * snapshots // 100
        return 60 * self.election + 400 * trip + 10 * SECOND


def draw_plan(
    seed: int,
    prng: Prng,
    *,
    nodes: int = 0,
    pace: HeartbeatPace = HeartbeatPace.ANY,
    all_faults: bool = False,
    by_codec: bool = False,
) -> RunPlan:
    """The plan of a seed. `nodes` and `pace` restrict it; with `all_faults` every kind occurs."""
    election_ticks, heartbeat_ticks = prng.pick(TIMES)
    low, high = {
        HeartbeatPace.ANY: (20 * MILLISECOND, 2 * SECOND),
        HeartbeatPace.SLOW: (SECOND // 2, 2 * SECOND),
        HeartbeatPace.FAST: (100 * MILLISECOND, 101 * MILLISECOND),
    }[pace]
    tick = max(1, int(prng.log_uniform(low, high)) // heartbeat_ticks)
    beat = tick * heartbeat_ticks
    clock_faults = all_faults or prng.happens(0.6)
    config = _config(prng, election_ticks, heartbeat_ticks, leases=not clock_faults)
    if seed % 3 == 0 and election_ticks >= 5 * heartbeat_ticks:
        config = replace(config, leaderless_election_ticks=election_ticks // 2)
    count = nodes or prng.pick(NODES)
    faults = _faults(prng, beat, all_faults=all_faults, clocks=clock_faults)
    faults |= _faults_apart(seed, beat, all_faults=all_faults)
    return RunPlan(
        seed=seed,
        nodes=count,
        config=config,
        tick=tick,
        network=_network(prng, beat),
        calm=NetworkConditions(delay=beat // 50, jitter=beat // 50),
        disk=DiskLatency(
            sync=int(prng.log_uniform(50, beat / 4)),
            sync_jitter=int(prng.log_uniform(50, beat / 4)),
            together_max=prng.pick((1, 2, 16)),
        ),
        busy_max=prng.pick((0, 0, beat // 100, beat // 20)),
        apply_max=prng.pick((0, 0, beat // 100, beat // 10)),
        chunk_bytes=prng.pick((8, 16, 40, 100, 1_000)),
        clients=prng.between(1, 4),
        keys=prng.pick((1, 2, 4)),
        think=int(prng.log_uniform(beat / 2, beat * 8)),
        request_delay_max=beat // 10,
        request_loss=prng.pick((0.0, 0.0, 0.01, 0.05)),
        safety=prng.between(150, 500) * beat,
        faults=faults,
        fault_lasts=int(prng.log_uniform(beat * 2, beat * 30)),
        drift=prng.pick((0.0, 0.01, 0.1, 0.3)) if InjectedFault.CLOCK_DRIFT in faults else 0.0,
        learners=prng.pick((0, 0, 0, 0, 1, 2)),
        promotes=prng.pick((0.1, 0.8, 0.8)),
        by_codec=by_codec,
        by_process=prng.happens(0.4),
        drain_max=_drain_max(prng, beat, config),
    )


def _drain_max(prng: Prng, beat: int, config: RaftConfig) -> int:
    """Long, unless every few entries need a snapshot."""
    drawn = prng.pick((0, 0, beat, 20 * beat))
    return drawn if config.commit_count_to_take_snapshot >= 10 else 0


def _config(prng: Prng, election_ticks: int, heartbeat_ticks: int, *, leases: bool) -> RaftConfig:
    leases = leases and election_ticks > 4
    return RaftConfig(
        election_ticks=election_ticks,
        heartbeat_ticks=heartbeat_ticks,
        commit_count_to_take_snapshot=prng.pick((1, 3, 10, 10, 20, 30, 50)),
        pending_entries_max=prng.pick((1, 2, 5, 20, 100)),
        snapshot_keep_ratio=prng.pick((0.0, 0.1, 0.1, 0.5, 1.0)),
        pending_bytes_max=prng.pick((400, 1_000, 1 << 20, 1 << 20)),
        append_entries_max=prng.pick((1, 2, 5, 1_000, 1_000)),
        append_bytes_max=prng.pick((1, 100, 1 << 20, 1 << 20)),
        inflight_appends_max=prng.pick((1, 2, 4, 32, 32)),
        inflight_bytes_max=prng.pick((1, 200, 1 << 20, 1 << 20)),
        apply_entries_max=prng.pick((1, 3, 1_000, 1_000)),
        chunk_requests_max=prng.pick((1, 2, 4)),
        reads_max=prng.pick((1, 5, 1_000, 1_000)),
        lease_reads=leases and prng.happens(0.95),
        lease_margin_ticks=prng.between(2, max(2, election_ticks // 3)),
    )


def _network(prng: Prng, beat: int) -> NetworkConditions:
    rare = (0.0, 0.0, 0.005, 0.03, 0.1)
    return NetworkConditions(
        delay=int(prng.log_uniform(50, beat / 4)),
        jitter=int(prng.log_uniform(50, beat / 4)),
        loss=prng.pick(rare),
        repeat=prng.pick(rare),
        late=prng.pick(rare),
        late_by=int(prng.log_uniform(beat, beat * 20)),
        ordered=prng.happens(0.3),
    )


def _faults(prng: Prng, beat: int, *, all_faults: bool, clocks: bool) -> dict[InjectedFault, int]:
    drawn: dict[InjectedFault, int] = {}
    for fault in InjectedFault:
        if fault in DRAWN_APART:
            continue
        wanted = prng.happens(0.5)
        mean = int(prng.log_uniform(beat * 15, beat * 300)) * (4 if fault in RARE else 1)
        if (wanted or all_faults) and (clocks or fault not in CLOCKS):
            drawn[fault] = mean
    return drawn


def _faults_apart(seed: int, beat: int, *, all_faults: bool) -> dict[InjectedFault, int]:
    """In some seeds, the faults of `DRAWN_APART`."""
    prng = Prng(RealRandom(seed + APART))
    drawn: dict[InjectedFault, int] = {}
    for fault in DRAWN_APART:
        wanted = prng.happens(0.3)
        mean = int(prng.log_uniform(beat * 5, beat * 50))
        if wanted or all_faults:
            drawn[fault] = mean
    return drawn
