"""Controller, logs and their threads on a simulated disk, without NATS and listeners."""

from __future__ import annotations

import asyncio
from typing import Final

from bascule.controller.controller import Controller
from bascule.controller.directories import StreamDirectories
from bascule.controller.held_partitions import HeldPartitions
from bascule.controller.image_store import ImageStore
from bascule.controller.reconciler import Reconciler
from bascule.errors import UnknownStream
from bascule.host.real import RealRandom
from bascule.metadata.image import Image
from bascule.publish.headers import HashKey
from bascule.replica.disk_reserve import DiskReserve
from bascule.replica.internal_publisher import InternalPublisher, InternalRecord
from bascule.replica.log_identity import read_identity
from bascule.replica.log_syncer import LogSyncer
from bascule.replica.log_writer import LogWriter
from bascule.replica.opening import PartitionOpener
from bascule.replica.partitions import Partitions
from bascule.sim.disk import SimClock, SimFiles

DATA: Final = "/data"

RESERVE_BYTES: Final = 64 << 10


class ControlledNode:
    """Controller, logs and their threads on a simulated disk; NATS is not connected yet."""

    def __init__(self, files: SimFiles) -> None:
        self.files = files
        self.boots = files.boots
        self.clock = SimClock(1_000)
        self.partitions = Partitions()
        self.syncer = LogSyncer(clock=self.clock)
        self.reserve = DiskReserve(files, DATA, RealRandom(3), size_bytes=RESERVE_BYTES)
        self.writer = LogWriter(self.syncer, self.reserve)
        directories = StreamDirectories(files, DATA)
        self.store = ImageStore(files, DATA)
        self.reconciler = Reconciler(
            self.partitions,
            opener=PartitionOpener(files, self.clock, HashKey(bytes(16)), self.partitions),
            directories=directories,
            held=HeldPartitions(files, DATA),
            writer=self.writer,
            syncer=self.syncer,
        )
        self.controller = Controller(
            self.partitions,
            self.reconciler,
            store=self.store,
            directories=directories,
            reserve=self.reserve,
            clock=self.clock,
            random=RealRandom(7),
        )

    async def __aenter__(self) -> ControlledNode:
        self.partitions.bind(asyncio.get_running_loop())
        self.syncer.start(lambda _: None)
        self.writer.start(lambda _: None)
        self.reserve.hold()
        await self.controller.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.writer.stop)
        await asyncio.to_thread(self.syncer.stop)
        if self.files.boots == self.boots:
            self.reconciler.close()

    async def publish(self, stream: str, values: list[bytes]) -> None:
        publisher = InternalPublisher(self.partitions, self.writer.append)
        await publisher.publish(stream, 0, [InternalRecord("s.x", None, value) for value in values])

    async def settle(self) -> None:
        """Reconcile as `Controller.run` does after its pause."""
        async with self.controller._deciding:
            await self.controller._reconcile()

    def end(self, stream: str) -> int | None:
        """The end offset of the stream's first partition; None without such a stream."""
        try:
            return self.controller.stream_info(stream).partitions[0].end_offset
        except UnknownStream:
            return None

    def check_agreement(self) -> Image:
        """Check that memory, image file and directories agree."""
        image = self.store.load()
        assert self.controller.pending_steps() == ()
        streams = self.partitions.streams()
        assert {name: ps[0].definition for name, ps in streams.items()} == dict(image.streams)
        assert set(self.files.list_dir(f"{DATA}/streams")) == set(image.streams)
        for name, definition in image.streams.items():
            partitions = streams[name]
            assert len(partitions) == definition.partition_count
            for partition in partitions:
                assert partition.failure is None
                assert partition.definition == definition
                found = read_identity(self.files, f"{DATA}/streams/{name}/{partition.index}")
                assert found == (definition.id, partition.index)
        assert self.files.list_dir(f"{DATA}/removed") == []
        return image
