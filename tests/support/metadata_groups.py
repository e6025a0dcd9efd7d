"""A real metadata group of one node, whose disk can be held."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection

from bascule.controller.cluster.metadata_group import GROUP, MetadataGroup
from bascule.host.real import RealRandom
from bascule.metadata.image import Image
from bascule.metadata.requests import Create, RegisterProcess
from bascule.model import NodeRegistration, StreamConfig
from bascule.raft.config import RaftConfig
from bascule.raft.testing.memory_store import MemoryStore
from bascule.raft_driver.driver import DriverSettings, RaftDriver

CONFIG = RaftConfig(election_ticks=2, heartbeat_ticks=1, commit_count_to_take_snapshot=50)
NODE = NodeRegistration(1, "h:1", "h:2", "http://h:3", incarnation=7)


class HeldStore(MemoryStore):
    """A store whose syncs wait while it is held."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def flush(self) -> None:
        self.goes_on.wait()
        super().flush()


class NoPeers:
    """A group of one node asks nobody."""

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        raise AssertionError(kind)


class Deciding:
    """A metadata group on a store that can be held."""

    def __init__(self, driver: RaftDriver, store: HeldStore) -> None:
        self.driver = driver
        self.store = store
        self.group = MetadataGroup(
            driver, NoPeers(), RealRandom(), cluster_id="c", make_room=lambda: None
        )
        self.touched: list[set[bytes]] = []
        self.group.on_image = self._on_image

    def _on_image(self, image: Image, touched: Collection[bytes] | None) -> None:
        assert touched is not None
        self.touched.append(set(touched))

    async def create(self, name: str, **settings: int) -> int:
        config = StreamConfig(name, **settings)  # type: ignore[arg-type]
        return await self.group.submit(Create(name, config, name.encode().rjust(16), 0))

    async def until_proposed(self, index: int) -> None:
        """Return once the log has an entry of this index."""
        await until(lambda: self.driver.group(GROUP).node.log.last >= index)


def decide(scene: Callable[[Deciding], Awaitable[None]]) -> None:
    """Run a scene with a group in which this node has registered."""

    async def run() -> None:
        driver = RaftDriver(
            1, DriverSettings(cluster="t", tick_ms=20), config=CONFIG, random=RealRandom(1)
        )
        await driver.start()
        deciding = Deciding(driver, HeldStore())
        try:
            await deciding.group.open(voters=[1], store=deciding.store)
            await deciding.group.submit(RegisterProcess(NODE))
            await scene(deciding)
        finally:
            deciding.store.goes_on.set()
            await driver.stop()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds; it is looked at in each turn of the loop."""
    while not condition():
        await turn()


async def some_turns() -> None:
    """Let everything run that waits for nothing."""
    for _ in range(50):
        await turn()


async def turn() -> None:
    """Return in the next turn of the loop."""
    loop = asyncio.get_running_loop()
    come: asyncio.Future[None] = loop.create_future()
    loop.call_soon(come.set_result, None)
    await come
