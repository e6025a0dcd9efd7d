"""A node alone on a simulated disk, without NATS and listeners: its controller, logs and threads.

Its metadata group is real and has one voter. The group's store is in memory beside the simulated
disk, and outlives the node.
"""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakKeyDictionary

from bascule.cluster_identity import ClusterIdentity
from bascule.config import ClusterConfig
from bascule.controller.cluster.controller import ClusterController
from bascule.controller.cluster.image_files.earlier_image import EarlierImage, take_over
from bascule.controller.cluster.metadata_group import MetadataGroup
from bascule.controller.directories import StreamDirectories
from bascule.controller.held_partitions import HeldPartitions
from bascule.controller.reconciler import Reconciler
from bascule.errors import Broken, UnknownStream
from bascule.host.real import RealRandom
from bascule.metadata.image import Image
from bascule.model import NodeRegistration, StreamInfo
from bascule.publish.headers import HashKey
from bascule.raft.testing.memory_store import MemoryStore
from bascule.raft_driver.driver import DriverSettings, RaftDriver
from bascule.replica.disk_reserve import DiskReserve
from bascule.replica.follower import Replicator
from bascule.replica.follower.fetcher import PeerIdentity
from bascule.replica.internal_publisher import InternalPublisher, InternalRecord
from bascule.replica.log_identity import read_identity
from bascule.replica.log_writer import LogWriter
from bascule.replica.opening import PartitionOpener
from bascule.replica.partitions import Partitions
from bascule.replica.syncing.log_syncer import LogSyncer
from bascule.sim.disk import SimClock, SimFiles

DATA: Final = "/data"
NODE: Final = 1
RESERVE_BYTES: Final = 64 << 10

STORES: Final[WeakKeyDictionary[SimFiles, MemoryStore]] = WeakKeyDictionary()
"""Of the metadata group, by the disk of the node."""


class NoPeers:
    """A node alone asks nobody."""

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        raise Broken(f"there is no node {node}")


class ControlledNode:
    """Made and used on one event loop; NATS is not connected yet."""

    def __init__(self, files: SimFiles, *, balance_replicas: bool = False) -> None:
        self.files = files
        self.boots = files.boots
        self.clock = SimClock(1_000)
        self.partitions = Partitions()
        self.syncer = LogSyncer(clock=self.clock)
        self.reserve = DiskReserve(files, DATA, RealRandom(3), size_bytes=RESERVE_BYTES)
        self.writer = LogWriter(self.syncer, self.reserve)
        directories = StreamDirectories(files, DATA)
        self.replicator = Replicator(
            PeerIdentity(NODE, ClusterIdentity("test"), lambda: self.controller.node_epoch),
            writer=self.writer,
            syncer=self.syncer,
            send_acks=lambda _: None,
            on_leading=lambda _: None,
            clock=self.clock,
            lag_ms_max=1_000,
        )
        self.reconciler = Reconciler(
            self.partitions,
            opener=PartitionOpener(files, self.clock, HashKey(bytes(16)), self.partitions),
            directories=directories,
            held=HeldPartitions(files, DATA),
            writer=self.writer,
            syncer=self.syncer,
            node_id=NODE,
            set_role=self.replicator.set_role,
        )
        dice = RealRandom()
        self.driver = RaftDriver(NODE, DriverSettings(cluster="test"))
        self.metadata = MetadataGroup(
            self.driver, NoPeers(), dice, cluster_id="c", make_room=lambda: None
        )
        self.controller = ClusterController(
            NODE,
            "test",
            self.partitions,
            self.reconciler,
            self.metadata,
            NoPeers(),
            directories=directories,
            reserve=self.reserve,
            clock=self.clock,
            random=dice,
            process_loss=lambda *_: "",
            on_nodes=lambda _: None,
            settings=ClusterConfig(leader_balance_ms=0, balance_replicas=balance_replicas),
        )
        self._incarnation = int.from_bytes(dice.bytes(7), "big")

    async def __aenter__(self) -> ControlledNode:
        self.partitions.bind(asyncio.get_running_loop())
        self.syncer.start(lambda _: None)
        self.writer.start(lambda _: None)
        self.reserve.hold()
        await self.driver.start()
        store = STORES.setdefault(self.files, MemoryStore(RealRandom(5)))
        await self.metadata.open(voters=[NODE], store=store)
        await take_over(self.metadata, EarlierImage(self.files, DATA), node_id=NODE)
        await self.controller.open(
            NodeRegistration(NODE, incarnation=self._incarnation, peer="", client="", http="")
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.controller.close()
        self.replicator.close()
        await asyncio.to_thread(self.writer.stop)
        await asyncio.to_thread(self.syncer.stop)
        await self.driver.stop()
        if self.files.boots == self.boots:
            self.reconciler.close()

    async def publish(self, stream: str, values: list[bytes]) -> None:
        publisher = InternalPublisher(self.partitions, self.writer.append)
        await publisher.publish(stream, 0, [InternalRecord("s.x", None, value) for value in values])

    async def settle(self) -> None:
        """Reconcile as the controller does after its pause, until nothing is left to do."""
        await self.controller.follower.reconcile()
        while self.controller.follower._requests:
            await asyncio.gather(*self.controller.follower._requests)
            await self.controller.follower.reconcile()

    def info(self, stream: str) -> StreamInfo:
        """Raises: UnknownStream."""
        return self.controller.views.stream_info(stream)

    def end(self, stream: str) -> int | None:
        """The end offset of the stream's first partition; None without such a stream."""
        try:
            return self.info(stream).partitions[0].end_offset
        except UnknownStream:
            return None

    def check_agreement(self) -> Image:
        """Check that memory, image and directories agree."""
        image = self.controller.image
        assert self.controller.pending_steps() == ()
        streams = self.partitions.streams()
        assert {name: ps[0].definition for name, ps in streams.items()} == dict(image.streams)
        assert set(self.files.list_dir(f"{DATA}/streams")) == set(image.streams)
        for name, definition in image.streams.items():
            partitions = streams[name]
            assert len(partitions) == definition.partition_count
            for partition in partitions:
                assert partition.failure is None
                assert partition.is_leader
                assert partition.definition == definition
                found = read_identity(self.files, f"{DATA}/streams/{name}/{partition.index}")
                assert found is not None
                assert found.place == (definition.id, partition.index)
        assert self.files.list_dir(f"{DATA}/removed") == []
        return image
