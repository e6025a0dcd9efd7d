"""Repair of a stream: each node opens the failed partitions that it holds again.

A partition whose records are given up is no longer in sync. So before that the node gives up its
leadership and its place in the ISR, where another member is alive; it copies the log of the new
leader then. Where it is the last member, the log that remains here is the stream from then on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from bascule.controller.cluster.image_follower import ImageFollower
from bascule.controller.cluster.metadata_group import MetadataGroup
from bascule.controller.directories import StreamDirectories
from bascule.controller.reconciler import Reconciler
from bascule.controller.repair import keep_readable, replace_log
from bascule.errors import Broken, UnknownStream
from bascule.groups import CommittedOffsetStore
from bascule.host.api import Clock
from bascule.model import NO_LEADER, StreamDefinition
from bascule.operation_results import RepairedPartition
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions

REPAIR: Final = "repair"
"""The kind of control request that has a node repair the partitions that it holds."""

LEAVE_ATTEMPTS: Final = 10
"""To leave the ISR, while other nodes are elected."""


class RepairTask(msgspec.Struct, array_like=True):
    """The body of a control request; the answer is a list of `RepairedPartition`."""

    stream_id: bytes
    partition: int | None
    accept_loss: bool


class Repairs:
    """Belongs to the event loop."""

    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        reconciler: Reconciler,
        metadata: MetadataGroup,
        directories: StreamDirectories,
        clock: Clock,
        follower: ImageFollower,
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._reconciler = reconciler
        self._metadata = metadata
        self._directories = directories
        self._clock = clock
        self._follower = follower
        self.offsets: CommittedOffsetStore | None = None

    async def answer_repair(self, body: bytes) -> bytes:
        """Answer a control request. Raises: UnknownStream, Indeterminate, OSError."""
        asked = msgspec.msgpack.decode(body, type=RepairTask)
        repaired = await self._repair(asked.stream_id, asked.partition, asked.accept_loss)
        return msgspec.msgpack.encode(repaired)

    async def _repair(
        self, stream_id: bytes, partition: int | None, accept_loss: bool
    ) -> list[RepairedPartition]:
        """Open the failed partitions of a stream on this node again; `partition` None: all.

        With `accept_loss` a damaged log ends before its first damage. Where nothing can be kept, or
        the files are missing, an empty log takes its place.
        """
        definition = self._definition(stream_id)
        async with self._follower.lock:
            before = self._failed(definition, partition)
            await self._reopen(definition, before)
        # Without the lock: reading a large log takes minutes.
        await self._reconciler.verify(definition, before)
        moved: dict[int, str | None] = {}
        if accept_loss:
            for keep in (True, False):
                # Salvage may not help, where a directory is another stream's for example.
                lost = self._failed(definition, partition)
                for index in lost:
                    await self._leave(definition, index)
                async with self._follower.lock:
                    if self._definition(stream_id) != definition:
                        raise UnknownStream(definition.name)
                    lost = self._failed(definition, partition)
                    moved.update(await self._repair_logs(definition, lost, keep=keep))
        return [
            self._repaired(definition, failed, moved.get(index)) for index, failed in before.items()
        ]

    async def _leave(self, definition: StreamDefinition, index: int) -> None:
        """Count as a replica with all records no longer, where another one has them and is alive.

        Raises: UnknownStream, Indeterminate; Broken where the partition changes again and again.
        """
        for _ in range(LEAVE_ATTEMPTS):
            self._definition(definition.id)
            await self._follower.resign(definition, index)
            image = self._metadata.image
            state = image.partitions[self._definition(definition.id).id][index]
            known = {*state.isr, *state.eligible}
            others = known - {self._node_id}
            if self._node_id not in known or not any(map(image.is_alive, others)):
                return
            # An election came first: the request was of the leader epoch before.
        raise Broken(f"partition {index} of {definition.name} is still in sync here: try again")

    def _definition(self, stream_id: bytes) -> StreamDefinition:
        found = self._metadata.image.stream_of(stream_id)
        if found is None:
            raise UnknownStream(stream_id.hex())
        return found

    def _failed(self, definition: StreamDefinition, index: int | None) -> dict[int, Partition]:
        found = self._partitions.stream_by_id(definition.id) or ()
        return {
            each.index: each
            for each in found
            if each.failure is not None and index in (None, each.index)
        }

    async def _reopen(
        self, definition: StreamDefinition, partitions: Mapping[int, Partition]
    ) -> None:
        if partitions:
            await self._reconciler.let_go(definition, partitions)
            await self._follower.reconcile_locked()

    async def _repair_logs(
        self, definition: StreamDefinition, lost: Mapping[int, Partition], *, keep: bool
    ) -> dict[int, str | None]:
        """Open failed partitions again, each with what can be kept of its log, or empty.

        Returns where the old directories of those that are empty are; see `replace_log`.
        """
        moved: dict[int, str | None] = {}
        if not lost:
            return moved
        await self._reconciler.let_go(definition, lost)
        for index, failed in lost.items():
            if not keep or not await asyncio.to_thread(
                keep_readable, self._directories, self._clock, definition, index,
                is_copied=self._is_copied(definition, index),
            ):  # fmt: skip
                moved[index] = await self._give_up(definition, failed)
        await self._follower.reconcile_locked()
        return moved

    def _is_copied(self, definition: StreamDefinition, index: int) -> bool:
        """Whether this replica copies another one that has all records."""
        state = self._metadata.image.partitions[definition.id][index]
        has_all = self._node_id in (*state.isr, *state.eligible)
        return state.leader not in (NO_LEADER, self._node_id) and not has_all

    async def _give_up(self, definition: StreamDefinition, failed: Partition) -> str | None:
        """Begin an empty log. The last replica in sync begins at the largest offset that a consumer
        has committed, so that no offset that it has processed gets another record."""
        start_offset = 0
        state = self._metadata.image.partitions[definition.id][failed.index]
        if state.isr == (self._node_id,):
            start_offset = failed.committed_offset
            if self.offsets is not None:
                committed = await self.offsets.largest(definition.name, failed.index)
                start_offset = max(start_offset, committed)
        return await asyncio.to_thread(
            replace_log,
            self._directories,
            self._clock,
            definition,
            failed.index,
            since=state.replica_since(self._node_id),
            start_offset=start_offset,
        )

    def _repaired(
        self, definition: StreamDefinition, failed: Partition, moved_to: str | None
    ) -> RepairedPartition:
        now = (self._partitions.stream_by_id(definition.id) or ())[failed.index]
        return RepairedPartition(
            partition=failed.index,
            failure_before=str(failed.failure),
            failure=None if now.failure is None else str(now.failure),
            start_offset=now.start_offset,
            end_offset=0 if now.log is None else now.log.end.offset,
            moved_to=moved_to,
            node=self._node_id,
        )
