"""How the leader of a partition knows that it may serve a linearizable read.

A read has to have every write that was acknowledged before it began, by whichever leader, and
whatever another linearizable read has returned before. A leader that was paused or cut off does not
know that there is another one. It cannot ask the followers: a member of the ISR may not have heard
of the next epoch while the next leader, with an ISR that is smaller by then, acknowledges writes.
Leases would need clocks.

The epochs of a partition are in the metadata, and a leader acknowledges nothing before its epoch is
committed there. So this node asks the controller, after the read has begun, for an index with all
that the metadata group has committed; the controller answers after a round of heartbeats to a
majority (ReadIndex, Raft thesis 6.4). Then this node waits until its image has that index. If the
image still has this node as the leader in the epoch E in which it leads:

* No later leader had acknowledged a write when the controller was asked, and so none before the
  read began.
* Writes that earlier leaders acknowledged were committed, so they are in the log of this one below
  the offset at which E began, unless an unclean election has lost them. The high watermark that
  this leader knew when E began may be lower. The read waits until it has passed that offset.
* Writes that were acknowledged in E were so by this leader, after its high watermark had passed
  them. The read takes the watermark after it began, and waits until the table has that.

What a linearizable read returned was below the watermark of its leader, so the same holds for it.
An answer that is late, because this node was paused after the confirmation, is still what was true
at the confirmation.

Not covered are writes with the ack policy `leader`, which are acknowledged before they are
committed. Without a majority of the metadata group there are no linearizable reads.

Reads that begin while a confirmation is under way share the next one.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from bascule.controller.cluster.metadata_group import MetadataGroup, Peers
from bascule.errors import BasculeError, Indeterminate, NotLeader
from bascule.metadata.image import state_of
from bascule.model import PartitionState
from bascule.replica.partition import Partition

CONFIRM: Final = "confirm"
"""The kind of control request for an index of all that the metadata group has committed."""
CONFIRM_SECONDS_MAX: Final = 2.0
COMMIT_SECONDS_MAX: Final = 5.0
"""For a new leader to commit what its predecessors have left."""
RETRY_SECONDS: Final = 0.1


class LeaderConfirmation:
    """Belongs to the event loop."""

    def __init__(self, node_id: int, metadata: MetadataGroup, peers: Peers) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._peers = peers
        self._running: asyncio.Task[None] | None = None
        """The question to the controller that is under way, or was the last one."""
        self._next: asyncio.Task[None] | None = None
        """The one after it, which answers those who ask meanwhile."""

    async def answer(self, body: bytes) -> bytes:
        """Answer another node as the controller. Raises: NotLeader, CannotReplicate."""
        return msgspec.msgpack.encode(await self._metadata.read())

    async def position(self, partition: Partition) -> int:
        """An offset: a table that has everything below it may be read; see the module.

        Raises: NotLeader if this node does not lead; CannotReplicate, LaggingIndex, Broken,
        Indeterminate if that cannot be confirmed in time.
        """
        await self.confirm()
        epoch = partition.leader_epoch
        if not self.leads(partition, epoch) or not partition.is_leader:
            raise NotLeader.of_partition(self._state(partition) or partition.state, epoch)
        await self._wait_end_known(partition)
        end = partition.high_watermark.offset
        if partition.leader_epoch != epoch:
            raise NotLeader.of_partition(partition.state, partition.leader_epoch)
        return end

    def leads(self, partition: Partition, leader_epoch: int) -> bool:
        """Whether this node leads the partition in that epoch, as its image says now."""
        state = self._state(partition)
        return (
            state is not None
            and state.leader == self._node_id
            and state.leader_epoch == leader_epoch
        )

    def hands_over(self, partition: Partition, leader_epoch: int) -> bool:
        """Whether another node is to lead after that epoch while this one stays in sync, as its
        image says now. This one goes on until that one asks it to end; see `handover`."""
        state = self._state(partition)
        return (
            state is not None
            and state.leader_epoch == leader_epoch + 1
            and self._node_id in state.isr
        )

    def knows(self, partition: Partition) -> bool:
        """Whether the partition's stream is not deleted, as its image says now."""
        return self._state(partition) is not None

    def _state(self, partition: Partition) -> PartitionState | None:
        partitions = self._metadata.image.partitions
        return state_of(partitions, partition.definition.id, partition.index)

    async def confirm(self) -> None:
        """Return once this node's image has all that was committed before the call.

        Raises: NotLeader, CannotReplicate, LaggingIndex, Broken if that takes too long.
        """
        if self._next is None:
            loop = asyncio.get_running_loop()
            self._next = loop.create_task(self._run(self._running))
            # Whoever asked may be gone.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._next)

    async def is_confirmed(self, *, seconds: float) -> bool:
        """Whether `confirm` returns within some seconds, with as many tries as it takes: another
        controller may have to be elected first."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        await self.confirm()
                    except BasculeError:
                        await asyncio.sleep(RETRY_SECONDS)
                    else:
                        return True
        except TimeoutError:
            return False

    async def _run(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        metadata = self._metadata
        if metadata.is_controller:
            index = await metadata.read()
        else:
            controller = metadata.controller_id
            if not controller:
                raise NotLeader(None, term=metadata.term)
            answer = await self._peers.control(
                controller, CONFIRM, b"", timeout_s=CONFIRM_SECONDS_MAX
            )
            index = msgspec.msgpack.decode(answer, type=int)
        await metadata.wait_applied(index)

    async def _wait_end_known(self, partition: Partition) -> None:
        """Raises: Indeterminate."""
        if partition.knows_end:
            return
        moved = asyncio.Event()
        partition.watchers.add(moved.set)
        try:
            async with asyncio.timeout(COMMIT_SECONDS_MAX):
                while not partition.knows_end:
                    await moved.wait()
                    moved.clear()
        except TimeoutError:
            raise Indeterminate(
                f"the new leader has not committed the end of its log in {COMMIT_SECONDS_MAX} s"
            ) from None
        finally:
            partition.watchers.discard(moved.set)
