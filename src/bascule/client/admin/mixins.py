"""The administration methods of the asynchronous and the blocking client."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Literal, TypeVar, Unpack

from bascule.client.admin.api import Admin, PurgedPartition
from bascule.client.admin.settings import AlterableSettings, StreamSettings
from bascule.group_results import (
    CommittedOffset,
    GroupInfo,
    GroupListing,
    OffsetReset,
)
from bascule.model import ClusterInfo, NodeInfo, StreamInfo
from bascule.operation_results import (
    BalancePlan,
    LeaderChange,
    NodeDrain,
    PartitionRecovery,
    RepairedPartition,
    ScrubbedReplica,
)

T = TypeVar("T")


class AdminMixin:
    """Administration methods of the asynchronous client."""

    def _opened(self) -> Admin:
        raise NotImplementedError

    async def node(self) -> NodeInfo:
        """The node: its listeners, version and state."""
        return await self._opened().node()

    async def cluster(self) -> ClusterInfo:
        """The cluster as the node sees it: controller, nodes, and partitions in trouble."""
        return await self._opened().cluster()

    async def metrics(self) -> str:
        """The node's metrics in Prometheus text format."""
        return await self._opened().metrics()

    async def streams(self, subject: str | None = None) -> list[StreamInfo]:
        """All streams, by name, or those that store messages on a subject, wildcards allowed.

        The node's own streams, such as `_offsets`, are among them. Raises: InvalidName.
        """
        return await self._opened().streams(subject)

    async def stream(self, name: str) -> StreamInfo:
        """One stream and the current state of its partitions. Raises: UnknownStream."""
        return await self._opened().stream(name)

    async def create_table(
        self, name: str, **settings: Unpack[StreamSettings]
    ) -> tuple[StreamInfo, bool]:
        """Create a table: a stream on `$KV.NAME.>` that is compacted by key, with the latest value
        of each key on every replica. Idempotent. Returns and raises: as `create_stream`, and
        ConfigError for a `cleanup` without `compact`.
        """
        return await self._opened().create_table(name, **settings)

    async def tables(self) -> list[str]:
        """The names of all tables, in order."""
        return await self._opened().table_names()

    async def create_stream(
        self, name: str, subject: str, **settings: Unpack[StreamSettings]
    ) -> tuple[StreamInfo, bool]:
        """Create a stream on a subject. Settings that are left out get the node's defaults.
        Idempotent.

        Returns the stream and whether this call created it. Raises: StreamConflict if the name is
        used with another configuration, InvalidName, ConfigError.
        """
        return await self._opened().create_stream(name, subject, **settings)

    async def alter_stream(self, name: str, **settings: Unpack[AlterableSettings]) -> StreamInfo:
        """Change settings of a stream. Settings that are left out stay unchanged. Partitions can
        only be added.

        Raises: UnknownStream, CannotAlter, ConfigError, InternalStream.
        """
        return await self._opened().alter_stream(name, **settings)

    async def reassign_stream(
        self,
        name: str,
        replicas: Sequence[int],
        *,
        partition: int | None = None,
        dry_run: bool = False,
    ) -> StreamInfo:
        """Begin to move a stream, or one partition, to these nodes, the preferred leader first.

        New replicas copy the log first, and the old ones stay until all new ones are in sync; until
        then `target` of a partition is not empty. With `dry_run` nothing is changed: the result is
        the stream as it would be, with what new replicas would copy in `bytes_behind`.

        Raises: UnknownStream, UnknownPartition, ConfigError for nodes that cannot be its replicas.
        """
        return await self._opened().reassign_stream(
            name, replicas, partition=partition, dry_run=dry_run
        )

    async def cancel_moves(self, name: str, *, partition: int | None = None) -> StreamInfo:
        """Take the move of a stream, or of one partition, back: it stays on the nodes that it had
        before, and the new replicas go.

        Raises: UnknownStream, UnknownPartition, CannotCancel where nothing moves, or it would begin
        again.
        """
        return await self._opened().cancel_moves(name, partition=partition)

    async def elect_leader(
        self, name: str, *, partition: int | None = None, node: int | None = None
    ) -> list[LeaderChange]:
        """Have `node`, or the preferred leaders, lead a stream, or one partition, now.

        A node that is named is the preferred leader from then on. The leadership is handed over
        without a gap. Of several partitions those change that can; `why` says what keeps others.

        Raises: UnknownStream, UnknownPartition, CannotLead where none can change.
        """
        return await self._opened().elect_leader(name, partition=partition, node=node)

    async def recover_stream(
        self, name: str, *, partition: int | None = None, accept_loss: bool = False
    ) -> list[PartitionRecovery]:
        """Have partitions that nobody leads go on without their replicas in sync, or show what that
        would lose.

        The result has each of them, with the replicas that are alive and who of these leads, or
        would. Without `accept_loss` nothing is done. With it, what only other replicas have is
        lost, also when they come back.

        Raises: UnknownStream, UnknownPartition, Indeterminate.
        """
        return await self._opened().recover_stream(
            name, partition=partition, accept_loss=accept_loss
        )

    async def drain_node(
        self, number: int, *, replicas: bool = False, reason: str = ""
    ) -> NodeDrain:
        """Have other nodes lead what a node leads, and give it no leaders and replicas until it is
        resumed. With `replicas` those that it holds move to other nodes. `reason` is shown with it.

        What other replicas in sync can lead they do on return; `left` names the rest. Idempotent.
        Raises: UnknownNode, CannotDrain; NeedsClusterVersion for a reason, while some nodes have an
        earlier release.
        """
        return await self._opened().drain_node(number, replicas=replicas, reason=reason)

    async def node_drain(self, number: int) -> NodeDrain:
        """How far a node is drained, and what is in the way. Raises: UnknownNode."""
        return await self._opened().node_drain(number)

    async def resume_node(self, number: int) -> NodeDrain:
        """Have a drained node lead and get replicas again. Idempotent. Raises: UnknownNode."""
        return await self._opened().resume_node(number)

    async def balance_plan(self) -> BalancePlan:
        """The moves that would make all nodes hold about as many replicas."""
        return await self._opened().balance_plan()

    async def balance(self, *, stop: bool = False) -> BalancePlan:
        """Begin these moves, a few partitions at a time; with `stop` begin no more of them."""
        return await self._opened().balance(stop=stop)

    async def throttle(self, bytes_per_second: int) -> None:
        """Limit what each node sends to replicas that are not in sync, in bytes a second; 0: no
        limit. Replicas in sync are not affected."""
        await self._opened().throttle(bytes_per_second)

    async def acknowledge_loss(self, name: str, *, partition: int | None = None) -> StreamInfo:
        """Show the unclean elections of a stream, or of one partition, no longer: an operator knows
        of the records that may be lost. Idempotent.

        Raises: UnknownStream, UnknownPartition.
        """
        return await self._opened().acknowledge_loss(name, partition=partition)

    async def remove_node(self, number: int, *, force: bool = False) -> int:
        """Begin to remove a node from the cluster; return how many replicas it still holds.

        They move to other nodes first. With `force` they are given up at once: for a node that is
        dead for good. The node has left when `cluster` does not list it any more.

        Raises: UnknownNode, CannotRemoveNode, RequestFailed where too few nodes would be left.
        """
        return await self._opened().remove_node(number, force=force)

    async def cancel_removal(self, number: int) -> int:
        """Take the removal of a node back while it is in progress; return how many replicas it
        holds.

        Those that move already go on to do so, and the others stay. Nothing happens where the node
        is not to be removed.

        Raises: UnknownNode, also where the node has left already.
        """
        return await self._opened().cancel_removal(number)

    async def pause_stream(self, name: str) -> StreamInfo:
        """Make a stream refuse messages until it is resumed. Reading continues. Idempotent.

        Raises: UnknownStream, InternalStream.
        """
        return await self._opened().pause_stream(name)

    async def resume_stream(self, name: str) -> StreamInfo:
        """Make a stream accept messages again. Idempotent. Raises: UnknownStream,
        InternalStream."""
        return await self._opened().resume_stream(name)

    async def purge_stream(
        self,
        name: str,
        *,
        to_offset: int | None = None,
        before_ms: int | None = None,
        partition: int | None = None,
    ) -> list[PurgedPartition]:
        """Remove a stream's oldest records permanently: those before an offset, those older than a
        Unix time in milliseconds, or, with neither, all committed records.

        `partition` None means every partition; an offset needs a partition if there are several.
        Returns the new state of each partition. Readers see the new start at once.

        Raises: UnknownStream, InternalStream, RequestFailed for an offset out of range.
        """
        return await self._opened().purge_stream(
            name, to_offset=to_offset, before_ms=before_ms, partition=partition
        )

    async def repair_stream(
        self, name: str, *, partition: int | None = None, accept_loss: bool = False
    ) -> list[RepairedPartition]:
        """Open the failed partitions of a stream again, or one; return those that had failed.

        With `accept_loss` the records of a partition that cannot be opened are given up
        permanently: it continues with what is readable, or empty.

        Raises: UnknownStream, RequestFailed for an unknown partition.
        """
        return await self._opened().repair_stream(
            name, partition=partition, accept_loss=accept_loss
        )

    async def scrub_stream(
        self, name: str, *, partition: int | None = None
    ) -> list[ScrubbedReplica]:
        """Have all nodes read their replicas of a stream, or of one partition, from now on: every
        CRC is checked, and the replicas are compared. Returns how far each replica is.

        Raises: UnknownStream, RequestFailed for an unknown partition.
        """
        return await self._opened().scrub_stream(name, partition=partition)

    async def scrub_results(
        self, name: str, *, partition: int | None = None
    ) -> list[ScrubbedReplica]:
        """What the last scrub of each replica has found, or how far it is."""
        return await self._opened().scrub_results(name, partition=partition)

    async def delete_stream(self, name: str) -> None:
        """Delete a stream and everything in it. Raises: UnknownStream, InternalStream."""
        await self._opened().delete_stream(name)

    async def offsets(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[CommittedOffset]:
        """Committed offsets: all, or those of a consumer or stream."""
        return await self._opened().offsets(consumer=consumer, stream=stream)

    async def groups(
        self, *, stream: str | None = None, state: str | None = None, type: str | None = None
    ) -> list[GroupListing]:
        """The groups with members or committed offsets, by name, each with its lag.

        All, or those with offsets for a stream (the lag is that of this stream then), in a state
        such as `Stable` or `Empty`, or of a type: `classic` or `consumer`.
        """
        return await self._opened().groups(stream=stream, state=state, type=type)

    async def group(self, name: str) -> GroupInfo:
        """One group: its members, and per partition the committed offset, end, lag and owner.

        Raises: UnknownGroup.
        """
        return await self._opened().group(name)

    async def reset_offsets(
        self,
        group: str,
        stream: str | None = None,
        *,
        to: Literal["earliest", "latest"] | None = None,
        offset: int | None = None,
        timestamp_ms: int | None = None,
        shift_by: int | None = None,
        partition: int | None = None,
        dry_run: bool = False,
    ) -> list[OffsetReset]:
        """Set the committed offsets of a group or consumer; returns them, before and after.

        Give one of: an end, an offset, a Unix time, or by how many records to shift. `stream` None
        means every stream for which it has offsets, `partition` None every partition. With
        `dry_run` nothing is committed. Stop named consumers first, because they overwrite their
        offsets; a group with members is refused.

        Raises: UnknownGroup, UnknownStream, InvalidName, OffsetOutOfRange, GroupHasMembers,
        ConfigError.
        """
        return await self._opened().reset_offsets(
            group,
            stream,
            to=to,
            offset=offset,
            timestamp_ms=timestamp_ms,
            shift_by=shift_by,
            partition=partition,
            dry_run=dry_run,
        )

    async def delete_group(
        self, name: str, *, stream: str | None = None, partition: int | None = None
    ) -> int:
        """Delete a group without members, or only its offsets for a stream or a partition of it.

        Returns how many committed offsets it had. Raises: UnknownGroup, GroupHasMembers.
        """
        return await self._opened().delete_group(name, stream=stream, partition=partition)


class SyncAdminMixin:
    """Administration methods of the blocking client."""

    _async_admin: AdminMixin

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def node(self) -> NodeInfo:
        """See `AdminMixin.node`."""
        return self._run(self._async_admin.node())

    def cluster(self) -> ClusterInfo:
        """See `AdminMixin.cluster`."""
        return self._run(self._async_admin.cluster())

    def metrics(self) -> str:
        """See `AdminMixin.metrics`."""
        return self._run(self._async_admin.metrics())

    def streams(self, subject: str | None = None) -> list[StreamInfo]:
        """See `AdminMixin.streams`."""
        return self._run(self._async_admin.streams(subject))

    def stream(self, name: str) -> StreamInfo:
        """See `AdminMixin.stream`."""
        return self._run(self._async_admin.stream(name))

    def create_table(
        self, name: str, **settings: Unpack[StreamSettings]
    ) -> tuple[StreamInfo, bool]:
        """See `AdminMixin.create_table`."""
        return self._run(self._async_admin.create_table(name, **settings))

    def tables(self) -> list[str]:
        """See `AdminMixin.tables`."""
        return self._run(self._async_admin.tables())

    def create_stream(
        self, name: str, subject: str, **settings: Unpack[StreamSettings]
    ) -> tuple[StreamInfo, bool]:
        """See `AdminMixin.create_stream`."""
        return self._run(self._async_admin.create_stream(name, subject, **settings))

    def alter_stream(self, name: str, **settings: Unpack[AlterableSettings]) -> StreamInfo:
        """See `AdminMixin.alter_stream`."""
        return self._run(self._async_admin.alter_stream(name, **settings))

    def reassign_stream(
        self,
        name: str,
        replicas: Sequence[int],
        *,
        partition: int | None = None,
        dry_run: bool = False,
    ) -> StreamInfo:
        """See `AdminMixin.reassign_stream`."""
        return self._run(
            self._async_admin.reassign_stream(name, replicas, partition=partition, dry_run=dry_run)
        )

    def cancel_moves(self, name: str, *, partition: int | None = None) -> StreamInfo:
        """See `AdminMixin.cancel_moves`."""
        return self._run(self._async_admin.cancel_moves(name, partition=partition))

    def elect_leader(
        self, name: str, *, partition: int | None = None, node: int | None = None
    ) -> list[LeaderChange]:
        """See `AdminMixin.elect_leader`."""
        return self._run(self._async_admin.elect_leader(name, partition=partition, node=node))

    def recover_stream(
        self, name: str, *, partition: int | None = None, accept_loss: bool = False
    ) -> list[PartitionRecovery]:
        """See `AdminMixin.recover_stream`."""
        return self._run(
            self._async_admin.recover_stream(name, partition=partition, accept_loss=accept_loss)
        )

    def drain_node(self, number: int, *, replicas: bool = False, reason: str = "") -> NodeDrain:
        """See `AdminMixin.drain_node`."""
        return self._run(self._async_admin.drain_node(number, replicas=replicas, reason=reason))

    def node_drain(self, number: int) -> NodeDrain:
        """See `AdminMixin.node_drain`."""
        return self._run(self._async_admin.node_drain(number))

    def resume_node(self, number: int) -> NodeDrain:
        """See `AdminMixin.resume_node`."""
        return self._run(self._async_admin.resume_node(number))

    def balance_plan(self) -> BalancePlan:
        """See `AdminMixin.balance_plan`."""
        return self._run(self._async_admin.balance_plan())

    def balance(self, *, stop: bool = False) -> BalancePlan:
        """See `AdminMixin.balance`."""
        return self._run(self._async_admin.balance(stop=stop))

    def throttle(self, bytes_per_second: int) -> None:
        """See `AdminMixin.throttle`."""
        self._run(self._async_admin.throttle(bytes_per_second))

    def acknowledge_loss(self, name: str, *, partition: int | None = None) -> StreamInfo:
        """See `AdminMixin.acknowledge_loss`."""
        return self._run(self._async_admin.acknowledge_loss(name, partition=partition))

    def remove_node(self, number: int, *, force: bool = False) -> int:
        """See `AdminMixin.remove_node`."""
        return self._run(self._async_admin.remove_node(number, force=force))

    def cancel_removal(self, number: int) -> int:
        """See `AdminMixin.cancel_removal`."""
        return self._run(self._async_admin.cancel_removal(number))

    def pause_stream(self, name: str) -> StreamInfo:
        """See `AdminMixin.pause_stream`."""
        return self._run(self._async_admin.pause_stream(name))

    def resume_stream(self, name: str) -> StreamInfo:
        """See `AdminMixin.resume_stream`."""
        return self._run(self._async_admin.resume_stream(name))

    def purge_stream(
        self,
        name: str,
        *,
        to_offset: int | None = None,
        before_ms: int | None = None,
        partition: int | None = None,
    ) -> list[PurgedPartition]:
        """See `AdminMixin.purge_stream`."""
        return self._run(
            self._async_admin.purge_stream(
                name, to_offset=to_offset, before_ms=before_ms, partition=partition
            )
        )

    def repair_stream(
        self, name: str, *, partition: int | None = None, accept_loss: bool = False
    ) -> list[RepairedPartition]:
        """See `AdminMixin.repair_stream`."""
        return self._run(
            self._async_admin.repair_stream(name, partition=partition, accept_loss=accept_loss)
        )

    def scrub_stream(self, name: str, *, partition: int | None = None) -> list[ScrubbedReplica]:
        """See `AdminMixin.scrub_stream`."""
        return self._run(self._async_admin.scrub_stream(name, partition=partition))

    def scrub_results(self, name: str, *, partition: int | None = None) -> list[ScrubbedReplica]:
        """See `AdminMixin.scrub_results`."""
        return self._run(self._async_admin.scrub_results(name, partition=partition))

    def delete_stream(self, name: str) -> None:
        """See `AdminMixin.delete_stream`."""
        self._run(self._async_admin.delete_stream(name))

    def offsets(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[CommittedOffset]:
        """See `AdminMixin.offsets`."""
        return self._run(self._async_admin.offsets(consumer=consumer, stream=stream))

    def groups(
        self, *, stream: str | None = None, state: str | None = None, type: str | None = None
    ) -> list[GroupListing]:
        """See `AdminMixin.groups`."""
        return self._run(self._async_admin.groups(stream=stream, state=state, type=type))

    def group(self, name: str) -> GroupInfo:
        """See `AdminMixin.group`."""
        return self._run(self._async_admin.group(name))

    def reset_offsets(
        self,
        group: str,
        stream: str | None = None,
        *,
        to: Literal["earliest", "latest"] | None = None,
        offset: int | None = None,
        timestamp_ms: int | None = None,
        shift_by: int | None = None,
        partition: int | None = None,
        dry_run: bool = False,
    ) -> list[OffsetReset]:
        """See `AdminMixin.reset_offsets`."""
        return self._run(
            self._async_admin.reset_offsets(
                group,
                stream,
                to=to,
                offset=offset,
                timestamp_ms=timestamp_ms,
                shift_by=shift_by,
                partition=partition,
                dry_run=dry_run,
            )
        )

    def delete_group(
        self, name: str, *, stream: str | None = None, partition: int | None = None
    ) -> int:
        """See `AdminMixin.delete_group`."""
        return self._run(self._async_admin.delete_group(name, stream=stream, partition=partition))
