"""What a node says of itself."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bascule.config import Config
from bascule.host.real import RealClock, RealFiles, RealRandom
from bascule.model import PartHealth
from bascule.node import status as status_module
from bascule.node.status import DiskRoom, NodeStatus
from bascule.replica.partitions import Partitions
from bascule.sim.disk import SimFiles


@pytest.mark.parametrize("is_suspended", [False, True])
def test_a_node_that_no_controller_reaches_is_not_ready(tmp_path: Path, is_suspended: bool) -> None:
    """In `/v1/node` and `bascule_ready`, as in `/readyz`: it leads nothing."""
    status: Any = NodeStatus(
        Config(), data=str(tmp_path), files=RealFiles(), clock=RealClock(), partitions=Partitions()
    )
    status.ready = True
    status.ingest = SimpleNamespace(connected=True, server="nats://127.0.0.1:4222")
    views = SimpleNamespace(nodes=list)
    status.controller = SimpleNamespace(is_suspended=is_suspended, views=views)
    assert status.node_info().ready is not is_suspended


class HangingDisk(SimFiles):
    """It says how much is free once it is asked to go on."""

    def __init__(self) -> None:
        super().__init__(RealRandom(1))
        self.free_bytes = 10
        self.asked = 0
        self.is_asked = threading.Event()
        self.answers = threading.Event()

    def room(self, path: str) -> tuple[int, int]:
        self.asked += 1
        self.is_asked.set()
        self.answers.wait(60)
        return self.free_bytes, 100


def test_a_disk_that_hangs_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the event loop nor the threads of others: only one thread asks."""
    monkeypatch.setattr(status_module, "MEASURE_SECONDS_MAX", 0.01)
    disk = HangingDisk()

    def disk_part() -> PartHealth:
        return next(part for part in status.readiness() if part.part == "disk")

    async def scene() -> None:
        disk.answers.set()
        await measured()
        assert disk_part().state == "ok"
        assert disk_part().reason == "10 of 100 bytes are free"
        disk.answers.clear()
        disk.is_asked.clear()
        disk.free_bytes = 90
        await asyncio.gather(*(status.measure() for _ in range(20)))
        assert await asyncio.to_thread(disk.is_asked.wait, 60)
        assert disk.asked == 2
        assert disk_part().state == "degraded"
        assert "does not answer; at last 10 of 100" in disk_part().reason
        assert status.statistics()["disk"]["free_bytes"] == 10
        disk.answers.set()
        await measured()
        assert disk_part().reason == "90 of 100 bytes are free"

    async def measured() -> None:
        """Measure on a slow machine, which may take longer than a request waits."""
        await status.measure()
        while status._room.is_hanging:
            await status.measure()

    status = NodeStatus(Config(), data="/", files=disk, clock=RealClock(), partitions=Partitions())
    asyncio.run(scene())


def test_an_error_of_the_disk_is_one_of_the_request() -> None:
    class Broken(SimFiles):
        def room(self, path: str) -> tuple[int, int]:
            raise OSError(5, "input/output error")

    room = DiskRoom(Broken(RealRandom(1)), "/")

    async def scene() -> None:
        for _ in range(2):
            with pytest.raises(OSError, match="input/output"):
                await room.measure()
        assert not room.is_hanging

    asyncio.run(scene())
