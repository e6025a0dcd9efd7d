"""A leader whose followers fetch from it by hand, one session at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from bascule.host.real import RealRandom
from bascule.model import PartitionState, StreamConfig, StreamDefinition
from bascule.peer.listener import PeerSession
from bascule.peer.replica_fetch import ReplicaFetchHandler, WantedIsr
from bascule.publish.headers import HashKey
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from bascule.wire.connection import ServerConnection
from bascule.wire.messages.peer.replica_fetch import (
    ReplicaFetchPartition,
    ReplicaFetchPartitionResponse,
    ReplicaFetchRequest,
)
from support.replica_group import LAG_NS, message
from support.stored_batches import DIRECTORY

STREAM = b"i" * 16


def peer(node: int, node_epoch: int = 1) -> PeerSession:
    session = PeerSession(ServerConnection(served={}, requests={}, frame_bytes_max=1_000))
    session.node_id, session.node_epoch = node, node_epoch
    return session


async def turn() -> None:
    """Let everything run that is ready."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_soon(done.set_result, None)
    await done


class Leader:
    """Node 1, which leads one partition, and its handler."""

    def __init__(self, epoch: int) -> None:
        clock = self.clock = SimClock(1_000)
        self.catch_up_rate = 0
        self.partitions = Partitions()
        self.partitions.bind(asyncio.get_running_loop())
        config = StreamConfig(subject="s", replicas=3)
        sizes = LogConfig(segment_bytes_max=400)
        log = PartitionLog.open(SimFiles(RealRandom(1)), DIRECTORY, sizes, clock)
        self.partition = Partition(
            StreamDefinition("s", STREAM, 0, config), 0, log=log, failure=None, clock=clock,
            on_changed=self.partitions.notify_watchers, on_appended=self.partitions.notify_replicas,
            hash_key=HashKey(bytes(16)),
        )  # fmt: skip
        self.log = log
        self.partitions.add((self.partition,))
        self.acks = b""
        self.handler = ReplicaFetchHandler(
            self.partitions,
            clock=clock,
            send_acks=lambda acks: setattr(self, "acks", acks),
            catch_up_rate=lambda: self.catch_up_rate,
        )
        self.state = PartitionState((1, 2, 3), (1, 2), 1, epoch, 1)
        self.lead(epoch)

    def add_partition(self) -> Partition:
        """Another partition of the stream, which this node leads as well."""
        first = self.partition
        sizes = LogConfig(segment_bytes_max=400)
        log = PartitionLog.open(SimFiles(RealRandom(2)), DIRECTORY, sizes, self.clock)
        added = Partition(
            first.definition, 1, log=log, failure=None, clock=self.clock,
            on_changed=self.partitions.notify_watchers, on_appended=self.partitions.notify_replicas,
            hash_key=HashKey(bytes(16)),
        )  # fmt: skip
        self.partitions.add((first, added))
        added.set_role(self.state, 1, lag_ns_max=LAG_NS)
        return added

    def lead(self, epoch: int = 5, leader: int = 1) -> None:
        self.state = replace(
            self.state, leader=leader, leader_epoch=epoch, version=self.state.version + 1
        )
        self.partition.set_role(self.state, 1, lag_ns_max=LAG_NS)

    def append(self, inbox: bytes = b"", count: int = 1) -> None:
        self.partition.append(message(inbox, count))
        self.partition.sync()

    async def fetch(
        self, session: PeerSession, *reports: ReplicaFetchPartition, wait_ms: int = 0, **more: int
    ) -> list[ReplicaFetchPartitionResponse]:
        request = ReplicaFetchRequest(wait_ms, more.get("max_bytes", 1 << 20), reports)
        return list((await self.handler.handle(request, session)).partitions)


def wanted_isrs(handler: ReplicaFetchHandler) -> list[WantedIsr]:
    """The changes to propose now."""
    return [each for each in handler.wanted_isrs() if each is not None]


def report(
    attempt: int = 1, end: int = 0, *, last_epoch: int = -1, epoch: int = 5, **changes: int
) -> ReplicaFetchPartition:
    return ReplicaFetchPartition(
        STREAM, changes.get("partition", 0), attempt, epoch, last_epoch,
        fetch_offset=changes.get("fetch_offset", end),
        log_end=end,
        synced_end=changes.get("synced_end", end),
    )  # fmt: skip


def run(scene: Callable[[Leader], Awaitable[None]], *, epoch: int = 5) -> None:
    """The leader begins with this leader epoch."""

    async def main() -> None:
        leader = Leader(epoch)
        try:
            await scene(leader)
        finally:
            leader.handler.close()

    asyncio.run(asyncio.wait_for(main(), 60))
