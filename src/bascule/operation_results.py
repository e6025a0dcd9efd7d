"""What operators are told of leaders, lost partitions, drained nodes and the balance."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """What became of one partition for which another leader was asked."""

    partition: int
    before: int
    leader: int
    """-1: none."""
    leader_epoch: int
    why: str
    """Why the leader is not who was asked for; empty: it is."""


@dataclass(frozen=True, slots=True)
class ReplicaEnd:
    """Where the log of a replica ends that is alive."""

    node_id: int
    last_epoch: int
    """The latest leader epoch in the log."""
    end_offset: int
    committed_offset: int
    """The end of what this replica knows to be committed."""
    last_ms: int
    """The largest timestamp in the log, Unix milliseconds; -1: it is empty."""


@dataclass(frozen=True, slots=True)
class PartitionRecovery:
    """A partition that nobody leads, and who would without the replicas that were in sync."""

    partition: int
    why: str
    """Why nobody leads it."""
    leader: int
    """Who leads now, or would; -1: nobody can."""
    replicas: tuple[ReplicaEnd, ...]
    """Those that could lead, as far as they have answered."""
    problem: str
    """Why nobody can lead; empty: somebody can."""
    is_done: bool
    """Whether the leader was elected."""


@dataclass(frozen=True, slots=True)
class LeftPartition:
    """A partition that a drained node still leads, or holds although its replicas are to move."""

    stream: str
    partition: int
    leads: bool
    why: str
    is_pending: bool
    """Whether that changes by itself."""


@dataclass(frozen=True, slots=True)
class NodeDrain:
    """How far a node is drained."""

    node_id: int
    is_drained: bool
    is_emptied: bool
    """Whether its replicas move to other nodes."""
    leaders: int
    """Partitions that it leads."""
    replicas: int
    left: tuple[LeftPartition, ...] = ()
    """Some of the partitions that are to go and have not gone."""
    pending_count: int = 0
    """Of those that are to go, also not listed: those that go by themselves."""
    stuck_count: int = 0
    """And those that do not."""
    bytes_left: int = 0
    """Bytes of log that other nodes have to copy yet, as far as known."""
    is_leaving: bool = True
    """Whether it is to be removed; an earlier release does not say, and counts as if."""


@dataclass(frozen=True, slots=True)
class BalanceMove:
    """A replica that moves, or a preferred leader that becomes another one."""

    stream: str
    partition: int
    source: int
    destination: int
    bytes: int
    """Of the log to copy; 0 for a leader."""
    is_copied: bool


@dataclass(frozen=True, slots=True)
class BalancePlan:
    """The moves that would make all nodes hold about as many replicas."""

    is_balancing: bool
    """Whether an operator has asked for them."""
    moving: int
    """Partitions that move now."""
    moves: tuple[BalanceMove, ...]
    """Some of them."""
    count: int
    """Of all moves."""
    bytes: int
    """Of the listed moves."""
    replicas: dict[int, int]
    """Node -> replicas that it holds."""


@dataclass(frozen=True, slots=True)
class RepairedPartition:
    """What a repair did to one partition that had failed."""

    partition: int
    failure_before: str
    failure: str | None
    """Why it is still failed; None: it serves."""
    start_offset: int
    end_offset: int
    moved_to: str | None
    """Where its old directory is, if its records were given up and there was one."""
    node: int = 0
    """The node that holds this replica."""


@dataclass(frozen=True, slots=True)
class ScrubbedReplica:
    """What the scrubber has found in one replica, or how far it is."""

    partition: int
    node: int
    result: str
    """`waiting`, `running`, `ok`, `corrupt`, `differs` from another replica, `uncompared` with the
    others although its CRCs are good, `failed`, or `unreachable`."""
    records: int = 0
    bytes: int = 0
    """Read so far."""
    bytes_total: int = 0
    """Of the log when the scrub began."""
    seconds: float = 0.0
    """Spent on reading."""
    finished_ms: int = 0
    """When the last scrub ended, in Unix milliseconds; 0: never."""
    found: str = ""
    """The damage, the difference, or why the log was not read to its end, or not compared."""

    @property
    def is_done(self) -> bool:
        return self.result not in ("waiting", "running")
