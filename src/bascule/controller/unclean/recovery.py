"""An operator goes on without the replicas that were in sync, and sees before what that loses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from bascule.cluster_version import RECOVERIES
from bascule.controller.cluster.metadata_group import MetadataGroup
from bascule.controller.cluster.views import ClusterViews
from bascule.controller.unclean.elections import log_compared
from bascule.controller.unclean.log_ends import LogEnds, SaidLogEnd
from bascule.errors import UnknownPartition
from bascule.metadata.elections import (
    ComparedLogs,
    LogEnd,
    elect_uncleanly,
    unclean_candidates,
    why_leaderless,
)
from bascule.metadata.image import Image
from bascule.metadata.requests import ElectUncleanly
from bascule.metadata.versions import check_in_force
from bascule.model import NO_LEADER, PartitionState, StreamDefinition
from bascule.operation_results import PartitionRecovery, ReplicaEnd


class _Looked(NamedTuple):
    """A partition without a leader, and the logs that may decide who leads it."""

    found: PartitionRecovery
    compared: ComparedLogs | None
    """None: nobody can be elected."""
    leader_epoch: int
    """The latest one by then."""


class Recovery:
    """Belongs to the event loop, of any node."""

    def __init__(
        self,
        metadata: MetadataGroup,
        views: ClusterViews,
        log_ends: LogEnds,
        wait_in_force: Callable[[StreamDefinition, int], Awaitable[None]],
    ) -> None:
        self._metadata = metadata
        self._views = views
        self._log_ends = log_ends
        self._wait_in_force = wait_in_force

    async def recover(
        self, name: str, *, partition: int | None, accept_loss: bool
    ) -> list[PartitionRecovery]:
        """What becomes of the partitions of a stream that nobody leads, or of one `partition`.

        Without `accept_loss` nothing is done. With it, leaders are elected among the replicas that
        are alive, and they lead on return.

        Raises: UnknownStream, UnknownPartition, NeedsClusterVersion, Indeterminate.
        """
        definition = self._views.definition(name)
        if partition is not None and not 0 <= partition < definition.partition_count:
            raise UnknownPartition(name, partition, definition.partition_count)
        looked = await self._look(definition, partition)
        compared = tuple(each.compared for each in looked if each.compared is not None)
        if accept_loss:
            check_in_force(
                self._metadata.image,
                RECOVERIES,
                "a recovery that accepts the loss",
                "alter the stream with `--unclean-election`",
            )
        if not accept_loss or not compared:
            return [each.found for each in looked]
        log_compared(self._metadata.image, compared)
        index = await self._metadata.submit(ElectUncleanly(compared, by_operator=True))
        await self._wait_in_force(definition, index)
        states = self._views.states(definition.id)
        return [_done(each, states) for each in looked]

    async def _look(self, definition: StreamDefinition, partition: int | None) -> list[_Looked]:
        image = self._metadata.image
        waiting = [
            (index, state, unclean_candidates(image, definition.id, state, by_operator=True))
            for index, state in enumerate(image.partitions[definition.id])
            if state.leader == NO_LEADER and partition in (None, index)
        ]
        said = await self._log_ends.ask(
            ((definition.id, index), candidates) for index, _, candidates in waiting
        )
        return [
            _looked(
                image, definition, index, state,
                {node: said[node].get((definition.id, index)) for node in candidates},
            )
            for index, state, candidates in waiting
        ]  # fmt: skip


def _looked(
    image: Image,
    definition: StreamDefinition,
    index: int,
    state: PartitionState,
    said: dict[int, SaidLogEnd | None],
) -> _Looked:
    """`said` has the replicas that may be elected."""
    usable = {node: log for node, log in said.items() if log is not None and not log.has_failed}
    replicas = tuple(
        ReplicaEnd(node, log.last_epoch, log.end_offset, log.committed_offset, log.last_ms)
        for node, log in sorted(usable.items())
    )
    why = why_leaderless(image, definition, state)
    silent = [str(node) for node, log in said.items() if log is None]
    problem = ""
    if not said:
        in_sync = [str(node) for node in (*state.isr, *state.eligible) if image.is_alive(node)]
        problem = (
            f"a replica that was in sync is alive on node {', '.join(in_sync)}: `bascule stream "
            f"info {definition.name}` says why it does not lead"
            if in_sync
            else _without_replicas(image, definition, index, state)
        )
    elif silent:
        problem = f"node {', '.join(silent)} does not say yet where its log ends: try again"
    elif not usable:
        problem = "the replicas that are alive have failed: `bascule cluster status` says why"
    if problem:
        found = PartitionRecovery(index, why, NO_LEADER, replicas, problem, False)
        return _Looked(found, None, state.leader_epoch)
    ends = tuple(
        LogEnd(node, image.nodes[node].epoch, log.last_epoch, log.end_offset)
        for node, log in usable.items()
    )
    compared = ComparedLogs(definition.id, index, state.version, ends)
    change = elect_uncleanly(image, (compared,), by_operator=True)
    assert change is not None, "the image is the one that was asked about"
    leader = change.changes[0].state.leader
    found = PartitionRecovery(index, why, leader, replicas, "", False)
    return _Looked(found, compared, state.leader_epoch)


def _without_replicas(
    image: Image, definition: StreamDefinition, index: int, state: PartitionState
) -> str:
    """What can be done where no replica of a partition is alive."""
    name, count = definition.name, definition.config.replicas
    usable = image.usable()[:count]
    nodes = ",".join(map(str, usable)) if len(usable) == count else "N,..."
    lost = " or ".join(map(str, sorted(state.replicas)))
    return (
        f"no replica is alive: start node {lost}. If they are lost for good, give the partition up "
        f"and begin it anew: `bascule stream reassign {name} --partition {index} --replicas-on "
        f"{nodes}`, then `bascule stream recover {name} --accept-loss`; or delete the stream"
    )


def _done(looked: _Looked, states: Sequence[PartitionState]) -> PartitionRecovery:
    """What was found, after the elections."""
    found, compared, epoch_before = looked
    if compared is None:
        return found
    state = states[found.partition]
    if state.leader == NO_LEADER:
        problem = "the partition or a node has changed meanwhile: try again"
        return replace(found, leader=NO_LEADER, problem=problem)
    # The election may have completed a move, which raises the leader epoch once more.
    if state.unclean_epoch <= epoch_before:
        problem = "nothing had to be given up: a replica in sync is back, and leads"
        return replace(found, leader=state.leader, problem=problem)
    return replace(found, leader=state.leader, is_done=True)
