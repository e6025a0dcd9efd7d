"""`ClusterPlan`: what is drawn before a run: sizes, times, the rates of faults.

Every run draws its own rates (swarm testing): a run with many kills and no partitions of the
network reaches states that a run with all kinds of faults does not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from bascule.host.real import RealRandom
from bascule.sim.cluster.streams import SEGMENT_BYTES, StreamPlan, as_table, draw_streams
from bascule.sim.cluster.world.loop import NS
from bascule.sim.prng import Prng

MS: Final = 1_000_000
NODES: Final = (3, 3, 3, 4, 5)
LATER: Final = 0x1A7E << 48
"""Makes the seed of what is drawn with numbers of its own."""


TABLES: Final = 0x7AB1E << 44
"""The same for tables."""
HAS_TABLE: Final = 0.15
"""The share of the seeds with a table."""


class ClusterFault(Enum):
    """A kind of fault."""

    KILL = "kill"
    POWER = "power loss"
    """Of one machine: unsynced pages are kept or lost at random."""
    OUTAGE = "outage"
    """All machines lose their power at once."""
    ACKED_OUTAGE = "outage after an ack"
    """As soon as a publisher has the next ack."""
    PAUSE = "pause"
    STOP = "planned stop"
    CONTROLLER = "loss of the controller"
    """It is killed, paused, cut off or stopped."""
    LEADER = "loss of a leader"
    """Of a partition, in one of the same ways."""
    SPLIT = "split"
    """A partition of the network into two parts."""
    ISOLATE = "isolate"
    """One node from all others, in both directions or in one."""
    LINK = "link"
    """One direction of one link."""
    SLOW_LINK = "slow link"
    SLOW_DISK = "slow disk"
    STALL_DISK = "stalled disk"
    FULL_DISK = "full disk"
    FLIP = "bit flips"
    """In the log of one replica of a partition, or in one of its payloads, of those that at least
    two others have."""
    CUT = "truncation"
    """Of the log of such a replica, while its node is down."""
    CLOCK_JUMP = "clock jump"
    REASSIGN = "move of replicas"
    REPLACE = "wiped disk"
    """A machine comes back with an empty disk: an operator removes its node, and has it join."""
    NATS_DROP = "nats drop"
    """The NATS server closes the connections of a node."""
    NATS_CUT = "nats cut"
    """A node cannot connect to the NATS server for some time."""
    CANCEL = "cancelled move"
    """A move of replicas that is taken back soon."""
    DRAIN = "drain"
    """A node gives up its leaders, and maybe its replicas, for some time."""
    ELECT = "planned election"
    """An operator names the leader of a stream, or wants the preferred one."""
    PURGE = "purge"
    """An operator removes the beginning of a log."""
    CHURN = "stream churn"
    """A stream that nobody uses is created, and deleted soon."""
    MEMBER = "loss of a member"
    """A consumer of a group is killed, paused or cut off, or leaves."""
    RING = "ring cut"
    """Each node reaches its neighbours of a ring only, or of three nodes the next one only."""
    PAUSE_KILL = "pause and kill"
    """A node is killed after it was paused."""
    ROLLING = "rolling restart"
    """An operator drains and restarts one node after another."""
    NODES = "node changes"
    """A node joins; later it is removed as planned, or that is taken back."""
    ALTER = "other settings"
    """A stream gets another number of replicas, or other promises."""
    RECEIVER = "loss of a receiver"
    """Of a node to which a payload is sent just now, by a client or by another node."""
    COPIED = "loss of a copied leader"
    """Of a leader whose log another node has copied a part of, from its beginning."""
    UNHEARD = "return unheard"
    """A replica leaves and comes back, and its node hears of neither meanwhile."""
    DEPOSED = "deposed unheard"
    """Other nodes do not reach a leader, which follows its image too late; NATS reaches it."""
    OLDER = "older metadata"
    """A node is started with an older copy of its metadata, or without, and refuses; then it gets
    its own back."""
    GROW = "more partitions"
    """Of a stream that has several."""
    CUT_DOWN = "kill and truncation"
    """As `CUT`, of a node that is killed for it."""
    FLIP_HEADER = "header flips"
    """Of what no CRC covers in a batch, while a node is down, which is killed for it."""
    FLIP_SMALL = "small flips"
    """In a file of a log without records, such as an index or the leader epochs, likewise."""
    THROTTLE = "limit of copying"
    """Replicas that lag copy slowly for some time."""
    NATS_LOSS = "loss of nats"
    """A leader cannot connect to the NATS server for so long that others lead."""
    RENAMES = "failed renames"
    """The disk of a node cannot rename some files of payloads for some time."""
    ERRORS = "disk errors"
    """Calls of a disk fail for some time: of all its files, or of payloads alone."""
    LONG_OUTAGE = "long outages"
    """All machines lose their power, a bit flips on one of the disks, and they come back one by
    one, within a minute or later."""


SYNCS_A_MESSAGE: Final = 10
"""Twice the time of the disk that a message takes which has a segment, with indexes, of its own."""
FREQUENT_NS: Final = 3 * NS
"""Mean time between two faults of a chosen kind."""
OPERATIONS: Final = (ClusterFault.CANCEL, ClusterFault.DRAIN, ClusterFault.ELECT)
ON_STREAMS: Final = (ClusterFault.PURGE, ClusterFault.CHURN)
LOSSLESS: Final = frozenset({
    ClusterFault.STOP, ClusterFault.REASSIGN, ClusterFault.CLOCK_JUMP, ClusterFault.MEMBER,
    ClusterFault.ROLLING, ClusterFault.NODES,
    *OPERATIONS, *ON_STREAMS,
})  # fmt: skip
"""Where no other fault is drawn, messages that are sent once are stored and acknowledged."""
RARE: Final = (ClusterFault.OUTAGE, ClusterFault.ACKED_OUTAGE)
DRAWN_LAST: Final = (*OPERATIONS, *ON_STREAMS, ClusterFault.MEMBER)
"""In this order, so that seeds from before they existed draw the same."""
DRAWN_APART: Final = (
    ClusterFault.RING, ClusterFault.PAUSE_KILL, ClusterFault.ROLLING, ClusterFault.NODES,
    ClusterFault.ALTER,
)  # fmt: skip
"""With random numbers of their own, for the same reason."""
OF_PAYLOADS: Final = (ClusterFault.RECEIVER,)
"""Drawn where payloads are."""

SCENES: Final = (
    ClusterFault.COPIED, ClusterFault.UNHEARD, ClusterFault.DEPOSED, ClusterFault.OLDER,
)  # fmt: skip
"""Only where they are chosen: see `scenes`."""
WIDE: Final = (
    ClusterFault.GROW, ClusterFault.CUT_DOWN, ClusterFault.FLIP_HEADER, ClusterFault.FLIP_SMALL,
    ClusterFault.THROTTLE, ClusterFault.NATS_LOSS,
)  # fmt: skip
"""Only where they are chosen, and in wide runs: see `wide`."""
CHOSEN: Final = (ClusterFault.RENAMES, ClusterFault.ERRORS, ClusterFault.LONG_OUTAGE)
"""Only where they are chosen."""


@dataclass(slots=True, frozen=True, kw_only=True)
class GroupPlan:
    """A group of consumers."""

    name: str
    stream: str
    partitions: int
    """Of the stream."""
    members: int
    protocols: str = "classic"
    """What the members speak: `classic`, `consumer` (KIP-848) or `mixed`."""
    is_static: bool = False
    is_deleted: bool = False
    """See `GroupTrait`."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ClusterPlan:
    """The parameters of a run. Times in nanoseconds."""

    seed: int
    nodes: int
    streams: tuple[StreamPlan, ...]
    replicas: int
    delay_ns: int
    jitter_ns: int
    sync_ns: int
    sync_jitter_ns: int
    publishers: int
    think_ns: int
    """Mean time between two messages of a publisher."""
    window: int
    """Messages of a publisher that wait for their acks, at most."""
    ack_timeout_ns: int
    """After this time without an ack a message with an id is sent again."""
    payload_bytes_max: int
    groups: tuple[GroupPlan, ...] = ()
    readers: int = 0
    """Consumers without a group, each of one partition."""
    payload_clients: int = 0
    """Clients that send payloads to the streams with that trait."""
    has_racks: bool = False
    """Whether nodes and readers are in racks, so that readers are sent to closest replicas."""
    faults: dict[ClusterFault, int] = field(default_factory=dict)
    """Mean time between two faults of a kind; kinds without one do not occur."""
    fault_lasts_ns: int
    """Mean duration of a fault."""
    is_wide: bool = False
    """Whether all is drawn; see `wide`."""
    safety_ns: int
    """Length of the phase with faults."""
    liveness_ns: int = 90 * NS
    """Bound of the phase without faults."""

    @property
    def calm_think_ns(self) -> int:
        """As `think_ns`, where the cluster has to become whole: a replica that lags cannot catch up
        with others whose disks are as slow as its own, and busy all the time."""
        sync_ns = self.sync_ns + self.sync_jitter_ns // 2
        return max(self.think_ns, SYNCS_A_MESSAGE * sync_ns * self.publishers)


def draw_plan(
    seed: int, prng: Prng, *, nodes: int = 0, streams: int = 0, seconds: int = 0, groups: int = -1,
    readers: int = -1, all_faults: bool = False, faults: Collection[str] = (),
    traits: Collection[str] = (),
) -> ClusterPlan:  # fmt: skip
    """The plan of a seed, with these restrictions. Chosen `faults` are frequent, and all streams
    have the `traits`, if there are any. Without a number there are `readers` only where no faults
    are chosen."""
    count = nodes or prng.pick(NODES)
    drawn_streams = prng.pick((1, 1, 2, 3, 5))
    drawn_seconds = prng.between(10, 30)
    means: dict[ClusterFault, int] = {}

    def draw_mean(fault: ClusterFault, prng: Prng) -> None:
        mean_ns = int(prng.log_uniform(3 * NS, 30 * NS)) * (3 if fault in RARE else 1)
        wanted = prng.happens(0.3) or all_faults
        if fault.value in faults:
            means[fault] = FREQUENT_NS
        elif wanted and not faults:
            means[fault] = mean_ns

    for fault in ClusterFault:
        if fault not in (*DRAWN_LAST, *DRAWN_APART, *OF_PAYLOADS, *SCENES, *WIDE, *CHOSEN):
            draw_mean(fault, prng)
    means.update(
        (fault, FREQUENT_NS) for fault in (*SCENES, *WIDE, *CHOSEN) if fault.value in faults
    )
    plan = ClusterPlan(
        seed=seed,
        nodes=count,
        streams=(),
        replicas=min(count, 3),
        delay_ns=int(prng.log_uniform(20_000, 2 * MS)),
        jitter_ns=int(prng.log_uniform(20_000, 4 * MS)),
        sync_ns=int(prng.log_uniform(50_000, 5 * MS)),
        sync_jitter_ns=int(prng.log_uniform(50_000, 10 * MS)),
        publishers=prng.between(1, 3),
        think_ns=int(prng.log_uniform(5 * MS, 100 * MS)),
        window=prng.pick((1, 2, 8, 32)),
        ack_timeout_ns=prng.pick((NS // 3, NS, 2 * NS)),
        payload_bytes_max=prng.pick((50, 200, 5_000)),
        faults=means,
        fault_lasts_ns=int(prng.log_uniform(NS // 5, 6 * NS)),
        safety_ns=(seconds or drawn_seconds) * NS,
    )
    for fault in DRAWN_LAST:
        draw_mean(fault, prng)
    drawn = draw_streams(prng, streams or drawn_streams, replicas=plan.replicas, traits=traits)
    drawn = _draw_tables(seed, drawn, is_chosen=bool(traits))
    if groups < 0:
        groups = prng.pick((0, 0, 0, 1, 2))
    # Numbers of their own: seeds from before there were readers draw the same.
    later = Prng(RealRandom(seed ^ LATER))
    drawn_readers = later.pick((0, 0, 1, 2, 4))
    has_racks = later.happens(0.5)
    for fault in DRAWN_APART:
        draw_mean(fault, later)
    if readers < 0:
        readers = 0 if faults else drawn_readers
    found = _draw_groups(prng, groups, drawn)
    if not traits:
        sizes = [SEGMENT_BYTES if later.happens(0.3) else 0 for _ in drawn]
        pairs = zip(drawn, sizes, strict=True)
        drawn = tuple(replace(stream, segment_bytes=size) for stream, size in pairs)
    has_racks = has_racks and readers > 0
    return replace(plan, streams=drawn, groups=found, readers=readers, has_racks=has_racks)


def _draw_tables(
    seed: int, streams: tuple[StreamPlan, ...], *, is_chosen: bool
) -> tuple[StreamPlan, ...]:
    """In some seeds the last stream is a table, unless traits were chosen."""
    prng = Prng(RealRandom(seed ^ TABLES))
    has_table, remembers_ids = prng.happens(HAS_TABLE), prng.happens(0.5)
    *others, last = streams
    if has_table and not is_chosen:
        streams = (*others, as_table(last, remembers_ids=False))
    return tuple(
        replace(each, remembers_ids=remembers_ids) if each.is_table else each for each in streams
    )


def rack_of(number: int) -> str:
    """The rack of a node, or of a reader."""
    return f"r{number % 2}"


def _draw_groups(prng: Prng, count: int, streams: tuple[StreamPlan, ...]) -> tuple[GroupPlan, ...]:
    found = []
    for number in range(count):
        stream = prng.pick(streams)
        members = prng.between(1, 4)
        protocols = prng.pick(("classic", "consumer", "consumer", "mixed"))
        group = GroupPlan(
            name=f"g{number}", stream=stream.name, partitions=stream.partitions, members=members,
            protocols=protocols,
        )  # fmt: skip
        found.append(group)
    return tuple(found)
