"""Mutants of elections, in-sync replica sets and high watermarks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from bascule.metadata import apply, elections
from bascule.metadata.commands import CreateStream
from bascule.metadata.image import Image
from bascule.metadata.requests import decide
from bascule.model import NO_LEADER, NodeRegistration, PartitionState
from bascule.node.last_run import KeptLastRun
from bascule.replica.roles import FollowerWatermark, PartitionRole
from bascule.replica.roles.commitment import Commitment
from bascule.replication.leader import UNKNOWN, LeaderReplication
from bascule.sim.cluster.run import ClusterOptions
from bascule.sim.mutants.cluster.base import (
    DEATHS,
    LOST,
    NO_EXCEPTION,
    ONE_LEADER,
    PROGRESS,
    ClusterMutant,
)

EVERYTHING: Final = 1 << 62
"""Above every offset."""


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
        """Change an ISR whatever has changed since its leader looked."""
        states = image.partitions.get(stream_id, ())
        if partition < len(states):
            leader_epoch = states[partition].leader_epoch
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


def _accept_older_members(change: Any) -> Any:
    def mutant(image: Image, *args: Any, members: Iterable[tuple[int, int]], **kwargs: Any) -> Any:
        """Take a node into the ISR for what an older process of it had."""
        nodes = image.nodes
        now = [(node, nodes[node].epoch if node in nodes else epoch) for node, epoch in members]
        return change(image, *args, members=now, **kwargs)

    return mutant


def _reach_watermark(_: Any) -> Any:
    def mutant(self: LeaderReplication, follower: Any) -> bool:
        """Take a replica into the ISR that has what this leader knows to be committed, and not what
        the one before it had committed."""
        position = follower.position
        return bool(position != UNKNOWN and position >= self.high_watermark)

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


def _count_no_removals(advance: Any) -> Any:
    def mutant(self: LeaderReplication) -> bool:
        """Commit without the replicas whose removal is proposed, and not committed."""
        state = self.state
        if self.pending_isr is not None:
            isr = tuple(node for node in state.isr if node in self.pending_isr)
            self.state = replace(state, isr=isr)
        try:
            return bool(advance(self))
        finally:
            self.state = state

    return mutant


def _need_nobody(advance: Any) -> Any:
    def mutant(self: LeaderReplication) -> bool:
        """Commit with fewer replicas in sync than the stream demands."""
        needed, self.min_isr = self.min_isr, 0
        try:
            return bool(advance(self))
        finally:
            self.min_isr = needed

    return mutant


def _accept_older_fetches(on_fetch: Any) -> Any:
    def mutant(self: LeaderReplication, node: int, node_epoch: int, *args: Any) -> bool:
        """Count what an older process of a follower says."""
        return bool(on_fetch(self, node, max(node_epoch, self.node_epoch(node)), *args))

    return mutant


def _ack_when_deposed(resign: Any) -> Any:
    def mutant(self: Commitment, log: Any, role: PartitionRole, *, keeps_acks: bool = False) -> int:
        """Acknowledge what waits when another node leads."""
        if self.role is PartitionRole.LEADER:
            now_ms = self._clock.now_ms()
            if acks := self.pending.release(EVERYTHING, EVERYTHING, now_ms=now_ms):
                self.send_kept(acks)
        dropped: int = resign(self, log, role, keeps_acks=keeps_acks)
        return dropped

    return mutant


def _lose_nothing(_: Any) -> Any:
    return property(lambda self: False, doc="Take a loss of power for a restart.")


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


def _lead_on(changes: Any) -> Any:
    def mutant(image: Image, lost: int, *, is_back: bool = False, **kwargs: Any) -> Any:
        """Let a process that starts lead what the one before it led."""
        return None if is_back else changes(image, lost, is_back=is_back, **kwargs)

    return mutant


def _keep_node_epoch(register: Any) -> Any:
    def mutant(image: Image, node: NodeRegistration, index: int) -> Image:
        """Give a process the epoch of the one before it."""
        present = image.nodes.get(node.node_id)
        found: Image = register(image, node, index if present is None else present.epoch)
        return found

    return mutant


def _believe_watermark(_: Any) -> Any:
    def mutant(self: FollowerWatermark, offset: int) -> bool:
        """Take the leader's watermark over, also beyond the end of the log."""
        moved = offset > self.offset
        self.offset = max(offset, self.offset)
        return moved

    return mutant


_SLOW: Final = ClusterOptions(
    seconds=15, streams=3, traits="plain", faults="slow link,slow disk,stalled disk,link,pause"
)
_RETURNS: Final = ClusterOptions(
    seconds=15, streams=3, traits="plain", faults="kill,loss of a leader,split,slow disk"
)
_POWER: Final = ClusterOptions(seconds=15, streams=3, traits="unsynced", faults="power loss,outage")

MUTANTS: Final = (
    ClusterMutant("ISR change unfenced", LOST, decide, "change_isr", _accept_stale_change, _SLOW),
    ClusterMutant(
        "older processes in the ISR", LOST, decide, "change_isr", _accept_older_members, _POWER
    ),
    ClusterMutant(
        "in sync by the watermark", LOST,
        LeaderReplication, "_has_reached", _reach_watermark, _RETURNS,
    ),
    ClusterMutant(
        "proposed additions not counted", LOST,
        LeaderReplication, "_advance", _count_no_additions, _RETURNS,
    ),
    ClusterMutant(
        "proposed removals not counted", LOST,
        LeaderReplication, "_advance", _count_no_removals, _SLOW,
    ),
    ClusterMutant(
        "min_isr ignored", ("min_isr", *LOST), LeaderReplication, "_advance", _need_nobody, DEATHS
    ),
    ClusterMutant(
        "fetches of older processes", LOST,
        LeaderReplication, "on_fetch", _accept_older_fetches, _POWER,
    ),
    ClusterMutant("deposed leader acks", LOST, Commitment, "resign", _ack_when_deposed, DEATHS),
    ClusterMutant(
        "lost writes not told", LOST, KeptLastRun, "has_lost_writes", _lose_nothing, _POWER
    ),
    ClusterMutant(
        "eligible for ever", LOST, elections, "with_eligible", _stay_eligible, DEATHS
    ),
    ClusterMutant(
        "unclean elections by default", ("unclean elections are allowed",),
        decide, "_create", _allow_losses, DEATHS,
    ),
    ClusterMutant(
        "process leads in an old epoch", (ONE_LEADER, *LOST, PROGRESS),
        decide, "changes_after_loss", _lead_on, DEATHS,
    ),
    ClusterMutant(
        "node epochs not raised", (ONE_LEADER, *LOST, PROGRESS, NO_EXCEPTION),
        apply, "_register", _keep_node_epoch, DEATHS,
    ),
    ClusterMutant(
        "watermark beyond the log", ("watermarks are in logs",),
        FollowerWatermark, "on_leader", _believe_watermark, _RETURNS,
    ),
)  # fmt: skip
