"""What is drawn for a run before it begins: the group, its machines, and how often what goes wrong.

Every run draws its own probabilities (swarm testing): one without any partition but with many
crashes reaches states that a run with everything at once never does. Times follow the heartbeat,
so that a group with heartbeats of 20 ms sees as much trouble between two of them as one of 2 s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from bascule.raft.config import RaftConfig
from bascule.sim.loop import MILLISECOND, SECOND
from bascule.sim.network import Conditions
from bascule.sim.prng import Chance
from bascule.sim.raft.disk_queue import DiskPace

TIMES: Final = ((10, 2), (10, 2), (10, 1), (5, 1), (3, 1), (20, 4), (50, 10), (4, 2))
"""(election ticks, heartbeat ticks)."""
NODES: Final = (3, 3, 3, 3, 5, 5, 5, 5, 1, 2, 4, 6, 7)


class Fault(Enum):
    """What may go wrong."""

    CRASH = "crash"
    OUTAGE = "outage"
    """All machines at once."""
    PAUSE = "pause"
    SPLIT = "split"
    """The members in two parts that do not hear each other."""
    ISOLATE = "isolate"
    """One member, in both directions, or in one alone."""
    BRIDGE = "bridge"
    """Two parts with one member in common."""
    LINK = "link"
    """One direction of one link."""
    FLAP = "flap"
    """A cut that comes and goes."""
    SLOW_LINK = "slow link"
    SLOW_DISK = "slow disk"
    FAIL_DISK = "failing disk"
    """One of the next calls fails: EIO, or the disk is full."""
    WRECK = "wrecked disk"
    """A disk is destroyed, and its member with it."""
    CLOCK_JUMP = "clock jump"
    CLOCK_DRIFT = "clock drift"
    CHANGE = "change of members"
    TRANSFER = "transfer"
    CAMPAIGN = "campaign"
    DUEL = "duel"
    """Two stand for election at once, and a third crashes meanwhile."""
    RELAY = "relay"
    """One leader after another is cut off with entries it cannot commit, and those before are let
    in again: the paper's figure 8."""
    LATE_ANSWERS = "late answers"
    """What a leader hears is old, then nobody hears it; it goes on being asked."""
    BURST = "burst"
    """Many writes and reads at once."""


CLOCKS: Final = (Fault.CLOCK_JUMP, Fault.CLOCK_DRIFT)
RARE: Final = (Fault.WRECK, Fault.OUTAGE)


class Pace(Enum):
    """Which heartbeats are drawn."""

    ANY = "any"
    SLOW = "slow"
    """0.5 to 2 s: MicroRaft's default is 2 s."""
    FAST = "fast"
    """100 ms, the default of `bascule.raft_driver`."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Plan:
    """A run. Times in microseconds."""

    seed: int
    nodes: int
    config: RaftConfig
    tick: int
    network: Conditions
    calm: Conditions
    """The network once nothing goes wrong any more."""
    disk: DiskPace
    busy_max: int
    apply_max: int
    chunk_bytes: int
    clients: int
    keys: int
    think: int
    """Between two operations of one client, on average."""
    request_delay_max: int
    request_loss: float
    safety: int
    """How long the first phase lasts."""
    faults: dict[Fault, int] = field(default_factory=dict)
    """Mean time between two faults of a kind; what is not in it does not happen."""
    fault_lasts: int = 0
    """How long a fault lasts, on average."""
    drift: float = 0.0
    """By how much of itself a clock may run wrong."""
    learners: int = 0
    """Learners that the group begins with, beside its `nodes`."""
    promotes: float = 0.8
    """How often the operator makes a voter of a learner rather than remove it."""
    by_codec: bool = False
    """Whether messages pass through bytes on their way."""

    @property
    def beat(self) -> int:
        return self.tick * self.config.heartbeat_ticks

    @property
    def election(self) -> int:
        return self.tick * self.config.election_ticks

    @property
    def liveness(self) -> int:
        """Within so long all is well again: some elections, a snapshot by small chunks, a round
        trip for each entry of a log that is sent one by one."""
        calm = self.calm
        trip = 2 * (calm.delay + calm.jitter) + 4 * (self.disk.sync + self.disk.sync_jitter)
        trip += 2 * (self.busy_max + self.apply_max)
        return 60 * self.election + 400 * trip + 10 * SECOND


def draw_plan(
    seed: int, chance: Chance, *, nodes: int = 0, pace: Pace = Pace.ANY, all_faults: bool = False,
    by_codec: bool = False,
) -> Plan:  # fmt: skip
    """The plan of a seed; `nodes` and `pace` narrow it, `all_faults` leaves no kind out."""
    election_ticks, heartbeat_ticks = chance.pick(TIMES)
    low, high = {
        Pace.ANY: (20 * MILLISECOND, 2 * SECOND),
        Pace.SLOW: (SECOND // 2, 2 * SECOND),
        Pace.FAST: (100 * MILLISECOND, 101 * MILLISECOND),
    }[pace]
    tick = max(1, int(chance.spread(low, high)) // heartbeat_ticks)
    beat = tick * heartbeat_ticks
    clock_faults = all_faults or chance.happens(0.6)
    config = _config(chance, election_ticks, heartbeat_ticks, leases=not clock_faults)
    count = nodes or chance.pick(NODES)
    faults = _faults(chance, beat, all_faults=all_faults, clocks=clock_faults)
    return Plan(
        seed=seed,
        nodes=count,
        config=config,
        tick=tick,
        network=_network(chance, beat),
        calm=Conditions(delay=beat // 50, jitter=beat // 50),
        disk=DiskPace(
            sync=int(chance.spread(50, beat / 4)),
            sync_jitter=int(chance.spread(50, beat / 4)),
            together_max=chance.pick((1, 2, 16)),
        ),
        busy_max=chance.pick((0, 0, beat // 100, beat // 20)),
        apply_max=chance.pick((0, 0, beat // 100, beat // 10)),
        chunk_bytes=chance.pick((8, 16, 40, 100, 1_000)),
        clients=chance.between(1, 4),
        keys=chance.pick((1, 2, 4)),
        think=int(chance.spread(beat / 2, beat * 8)),
        request_delay_max=beat // 10,
        request_loss=chance.pick((0.0, 0.0, 0.01, 0.05)),
        safety=chance.between(150, 500) * beat,
        faults=faults,
        fault_lasts=int(chance.spread(beat * 2, beat * 30)),
        drift=chance.pick((0.0, 0.01, 0.1, 0.3)) if Fault.CLOCK_DRIFT in faults else 0.0,
        learners=chance.pick((0, 0, 0, 0, 1, 2)),
        promotes=chance.pick((0.1, 0.8, 0.8)),
        by_codec=by_codec,
    )


def _config(
    chance: Chance, election_ticks: int, heartbeat_ticks: int, *, leases: bool
) -> RaftConfig:
    leases = leases and election_ticks > 4
    return RaftConfig(
        election_ticks=election_ticks,
        heartbeat_ticks=heartbeat_ticks,
        commit_count_to_take_snapshot=chance.pick((1, 3, 10, 10, 20, 30, 50)),
        pending_entries_max=chance.pick((1, 2, 5, 20, 100)),
        snapshot_keep_ratio=chance.pick((0.0, 0.1, 0.1, 0.5, 1.0)),
        pending_bytes_max=chance.pick((400, 1_000, 1 << 20, 1 << 20)),
        append_entries_max=chance.pick((1, 2, 5, 1_000, 1_000)),
        append_bytes_max=chance.pick((1, 100, 1 << 20, 1 << 20)),
        inflight_appends_max=chance.pick((1, 2, 4, 32, 32)),
        inflight_bytes_max=chance.pick((1, 200, 1 << 20, 1 << 20)),
        apply_entries_max=chance.pick((1, 3, 1_000, 1_000)),
        chunk_requests_max=chance.pick((1, 2, 4)),
        reads_max=chance.pick((1, 5, 1_000, 1_000)),
        lease_reads=leases and chance.happens(0.7),
        lease_margin_ticks=chance.between(2, max(2, election_ticks // 3)),
    )


def _network(chance: Chance, beat: int) -> Conditions:
    rare = (0.0, 0.0, 0.005, 0.03, 0.1)
    return Conditions(
        delay=int(chance.spread(50, beat / 4)),
        jitter=int(chance.spread(50, beat / 4)),
        loss=chance.pick(rare),
        repeat=chance.pick(rare),
        late=chance.pick(rare),
        late_by=int(chance.spread(beat, beat * 20)),
        ordered=chance.happens(0.3),
    )


def _faults(chance: Chance, beat: int, *, all_faults: bool, clocks: bool) -> dict[Fault, int]:
    drawn = {}
    for fault in Fault:
        wanted = chance.happens(0.5)
        mean = int(chance.spread(beat * 15, beat * 300)) * (4 if fault in RARE else 1)
        if (wanted or all_faults) and (clocks or fault not in CLOCKS):
            drawn[fault] = mean
    return drawn
