"""Mutants that lose messages, or store them twice, when leaders or numbers of partitions change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from bascule.controller import plan
from bascule.controller.plan import NodeState
from bascule.metadata.image import Image
from bascule.model import StreamDefinition
from bascule.replica import opening
from bascule.replica.follower import replicator
from bascule.replica.handover import takeover
from bascule.replica.handover.comparison import TailContents
from bascule.replica.partition import Partition
from bascule.sim.cluster.run import ClusterOptions
from bascule.sim.mutants.cluster.base import (
    CUTS,
    DEATHS,
    LOST,
    NO_EXCEPTION,
    ONE_OFFSET,
    PROGRESS,
    ClusterMutant,
)
from bascule.storage.epochs import LeaderEpochs

ROUTED: Final = "more partitions store each message once"
TWICE: Final = ("no id twice", ONE_OFFSET, "sent once, stored once")
HANDOVER: Final = "a handover loses nothing"


def _keep_removed_ids(truncate: Any) -> Any:
    def mutant(self: Partition, offset: int) -> None:
        """Take messages for stored whose records were removed."""
        truncate(self, offset)
        self._ids.are_complete = True

    return mutant


def _load_no_ids(_: Any) -> Any:
    def mutant(*_: Any, **__: Any) -> int:
        """Begin with an empty dedupe window after a restart."""
        return 0

    return mutant


def _append_on(end_appends: Any) -> Any:
    def mutant(partition: Partition, leader_epoch: int) -> int:
        """Append after the successor was told where the log ends."""
        end: int = end_appends(partition, leader_epoch)
        partition.has_handed_over = False
        return end

    return mutant


def _compare_nothing(_: Any) -> Any:
    def mutant(*_: Any) -> TailContents:
        """Store everything that came during a handover."""
        return TailContents()

    return mutant


def _drop_held(_: Any) -> Any:
    def mutant(partition: Partition) -> bytes:
        """Store nothing of what came during a handover."""
        held, partition.held = partition.held, None
        if held is not None:
            held.end()
        return b""

    return mutant


def _end_late(end_of: Any) -> Any:
    def mutant(self: LeaderEpochs, number: int, *, end_offset: int) -> tuple[int, int]:
        """Take the end of the log for that of each leader epoch."""
        epoch, end = end_of(self, number, end_offset=end_offset)
        return epoch, end_offset if epoch >= 0 else end

    return mutant


def _route_no_more(plan_stream: Any) -> Any:
    def mutant(state: NodeState, image: Image, definition: StreamDefinition) -> Any:
        """Take the routes of a stream for those to all of its partitions."""
        if held := state.streams.get(definition.id):
            count = definition.partition_count
            state.streams[definition.id] = replace(held, routed_count=count)
        return plan_stream(state, image, definition)

    return mutant


_GROWTH: Final = ClusterOptions(
    groups=0, seconds=8, streams=1, traits="split", faults="more partitions"
)
_ELECTIONS: Final = ClusterOptions(
    groups=0, seconds=15, streams=1, traits="plain", faults="planned election,planned stop"
)

MUTANTS: Final = (
    ClusterMutant(
        "ids of removed records kept", (*LOST, *TWICE),
        Partition, "truncate_replicated", _keep_removed_ids, CUTS, first_seed=40,
    ),
    ClusterMutant(
        "message ids not loaded at a start", TWICE,
        opening, "load_dedupe_window", _load_no_ids, DEATHS,
    ),
    ClusterMutant(
        "appends after a handover", (HANDOVER, *TWICE, *LOST, "order"),
        replicator, "end_appends", _append_on, _ELECTIONS,
    ),
    ClusterMutant(
        "nothing compared in a handover", TWICE, takeover, "_tail", _compare_nothing, _ELECTIONS
    ),
    ClusterMutant(
        "held messages dropped in a handover", (HANDOVER, "order"),
        replicator, "append_held", _drop_held, _ELECTIONS, first_seed=7,
    ),
    ClusterMutant(
        "epochs end with the log", (*LOST, PROGRESS, NO_EXCEPTION),
        LeaderEpochs, "end_of", _end_late, CUTS,
    ),
    ClusterMutant(
        "routes of an earlier number of partitions", (ROUTED, ONE_OFFSET, PROGRESS),
        plan, "_plan_stream", _route_no_more, _GROWTH,
    ),
)  # fmt: skip
