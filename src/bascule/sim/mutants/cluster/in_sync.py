"""Mutants of elections, in-sync replica sets and high watermarks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

from bascule.metadata import elections
from bascule.metadata.commands import CreateStream
from bascule.metadata.image import Image
from bascule.model import NO_LEADER, PartitionState, StreamDefinition
from bascule.node.last_run import KeptLastRun
from bascule.publish.acks import AckFormat
from bascule.replica.roles import FollowerWatermark, PartitionRole
from bascule.replica.roles.commitment import Commitment
from bascule.replication.leader import UNKNOWN, LeaderReplication
from bascule.sim.cluster.run import ClusterOptions
from bascule.sim.mutants.cluster.base import (
    CUTS,
    DEATHS,
    IN_LOGS,
    LOST,
    ONE_LEADER,
    ONE_OFFSET,
    PROGRESS,
    ClusterMutant,
)

EVERYTHING: Final = 1 << 62
"""Above every offset."""
_DECIDE: Final = import_module("bascule.metadata.requests.decide")
"""Its package has a function of this name."""


def _accept_stale_change(change: Any) -> Any:
    def mutant(
        image: Image,
        stream_id: bytes,
        partition: int,
        *,
        leader: int,
        leader_epoch: int,
        version: int,
        members: Iterable[tuple[int, int]],
    ) -> Any:
        """Change an ISR whoever asks, and whatever has changed since then."""
        states = image.partitions.get(stream_id, ())
        if partition < len(states):
            leader, leader_epoch = states[partition].leader, states[partition].leader_epoch
            version = states[partition].version
        return change(
            image,
            stream_id,
            partition,
            leader=leader,
            leader_epoch=leader_epoch,
            version=version,
            members=members,
        )

    return mutant


def _count_no_additions(advance: Any) -> Any:
    def mutant(self: LeaderReplication) -> bool:
        """Commit without the replicas that may be in the ISR already."""
        pending, self.pending_isr = self.pending_isr, None
        try:
            return bool(advance(self))
        finally:
            self.pending_isr = pending

    return mutant


def _ack_when_deposed(resign: Any) -> Any:
    def mutant(self: Commitment, log: Any, role: PartitionRole, **options: Any) -> int:
        """Acknowledge what waits when another node leads."""
        if self.role is PartitionRole.LEADER:
            now_ms = self._clock.now_ms()
            if acks := self.pending.release(EVERYTHING, EVERYTHING, now_ms=now_ms):
                self.send_kept(acks)
        dropped: int = resign(self, log, role, **options)
        return dropped

    return mutant


def _lose_nothing(_: Any) -> Any:
    return property(lambda self: False, doc="Take a loss of power for a restart.")


def _doubt_nobody(_: Any) -> Any:
    def mutant(image: Image, state: PartitionState, node: int) -> bool:
        """Whoever was in sync when the machines went down leads, with what its disk has."""
        return image.is_alive(node)

    return mutant


def _stay_eligible(with_eligible: Any) -> Any:
    def mutant(
        image: Image,
        stream_id: bytes,
        before: PartitionState,
        after: PartitionState,
        *,
        without: int = NO_LEADER,
    ) -> PartitionState:
        """Let who has left the ISR lead, although messages are committed without it."""
        found: PartitionState = with_eligible(image, stream_id, before, after, without=without)
        known = {*before.isr, *before.eligible}.difference(after.isr, (without,))
        return replace(found, eligible=tuple(sorted(known.intersection(after.replicas))))

    return mutant


def _allow_losses(create: Any) -> Any:
    def mutant(*args: Any) -> Any:
        """Create streams with unclean elections."""
        commands = create(*args)
        changed = []
        for command in commands:
            if isinstance(command, CreateStream):
                definition = command.definition
                config = replace(definition.config, unclean_election=True)
                command = replace(command, definition=replace(definition, config=config))
            changed.append(command)
        return tuple(changed)

    return mutant


def _let_in(_: Any) -> Any:
    def mutant(self: LeaderReplication, follower: Any) -> bool:
        """Take a replica for in sync that lacks what is committed."""
        return bool(follower.position != UNKNOWN)

    return mutant


def _need_nobody(_: Any) -> Any:
    def mutant(self: StreamDefinition, state: PartitionState) -> int:
        """Append and commit however few replicas are in sync."""
        return 1

    return mutant


def _lead_on(changes: Any) -> Any:
    def mutant(image: Image, lost: int, *, is_back: bool = False, **kwargs: Any) -> Any:
        """Let a process that starts lead what the one before it led."""
        return None if is_back else changes(image, lost, is_back=is_back, **kwargs)

    return mutant


def _believe_watermark(_: Any) -> Any:
    def mutant(self: FollowerWatermark, offset: int) -> bool:
        """Take the leader's watermark over, also beyond the end of the log."""
        moved = offset > self.offset
        self.offset = max(offset, self.offset)
        return moved

    return mutant


def _fall_back(_: Any) -> Any:
    def mutant(self: FollowerWatermark, offset: int) -> bool:
        """Take the leader's watermark over, also where it is lower, as that of a new leader."""
        before, self.offset = self.offset, min(offset, self._log.end.offset)
        return self.offset > before

    return mutant


def _claim_syncs(configure: Any) -> Any:
    def mutant(self: AckFormat, *, synced: bool, replicas: int | None = None) -> None:
        """Say of every record that it is synced."""
        configure(self, synced=True, replicas=replicas)

    return mutant


_SLOW: Final = ClusterOptions(
    groups=0, seconds=15, streams=3, traits="plain", faults="slow link,slow disk,stalled disk,pause"
)
_RETURNS: Final = ClusterOptions(
    groups=0, seconds=15, streams=5, traits="lenient", faults="kill,slow link,slow disk"
)
_FULL: Final = ClusterOptions(
    seconds=15, streams=5, traits="lenient", faults="full disk,kill,slow link"
)
_POWER: Final = ClusterOptions(
    groups=0, seconds=15, streams=3, traits="unsynced", faults="power loss,outage"
)
_OUTAGES: Final = ClusterOptions(
    nodes=3, groups=0, streams=1, traits="plain", faults="outage,bit flips,truncation"
)
_LENIENT: Final = ClusterOptions(
    groups=0, seconds=15, streams=3, traits="lenient", faults="kill,power loss,outage,split"
)
_STRICT: Final = ClusterOptions(
    groups=0, seconds=10, streams=2, traits="strict", faults="kill,isolate"
)
_FALLS: Final = ClusterOptions(
    groups=0,
    seconds=15,
    streams=3,
    traits="plain",
    faults="loss of a leader,planned election,slow link",
)
_CLAIMS: Final = ClusterOptions(groups=0, seconds=4, streams=1, traits="unsynced", faults="kill")

MUTANTS: Final = (
    ClusterMutant("ISR change unfenced", LOST, _DECIDE, "change_isr", _accept_stale_change, _FULL,
        first_seed=122),
    ClusterMutant(
        "proposed additions not counted", LOST,
        LeaderReplication, "_advance", _count_no_additions, _RETURNS, first_seed=8,
    ),
    ClusterMutant(
        "deposed leader acks", (ONE_OFFSET, *LOST),
        Commitment, "resign", _ack_when_deposed, CUTS, first_seed=3,
    ),
    ClusterMutant(
        "lost writes not told", LOST, KeptLastRun, "has_lost_writes", _lose_nothing, _POWER
    ),
    ClusterMutant(
        "logs not compared after an outage", (ONE_LEADER, *LOST),
        elections, "_is_certain", _doubt_nobody, _OUTAGES,
    ),
    ClusterMutant(
        "eligible for ever", LOST, elections, "with_eligible", _stay_eligible, DEATHS, first_seed=6,
    ),
    ClusterMutant(
        "unclean elections by default", ("unclean elections are allowed",),
        _DECIDE, "_create", _allow_losses, _LENIENT, first_seed=3,
    ),
    ClusterMutant(
        "process leads in an old epoch", (ONE_LEADER, *LOST, PROGRESS),
        _DECIDE, "changes_after_loss", _lead_on, DEATHS, first_seed=1,
    ),
    ClusterMutant(
        "unclean member let in", LOST, LeaderReplication, "_may_join", _let_in, DEATHS
    ),
    ClusterMutant(
        "min_isr not needed", ("min_isr", *LOST),
        StreamDefinition, "needed_in_sync", _need_nobody, _STRICT,
    ),
    ClusterMutant(
        "watermark beyond the log", (IN_LOGS,),
        FollowerWatermark, "on_leader", _believe_watermark, _SLOW, first_seed=1,
    ),
    ClusterMutant(
        "watermark that falls", ("watermark monotonic",),
        FollowerWatermark, "on_leader", _fall_back, _FALLS, first_seed=60,
    ),
    ClusterMutant(
        "syncs claimed", ("acks say what was done",),
        AckFormat, "configure", _claim_syncs, _CLAIMS,
    ),
)  # fmt: skip
