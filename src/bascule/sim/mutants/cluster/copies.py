"""Mutants of copies: logs that differ, acks that are early, ids that are forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from bascule.errors import CorruptData
from bascule.metadata import elections
from bascule.metadata.replicas import reassignment
from bascule.model import NO_LEADER, PartitionState
from bascule.peer.replica_session import FetchedPartition
from bascule.record.header import HEADER_BYTES, batch_crc, read_header
from bascule.replica.follower.followed_partition import FollowedPartition, WholeBatches
from bascule.replica.partition import Partition
from bascule.replica.roles.commitment import LogFlags
from bascule.replication.leader import LeaderReplication
from bascule.sim.cluster.run import ClusterOptions
from bascule.sim.mutants.cluster.base import (
    COMPACTION,
    DEATHS,
    FLIPS,
    IN_LOGS,
    LOST,
    MOVES,
    NO_EXCEPTION,
    ONE_LEADER,
    ONE_OFFSET,
    OUTAGES,
    PROGRESS,
    ClusterMutant,
)
from bascule.storage.recovery import LogRecovery
from bascule.storage.segment import LogPosition


def _truncate_by_watermark(begin: Any) -> Any:
    def mutant(self: FollowedPartition) -> bool:
        """Kafka before KIP-101: remove what is not known to be committed, then fetch it again."""
        partition = self.partition
        if self.is_in_force and partition.log is not None:
            offset = max(partition.committed_offset, partition.log.start_offset)
            if offset < partition.log.end.offset:
                partition.truncate_replicated(offset)
        found: bool = begin(self)
        return found

    return mutant


def _report_unsynced(report: Any) -> Any:
    def mutant(self: FollowedPartition) -> Any:
        """Claim that everything is synced that is appended."""
        found = report(self)
        if found is not None:
            found.synced_end = found.log_end
        return found

    return mutant


def _elect_outside(candidate: Any) -> Any:
    def mutant(image: Any, state: Any, led: Any) -> int:
        """Prefer a replica that is not in sync."""
        outside = [
            node
            for node in state.replicas
            if node not in (*state.isr, state.leader)
            and node in image.nodes
            and image.nodes[node].alive
        ]
        found: int = outside[0] if outside else candidate(image, state, led)
        return found

    return mutant


def _trust_logs(begin: Any) -> Any:
    def mutant(self: FetchedPartition, report: Any) -> None:
        """Take the log of a follower for the beginning of the leader's without comparing them."""
        begin(self, report)
        self.is_checked = True

    return mutant


def _forget_ids(lead: Any) -> Any:
    def mutant(self: Partition, *arguments: Any) -> bytes:
        """Begin to lead with an empty dedupe window."""
        was_leader = self.is_leader
        replies: bytes = lead(self, *arguments)
        if not was_leader:
            self.preconditions.reset()
        return replies

    return mutant


def _count_appended(init: Any) -> Any:
    def mutant(self: LeaderReplication, *args: Any, **kwargs: Any) -> None:
        """Commit what is appended on all members of the ISR, and not synced."""
        init(self, *args, **{**kwargs, "counts_synced": False})

    return mutant


def _commit_by_one_follower(advance: Any) -> Any:
    def mutant(self: LeaderReplication) -> bool:
        """Commit what the leader and one other member of the ISR have."""
        positions = [f.position for node, f in self._followers.items() if node in self.state.isr]
        mark = min(self._own, max(positions, default=self._own))
        if mark <= self.high_watermark:
            return False
        self.high_watermark = mark
        return True

    return mutant


def _keep_epoch(elected: Any) -> Any:
    def mutant(state: PartitionState, leader: int) -> PartitionState:
        """Elect a leader without another leader epoch."""
        found: PartitionState = elected(state, leader)
        return replace(found, leader_epoch=state.leader_epoch)

    return mutant


def _drop_old_replicas(completed: Any) -> Any:
    def mutant(image: Any, definition: Any, state: PartitionState) -> PartitionState:
        """End a move at once: the old replicas go before the new ones have copied anything."""
        target = state.target
        if not target or state.leader == NO_LEADER:
            found: PartitionState = completed(image, definition, state)
            return found
        return replace(
            state,
            replicas=target,
            isr=tuple(sorted(target)),
            leader=target[0],
            leader_epoch=state.leader_epoch + 1,
            target=(),
            origin=(),
            min_isr=0,
        )

    return mutant


def _accept_damage(append: Any) -> Any:
    def mutant(
        self: FollowedPartition,
        attempt: int,
        start: int,
        data: memoryview,
        flags: LogFlags,
        arrived: WholeBatches | None = None,
    ) -> bool:
        """Take what a leader sends as it is: its CRCs are written anew."""
        at, fixed = 0, bytearray(data)
        while at + HEADER_BYTES <= len(fixed):
            end = at + read_header(fixed, at).total_bytes
            if end > len(fixed):
                break
            fixed[at + 17 : at + 21] = batch_crc(fixed[at:end]).to_bytes(4, "big")
            at = end
        found: bool = append(self, attempt, start, memoryview(fixed), flags, arrived)
        return found

    return mutant


def _find_end_by_offset(_: Any) -> Any:
    def mutant(self: LogRecovery, end: LogPosition, damage: CorruptData | None) -> bool:
        """Take a batch with a damaged base offset for one behind a gap."""
        return end.offset < self.known_synced.offset

    return mutant


_HEADER_FLIPS: Final = ClusterOptions(
    groups=0, seconds=10, streams=1, traits="compacted",
    faults="header flips,loss of a leader,planned election",
)  # fmt: skip
MUTANTS: Final = (
    ClusterMutant(
        "truncate by watermark", (IN_LOGS, *LOST),
        FollowedPartition, "begin", _truncate_by_watermark, DEATHS, first_seed=1,
    ),
    ClusterMutant(
        "ack before a follower's sync", LOST,
        FollowedPartition, "report", _report_unsynced, OUTAGES, first_seed=3,
    ),
    ClusterMutant(
        "position counted before sync", LOST,
        LeaderReplication, "__init__", _count_appended, OUTAGES,
    ),
    ClusterMutant(
        "election from outside the ISR", (ONE_LEADER, *LOST),
        elections, "_candidate", _elect_outside, DEATHS,
    ),
    ClusterMutant(
        "logs not compared", (*LOST, PROGRESS),
        FetchedPartition, "begin", _trust_logs, DEATHS, first_seed=1,
    ),
    ClusterMutant(
        "message ids forgotten at failover", ("no id twice", ONE_OFFSET),
        Partition, "_lead", _forget_ids, DEATHS,
    ),
    ClusterMutant(
        "commit by one follower", (*LOST, "min_isr"),
        LeaderReplication, "_advance", _commit_by_one_follower, DEATHS, first_seed=1,
    ),
    ClusterMutant(
        "leader epoch not raised", (ONE_LEADER, *LOST, PROGRESS),
        elections, "_elected", _keep_epoch, DEATHS,
    ),
    ClusterMutant(
        "reassignment that drops the last copy", (*LOST, PROGRESS),
        reassignment, "completed", _drop_old_replicas, MOVES,
    ),
    ClusterMutant(
        # The exception is of records that cannot be read, in a batch whose CRC is right.
        "corrupt replica feeding others", (*LOST, "no id twice", NO_EXCEPTION),
        FollowedPartition, "append", _accept_damage, FLIPS, first_seed=4,
    ),
    ClusterMutant(
        "torn tail by offset alone", (COMPACTION, *LOST),
        LogRecovery, "_lacks_synced", _find_end_by_offset, _HEADER_FLIPS, first_seed=60,
    ),
)  # fmt: skip
