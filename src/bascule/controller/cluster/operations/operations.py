"""Requests of operators about nodes, leaders and replicas, at any node of the cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from bascule.controller.cluster.metadata_group import MetadataGroup
from bascule.controller.cluster.operations.progress import (
    drain_of,
    plan_of,
    streams_left,
    streams_planned,
    with_moves,
)
from bascule.controller.cluster.views import ClusterViews
from bascule.controller.unclean.log_ends import LogEnds
from bascule.controller.unclean.recovery import Recovery
from bascule.errors import UnknownNode, UnknownStream
from bascule.metadata.image import Image
from bascule.metadata.replicas.leadership import why_not_lead
from bascule.metadata.requests import (
    CancelMoves,
    Drain,
    ElectLeaders,
    Leave,
    LimitCatchUp,
    Reassign,
    Resume,
    SetBalance,
    Stay,
    decide,
)
from bascule.metadata.versions import check_drain_reason
from bascule.model import StreamDefinition, StreamInfo
from bascule.operation_results import BalancePlan, LeaderChange, NodeDrain, PartitionRecovery

log = logging.getLogger("bascule.controller")


class ClusterOperations:
    """Belongs to the event loop."""

    def __init__(
        self,
        metadata: MetadataGroup,
        views: ClusterViews,
        log_ends: LogEnds,
        *,
        wait_in_force: Callable[[StreamDefinition, int], Awaitable[None]],
        wait_followed: Callable[[Collection[int], int], Awaitable[None]],
    ) -> None:
        """`wait_in_force` returns once the leaders of a stream have followed the image to an index,
        `wait_followed` once these nodes have, as far as they answer."""
        self._metadata = metadata
        self._views = views
        self._wait_in_force = wait_in_force
        self._wait_followed = wait_followed
        self._recovery = Recovery(metadata, views, log_ends, wait_in_force)

    @property
    def _image(self) -> Image:
        return self._metadata.image

    # -- replicas and leaders of streams --------------------------------------------------------

    async def reassign_stream(
        self, name: str, replicas: Sequence[int], *, partition: int | None
    ) -> StreamDefinition:
        """Begin to move a stream, or one partition, to these nodes, the preferred leader first.

        Raises: UnknownStream, UnknownPartition, ConfigError, Indeterminate.
        """
        index = await self._metadata.submit(Reassign(name, partition, tuple(replicas)))
        definition = self._views.definition(name)
        await self._wait_in_force(definition, index)
        extra = {"stream": name, "partition": partition, "replicas": list(replicas)}
        log.info("replicas move", extra=extra)
        return definition

    async def plan_reassign(
        self, name: str, replicas: Sequence[int], *, partition: int | None
    ) -> StreamInfo:
        """The stream with the moves that `reassign_stream` would begin; nothing is changed.

        Raises: as that, as far as this node knows the metadata.
        """
        commands = decide(self._image, Reassign(name, partition, tuple(replicas)))
        found = await self._describe([name])
        if name not in found:
            raise UnknownStream(name)
        return with_moves(found[name], commands, tuple(replicas))

    async def cancel_moves(self, name: str, *, partition: int | None) -> StreamDefinition:
        """Move a stream, or one partition, back to the replicas that it had before.

        Raises: UnknownStream, UnknownPartition, CannotCancel, Indeterminate.
        """
        index = await self._metadata.submit(CancelMoves(name, partition))
        definition = self._views.definition(name)
        await self._wait_in_force(definition, index)
        log.info("move cancelled", extra={"stream": name, "partition": partition})
        return definition

    async def elect_leaders(
        self, name: str, *, partition: int | None, node: int | None
    ) -> list[LeaderChange]:
        """Give the leadership of a stream, or of one partition, to `node`, or to the preferred
        leaders; what became of each partition. The new leaders lead on return.

        Raises: UnknownStream, UnknownPartition, CannotLead where none can change that has another
        leader, Indeterminate.
        """
        before = self._views.states(self._views.definition(name).id)
        index = await self._metadata.submit(ElectLeaders(name, partition, node))
        definition = self._views.definition(name)
        await self._wait_in_force(definition, index)
        image, changes = self._image, []
        for number, state in enumerate(self._views.states(definition.id)):
            if partition not in (None, number) or number >= len(before):
                continue
            wanted = state.replicas[0] if node is None else node
            is_done = state.leader == wanted
            why = "" if is_done else why_not_lead(image, state, wanted) or "it has changed again"
            leader, epoch = state.leader, state.leader_epoch
            changes.append(LeaderChange(number, before[number].leader, leader, epoch, why))
        return changes

    async def recover_stream(
        self, name: str, *, partition: int | None, accept_loss: bool
    ) -> list[PartitionRecovery]:
        """Show what becomes of partitions without a leader, or elect; see `unclean.recovery`."""
        return await self._recovery.recover(name, partition=partition, accept_loss=accept_loss)

    # -- nodes ----------------------------------------------------------------------------------

    async def remove_node(self, number: int, *, force: bool) -> int:
        """Begin to remove a node; how many replicas have to move first.

        With `force` its replicas are given up. Raises: UnknownNode, CannotRemoveNode,
        Indeterminate.
        """
        await self._metadata.submit(Leave(number, force))
        held = self._image.index.replicas_on(number)
        extra = {"node": number, "force": force, "replicas": held}
        log.info("node is to be removed", extra=extra)
        return held

    async def cancel_removal(self, number: int) -> int:
        """Take the removal of a node back; how many replicas it holds. Some may move still.

        Raises: UnknownNode, also where it has left already; Indeterminate.
        """
        await self._metadata.submit(Stay(number))
        held = self._image.index.replicas_on(number)
        log.info("removal of a node taken back", extra={"node": number, "replicas": held})
        return held

    async def drain_node(self, number: int, *, replicas: bool, reason: str = "") -> NodeDrain:
        """Have others lead for a node, and give it nothing more; with `replicas` its replicas move
        to other nodes. What others can lead they do on return.

        Raises: UnknownNode, CannotDrain, NeedsClusterVersion for a reason, Indeterminate.
        """
        check_drain_reason(self._image, reason)  # a controller of an earlier release would drop it
        index = await self._metadata.submit(Drain(number, replicas, reason))
        await self._wait_followed(self._image.alive(), index)
        found = await self.node_drain(number)
        extra = {
            "node": number,
            "leaders": found.leaders,
            "replicas": found.replicas,
            "emptied": found.is_emptied,
            "reason": reason,
        }
        log.info("node is drained", extra=extra)
        return found

    async def resume_node(self, number: int) -> NodeDrain:
        """A drained node leads and gets replicas again. Raises: UnknownNode, Indeterminate."""
        await self._metadata.submit(Resume(number))
        log.info("node goes on", extra={"node": number})
        return await self.node_drain(number)

    async def node_drain(self, number: int) -> NodeDrain:
        """How far a node is drained, and what is in the way. Raises: UnknownNode."""
        image = self._image
        if number not in image.nodes:
            raise UnknownNode(number)
        if not (left := streams_left(image, number)):
            return drain_of(image, number, {})
        infos, failed = await asyncio.gather(self._describe(left), self._views.stuck_replicas())
        return drain_of(image, number, infos, failed)

    # -- the balance of replicas, and how fast they catch up ------------------------------------

    async def balance_plan(self) -> BalancePlan:
        """The moves that would make all nodes hold about as many replicas."""
        image = self._image
        # They look at all partitions: half a second with 100,000 of them.
        infos = await self._describe(await asyncio.to_thread(streams_planned, image))
        return await asyncio.to_thread(plan_of, image, infos)

    async def set_balancing(self, is_balancing: bool) -> BalancePlan:
        """Begin these moves, a few at a time, or begin no more of them. Raises: Indeterminate."""
        await self._metadata.submit(SetBalance(is_balancing))
        plan = await self.balance_plan()
        if is_balancing:
            log.info("replicas are to be balanced", extra={"moves": plan.count})
        else:
            log.info("balance of replicas ended", extra={"moves": plan.count})
        return plan

    async def limit_catch_up(self, bytes_per_second: int) -> None:
        """Limit what each node sends to replicas that are not in sync; 0: no limit.

        Raises: Indeterminate.
        """
        await self._metadata.submit(LimitCatchUp(bytes_per_second))
        log.info("catch-up limited", extra={"bytes_per_second": bytes_per_second})

    async def _describe(self, names: Iterable[str]) -> dict[str, StreamInfo]:
        """What the leaders say of these streams."""
        return {each.definition.name: each for each in await self._views.describe_some(names)}
